"""Writes an index of the wheels of all releases, which pip reads (PEP 503): static files, one folder for each device.

    gh api --paginate --slurp repos/OWNER/pymtp/releases | python release/wheel_index.py FOLDER
    pip install pymtp-gguf --extra-index-url https://.../FOLDER/cu128

A wheel's device is the local label of its version: pymtp_gguf-0.2.0+cu128-... is in FOLDER/cu128, one without a label
in FOLDER/cpu. The wheels stay where the release has them, so that their size is no matter.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NAME = "pymtp-gguf"
WHEEL = re.compile(r"pymtp_gguf-[\d.]+(?:\+(\w+))?-[\w.-]+\.whl")


def write_index(releases: Iterable[dict[str, Any]], folder: Path) -> None:
    """From releases as GitHub lists them, without drafts."""
    links: dict[str, list[str]] = defaultdict(list)
    for asset in (each for release in releases if not release["draft"] for each in release["assets"]):
        if found := WHEEL.fullmatch(asset["name"]):
            digest = asset["digest"].replace(":", "=")
            url = html.escape(f"{asset['browser_download_url']}#{digest}")
            links[found[1] or "cpu"].append(f'<a href="{url}" data-requires-python="&gt;=3.10">{asset["name"]}</a>')
    for device, lines in links.items():
        write_page(folder / device / NAME, lines)
        write_page(folder / device, [f'<a href="{NAME}/">{NAME}</a>'])


def write_page(folder: Path, links: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    body = "<br>\n".join(links)
    (folder / "index.html").write_text(f"<!doctype html>\n<title>{NAME}</title>\n{body}\n", "utf-8")


if __name__ == "__main__":
    write_index([release for page in json.load(sys.stdin) for release in page], Path(sys.argv[1]))
