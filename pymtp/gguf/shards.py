"""The files of one model: a single GGUF, or all the parts of a split one.

Owns the checks that need no model knowledge: the file exists, is a GGUF, and is complete. Each
failure is a ModelError whose one line names the fix. Knows nothing about layers and heads.
"""

import re
import stat
from pathlib import Path

from pymtp.errors import ModelError, explained
from pymtp.gguf.header import MAGIC, HeaderError, Shard, read_header

SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def read_shards(path: Path) -> list[Shard]:
    """Read and check the file at `path` and, if it is the first part of a split model, the others."""
    first = read_single(path)
    first_number, count = (first.metadata.get(key, 0) for key in ("split.no", "split.count"))
    if not isinstance(count, int) or count <= 1:
        return [first]
    if first_number != 0:
        raise ModelError(f"{path} is a later part of a split model; name its first part, ...-00001-of-{count:05}.gguf")
    names = part_names(path.name)
    if len(names) != count:
        fix = f"rename the parts to NAME-00001-of-{count:05}.gguf and so on"
        raise ModelError(f"{path} is the first of {count} parts; {fix}")
    shards = [first, *(read_single(path.with_name(name)) for name in names[1:])]
    for number, shard in enumerate(shards):
        found = [shard.metadata.get(key) for key in ("split.no", "split.count")]
        if found != [number, count]:
            raise ModelError(f"{shard.path} is not part {number + 1} of {count}, as its name says; download it again")
    tensors = [tensor.name for shard in shards for tensor in shard.tensors]
    declared = first.metadata.get("split.tensors.count", len(tensors))
    if not len(set(tensors)) == len(tensors) == declared:
        raise ModelError(f"the parts of {path} are not of one model; download them again")
    return shards


def part_names(first: str) -> list[str]:
    """The names of all parts of a split model by that of its first; [] if it is not that of a first part."""
    match = SPLIT_NAME.fullmatch(first)
    if match is None or int(match["number"]) != 1:
        return []
    count = int(match["count"])
    return [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def read_single(path: Path) -> Shard:
    """Read and check one file: a part of a model, or what goes with it and is never split, such as an adapter."""
    try:
        with explained(f"read {path}", "check its permissions", ModelError):
            _check_kind(path)
            shard = read_header(path)
    except HeaderError as error:
        raise ModelError(f"{path} {error}") from error
    needed = max((tensor.offset + tensor.size_bytes for tensor in shard.tensors), default=shard.header_bytes)
    if shard.size_bytes < needed:
        raise ModelError(f"{path} is truncated: {shard.size_bytes} of {needed} bytes; download it again")
    return shard


def _check_kind(path: Path) -> None:
    """Raise ModelError that says what a file is that cannot be a GGUF."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(f"{path}: no such file; check the path") from None
    except ValueError as error:  # a NUL byte in the name
        raise ModelError(f"{str(path)!r} is not a file name ({error}); check the path") from None
    if stat.S_ISDIR(status.st_mode):
        raise ModelError(f"{path} is a directory; name the .gguf file inside it, or, if it is a prompt, use -p")
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{path} is not a regular file; save the model to disk first")
    if status.st_size == 0:
        raise ModelError(f"{path} is empty (0 bytes); download it again")
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
    if magic != MAGIC:
        fix = f"convert the model to GGUF first, or, if it is a prompt, use -f {path}"
        raise ModelError(f"{path} is not a GGUF file (it starts with {magic!r}); {fix}")
