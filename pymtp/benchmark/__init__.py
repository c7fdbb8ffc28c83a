"""Measures how much faster drafting is: arms generate in turn on the same prompts and are compared with plain decoding.

from pathlib import Path

from pymtp.benchmark import Experiment, Results, Variant, Workload, make_arms, measure, rows

results = Results()
experiment = Experiment((Variant(Path("model.gguf")),), (Workload(n_gen=128),), make_arms([1, 2, 3]))
for sample in measure(experiment, results):  # can be stopped at any time: the results so far are valid
    print(sample.arm, sample.stats.generation_tok_s)
print(rows(results))
"""

from pymtp.benchmark.experiment import Arm, Experiment, Results, Sample, Subject, Variant, Workload, make_arms
from pymtp.benchmark.measure import measure
from pymtp.benchmark.prompts import BUILT_IN, Prompt, Text, read_texts
from pymtp.benchmark.rows import Row, rows

__all__ = [
    "BUILT_IN",
    "Arm",
    "Experiment",
    "Prompt",
    "Results",
    "Row",
    "Sample",
    "Variant",
    "Subject",
    "Workload",
    "Text",
    "make_arms",
    "measure",
    "read_texts",
    "rows",
]
