"""A file of samples as they are measured, so that an interrupted run can continue.

Owns the format: JSON lines, the first of which says what was measured. Knows nothing about measuring.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path

from pymtp.benchmark.experiment import Arm, Experiment, Sample, Trial, Variant, Workload
from pymtp.benchmark.prompts import Text
from pymtp.benchmark.provenance import sha256
from pymtp.errors import PymtpError, explained
from pymtp.serving.statistics import Stats
from pymtp.text.files import read_text_record
from pymtp.version import version_text

Key = tuple[Variant, Workload, Trial, bool]
"""A trial, in the session with MTP or in the one without (True)."""


class Journal:
    """The samples in the file at `path`, which is made if it does not exist; new ones are added as they come.

    Raises PymtpError if the file cannot be used, or is of other models, prompts or another pymtp.
    """

    def __init__(self, path: Path, experiment: Experiment, texts: Sequence[Text]) -> None:
        self._path = path
        self._measured: dict[str, tuple[str, Stats, str]] = {}
        head = json.dumps({"pymtp bench": version_text(), "measured": _fingerprint(experiment, texts)})
        with explained(f"use {path}", "check the path after --resume"):
            text = read_text_record(path) if os.path.exists(path) else ""
            if not text:
                path.write_text(head, "utf-8")
        first, *lines = text.splitlines() or [head]
        if first != head:
            raise PymtpError(f"{path} is no record of these models and prompts by this pymtp; name another file")
        for line in lines:
            with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                # half a line is left where a write was interrupted; it is measured again
                fields = json.loads(line)
                measured = str(fields["category"]), Stats.from_record(fields["stats"]), str(fields["acceptance"])
                self._measured[fields["sample"]] = measured

    def samples(self, key: Key, arms: Sequence[Arm]) -> list[Sample]:
        """The samples of all `arms` in a trial; none if some are missing, as they belong together."""
        variant, test, trial, prompts_only = key
        found = []
        for arm in arms:
            if (one := self._measured.get(_name(*key, arm))) is None:
                return []
            category, stats, acceptance = one
            found.append(Sample(variant, test, arm, trial, category, prompts_only, stats, acceptance))
        return found

    def add(self, sample: Sample) -> None:
        """Write a sample to the file. Raises PymtpError if that fails."""
        name = _name(sample.variant, sample.test, sample.trial, sample.is_prompt_only, sample.arm)
        fields = {"sample": name, "category": sample.category, "acceptance": sample.acceptance}
        with explained(f"write {self._path}", "check the disk"), self._path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps({**fields, "stats": sample.stats.as_record()}))


def _name(*parts: object) -> str:
    """What a sample is of, as a text."""
    return json.dumps(parts, default=lambda part: vars(part) if is_dataclass(part) else str(part), sort_keys=True)


def _fingerprint(experiment: Experiment, texts: Sequence[Text]) -> str:
    """All that the samples of a trial depend on, besides their variant, test and arm. Raises PymtpError."""
    paths = {path for variant in experiment.variants for path in (variant.path, variant.draft_model) if path}
    with explained(f"read {' and '.join(map(str, sorted(paths)))}", "check the paths"):
        models = sorted(map(sha256, paths))
    parts = [experiment.seed, *models, *(asdict(text) for text in texts)]
    return hashlib.sha256(json.dumps(parts, default=dict, sort_keys=True).encode()).hexdigest()
