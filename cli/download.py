"""Models from the Hugging Face Hub: picks a file of a repository and downloads it.

Owns the choice of the file and the error messages; fetch.py owns the transfer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NoReturn

import typer

from .errors import CommandError
from .fetch import BadAnswer, RemoteFile, fetch, is_safe_name, remote_files
from .output import print_stderr

if TYPE_CHECKING:
    from huggingface_hub import CachedRevisionInfo

_DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
# companion files that are not models: projectors, importance matrices, heads and drafters in files of their own
_NOT_A_MODEL = re.compile(r"mmproj|imatrix|^(mtp|eagle3|dflash|dspark)-", re.IGNORECASE)
_HEADS = re.compile(r"mtp-.*\.gguf")
_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_SHOWN = 12


class _Unreachable(Exception):
    """The Hub did not answer. The message says why."""


def find_model(path: str | None, hf_repo: str | None, *, offline: bool) -> str | None:
    """The path of the model that the command line names, downloaded if need be; None: the embedded model."""
    if hf_repo is None:
        if offline:
            raise typer.BadParameter("--offline needs -hf USER/REPO")
        return path
    if path is not None:
        raise typer.BadParameter(f"give the model as a file or with -hf, not both ({path!r} and {hf_repo!r})")
    return str(download(hf_repo, offline=offline))


def download(name: str, *, offline: bool = False) -> Path:
    """Return the local copy of the model `user/repo[:quant]`, the first part if it is split; fetch what is missing.

    MTP heads in a file of their own are fetched as well; pymtp finds them next to the model.
    Without a network, or with `offline`, uses an earlier download. Raises CommandError.
    """
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # its warnings repeat what our errors say
    repo, _, quant = name.partition(":")
    if offline:
        return _cached(repo, quant, "without a network (--offline)")
    try:
        listed = _listed(repo)
        file = choose_file(listed, repo, quant)
        names = parts(file)
        if missing := [name for name in names if name not in listed]:
            raise CommandError(f"{repo} has no {missing[0]}, which is a part of its model; name another repository")
        path = [_fetched(listed[name]) for name in names][0]
        heads = choose_heads(listed, file)
        if heads and not _has_heads(path):
            _fetched(listed[heads])
        return path
    except _Unreachable as problem:
        path = _cached(repo, quant, str(problem))
        print_stderr(f"pymtp: {problem}; using {path.name} from an earlier download")
        return path


def choose_file(files: Iterable[str], repo: str, quant: str) -> str:
    """The GGUF with quantisation `quant`, or a usual one; of a split model the first part. Raises CommandError."""
    models = sorted(file for file in files if file.endswith(".gguf") and not _NOT_A_MODEL.search(Path(file).name))
    models = [file for file in models if (part := _PART.fullmatch(file)) is None or int(part["number"]) == 1]
    if not models:
        raise CommandError(
            f"{repo} has no GGUF models; name a repository that has them (their names often end in -GGUF)"
        )
    for wanted in [quant] if quant else _DEFAULT_QUANTS:
        pattern = re.compile(rf"(^|[-._/]){re.escape(wanted)}[-./]", re.IGNORECASE)
        if found := [file for file in models if pattern.search(file)]:
            return found[0]
    if not quant:
        return models[0]
    more = f" and {len(models) - _SHOWN} more" if len(models) > _SHOWN else ""
    raise CommandError(f"{repo} has no {quant}; it has {', '.join(models[:_SHOWN])}{more}")


def choose_heads(files: Iterable[str], model: str) -> str | None:
    """The file next to `model` that is named like its MTP heads, if there is one.

    Of several, always the same one, whatever the model's quantisation: so only one ever lies next to the model.
    """
    folder = PurePosixPath(model).parent
    heads = sorted(file for file in files if PurePosixPath(file).parent == folder and _HEADS.fullmatch(Path(file).name))
    return next((file for file in heads if "Q8_0" in file.upper()), heads[0] if heads else None)


def parts(file: str) -> list[str]:
    """All files of the model whose first part is `file`."""
    match = _PART.fullmatch(file)
    if match is None:
        return [file]
    count = int(match["count"])
    return [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def _listed(repo: str) -> dict[str, RemoteFile]:
    from huggingface_hub import HfApi
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented

    try:
        validate_repo_id(repo)
        return remote_files(repo, HfApi().model_info(repo, files_metadata=True, timeout=10))
    except Exception as error:
        _explain(error, repo)


def _fetched(file: RemoteFile) -> Path:
    try:
        return fetch(file)
    except Exception as error:
        _explain(error, file.repo)


def _has_heads(path: Path) -> bool:
    from pymtp.gguf.facts import file_facts

    return file_facts(path).n_heads > 0


def _explain(error: Exception, repo: str) -> NoReturn:
    """Raise CommandError or _Unreachable: one line about the problem with the Hub, the network or the disk."""
    from huggingface_hub import constants, errors

    host = constants.ENDPOINT
    if isinstance(error, BadAnswer):
        raise CommandError(f"{host} {error}") from error
    if isinstance(error, errors.HFValidationError):
        raise CommandError(f"{repo!r} is not the name of a repository; write -hf USER/REPO[:QUANT]") from error
    if isinstance(error, errors.GatedRepoError):
        raise CommandError(
            f"{repo} is gated: accept its terms at {host}/{repo}, and set HF_TOKEN to your access token"
        ) from error
    if isinstance(error, errors.RepositoryNotFoundError):
        raise CommandError(
            f"{host} has no repository {repo}; check the name, or set HF_TOKEN if it is private"
        ) from error
    if isinstance(error, errors.HfHubHTTPError):
        code = error.response.status_code
        if code >= 500:
            raise _Unreachable(f"{host} answers {code}") from error
        raise CommandError(f"{host} answers {code} for {repo}; check the name, and HF_TOKEN if it is set") from error
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        raise CommandError(
            f"cannot store the download in {constants.HF_HUB_CACHE}: {error.strerror}; free some space, or set HF_HOME"
        ) from error
    # anything else from its HTTP client: no route, unknown host, a dropped connection
    reason = " ".join(str(error).split()) or type(error).__name__
    raise _Unreachable(f"cannot reach {host} ({reason})") from error


def _cached(repo: str, quant: str, why: str) -> Path:
    files = _cached_files(repo)
    if not files:
        raise CommandError(f"{why}: {repo} was not downloaded before; connect, or name a local file with -m")
    file = choose_file(files, repo, quant)
    missing = [part for part in parts(file) if part not in files]
    if missing:
        raise CommandError(f"{why}: {missing[0]} of {repo} was not downloaded before; connect to complete the model")
    return files[file]


def _cached_files(repo: str) -> dict[str, Path]:
    """Files of the newest revision in the cache, by their name in the repository."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return {}
    revisions = [
        r for cached in repos if (cached.repo_type, cached.repo_id) == ("model", repo) for r in cached.revisions
    ]
    return _files(max(revisions, key=lambda r: ("main" in r.refs, r.last_modified))) if revisions else {}


def _files(revision: CachedRevisionInfo) -> dict[str, Path]:
    root = Path(revision.snapshot_path)
    files = {Path(file.file_path).relative_to(root).as_posix(): Path(file.file_path) for file in revision.files}
    return {name: path for name, path in files.items() if is_safe_name(name)}
