"""A file of samples as they are measured, so that an interrupted run can continue.

Owns the format: JSON lines, the first of which says what was measured. Knows nothing about measuring.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
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
        self._variants = {_variant_key(variant): variant for variant in experiment.variants}
        self._trials: dict[Key, dict[Arm, Sample]] = {}
        head = {"pymtp bench": version_text(), "measured": _fingerprint(experiment, texts)}
        try:
            lines = read_text_record(path).splitlines() if os.path.exists(path) else []
            if lines:
                self._load(lines, head)
            else:
                self._append(head)
        except (OSError, UnicodeDecodeError) as error:
            raise PymtpError(f"cannot use {path}: {_reason(error)}; check the path after --resume") from error

    def samples(self, key: Key, arms: Sequence[Arm]) -> list[Sample]:
        """The samples of all `arms` in a trial; none if some are missing, as they belong together."""
        found = self._trials.get(key, {})
        return [found[arm] for arm in arms] if all(arm in found for arm in arms) else []

    def add(self, sample: Sample) -> None:
        """Write a sample to the file. Raises PymtpError if that fails."""
        own = {"variant": _variant_key(sample.variant), "test": asdict(sample.test), "arm": asdict(sample.arm)}
        try:
            self._append(vars(sample) | own | {"trial": list(sample.trial), "stats": sample.stats.as_record()})
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
                sample = self._sample(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue  # an interrupted write leaves half a line, which is measured again
            if sample:
                key = (sample.variant, sample.test, sample.trial, sample.is_prompt_only)
                self._trials.setdefault(key, {})[sample.arm] = sample
        if lines and not self._path.read_bytes().endswith(b"\n"):
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def _sample(self, fields: dict[str, Any]) -> Sample | None:
        variant = self._variants.get(fields.pop("variant"))
        if variant is None:  # measured with other flags
            return None
        test, arm, trial = Workload(**fields.pop("test")), Arm(**fields.pop("arm")), Trial(*fields.pop("trial"))
        return Sample(
            variant=variant, test=test, arm=arm, trial=trial, stats=Stats.from_record(fields.pop("stats")), **fields
        )


def _variant_key(variant: Variant) -> str:
    return json.dumps(asdict(variant), default=str, sort_keys=True)


def _fingerprint(experiment: Experiment, texts: Sequence[Text]) -> str:
    """All that the samples of a trial depend on, besides their variant, test and arm. Raises PymtpError."""
    paths = {path for variant in experiment.variants for path in (variant.path, variant.draft_model) if path}
    try:
        models = sorted(map(sha256, paths))
    except OSError as error:
        raise PymtpError(f"cannot read {error.filename}: {error.strerror}; check the path") from error
    parts = [experiment.seed, *models, *(asdict(text) for text in texts)]
    return hashlib.sha256(json.dumps(parts, default=dict, sort_keys=True).encode()).hexdigest()


def _reason(error: Exception) -> str:
    return str(error.strerror) if isinstance(error, OSError) else "it is not UTF-8"
