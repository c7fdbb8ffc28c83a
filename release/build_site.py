"""Writes build/public, the site of all versions: each release's pages as its tag has them, those of this tree as `dev`.

    python release/build_site.py            needs MkDocs (`make site`) and the repository's tags

A page's menu of versions reads versions.json; the address without a version leads to the newest.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cut_release import ROOT

PUBLIC = ROOT / "build" / "public"


def releases() -> list[str]:
    """Tags of releases that have a site, the newest first."""
    listed = subprocess.check_output(["git", "tag", "--list", "v*", "--sort=-version:refname"], cwd=ROOT, text=True)
    has_site = ["git", "cat-file", "-e"]
    return [tag for tag in listed.split() if not subprocess.call([*has_site, f"{tag}:mkdocs.yml"], cwd=ROOT)]


def build(tree: Path, version: str) -> None:
    """The pages of `tree`; a dead link ends it."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]  # --quiet would hide warnings from --strict
    command += ["--config-file", str(tree / "mkdocs.yml"), "--site-dir", str(PUBLIC / version)]
    subprocess.run(command, env={**os.environ, "SITE_VERSION": f"{version}/"}, check=True)


def build_tag(tag: str) -> None:
    """The pages that a tag has."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.check_output(["git", "archive", tag], cwd=ROOT)
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        build(Path(folder), tag.removeprefix("v"))


def main() -> None:
    tags = releases()
    build(ROOT, "dev")
    for tag in tags:
        build_tag(tag)
    names = [*(tag.removeprefix("v") for tag in tags), "dev"]
    versions = [{"version": name, "title": name, "aliases": ["latest"] if name == names[0] else []} for name in names]
    (PUBLIC / "versions.json").write_text(json.dumps(versions), "utf-8")
    shutil.copy(PUBLIC / names[0] / "404.html", PUBLIC)
    leads = f'<!doctype html><meta http-equiv="refresh" content="0; url={names[0]}/"><a href="{names[0]}/">pymtp</a>\n'
    (PUBLIC / "index.html").write_text(leads, "utf-8")


if __name__ == "__main__":
    main()
