"""Where llama.cpp's sources come from: the pin, the archive, and the files that a library build needs.

Knows archives, directories and digests; nothing of patches or of CMake.
"""

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

# What the library and llama.cpp's own programs are built from: not its models, tests and pages.
NEEDED_FILES = ("CMakeLists.txt", "LICENSE")
NEEDED_FOLDERS = ("cmake", "common", "examples", "ggml", "include", "pocs", "scripts", "src", "tools", "vendor")


class PrepareError(Exception):
    """One line that names what is wrong and what to do about it."""


@dataclass(frozen=True)
class Pin:
    """native/llama_cpp.pin."""

    archive: str
    folder: str
    build: str
    sha256: str
    tree: str

    @classmethod
    def read(cls, path: Path) -> "Pin":
        lines = [line for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#")]
        return cls(**{key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)})

    def text(self, old: str) -> str:
        """The text of a pin file with these values in the place of its own. Comments stay."""
        for key, value in vars(self).items():
            old = re.sub(rf"(?m)^({key}\s*=\s*).*$", rf"\g<1>{value}", old)
        return old

    @property
    def package(self) -> str:
        """The name of the package whose archive it is."""
        return self.archive.rpartition("-")[0].replace("_", "-")

    @property
    def version(self) -> str:
        """The version of that package."""
        return self.archive.rpartition("-")[2].removesuffix(".tar.gz")

    @property
    def prefix(self) -> str:
        """What the names of llama.cpp's files begin with in the archive."""
        return f"{self.archive.removesuffix('.tar.gz')}/{self.folder}/"

    def __str__(self) -> str:
        return f"llama.cpp {self.build}"


def is_needed(path: str) -> bool:
    """Whether a build needs this file (a path inside llama.cpp)."""
    return path in NEEDED_FILES or path.partition("/")[0] in NEEDED_FOLDERS


def tree_files(root: Path) -> dict[str, Path]:
    """The needed files below root, by their path inside llama.cpp, sorted."""
    found = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    return {name: found[name] for name in sorted(found) if is_needed(name)}


def digest_of(files: dict[str, Path]) -> str:
    """One sha256 over names and contents, in their order: independent of times and modes."""
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def tree_digest(root: Path) -> str:
    """The digest of the needed files below root."""
    return digest_of(tree_files(root))


def check_archive(archive: Path, pin: Pin) -> None:
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != pin.sha256:
        why = f"its sha256 is {found}, the pin says {pin.sha256}"
        raise PrepareError(f"{archive} is not {pin.archive}: {why}; delete it, or give the right archive")


def fetch_archive(pin: Pin, cache: Path) -> Path:
    """The pinned archive in the cache folder; downloads it with pip unless it is there already."""
    archive = cache / pin.archive
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _pip_download(pin, scratch)
            # renamed when complete: an interrupted download leaves nothing that looks like the archive
            (Path(scratch) / pin.archive).replace(archive)
    check_archive(archive, pin)
    return archive


def _pip_download(pin: Pin, folder: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", pin.package, "--dest", folder, f"{pin.package}=={pin.version}"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0 or not (Path(folder) / pin.archive).exists():
        lines = (result.stderr.strip() or result.stdout.strip() or "no archive").splitlines()
        reason = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        fix = "fetch it elsewhere and pass -DPYMTP_LLAMA_CPP_DIR=<archive or unpacked folder>"
        raise PrepareError(f"cannot download {pin.archive} with pip ({reason}); {fix}")


def unpack(source: Path, pin: Pin, target: Path) -> None:
    """Writes the needed files of an archive or a directory to target, and checks them against the pin."""
    if source.is_file():
        check_archive(source, pin)
    _write(_archive_files(source, pin) if source.is_file() else _folder_files(source, pin), target)
    found = tree_digest(target)
    if found != pin.tree:
        why = f"the digest of its sources is {found}, the pin says {pin.tree}"
        raise PrepareError(f"{source} does not hold {pin}: {why}; give an unchanged copy of {pin.archive}")


def unpack_other(archive: Path, pin: Pin, target: Path) -> Pin:
    """Writes the needed files of another archive to target. Returns the pin of that archive."""
    if not archive.is_file() or not re.fullmatch(r".+-[^-]+\.tar\.gz", archive.name):
        raise PrepareError(f"{archive} is no source archive of a package: give <name>-<version>.tar.gz")
    mark = "/src/llama.cpp"
    with tarfile.open(archive) as tar:
        found = [member.name for member in tar if member.isfile() and member.name.endswith(mark)]
    if not found:
        raise PrepareError(f"{archive} holds no llama.cpp")
    other = replace(pin, archive=archive.name, folder=found[0].partition("/")[2].removesuffix(mark))
    other = replace(other, build=f"of {other.package} {other.version}")
    _write(_archive_files(archive, other), target)
    return replace(other, sha256=hashlib.sha256(archive.read_bytes()).hexdigest(), tree=tree_digest(target))


def _write(files: Iterator[tuple[str, bytes]], target: Path) -> None:
    for name, content in files:
        path = target / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _archive_files(archive: Path, pin: Pin) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix(pin.prefix)
            if name != member.name and member.isfile() and is_needed(name):
                content = tar.extractfile(member)
                assert content is not None
                yield name, content.read()


def _folder_files(folder: Path, pin: Pin) -> Iterator[tuple[str, bytes]]:
    for root in (folder / pin.folder, folder):
        if (root / "src" / "llama.cpp").is_file():
            for name, path in tree_files(root).items():
                yield name, path.read_bytes()
            return
    raise PrepareError(f"{folder} holds no llama.cpp sources; give {pin.archive} or an unpacked copy of it")


def sync(source: Path, target: Path) -> None:
    """Makes target's needed files equal to source's. Files that do not change keep their times."""
    wanted = tree_files(source)
    for name, path in tree_files(target).items():
        if name not in wanted:
            path.unlink()
    _write(((name, path.read_bytes()) for name, path in wanted.items()), target)
