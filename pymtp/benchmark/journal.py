"""A file of samples as they are measured, so that an interrupted run can continue.

Owns the format: JSON lines, the first of which says what was measured. Knows nothing about measuring.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from pymtp.benchmark.experiment import Arm, Experiment, Sample, Trial, Variant, Workload
from pymtp.benchmark.prompts import Text
from pymtp.benchmark.provenance import sha256
from pymtp.errors import PymtpError
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
        head = {"pymtp bench": version_text(), "measured": _fingerprint(experiment, texts)}
        try:
            lines = read_text_record(path).splitlines() if os.path.exists(path) else []
            if lines:
                self._load(lines, head)
            else:
                self._append(head)
        except OSError as error:
            raise PymtpError(f"cannot use {path}: {error.strerror}; check the path after --resume") from error

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
        try:
            self._append({**fields, "stats": sample.stats.as_record()})
        except OSError as error:
            raise PymtpError(f"cannot write {self._path}: {error.strerror}; check the disk") from error

    def _append(self, fields: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")

    def _load(self, lines: Sequence[str], head: dict[str, str]) -> None:
        try:
            found = json.loads(lines[0])
            is_journal = isinstance(found, dict) and "pymtp bench" in found
        except (ValueError, RecursionError):
            is_journal = False
        if not is_journal:
            raise PymtpError(f"{self._path} was not written by --resume; name another file")
        if found != head:
            raise PymtpError(f"{self._path} is of other models, prompts or another pymtp; name another file")
        for line in lines[1:]:
            try:
                fields = json.loads(line)
                measured = str(fields["category"]), Stats.from_record(fields["stats"]), str(fields["acceptance"])
                self._measured[fields["sample"]] = measured
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue  # an interrupted write leaves half a line, which is measured again
        if lines and not self._path.read_bytes().endswith(b"\n"):
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")


def _name(*parts: object) -> str:
    """What a sample is of, as a text."""
    return json.dumps(parts, default=lambda part: vars(part) if is_dataclass(part) else str(part), sort_keys=True)


def _fingerprint(experiment: Experiment, texts: Sequence[Text]) -> str:
    """All that the samples of a trial depend on, besides their variant, test and arm. Raises PymtpError."""
    paths = {path for variant in experiment.variants for path in (variant.path, variant.draft_model) if path}
    try:
        models = sorted(map(sha256, paths))
    except OSError as error:
        raise PymtpError(f"cannot read {error.filename}: {error.strerror}; check the path") from error
    parts = [experiment.seed, *models, *(asdict(text) for text in texts)]
    return hashlib.sha256(json.dumps(parts, default=dict, sort_keys=True).encode()).hexdigest()
