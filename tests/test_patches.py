"""The patch series and what prepares llama.cpp's tree: needs no model, and no network where the sources are at hand."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import edit_patches
import prepare_llama_cpp
from llama_archive import pristine_source
from llama_cpp_source import Pin, PrepareError, fetch_archive, tree_digest, tree_files, unpack, unpack_other
from patch_series import FIELDS, Patch, apply, git, header_fields, patch_paths, series_hash
from write_abi_id import SUFFIXES, abi_id

ROOT = Path(__file__).resolve().parent.parent
PIN_FILE = ROOT / "native" / "llama_cpp.pin"
PATCHES = [Patch.read(path) for path in patch_paths(ROOT / "native" / "patches")]
EACH_PATCH = pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.path.name)

HOOK = """\
Purpose: Says something.
Upstream: no
Drop-when: never
Proved-by: tests/test_patches.py

diff --git a/src/llama.cpp b/src/llama.cpp
--- a/src/llama.cpp
+++ b/src/llama.cpp
@@ -1,3 +1,3 @@
 one
-two
+2
 three
"""


@pytest.fixture(scope="session")
def source() -> Path:
    path = pristine_source()
    if path is None:
        pytest.skip("llama.cpp's sources are not at hand (build/ holds no archive): run make")
    return path


@pytest.fixture(scope="session")
def pristine(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    unpack(source, Pin.read(PIN_FILE), folder)
    return folder


@pytest.fixture(scope="session")
def tree(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The series on the pristine sources."""
    folder = tmp_path_factory.mktemp("tree")
    prepare_llama_cpp.prepare(folder / "tree", pristine, folder)
    return folder / "tree"


# --- the series of this repository ---


def test_the_numbers_of_the_series_have_no_gap() -> None:
    names = [patch.path.name for patch in PATCHES]
    assert [name for name in names if not re.fullmatch(r"\d{4}-[a-z0-9-]+\.patch", name)] == []
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


@EACH_PATCH
def test_a_patch_opens_with_its_header(patch: Patch) -> None:
    assert tuple(header_fields(patch.header)) == FIELDS
    assert all(header_fields(patch.header).values())
    purpose = " ".join(header_fields(patch.header)["Purpose"])
    assert re.fullmatch(r"[A-Z][^.]*(\.\w[^.]*)*\.", purpose), f"not one sentence: {purpose}"


def has_test(file: str, name: str) -> bool:
    """Whether a file of this repository has that test: a function of a Python one, a case that a native one runs."""
    path = ROOT / file
    if not name or not path.is_file():
        return False
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return re.search(rf"(?m)^def {name}\(", text) is not None
    programs = (path.parent / "CMakeLists.txt").read_text("utf-8")
    parts = (rf"(?m)^static void {name}\(\)", rf"\bRUN\({name}\);")
    return f"pymtp_test({path.stem}" in programs and all(re.search(part, text) for part in parts)


@EACH_PATCH
def test_a_patch_names_tests_that_exist(patch: Patch) -> None:
    for proof in header_fields(patch.header)["Proved-by"]:
        file, _, name = proof.partition("::")
        assert has_test(file, name), f"{proof} does not exist"


def test_a_patch_of_the_cuda_backend_is_proved_on_it() -> None:
    touching = [patch for patch in PATCHES if any("/ggml-cuda/" in file for file in patch.files)]
    assert touching
    for patch in touching:
        assert all(proof.startswith("native/tests/test-cuda") for proof in header_fields(patch.header)["Proved-by"])


def test_no_patch_changes_the_interface_of_backends() -> None:
    """bench/programs/llama_cpp gives the patched CUDA library to unpatched programs, and refuses it otherwise."""
    interface = re.compile(r"ggml/(src/[^/]*\.h|include/ggml-.*)")
    assert [patch.path.name for patch in PATCHES if any(interface.match(file) for file in patch.files)] == []


def test_what_is_no_test_is_not_taken_for_one() -> None:
    assert has_test("native/tests/test-cuda.cpp", "the_first_of_the_highest_is_found")
    assert not has_test("native/tests/test-cuda.cpp", "")
    assert not has_test("native/tests/test-cuda.cpp", "random_product")  # a function, but no case
    assert not has_test("native/tests/default-contexts.cpp", "main")
    assert not has_test("tests/test_patches.py", "has_test_of_another_name")
    assert not has_test("tests/no_such_file.py", "test_x")


def test_the_series_applies_and_exports_as_it_is(pristine: Path, tmp_path: Path) -> None:
    patches = tmp_path / "patches"
    patches.mkdir()
    edit_patches.edit(tmp_path / "repository", pristine)
    exported = edit_patches.export(tmp_path / "repository", patches)
    assert [path.name for path in exported] == [patch.path.name for patch in PATCHES]
    for path, patch in zip(exported, PATCHES, strict=True):
        assert path.read_text("utf-8") == patch.path.read_text("utf-8"), (
            f"{path.name} is not what an export writes: run make patches-edit patches-export"
        )


def test_the_tree_that_was_built_is_the_series_on_the_pristine_sources(tree: Path) -> None:
    for stamp in ROOT.glob(f"build/*/llama.cpp/{prepare_llama_cpp.STAMP}"):
        series = series_hash(PIN_FILE, ROOT / "native" / "patches")
        if json.loads(stamp.read_text())["series"] == series:
            assert tree_digest(stamp.parent) == tree_digest(tree)


@pytest.mark.parametrize("fix", sorted((ROOT / "docs" / "upstream").glob("*.patch")), ids=lambda path: path.stem)
def test_a_fix_for_llama_cpp_applies_to_it_and_adds_what_the_series_adds(fix: Path, pristine: Path, tree: Path) -> None:
    result = git(["apply", "--check", str(fix)], pristine)
    assert not result.stderr
    added = {line[1:].strip() for line in fix.read_text().splitlines() if re.match(r"\+(?!\+\+ )", line)}
    files = [tree / file for file in Patch.read(fix).files]
    assert [f"docs/upstream/{fix.name}" in patch.header for patch in PATCHES].count(True) == 1
    assert added <= {line.strip() for file in files for line in file.read_text("utf-8").splitlines()}


def test_the_flags_of_the_series_are_above_all_of_llama_cpp(tree: Path) -> None:
    header = (tree / "ggml" / "include" / "ggml.h").read_text("utf-8")
    flags = dict(re.findall(r"(GGML_TENSOR_FLAG_\w+) *= *([^,\s][^,]*),", header))
    assert flags.pop("GGML_TENSOR_FLAG_SINGLE_ROWS") == "1 << 30"
    assert flags.pop("GGML_TENSOR_FLAG_INVARIANT") == "1 << 29"
    assert len(flags) >= 5
    assert {name: value for name, value in flags.items() if not value.isdecimal() or int(value) >= 1 << 29} == {}


# --- the archive and the pin ---


def test_an_archive_with_another_hash_is_refused(tmp_path: Path) -> None:
    pin = Pin.read(PIN_FILE)
    (tmp_path / pin.archive).write_bytes(b"something else")
    with pytest.raises(PrepareError, match=rf"is not {re.escape(pin.archive)}: its sha256 is .*, the pin says"):
        fetch_archive(pin, tmp_path)
    with pytest.raises(PrepareError, match="is not .*: its sha256 is"):
        unpack(tmp_path / pin.archive, pin, tmp_path / "tree")


def test_the_error_reaches_the_command_line_as_one_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.tar.gz"
    wrong.write_bytes(b"something else")
    command = [sys.executable, str(ROOT / "native" / "prepare_llama_cpp.py"), "tree", "--cache", str(tmp_path)]
    result = subprocess.run(
        [*command, "--tree", str(tmp_path / "tree"), "--source", str(wrong)], capture_output=True, text=True
    )
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "tree").exists()


def test_a_directory_without_llama_cpp_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrepareError, match="holds no llama.cpp sources"):
        unpack(tmp_path, Pin.read(PIN_FILE), tmp_path / "tree")


# --- the id of a build ---


@pytest.mark.parametrize("file", ["engine.cpp", "engine.h", "cuda-argmax.cu", "cuda/few-rows.cu", "cuda/few-rows.cuh"])
def test_an_edited_file_of_the_engine_changes_the_id(tmp_path: Path, file: str) -> None:
    shutil.copy(PIN_FILE, tmp_path)
    for folder in ("patches", "include", "src/cuda"):
        (tmp_path / folder).mkdir(parents=True)
    path = tmp_path / "src" / file
    path.write_text("one\n")
    (tmp_path / "src" / "notes.txt").write_text("one\n")
    before = abi_id(tmp_path)
    assert abi_id(tmp_path) == before and before.startswith(f"{Pin.read(PIN_FILE)} + ")
    path.write_text("two\n")
    assert abi_id(tmp_path) != before
    path.write_text("one\n")
    assert abi_id(tmp_path) == before
    (tmp_path / "src" / "notes.txt").write_text("two\n")
    assert abi_id(tmp_path) == before


def test_every_source_of_the_engine_is_in_the_id() -> None:
    sources = [path for path in (ROOT / "native" / "src").rglob("*") if path.is_file()]
    assert {path.suffix for path in sources} <= set(SUFFIXES)
    assert any(path.suffix == ".cu" for path in sources)


# --- preparing a tree, on a small llama.cpp of the test's own ---


class Workshop:
    """A pin, a series, an archive and a tree, as in this repository but small."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources, self.patches, self.tree = folder / "sources", folder / "patches", folder / "tree"
        self.pin_file = folder / "llama_cpp.pin"
        for name in ("CMakeLists.txt", "src/llama.cpp", "src/other.cpp", "ggml/ggml.c"):
            (self.sources / name).parent.mkdir(parents=True, exist_ok=True)
            (self.sources / name).write_text("one\ntwo\nthree\n")
        self.patches.mkdir()
        self.write_pin()
        self.write_patch("0001-hook.patch", HOOK)

    def write_pin(self, **changes: str) -> None:
        pin = Pin("llama_cpp_python-1.2.3.tar.gz", "vendor/llama.cpp", "b123", "0" * 64, tree_digest(self.sources))
        pin = replace(pin, **changes)
        self.pin_file.write_text("".join(f"{key} = {value}\n" for key, value in vars(pin).items()))

    def write_patch(self, name: str, text: str) -> None:
        (self.patches / name).write_text(text)

    def write_archive(self, version: str = "1.2.3") -> Path:
        name = f"llama_cpp_python-{version}"
        archive = self.folder / f"{name}.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(self.sources, f"{name}/vendor/llama.cpp")
            extra = tarfile.TarInfo(f"{name}/vendor/llama.cpp/models/vocab.gguf")
            tar.addfile(extra, io.BytesIO())
        return archive

    def prepare(self, source: Path | None = None) -> bool:
        source = source or self.sources
        return prepare_llama_cpp.prepare(self.tree, source, self.folder, self.pin_file, self.patches)

    def times(self) -> dict[str, int]:
        return {name: path.stat().st_mtime_ns for name, path in tree_files(self.tree).items()}

    def read(self, name: str) -> str:
        return (self.tree / name).read_text()


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    yield Workshop(tmp_path)


def test_the_tree_is_the_sources_with_the_series_applied(workshop: Workshop) -> None:
    assert workshop.prepare()
    assert workshop.read("src/llama.cpp") == "one\n2\nthree\n"
    assert workshop.read("src/other.cpp") == "one\ntwo\nthree\n"


def test_no_patch_at_all_gives_the_pristine_tree(workshop: Workshop) -> None:
    (workshop.patches / "0001-hook.patch").unlink()
    workshop.prepare()
    assert tree_digest(workshop.tree) == tree_digest(workshop.sources)


def test_the_archive_gives_the_same_tree_as_the_directory(workshop: Workshop) -> None:
    archive = workshop.write_archive()
    workshop.write_pin(sha256=hashlib.sha256(archive.read_bytes()).hexdigest())
    workshop.prepare(archive)
    from_archive = tree_digest(workshop.tree)
    workshop.write_patch("0001-hook.patch", HOOK + "\n")  # another series hash: starts over
    workshop.prepare(workshop.sources)
    assert tree_digest(workshop.tree) == from_archive
    assert not (workshop.tree / "models").exists()


def test_preparing_again_does_nothing_and_keeps_the_times(workshop: Workshop) -> None:
    workshop.prepare()
    before = workshop.times()
    assert not workshop.prepare(Path("/no/such/source"))
    assert workshop.times() == before


def test_a_changed_patch_starts_over_and_touches_only_its_file(workshop: Workshop) -> None:
    workshop.prepare()
    before = workshop.times()
    workshop.write_patch("0001-hook.patch", HOOK.replace("+2", "+zwei"))
    assert workshop.prepare()
    after = workshop.times()
    assert workshop.read("src/llama.cpp") == "one\nzwei\nthree\n"
    assert [name for name in after if after[name] != before[name]] == ["src/llama.cpp"]


def test_a_dropped_patch_takes_its_new_file_along(workshop: Workshop) -> None:
    added = "diff --git a/src/new.cpp b/src/new.cpp\nnew file mode 100644\n--- /dev/null\n+++ b/src/new.cpp\n"
    workshop.write_patch("0002-new.patch", added + "@@ -0,0 +1 @@\n+new\n")
    workshop.prepare()
    assert workshop.read("src/new.cpp") == "new\n"
    (workshop.patches / "0002-new.patch").unlink()
    workshop.prepare()
    assert not (workshop.tree / "src" / "new.cpp").exists()


def test_an_edited_tree_starts_over(workshop: Workshop) -> None:
    workshop.prepare()
    (workshop.tree / "src" / "other.cpp").write_text("edited by hand\n")
    assert workshop.prepare()
    assert workshop.read("src/other.cpp") == "one\ntwo\nthree\n"


def test_other_sources_than_the_pins_are_refused(workshop: Workshop) -> None:
    (workshop.sources / "src" / "other.cpp").write_text("a later version\n")
    with pytest.raises(PrepareError, match="does not hold llama.cpp b123: the digest"):
        workshop.prepare()


@pytest.mark.parametrize(
    "corrupted",
    [
        HOOK.replace(" one\n-two", " one\n-three"),  # other context than the file's
        HOOK.replace("src/llama.cpp", "src/missing.cpp"),
        HOOK.replace(" three\n", ""),  # cut short
    ],
    ids=["wrong-context", "missing-file", "cut-short"],
)
def test_a_patch_that_does_not_apply_is_named_with_its_file(workshop: Workshop, corrupted: str) -> None:
    workshop.prepare()
    before = workshop.times()
    workshop.write_patch("0001-hook.patch", corrupted)
    with pytest.raises(PrepareError, match=r"native/patches/0001-hook\.patch does not apply: .*src/\w+\.cpp") as raised:
        workshop.prepare()
    assert "\n" not in str(raised.value)
    assert workshop.times() == before, "a series that fails must leave the tree as it was"


def test_a_patch_that_does_not_apply_is_named_with_all_of_its_files(workshop: Workshop) -> None:
    diff = HOOK[HOOK.index("diff --git") :].replace("-two", "-three")
    workshop.write_patch("0001-hook.patch", HOOK.replace("-two", "-three") + diff.replace("llama.cpp", "other.cpp"))
    with pytest.raises(PrepareError, match=r"src/llama\.cpp:1;.*src/other\.cpp:1;[^\n]*does not apply; see") as raised:
        workshop.prepare()
    assert "\n" not in str(raised.value)


def test_the_series_applies_inside_another_git_work_tree(workshop: Workshop) -> None:
    subprocess.run(["git", "init", "--quiet", str(workshop.folder)], check=True)
    workshop.prepare()
    assert workshop.read("src/llama.cpp") == "one\n2\nthree\n"


def test_an_edited_series_is_exported_with_fresh_numbers(workshop: Workshop) -> None:
    repository = workshop.folder / "repository"
    edit_patches.edit(repository, workshop.sources, workshop.pin_file, workshop.patches)
    (repository / "src" / "other.cpp").write_text("one\ntwo\n2.5\nthree\n")
    message = "second hook\n\nPurpose: Adds.\nUpstream: no\nDrop-when: never\nProved-by: tests/test_patches.py\n"
    subprocess.run(["git", "commit", "--quiet", "-am", message], cwd=repository, check=True)
    edit_patches.export(repository, workshop.patches)
    assert [path.name for path in patch_paths(workshop.patches)] == ["0001-hook.patch", "0002-second-hook.patch"]
    workshop.prepare()
    assert workshop.read("src/other.cpp") == "one\ntwo\n2.5\nthree\n"


def rebase(workshop: Workshop, later: str) -> str | None:
    """Rebases the workshop's series to a later version, in which src/llama.cpp is that."""
    file = workshop.sources / "src" / "llama.cpp"
    file.write_text("one\ntwo\nthree\nfour\n")
    workshop.write_pin()
    pinned = workshop.folder / "pinned"
    shutil.copytree(workshop.sources, pinned)
    file.write_text(later)
    (workshop.sources / "src" / "other.cpp").unlink()
    archive = workshop.write_archive("1.3.0")
    return edit_patches.rebase(workshop.folder / "repository", pinned, archive, workshop.pin_file, workshop.patches)


def test_a_series_is_rebased_to_another_version_with_its_pin(workshop: Workshop) -> None:
    assert rebase(workshop, "zero\none\ntwo\nthree\n4\n") is None
    edit_patches.export(workshop.folder / "repository", workshop.patches)
    edit_patches.new_pin(workshop.folder / "repository").replace(workshop.pin_file)
    assert Pin.read(workshop.pin_file).version == "1.3.0"
    workshop.prepare(workshop.folder / "llama_cpp_python-1.3.0.tar.gz")
    assert workshop.read("src/llama.cpp") == "zero\none\n2\nthree\n4\n"
    assert not (workshop.tree / "src" / "other.cpp").exists()


def test_a_conflict_names_its_patch_and_is_resolved_in_the_repository(workshop: Workshop) -> None:
    repository = workshop.folder / "repository"
    message = rebase(workshop, "one\nzwei\nthree\nfour\n")
    assert message
    assert "patch 1 of 1 ('hook') conflicts with llama.cpp of llama-cpp-python 1.3.0 in\n    src/llama.cpp\n" in message
    with pytest.raises(PrepareError, match="a rebase is not finished"):
        edit_patches.export(repository, workshop.patches)
    assert Patch.read(workshop.patches / "0001-hook.patch").diff in HOOK

    (repository / "src" / "llama.cpp").write_text("one\n2, not zwei\nthree\nfour\n")
    subprocess.run(["git", "add", "--update"], cwd=repository, check=True)
    subprocess.run(["git", "-c", "core.editor=true", "rebase", "--continue"], cwd=repository, check=True)
    [patch] = edit_patches.export(repository, workshop.patches)
    assert "-zwei\n+2, not zwei\n" in patch.read_text("utf-8")


def test_a_series_is_rebased_to_an_archive_only(workshop: Workshop) -> None:
    with pytest.raises(PrepareError, match="is no source archive of a package: give <name>-<version>.tar.gz"):
        unpack_other(workshop.sources, Pin.read(workshop.pin_file), workshop.tree)


def test_git_am_merges_an_exported_patch_into_a_changed_file(workshop: Workshop) -> None:
    (workshop.sources / "src" / "llama.cpp").write_text("one\ntwo\nthree\nfour\n")
    workshop.write_pin()
    repository = workshop.folder / "repository"
    edit_patches.edit(repository, workshop.sources, workshop.pin_file, workshop.patches)
    [patch] = edit_patches.export(repository, workshop.patches)

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=repository, check=True, capture_output=True, text=True).stdout

    message = git("show", "--no-patch", "--format=%B")
    git("checkout", "--quiet", edit_patches.PRISTINE)
    (repository / "src" / "llama.cpp").write_text("one\ntwo\nthree\n4\n")  # the context of the patch is another
    git("commit", "--quiet", "--all", "--message", "a later version")
    git("am", "--quiet", "--3way", str(patch))
    assert (repository / "src" / "llama.cpp").read_text() == "one\n2\nthree\n4\n"
    assert git("show", "--no-patch", "--format=%B") == message


def test_an_export_refuses_work_that_is_in_no_commit(workshop: Workshop) -> None:
    repository = workshop.folder / "repository"
    edit_patches.edit(repository, workshop.sources, workshop.pin_file, workshop.patches)
    (repository / "src" / "other.cpp").write_text("not committed\n")
    with pytest.raises(PrepareError, match="in no commit"):
        edit_patches.export(repository, workshop.patches)
    assert [path.name for path in patch_paths(workshop.patches)] == ["0001-hook.patch"]


def test_a_patch_is_applied_whole_or_not_at_all(workshop: Workshop) -> None:
    second = "diff --git a/src/other.cpp b/src/other.cpp\n--- a/src/other.cpp\n+++ b/src/other.cpp\n"
    workshop.write_patch("0001-hook.patch", HOOK + second + "@@ -1,2 +1,2 @@\n one\n-wrong\n+2\n")
    with pytest.raises(PrepareError, match="src/other.cpp"):
        apply(workshop.patches / "0001-hook.patch", workshop.sources)
    assert (workshop.sources / "src" / "llama.cpp").read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize(("said", "shown"), [("  pymtp: install it", ["pymtp: install it"]), ("odd", ["odd", "Error"])])
def test_what_a_build_misses_is_shown_alone(said: str, shown: list[str], tmp_path: Path) -> None:
    build = [sys.executable, "-c", f"print({said!r}); print('Error'); raise SystemExit(3)"]
    command = [sys.executable, str(ROOT / "native" / "show_build.py"), str(tmp_path / "log"), *build]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.splitlines()[:-1]) == (3, shown)
