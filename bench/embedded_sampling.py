"""Finds the sampling that the embedded model recommends for itself, and writes it into its GGUF.

    python bench/embedded_sampling.py                        # compares temperatures and repeat penalties
    python bench/embedded_sampling.py --write 0.2 1.05       # temperature and repeat penalty into the file

An answer counts as good if the model ends it itself, and its first Python code can be parsed. Drafts are picked
greedily, two a round.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
from itertools import product
from pathlib import Path

import gguf

from pymtp import GenerationParams, Model, SamplingParams, Stats
from pymtp.embedded import model_path

PROMPTS = (
    "Write a Python function that checks whether a number is prime.",
    "Write a Python function that reverses a string.",
    "Write a python function that returns the factorial of a number.",
    "Write a Python function that computes the nth Fibonacci number.",
    "Write a python function to find the maximum of a list.",
    "Write a python function that adds two numbers.",
    "Write a Python function that counts the vowels in a string.",
    "Write a Python class Stack with push and pop.",
)
TEMPERATURES, PENALTIES = (0.0, 0.2, 0.4, 0.8), (1.0, 1.05, 1.1, 1.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", nargs=2, type=float, metavar=("TEMPERATURE", "PENALTY"))
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.write:
        write(model_path(), *arguments.write)
    else:
        compare(arguments.seeds)


def compare(n_seeds: int) -> None:
    print("temperature  penalty  good answers  drafts accepted")
    with Model(n_threads=1, draft_max=2) as model:
        for temperature, penalty in product(TEMPERATURES, PENALTIES):
            n_good, stats = 0, Stats()
            for prompt, seed in product(PROMPTS, range(n_seeds)):
                params = GenerationParams(
                    SamplingParams(temperature=temperature, repeat_penalty=penalty, seed=seed),
                    max_tokens=200,
                    draft_pick="greedy",
                )
                generation = model.chat([{"role": "user", "content": prompt}], params)
                text = "".join(generation)
                n_good += generation.finish_reason == "eog" and is_python(text)
                stats += generation.stats
            share = n_good / (len(PROMPTS) * n_seeds)
            print(f"{temperature:11}{penalty:9}{share:14.2f}{stats.acceptance_rate or 0:17.3f}", flush=True)


def is_python(text: str) -> bool:
    """Whether the code in `text` can be parsed: that of the first fence, or all of it."""
    fenced = re.search(r"```(?:python)?\n(.*?)```", text, re.DOTALL)
    try:
        return bool(ast.parse(fenced[1] if fenced else text).body)
    except SyntaxError:
        return False


def write(path: Path, temperature: float, penalty: float) -> None:
    """Set general.sampling.temp and .penalty_repeat in the GGUF at `path`; everything else stays as it is."""
    recommended = {"general.sampling.temp": temperature, "general.sampling.penalty_repeat": penalty}
    reader, new = gguf.GGUFReader(path), path.with_suffix(".new")
    writer = gguf.GGUFWriter(new, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in (*recommended, "general.architecture"):
            kind, *below = field.types
            writer.add_key_value(name, field.contents(), kind, below[-1] if below else None)
    for name, value in recommended.items():
        writer.add_float32(name, value)
    for tensor in reader.tensors:
        writer.add_tensor_info(
            tensor.name, tensor.data.shape, tensor.data.dtype, tensor.data.nbytes, tensor.tensor_type
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        writer.write_tensor_data(tensor.data)
    writer.close()
    os.replace(new, path)


if __name__ == "__main__":
    main()
