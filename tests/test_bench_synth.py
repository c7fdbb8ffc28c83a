"""Models of real shape with random weights: small ones are run; for large ones the sizes are checked."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from machine import needs_exact_texts
from pymtp import Model, SamplingParams
from random_models.shapes import tensors
from random_models.writer import write_model
from synth_gguf import SIZES, write_quantized


@pytest.fixture(scope="module", params=SIZES)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shape, 16 times narrower."""
    path = tmp_path_factory.mktemp("synth") / f"{request.param}.gguf"
    return write_model(path, SIZES[request.param].scaled(16), "Q8_0")


@needs_exact_texts
def test_it_loads_and_drafts_and_stays_finite(small: Path) -> None:
    texts = []
    for draft in ("none", "mtp"):
        with Model(small, draft=draft, draft_max=3, n_threads=1, n_ctx=512) as model:  # type: ignore[arg-type]
            generation = model.generate(
                "Hello.", sampling=SamplingParams(temperature=0), max_tokens=24, ignore_eos=True
            )
            for _ in generation:
                pass
            texts.append(generation.tokens)
            logits = model.session.logits
            assert np.isfinite(logits).all() and 0.3 < logits.std() < 3
            assert generation.stats.drafted >= (60 if draft == "mtp" else 0)
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 12  # rows of the output matrix are not alike


def test_matrices_are_q8_0_with_values_that_preserve_the_norm(small: Path) -> None:
    reader = gguf.GGUFReader(small)
    by_name = {tensor.name: tensor for tensor in reader.tensors}
    for name in ("output.weight", "blk.3.attn_output.weight", "blk.5.nextn.eh_proj.weight"):
        tensor = by_name[name]
        assert tensor.tensor_type.name == "Q8_0"
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert values.std() == pytest.approx(tensor.shape[0] ** -0.5, rel=0.05)
        assert len(np.unique(values, axis=0)) == len(values)
    assert by_name["output_norm.weight"].tensor_type.name == "F32"


@pytest.mark.slow
def test_other_types_are_mixed_as_llama_cpp_mixes_them(tmp_path: Path) -> None:
    path = tmp_path / "mixed.gguf"
    write_quantized(path, SIZES["1b"].scaled(8), "Q4_K_M")
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert types["output.weight"] == "Q6_K"
    assert types["blk.0.attn_q.weight"] == "Q4_K"
    assert list(tmp_path.iterdir()) == [path]


def test_full_size_shapes_have_the_stated_number_of_parameters() -> None:
    sizes = {name: round(size.n_parameters / 1e9, 1) for name, size in SIZES.items()}
    assert sizes == {"dense": 10.7, "moe": 13.8, "1b": 1.0, "vocab": 1.0, "hybrid": 0.6, "small": 0.1}
    assert all(SIZES[name].n_vocab > 151_000 for name in ("dense", "moe"))
    heads = [name for name in tensors(SIZES["dense"]) if name.endswith("shared_head_head.weight")]
    assert len(heads) == SIZES["dense"].n_heads == 3
