"""Measures how much faster drafting is: arms generate in turn on the same prompts and are compared with plain decoding.

from pathlib import Path

from pymtp.benchmark import Experiment, Results, Variant, Workload, make_arms, measure, rows

results = Results()
experiment = Experiment((Variant(Path("model.gguf")),), (Workload(n_gen=128),), make_arms([1, 2, 3]))
for sample in measure(experiment, results):  # can be stopped at any time: the results so far are valid
    print(sample.arm, sample.stats.generation_tok_s)
print(rows(results))
"""

from pymtp.benchmark.experiment import Arm as Arm
from pymtp.benchmark.experiment import Experiment as Experiment
from pymtp.benchmark.experiment import Results as Results
from pymtp.benchmark.experiment import Sample as Sample
from pymtp.benchmark.experiment import Subject as Subject
from pymtp.benchmark.experiment import Variant as Variant
from pymtp.benchmark.experiment import Workload as Workload
from pymtp.benchmark.experiment import make_arms as make_arms
from pymtp.benchmark.measure import measure as measure
from pymtp.benchmark.prompts import BUILT_IN as BUILT_IN
from pymtp.benchmark.prompts import Prompt as Prompt
from pymtp.benchmark.prompts import Text as Text
from pymtp.benchmark.prompts import read_texts as read_texts
from pymtp.benchmark.rows import Row as Row
from pymtp.benchmark.rows import rows as rows
