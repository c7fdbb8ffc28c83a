"""Fetches one file of a repository on the Hugging Face Hub: resumes it, checks it, and only then adds it to the cache.

Owns the transfer, and what a server may say: names, revisions and sizes are checked before they become paths, contents
by their digest. Must not know which file of a repository is wanted.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from .output import can_redraw

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

CHUNK_BYTES = 2**20
N_TRIES = 5
"""Transfers in a row that may bring nothing."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[^\x00-\x1f\\:]+")


class BadAnswer(Exception):
    """The server said or sent something that cannot be. The message says what, as the end of a sentence."""


class RemoteFile(NamedTuple):
    """A file as the server lists it; all of it was checked."""

    repo: str
    commit: str
    name: str
    size: int
    sha256: str


def remote_files(repo: str, info: ModelInfo) -> dict[str, RemoteFile]:
    """The files of a repository that have a digest (those of any size), by name. Raises BadAnswer.

    A file whose name could lead out of the repository's folder is left out.
    """
    if not _COMMIT.fullmatch(info.sha or ""):
        raise BadAnswer(f"names a revision {info.sha!r} that is none")
    listed = [(sibling.rfilename, _remote_file(repo, info.sha or "", sibling)) for sibling in info.siblings or []]
    return {name: file for name, file in listed if file is not None}


def is_safe_name(name: object) -> bool:
    """Whether a file name stays inside the folder that it is relative to."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name


def _remote_file(repo: str, commit: str, sibling: RepoSibling) -> RemoteFile | None:
    if not is_safe_name(sibling.rfilename) or sibling.lfs is None:
        return None
    size, digest = sibling.lfs.size, sibling.lfs.sha256
    if not isinstance(size, int) or size < 0 or not _SHA256.fullmatch(str(digest)):
        raise BadAnswer(f"lists {sibling.rfilename} with the size {size!r} and the digest {digest!r}")
    return RemoteFile(repo, commit, sibling.rfilename, size, digest)


def fetch(file: RemoteFile) -> Path:
    """Return the local copy of a file, fetched if it is not in the cache.

    Raises BadAnswer for a server that sends something else than it listed, OSError, and what the client raises.
    """
    from filelock import FileLock
    from huggingface_hub import constants, try_to_load_from_cache

    found = try_to_load_from_cache(file.repo, file.name, revision=file.commit)
    if isinstance(found, str):
        return Path(found)
    folder = Path(constants.HF_HUB_CACHE) / f"models--{file.repo.replace('/', '--')}"
    blob = folder / "blobs" / file.sha256
    # beside the cache, which others read: only whole files go into it
    partial = Path(constants.HF_HOME) / "pymtp-downloads" / file.sha256
    partial.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(partial.with_suffix(".lock")):
        if not blob.exists():
            _download(file, partial)
            blob.parent.mkdir(parents=True, exist_ok=True)
            _move(partial, blob)
        return _point(folder, file, blob)


def _download(file: RemoteFile, partial: Path) -> None:
    """Complete `partial`, from where it ends. Raises BadAnswer if the content is not what was listed."""
    from huggingface_hub import constants, hf_hub_download

    if file.size > constants.MAX_HTTP_DOWNLOAD_SIZE:  # too large for plain HTTP
        shutil.copyfile(hf_hub_download(file.repo, file.name, revision=file.commit), partial)
    partial.touch()
    n_idle = 0
    while (n_before := partial.stat().st_size) != file.size:
        if n_before > file.size:
            partial.unlink()
            n_before = 0
        problem: Exception = BadAnswer(f"sends {n_before} of the {file.size} bytes of {file.name} that it lists")
        try:
            _transfer(file, partial, n_before)
        except Exception as error:
            if not _is_interruption(error):
                raise
            problem = error
        n_idle = 0 if partial.stat().st_size > n_before else n_idle + 1
        if n_idle == N_TRIES:
            raise problem
    with partial.open("rb") as content:
        digest = _digest(content)
    if digest.hexdigest() != file.sha256:
        partial.unlink()
        raise BadAnswer(f"sends a file {file.name} that is not the one it lists (its sha256 differs); try again")


def _transfer(file: RemoteFile, partial: Path, start: int) -> None:
    """Append what comes after the first `start` bytes."""
    from huggingface_hub import constants, get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]  # documented

    url = hf_hub_url(file.repo, file.name, revision=file.commit)
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    # the client drops the token where it is sent to another host
    with get_session().stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
        if response.status_code >= 400:
            response.read()
        hf_raise_for_status(response)
        if url.startswith("https:") and response.url.scheme != "https":
            raise BadAnswer("redirects to a connection that is not encrypted")
        if start and not _continues(response, start):
            start = 0
        with partial.open("ab") as out, _progress(file, start) as bar:
            out.truncate(start)
            for data in response.iter_bytes(CHUNK_BYTES):
                if out.tell() + len(data) > file.size:
                    raise BadAnswer(f"sends more of {file.name} than the {file.size} bytes that it lists")
                out.write(data)
                bar.update(len(data))


def _continues(response: Any, start: int) -> bool:
    """Whether an answer begins where it was asked to; else it is the whole file."""
    if response.status_code != 206:
        return False
    if not re.match(rf"bytes {start}-", response.headers.get("Content-Range", "")):
        raise BadAnswer("continues a file at another place than it was asked to")
    return True


def _is_interruption(error: Exception) -> bool:
    """Whether the connection broke off or stalled, so that it can be tried again."""
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore") or isinstance(
        error, ConnectionError
    )


def _move(source: Path, target: Path) -> None:
    """Move a file so that nobody ever sees half of it."""
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        nearby = target.with_name(f"{target.name}.{os.getpid()}.incomplete")
        try:
            shutil.copyfile(source, nearby)
            os.replace(nearby, target)
        finally:
            nearby.unlink(missing_ok=True)
        source.unlink()


def _point(folder: Path, file: RemoteFile, blob: Path) -> Path:
    """Add the file to its revision, in the documented layout of the Hub's cache, and the revision to the branch."""
    pointer = folder / "snapshots" / file.commit / file.name
    pointer.parent.mkdir(parents=True, exist_ok=True)
    if not pointer.exists():
        pointer.unlink(missing_ok=True)  # a link to nowhere
        try:
            pointer.symlink_to(os.path.relpath(blob, pointer.parent))
        except OSError:  # no links here
            _move(blob, pointer)
    reference = folder / "refs" / "main"
    reference.parent.mkdir(parents=True, exist_ok=True)
    fresh = reference.with_name(f"main.{os.getpid()}")
    fresh.write_text(file.commit)
    os.replace(fresh, reference)
    return pointer


def _digest(content: Any) -> Any:
    digest = hashlib.sha256()
    while data := content.read(CHUNK_BYTES):
        digest.update(data)
    return digest


def _progress(file: RemoteFile, start: int) -> Any:
    """Shown on a terminal that can."""
    from tqdm import tqdm

    return tqdm(
        desc=PurePosixPath(file.name).name,
        initial=start,
        total=file.size,
        unit="B",
        unit_scale=True,
        disable=not can_redraw(sys.stderr),
        dynamic_ncols=True,
        leave=False,
    )
