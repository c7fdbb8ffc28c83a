"""Models from the Hugging Face Hub: which files of a repository make up a model, and whether they are what was listed.

Owns the choice of the files, the check of what came, and the errors. The Hub's client downloads and keeps them, and
knows the token. No name, revision or digest becomes part of a path before it was checked.
"""

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pymtp.errors import InvalidParameter, ModelError, require
from pymtp.gguf.header import HeaderError, HeaderTruncated, read_header
from pymtp.gguf.model_file import read_model
from pymtp.gguf.shards import SPLIT_NAME, part_names
from pymtp.text.files import sha256_of

if TYPE_CHECKING:
    from huggingface_hub.hf_api import BlobLfsInfo

_NAME, _IS_NAME = "USER/REPO or USER/REPO:QUANT", re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
_DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
# companion files that are not models: projectors, importance matrices, heads and drafters in files of their own
_NOT_A_MODEL = re.compile(r"mmproj|imatrix|^(mtp|eagle3|dflash|dspark)-", re.IGNORECASE)
_HEADS = re.compile(r"mtp-.*\.gguf")
_SAFE = re.compile(r"[^\x00-\x1f\\:]+")
_SHOWN = 12
_HEADER_BYTES = 256 << 20
"""The most of a file that may be its header."""


class _Unreachable(Exception):
    """The Hub did not answer. The message says why."""


def resolve(name: str, *, offline: bool = False, headers_in: Path | None = None) -> Path:
    """Return the local copy of the model `user/repo[:quant]`, the first part if it is split; download what is missing.

    MTP heads in a file of their own are downloaded as well: they are found next to the model. Without a network, or
    with `offline`, an earlier download is used. `headers_in`: a folder for files that have nothing but the headers, and
    the size of the model's; these alone are downloaded. Raises InvalidParameter for a name that cannot be one,
    ModelError.
    """
    require(_IS_NAME.fullmatch(name), "hf", _NAME, name)
    repo, _, quant = name.partition(":")
    if offline:
        return _cached(repo, quant, "without a network (--offline)")
    try:
        commit, files = _listed(repo)
        file = choose_file(files, repo, quant)
        if missing := [part for part in parts(file) if part not in files]:
            raise ModelError(f"{repo} has no {missing[0]}, which is a part of its model; name another repository")

        def fetched(name: str) -> Path:
            if headers_in:
                return _header_of(repo, commit, name, files[name].size, headers_in)
            return _downloaded(repo, commit, name, files[name].sha256)

        path = [*map(fetched, parts(file))][0]
        heads = choose_heads(files, file)
        if heads and not read_model(path).n_heads:
            fetched(heads)
        return path
    except _Unreachable as problem:
        path = _cached(repo, quant, str(problem))
        warnings.warn(f"{problem}; using {path.name} from an earlier download", stacklevel=2)
        return path


def choose_file(files: Iterable[str], repo: str, quant: str) -> str:
    """The GGUF with quantisation `quant`, or a usual one; of a split model the first part. Raises ModelError."""
    models = sorted(file for file in files if file.endswith(".gguf") and not _NOT_A_MODEL.search(Path(file).name))
    models = [file for file in models if not SPLIT_NAME.fullmatch(file) or part_names(file)]
    if not models:
        raise ModelError(f"{repo} has no GGUF models; name a repository that has them (their names often end in -GGUF)")
    for wanted in [quant] if quant else _DEFAULT_QUANTS:
        pattern = re.compile(rf"(^|[-._/]){re.escape(wanted)}[-./]", re.IGNORECASE)
        if found := [file for file in models if pattern.search(file)]:
            return found[0]
    if not quant:
        return models[0]
    more = f" and {len(models) - _SHOWN} more" if len(models) > _SHOWN else ""
    raise ModelError(f"{repo} has no {quant}; it has {', '.join(models[:_SHOWN])}{more}")


def choose_heads(files: Iterable[str], model: str) -> str | None:
    """The file next to `model` that is named like its MTP heads, if there is one.

    Of several, always the same one, whatever the model's quantisation: only one is ever next to the model.
    """
    folder = PurePosixPath(model).parent
    heads = sorted(file for file in files if PurePosixPath(file).parent == folder and _HEADS.fullmatch(Path(file).name))
    return next((file for file in heads if "Q8_0" in file.upper()), heads[0] if heads else None)


def parts(file: str) -> list[str]:
    """All files of the model whose first part is `file`."""
    return part_names(file) or [file]


def _is_safe(name: str) -> bool:
    """Whether a file name stays inside the folder that it is relative to."""
    path = PurePosixPath(name)
    return bool(_SAFE.fullmatch(name)) and not path.is_absolute() and ".." not in path.parts and str(path) == name


def _listed(repo: str) -> "tuple[str, dict[str, BlobLfsInfo]]":
    """The newest revision of a repository, and its files that have a digest (those of any size) by their names.

    A name that could lead out of the repository's folder is left out.
    """
    from huggingface_hub import HfApi, constants

    with _explained(repo):
        info = HfApi().model_info(repo, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    commit = str(info.sha)
    if not re.fullmatch("[0-9a-f]{40}", commit):
        raise ModelError(f"{constants.ENDPOINT} names a revision {commit!r} of {repo}, which is not one")
    files = {one.rfilename: one.lfs for one in info.siblings or [] if one.lfs and _is_safe(one.rfilename)}
    for name, lfs in files.items():
        if not re.fullmatch("[0-9a-f]{64}", str(lfs.sha256)):
            raise ModelError(f"{constants.ENDPOINT} lists {name} with the digest {lfs.sha256!r}, which is not one")
    return commit, files


def _header_of(repo: str, commit: str, name: str, size_bytes: int, folder: Path) -> Path:
    """A file with the header of another, and as large. Raises _Unreachable and ModelError."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]  # documented

    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    asked = {**build_hf_headers(), "Range": f"bytes=0-{_HEADER_BYTES - 1}"}
    url, n_tried = hf_hub_url(repo, name, revision=commit), 0
    with _explained(repo), get_session().stream("GET", url, headers=asked) as answer, path.open("wb") as file:
        hf_raise_for_status(answer)
        for data in answer.iter_bytes(1 << 20):
            file.write(data)
            file.flush()
            if file.tell() < 2 * n_tried:
                continue
            n_tried = file.tell()
            try:
                read_header(path)
            except HeaderTruncated:
                if n_tried < _HEADER_BYTES:
                    continue
            except HeaderError:
                pass  # whoever reads it says so
            break
        file.truncate(size_bytes)
    return path


def _downloaded(repo: str, commit: str, name: str, sha256: str) -> Path:
    """The local copy of a file. Raises _Unreachable, and ModelError if it is not what was listed."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    found = try_to_load_from_cache(repo, name, revision=commit)
    if isinstance(found, str):
        return Path(found)
    with _explained(repo):
        seen = get_hf_file_metadata(hf_hub_url(repo, name, revision=commit))
    if (seen.commit_hash, seen.etag) != (commit, sha256):  # of which the client makes paths
        raise ModelError(f"{constants.ENDPOINT} sends another revision or digest of {name} than it lists; try again")
    with _explained(repo):
        path = Path(hf_hub_download(repo, name, revision=commit))
    try:
        if sha256_of(path) != sha256:
            what = f"a file {name} that is not the one it lists (its sha256 differs)"
            raise ModelError(f"{constants.ENDPOINT} sends {what}; try again")
    except BaseException:  # also Ctrl-C: nobody may find what was not checked
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise
    return path


@contextmanager
def _explained(repo: str) -> Iterator[None]:
    """Raise ModelError or _Unreachable instead: one line about the problem with the Hub, the network or the disk."""
    from huggingface_hub import constants, errors

    host = constants.ENDPOINT
    try:
        yield
    except errors.GatedRepoError as error:
        fix = f"accept its terms at {host}/{repo}, and set HF_TOKEN to your access token"
        raise ModelError(f"{repo} is gated: {fix}") from error
    except errors.RepositoryNotFoundError as error:
        fix = "check the name, or set HF_TOKEN if it is private"
        raise ModelError(f"{host} has no repository {repo}; {fix}") from error
    except errors.HFValidationError as error:
        raise InvalidParameter("hf", _NAME, value=repo) from error
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, errors.HfHubHTTPError):
            answer = f"{host} answers {error.response.status_code}"
            if error.response.status_code >= 500:
                raise _Unreachable(answer) from error
            raise ModelError(f"{answer} for {repo}; check the name, and HF_TOKEN if it is set") from error
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
            where = f"{constants.HF_HUB_CACHE}: {error.strerror}"
            raise ModelError(f"cannot store the download in {where}; free some space, or set HF_HOME") from error
        if type(error) is OSError:  # of the client: too much or too little came
            raise ModelError(f"{host} does not send what it lists ({reason})") from error
        # anything else from its HTTP client: no route, unknown host, a dropped connection
        raise _Unreachable(f"cannot reach {host} ({reason})") from error


def _cached(repo: str, quant: str, why: str) -> Path:
    """The model of a repository in its newest download. `why`: what to say if there is none."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    with suppress(CacheNotFound):
        mine = [one for one in scan_cache_dir().repos if (one.repo_type, one.repo_id) == ("model", repo)]
        for revision in sorted((r for one in mine for r in one.revisions), key=lambda r: -r.last_modified):
            paths = [file.file_path for file in revision.files]
            files = {path.relative_to(revision.snapshot_path).as_posix(): path for path in paths}
            if not any(name.endswith(".gguf") for name in files):
                continue
            file = choose_file(files, repo, quant)
            if missing := [part for part in parts(file) if part not in files]:
                raise ModelError(f"{why}: {missing[0]} of {repo} was not downloaded before; connect to complete it")
            return files[file]
    raise ModelError(f"{why}: {repo} was not downloaded before; connect, or name a local file with -m")
