"""What a build installs: one version of each package, with hashes, in all three files; and the bill of materials."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import write_sbom

ROOT = Path(__file__).parents[1]
if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def name_of(requirement: str) -> str:
    """The normalized name in a requirement, as in "huggingface_hub>=2"."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


@pytest.mark.parametrize("use", write_sbom.USES)
def test_every_package_has_a_version_and_hashes(use: str) -> None:
    text = (ROOT / "requirements" / f"{use}.txt").read_text("utf-8")
    found = write_sbom.packages(use)
    assert len(found) == len(re.findall(r"^[a-zA-Z0-9]", text, re.MULTILINE)) > 5
    assert all(each.n_hashes > 0 for each in found)
    assert "index-url" not in text and "://" not in text


def test_what_pyproject_asks_for_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    run, dev = ({each.name for each in write_sbom.packages(use)} for use in ("run", "dev"))
    assert {name_of(each) for each in project["dependencies"]} <= run <= dev
    asked = {name_of(each) for each in project["optional-dependencies"]["dev"]}
    assert asked - dev == {"llama-cpp-python"}  # peer.txt: it is built without its libraries
    [version] = [each for each in project["optional-dependencies"]["dev"] if each.startswith("llama-cpp-python")]
    assert (ROOT / "requirements" / "peer.txt").read_text("utf-8").startswith(version + " \\\n    --hash=sha256:")


def test_build_and_run_have_the_versions_of_the_tests() -> None:
    tested = set(write_sbom.packages("dev"))
    for use in ("build", "run"):
        here = {(each.name, each.marker): each for each in tested}
        for each in write_sbom.packages(use):
            assert here.get((each.name, each.marker), each).version == each.version


def test_the_bill_of_materials_is_that_of_the_pins() -> None:
    assert write_sbom.FILE.read_text("utf-8") == write_sbom.text(), "run `python docs/write_sbom.py`"
    bom = json.loads(write_sbom.text())
    names = {each["name"] for each in bom["components"]}
    assert {"llama.cpp", "marked", "numpy", "starlette", "cmake", "pytest"} <= names
    refs = [each["bom-ref"] for each in bom["components"]]
    assert len(refs) == len(set(refs))
    [marked] = [each for each in bom["components"] if each["name"] == "marked"]
    assert f"marked {marked['version']}, https" in (ROOT / "NOTICE").read_text("utf-8")
