"""A release: versions that agree, notes that are the changelog's, and what refuses one that is not complete."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from datetime import date
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml

import cut_release
import wheel_index
import write_recipes

ROOT = Path(__file__).resolve().parents[1]
DAY = date(2027, 1, 31)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What a release writes, with an owner."""
    for name in (*cut_release.VERSIONS, "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    cut_release.write(tmp_path, "pyproject.toml", cut_release.SOURCE, "https://github.com/us/pymtp")
    cut_release.write(tmp_path, cut_release.CHANGELOG, cut_release.DATE, "unreleased")
    return tmp_path


def refusal(
    tree: Path, tag: str = "v3.4.5", printed: str | None = "pymtp 3.4.5 (llama.cpp b1); computes on CPU"
) -> str:
    with pytest.raises(cut_release.BadRelease) as error:
        cut_release.check(tree, tag, printed)
    return str(error.value)


def test_the_tree_has_one_version() -> None:
    versions = {cut_release.read(ROOT, *place) for place in cut_release.VERSIONS.items()}
    assert len(versions) == 1


def test_a_release_that_was_prepared_passes(tree: Path) -> None:
    cut_release.prepare(tree, "3.4.5", DAY)
    cut_release.check(tree, "v3.4.5")
    cut_release.check(tree, "v3.4.5", "pymtp 3.4.5 (llama.cpp b1, series 0); computes on CPU\n")
    assert "## 3.4.5 (2027-01-31)\n" in (tree / cut_release.CHANGELOG).read_text("utf-8")


@pytest.mark.parametrize("name", cut_release.VERSIONS)
def test_another_version_in_any_file_is_refused(tree: Path, name: str) -> None:
    cut_release.prepare(tree, "3.4.5", DAY)
    cut_release.write(tree, name, cut_release.VERSIONS[name], "3.4.6")
    assert refusal(tree) == f"{name} has version 3.4.6, the tag is v3.4.5"


@pytest.mark.parametrize("name", cut_release.VERSIONS)
def test_a_file_without_a_version_is_refused(tree: Path, name: str) -> None:
    cut_release.prepare(tree, "3.4.5", DAY)
    (tree / name).write_text("", "utf-8")
    assert refusal(tree).startswith(f"{name}: nothing matches")


@pytest.mark.parametrize("printed", ["pymtp 3.4.4 (llama.cpp b1); computes on CPU", "pymtp", "", "3.4.5"])
def test_a_package_that_prints_another_version_is_refused(tree: Path, printed: str) -> None:
    cut_release.prepare(tree, "3.4.5", DAY)
    assert refusal(tree, printed=printed) == f'`pymtp --version` prints "{printed}", the tag is v3.4.5'


def test_tags_dates_and_owners_that_are_not_set_are_refused(tree: Path) -> None:
    cut_release.prepare(tree, "3.4.5", DAY)
    assert refusal(tree, tag="3.4.5", printed=None) == "3.4.5: a tag begins with v"
    cut_release.write(tree, cut_release.CHANGELOG, cut_release.DATE, "unreleased")
    cut_release.write(tree, "pyproject.toml", cut_release.SOURCE, "https://github.com/OWNER/pymtp")
    assert refusal(tree).splitlines() == [
        "docs/changelog.md has unreleased in the place of a date",
        "pyproject.toml: set OWNER in Source of [project.urls]",
    ]


def test_only_a_new_section_with_a_version_is_prepared(tree: Path) -> None:
    with pytest.raises(cut_release.BadRelease, match="three numbers"):
        cut_release.prepare(tree, "3.4", DAY)
    cut_release.prepare(tree, "3.4.5", DAY)
    with pytest.raises(cut_release.BadRelease, match='begin it with "## 3.4.6 \\(unreleased\\)"'):
        cut_release.prepare(tree, "3.4.6", DAY)


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_a_release_is_one_commit_with_its_tag_or_nothing(tree: Path) -> None:
    for name in ("Makefile", "release/cut_release.py"):
        (tree / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tree)]

    def commit() -> None:
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", "one"], check=True)

    def release() -> str:
        names = {f"GIT_{who}_{what}": "a" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        made = ["make", "-s", "-C", str(tree), "release", "VERSION=3.4.5", f"PYTHON={sys.executable}"]
        return subprocess.run(made, capture_output=True, text=True, env={**os.environ, **names}).stderr

    def head() -> str:
        return subprocess.check_output([*git, "log", "-1", "--format=%s,%D"], text=True).strip()

    subprocess.run([*git, "init", "-qb", "main"], check=True)
    commit()
    release()
    assert head() == "release : 3.4.5,HEAD -> main, tag: v3.4.5"
    cut_release.write(tree, cut_release.CHANGELOG, cut_release.DATE, "unreleased")
    assert "commit what is changed first" in release()
    commit()
    assert "the tag is there already" in release()
    assert head() == "one,HEAD -> main"


def test_notes_are_the_newest_section_with_links_that_lead_somewhere(tree: Path) -> None:
    cut_release.prepare(tree, "3.4.5", DAY)
    changelog = tree / cut_release.CHANGELOG
    changelog.write_text(changelog.read_text("utf-8") + "\n## 3.4.4 (2026-01-01)\n\nOld.\n", "utf-8")
    notes = cut_release.notes(tree)
    assert notes.startswith("### Added\n") and "Known problems" in notes and "Old." not in notes
    targets = re.findall(r"\]\((.*?)\)", notes)
    base = "https://github.com/us/pymtp/blob/v3.4.5/"
    assert len(targets) > 10 and all(each.startswith(base) for each in targets)
    assert all((ROOT / each.removeprefix(base).partition("#")[0]).is_file() for each in targets)


def test_links_of_a_page_elsewhere() -> None:
    page = "![p](docs/a.svg) [q](../x.md#y) [r](https://z/) [s](#t) [u\nv](docs/w.md)"
    assert cut_release.absolute_links(page, "a", "B", kept="a/docs/w") == (
        "![p](B/a/docs/a.svg?raw=true) [q](B/x.md#y) [r](https://z/) [s](#t) [u\nv](docs/w.md)"
    )


def test_no_other_file_says_where_the_repository_is() -> None:
    folders = [ROOT, *(ROOT / name for name in (".github", "docs", "release", "pymtp", "cli"))]
    files = {path for folder in folders for path in folder.glob("*" if folder == ROOT else "**/*") if path.is_file()}
    named = re.compile(rb"github\.com/(\w[\w-]*/pymtp)\b")
    found = {path.relative_to(ROOT).as_posix() for path in files if named.search(path.read_bytes())}
    assert found <= {"pyproject.toml"}


def test_pip_finds_the_wheel_of_a_device_in_the_index(tmp_path: Path) -> None:
    files, index = tmp_path / "files", tmp_path / "index"
    files.mkdir()
    releases = []
    for version in ("0.2.0", "0.2.0+cu128", "0.3.0"):
        name = f"pymtp_gguf-{version}-py3-none-any.whl"
        about = f"Metadata-Version: 2.1\nName: pymtp-gguf\nVersion: {version}\n"
        with zipfile.ZipFile(files / name, "w") as wheel:
            wheel.writestr(f"pymtp_gguf-{version}.dist-info/METADATA", about)
            wheel.writestr(f"pymtp_gguf-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        digest = hashlib.sha256((files / name).read_bytes()).hexdigest()
        asset = {"name": name, "browser_download_url": (files / name).as_uri(), "digest": f"sha256:{digest}"}
        other = {"name": "SHA256SUMS", "browser_download_url": "", "digest": ""}
        releases.append({"draft": version == "0.3.0", "assets": [asset, other]})
    wheel_index.write_index(releases, index)

    def download(device: str) -> list[str]:
        fetched = tmp_path / device
        pip = [sys.executable, "-m", "pip", "--isolated", "download", "--quiet", "--no-deps", "-d", str(fetched)]
        url = (index / device).as_uri()
        subprocess.run([*pip, "--index-url", url, "--no-cache-dir", "pymtp-gguf"], check=True)
        return [path.name for path in fetched.iterdir()]

    assert download("cu128") == ["pymtp_gguf-0.2.0+cu128-py3-none-any.whl"]
    assert download("cpu") == ["pymtp_gguf-0.2.0-py3-none-any.whl"]
    (files / "pymtp_gguf-0.2.0-py3-none-any.whl").write_bytes(b"another file")
    shutil.rmtree(tmp_path / "cpu")
    with pytest.raises(subprocess.CalledProcessError):
        download("cpu")


def test_the_index_has_the_label_that_a_workflow_gives(tree: Path) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text("utf-8"))
    gpu = workflow["jobs"]["gpu"]
    (give,) = (step["run"] for step in gpu["steps"] if step.get("run", "").startswith("sed"))
    pyproject = tree / "pyproject.toml"
    before = pyproject.read_text("utf-8")
    for label in (each["label"] for each in gpu["strategy"]["matrix"]["include"]):
        pyproject.write_text(before, "utf-8")
        subprocess.run(["sh", "-euc", give], cwd=tree, env={**os.environ, "LABEL": label}, check=True)
        version = cut_release.read(tree, "pyproject.toml", cut_release.VERSIONS["pyproject.toml"])
        found = wheel_index.WHEEL.fullmatch(f"pymtp_gguf-{version}-cp310-abi3-manylinux_2_35_x86_64.whl")
        assert found and found[1] == label


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """The recipes of a release whose source archive has one word in it."""
    version = cut_release.read(ROOT, "pyproject.toml", cut_release.VERSIONS["pyproject.toml"])
    sdist = tmp_path / f"pymtp_gguf-{version}.tar.gz"
    sdist.write_bytes(b"archive")
    write_recipes.write_recipes(sdist, tmp_path / "recipes")
    return tmp_path / "recipes"


def test_recipes_have_the_digests_and_what_pymtp_needs(recipes: Path) -> None:
    pin = cut_release.read(ROOT, "native/llama_cpp.pin", r"^sha256 *= *(\S+)$")
    digests = [hashlib.sha256(b"archive").hexdigest(), pin]
    assert {path.name for path in recipes.iterdir()} == {"pymtp.rb", "recipe.yaml", "PKGBUILD"}
    for path in recipes.iterdir():
        text = path.read_text("utf-8")
        assert re.findall(r"\b[0-9a-f]{64}\b", text) == digests and not re.search(r"@[A-Z]", text), path.name
        assert [url for url in re.findall(r"https?://\S+gz", text) if "/packages/source/" not in url] == []
    recipe = yaml.safe_load((recipes / "recipe.yaml").read_text("utf-8"))
    asked = {re.split(r"[ >]", each)[0] for each in recipe["requirements"]["run"]}
    needed = {re.split(r"[ ><;]", each)[0] for each in requires("pymtp-gguf") or [] if "extra ==" not in each}
    assert asked == {"python", *needed} and len(needed) > 10


def test_shell_and_ruby_can_read_the_recipes(recipes: Path) -> None:
    print_it = (
        'source PKGBUILD; echo "${#depends[@]} ${#source[@]} ${#sha256sums[@]} $pkgver"; declare -F build package'
    )
    said = subprocess.run(["bash", "-euc", print_it], cwd=recipes, capture_output=True, text=True, check=True).stdout
    version = cut_release.read(ROOT, "pyproject.toml", cut_release.VERSIONS["pyproject.toml"])
    assert said.split() == ["14", "2", "2", version, "build", "package"]
    if shutil.which("ruby"):
        subprocess.run(["ruby", "-c", "pymtp.rb"], cwd=recipes, check=True)


def test_recipes_of_another_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(cut_release.BadRelease, match="the source archive of this version is"):
        write_recipes.values(tmp_path / "pymtp_gguf-9.9.9.tar.gz")
