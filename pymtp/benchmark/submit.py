"""A small record of a run that anybody may publish: machine, model, speeds, acceptance. No users, no paths, no texts.

Owns which values it has. It is written to a file; nothing is sent.
"""

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pymtp.benchmark.report import in_all
from pymtp.benchmark.rows import Row
from pymtp.errors import PymtpError

MACHINE = ("pin", "cpu_info", "gpu_info", "backends", "n_threads")
"""Fields that are those of the first row."""
MEASURED = (
    *("model_filename", "model_type", "model_n_params", "model_sha256"),
    *("n_gpu_layers", "flash_attn", "type_k", "type_v", "n_parallel", "draft_vocab", "n_prompt", "n_gen", "n_depth"),
    *("draft_max", "temperature", "acceptance", "n_samples", "avg_ts", "speedup", "speedup_low", "speedup_high"),
    *("mean_acceptance_length", "acceptance_per_position"),
)
_DRIVER = Path("/sys/module/nvidia/version")
"""NVIDIA's driver, on Linux."""


def check_folder(path: Path) -> None:
    """Raise PymtpError if no record can be written to `path`. For use before measuring."""
    if not path.parent.is_dir():
        raise PymtpError(f"{path.parent} is not a folder; create it, or name another one after --submit")


def submit(path: Path, rows: Sequence[Row]) -> None:
    """Write the record of rows, at least one, whose acceptance is not forced. Raises PymtpError."""
    shown = in_all(rows)
    record = {
        "date": shown[0].test_time[:10],
        "system": f"{platform.system()} {platform.machine()}",
        "driver": _DRIVER.read_text("ascii").strip() if shown[0].gpu_info and _DRIVER.is_file() else "",
        **{name: getattr(shown[0], name) for name in MACHINE},
    }
    lines = [json.dumps({name: _short(getattr(row, name)) for name in MEASURED}) for row in shown]
    rows_text = ",\n  ".join(lines)
    text = f'{json.dumps(record, indent=1)[:-2]},\n "rows": [\n  {rows_text}\n ]\n}}\n'
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PymtpError(f"cannot write {path}: {error.strerror}; check the path after --submit") from error


def _short(value: Any) -> Any:
    """A value with the digits that mean something."""
    if isinstance(value, tuple):
        return [_short(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
