"""docs/families.md: what the table in `families` says, and what the tests found. `python families_page.py` writes it.

The page ends in a comment that holds the tests' results, so that everything else on it can be made again, and checked,
without running the tests that need PyTorch. Knows the names of tests; computes nothing.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from importlib import metadata, util
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from families import FAMILIES, OWN_GRAPHS, REFUSED, Deviation, Upstream
from pymtp.binding.library import PIN

PAGE = Path(__file__).resolve().parent.parent / "docs" / "families.md"
FILES = ["test_families.py", "test_side_files.py", "test_reference.py"]
PACKAGES = ["torch", "transformers"]
RESULTS = "<!-- results: "

Results = dict[str, Any]
"""`environment`: what the tests ran on; `families`: checks passed and figures of each family; `refused`: passed."""

DEVIATIONS: dict[Deviation, str] = {
    "rotates": "the head rotates queries and keys under full attention, which no layer of the trunk does",
}

INTRODUCTION = """\
# Families of models

`make families` writes this page from the tests' results; `tests/families.py` holds the table.

Heads read a hidden state of the trunk and hand one on to the next step: after the norm that follows the last layer
(*normed*), or before it (*plain*). They keep keys and values in the cells of the trunk's cache (*shared*), or in a
cache of their own in the same context (*own*). The other columns are [explained below](#what-was-verified). An
assistant is a small model that drafts like a head. Its layers only have queries, attend to what the trunk's last two
layers have in the cache, and store nothing there.
"""

CHECKS = """
## What was verified

On tiny random models with the tensors and metadata of the converters, in F32: logits of trunk and heads against
llama.cpp's scheme of two contexts, over 48 rounds of scripted acceptance (within 1e-5 and 1e-4); greedy text with
drafts against plain greedy text; decoding after a rollback against a fresh decode; three sequences, in one cache and in
streams, against each alone; copies, saved states, limited vocabularies; heads in a file of their own against those in
the model. Models with M-RoPE (qwen35, qwen35moe, glm4, GLM-4.5V) pass all of it with positions of text. `checks` counts
the tests that passed.

`Vulkan`: whether a round is on the device as a whole, or all of it but the embeddings of the trunk's layers. On Mesa's
lavapipe all families pass `tests/test_vulkan.py`: logits of trunk and heads are those of the CPU within 1 % of the
largest (0.2 % where kernels sum in F32), after drafts that were taken back, with two sequences in a pass, and from a
saved state. As rounding changes what an index leaves out, and which of two nearly equal experts is taken, the index
picks everything there, and no experts are nearly equal.

`PyTorch`: the largest difference between the logits of three draft steps and those that PyTorch computes from the
checkpoint that llama.cpp's converter turned into the GGUF; logits have a standard deviation of about 1. `other state`:
the difference, in multiples of that deviation, if the heads were fed, or recycled, the other hidden state. The layers
are transformers' own; `after` names the published code that says how the head joins token and hidden state and which
state that is. Where it is transformers' MtpModel, that was run too; the others were read.
"""

NOTES = """
## What else is known

- *The row at position 0.* Published code has no row for the first token, which has no hidden state before it.
  llama.cpp, and so pymtp, gives the heads one with zeros, which does no
  harm: of nano-glm's drafts (Q8_0, K = 3, PyTorch) 0.4790 are accepted with it, 0.4786 without.
- *Recycled states.* For DeepSeek's heads and their relatives SGLang and transformers hand on the normed state, as here;
  vLLM hands on the plain one and normalises it for the logits alone.
- *MiMo-V2.* SGLang feeds the heads the state before the final norm, as here; vLLM feeds the normed one. In SGLang each
  of the three heads reads the trunk, with tokens one further on than those of the head before; here each reads the head
  before it (`--mtp-context chained`), or the trunk's states of the same positions (`target`). Not compared on trained
  weights.
- *Step-3.5.* vLLM and SGLang feed the plain states and chain them, as here; transformers' MtpModel takes normed ones.
- *EXAONE.* vLLM and SGLang give head i the kind of attention of layer i: a window, and rotation. NVIDIA's Megatron
  Bridge trains it with full attention unless the configuration says otherwise. Here it is as in vLLM and SGLang, unless
  the GGUF's `attention.sliding_window_pattern` continues after the trunk's layers.
- *ERNIE 4.5.* FastDeploy, by the model's makers, feeds the normed state and puts the trunk's last norm after the head,
  as here. Their training code feeds the plain one; vLLM and SGLang have no norm after the head. Not compared on trained
  weights.
- *Ling 2.0.* transformers has no class for its layers; they are compared with GLM-4.5's, which compute the same.
- *GLM-4.5V, 4.6V.* SGLang loads their head as GLM-4.5's. Whether the published checkpoints hold one is not known.
- *Draft positions* rise by one with each step. Gemma-4's assistant drafts all tokens at the position of the newest
  token, as in transformers and llama.cpp: it cannot see its own drafts.
- *GLM-5.2.* Later drafts of a round attend to what the head's index picks for the first
  (`index_share_for_mtp_iteration`), as in vLLM and SGLang. No GGUF says so: it is done where layers of the trunk share
  an index. Until a text is longer than what the index picks (2048 positions) drafts see all of it and each other, as in
  SGLang; in vLLM they do not see each other.
- *GLM-5.3-Flash.* The head reads the normed mean of the trunk's four streams. Its index scores pools of four positions;
  attention sees the best of them and the up to three positions that do not fill a pool yet. The head keeps the inputs
  of pools and computes their keys when its index picks, once a round. In SGLang later drafts see nothing else; here, in
  texts that are picked whole, they also see each other. llama.cpp's graph of the head keeps the keys of pools, which
  become wrong when cells are freed. The trunk agrees with transformers in longer texts too.
- *Qwen3.8-Flash-Next.* The head reads all four streams after one norm, and attends to the blocks of positions that its
  own index picks, for each draft. vLLM can hand on what is picked for the first draft. llama.cpp's graph of the head
  has a norm for each stream, and keeps the keys of blocks. Files of heads that have the mixer under the trunk's name
  (`output_hc_norm`) are refused. Not compared on trained weights.
- *DSpark* (DeepSeek-V4-Flash-DSpark, in a file of its own) is not supported: it is not a head but drafts a block of
  tokens at once, from the states of several layers of the trunk.
- *Trained heads* have one form for all architectures, in which the head reads and hands on the output matrix's input.
  Compared with NumPy (`tests/test_trained_heads.py`).
- *Images.* Heads see the rows of an image, except those with a cache of their own: see [images](images.md).
"""

GRAPHS = """\
## Heads that unpatched llama.cpp cannot run

Where it has no graph for a head, `native/src/heads` has one; where its graph does not take the published form of the
head, a patch changes that. [Heads as files](heads.md#heads-for-a-gguf-that-lost-them) says how to get the heads of a
published checkpoint.
"""


def main() -> None:
    """Run the tests and write the page."""
    if not util.find_spec("torch") or not util.find_spec("transformers"):
        sys.exit("families: needs PyTorch: .venv/bin/python -m pip install torch 'transformers>=5.23'")
    PAGE.write_text(render(run_tests()), encoding="utf-8")


def run_tests() -> Results:
    """Run the tests of families and their reference. Exits if one fails or is skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-o", "junit_family=xunit1", f"--junitxml={report}"]
        if subprocess.run([*command, *FILES], cwd=Path(__file__).parent).returncode:
            sys.exit("families: tests failed, the page stays as it was")
        cases = list(ElementTree.parse(report).iter("testcase"))
    if any(case.find("skipped") is not None for case in cases):
        sys.exit("families: tests were skipped, the page stays as it was")
    families: dict[str, Results] = {name: {"checks": 0} for name in FAMILIES}
    refused: list[str] = []
    for case in cases:
        test, _, parameters = case.attrib["name"].rstrip("]").partition("[")
        for name, found in families.items():
            if name == parameters or parameters.startswith(f"{name}-") or parameters.endswith(f"-{name}"):
                found["checks"] += 1
                found.update({item.attrib["name"]: float(item.attrib["value"]) for item in case.iter("property")})
        if test.startswith("test_heads_that_cannot_run"):
            refused.append(parameters)
    versions = [PIN, *(f"{name} {metadata.version(name)}" for name in PACKAGES)]
    return {
        "environment": ", ".join([f"{platform.machine()} CPU", *versions]),
        "families": families,
        "refused": refused,
    }


def read_results(page: str) -> Results:
    """The results that a page holds."""
    results: Results = json.loads(page.rpartition(RESULTS)[2].partition(" -->")[0])
    return results


def render(results: Results) -> str:
    """The page."""
    found = results["families"]
    drafting = [
        ["models", "family", "heads", "states", "memory", "checks", "Vulkan", "PyTorch", "other state", "after"]
    ]
    limits = []
    for name, family in FAMILIES.items():
        states = family.fed if family.fed == family.recycled else f"{family.fed}, then {family.recycled}"
        figures = [f"{found[name][key]:.1g}" if key in found[name] else "" for key in ("difference", "other state")]
        row = [family.models, name, str(family.n_heads), states, family.memory, str(found[name]["checks"])]
        drafting.append([*row, "in part" if family.embeds_layers else "whole", *figures, family.after])
        deviation = ""
        if family.deviation:
            off = f" (the logits of a tiny model were off by up to {found[name]['published']:.1f})"
            deviation = DEVIATIONS[family.deviation] + (off if family.after else "")
        if notes := "; ".join(filter(None, [deviation, family.limits])):
            limits.append(f"- *{name}*: {notes}.")
    upstream = [["models", "architecture", "llama.cpp's converter", "its loader", "published code", "here"]]
    upstream += [upstream_row(name, of, "drafts") for name, of in OWN_GRAPHS.items()]
    for name, refused in REFUSED.items():
        tested = " (refused; tested)" if name in results["refused"] else ""
        upstream.append(upstream_row(name, refused.upstream, f"decodes plainly{tested}; missing: {refused.missing}"))
    return "\n".join(
        [
            INTRODUCTION,
            "## Families that draft\n",
            *table(drafting),
            "",
            "Limits:\n",
            *limits,
            CHECKS,
            f"Ran on: {results['environment']}.",
            NOTES,
            GRAPHS,
            *table(upstream),
            "",
            f"{RESULTS}{json.dumps(results, separators=(',', ':'))} -->",
            "",
        ]
    )


def upstream_row(name: str, of: Upstream, here: str) -> list[str]:
    """Of the table of heads that the pinned llama.cpp cannot run as it is."""
    return [of.models, name.partition(",")[0], of.converter, of.loader, of.published, here]


def table(rows: list[list[str]]) -> list[str]:
    """Lines of Markdown; the first row is the header."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


if __name__ == "__main__":
    main()
