"""Weights, and heads in their files, in another type: by llama.cpp's own quantisation, a few megabytes at a time.

Owns which part of a head gets which type, and what becomes of rows that a type's blocks do not fit. Everything else in
a file stays as it is, bit for bit.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pymtp.errors import InvalidParameter, ModelError, PymtpError, UnsupportedModel, require
from pymtp.gguf.header import TensorInfo, tensor_bytes
from pymtp.gguf.model_file import ModelFile
from pymtp.gguf.types import FILE_TYPES, TENSOR_TYPES, TYPE_IDS, WRITABLE_TYPES
from pymtp.gguf.writer import PIECE_BYTES, Metadata, OnWrite, Piece, Pieces, Tensor, stored, write_gguf
from pymtp.heads.files import check_target, need_heads
from pymtp.text.files import StrPath

F32 = TYPE_IDS["f32"]

# As in llama-quantize, where the rows are no multiple of 256 numbers.
_SMALLER_BLOCKS = {"q6_k": "q8_0", "q5_k": "q5_1", "q4_k": "q5_0", "iq4_xs": "iq4_nl", "q3_k": "q4_0", "q2_k": "q4_0"}

# Small, and read with more precision than they save room: as in llama-quantize.
_KEPT = re.compile(r"(_norm|ffn_gate_inp(_shexp)?|indexer\.proj|indexer_compressor_\w+|ssm_conv1d\w*|hc_\w+)\.weight")
_OUTPUT = "nextn.shared_head_head.weight"
_EXPERTS = re.compile(r"ffn_\w+_exps\.weight")


@dataclass(frozen=True)
class HeadTypes:
    """What the matrices of a head become, by names of pymtp.gguf.types.WRITABLE_TYPES; None: what `type` says."""

    type: str | None = None
    """All that the others do not name; None: they stay as they are."""
    output_type: str | None = None
    """The head's own output matrix."""
    experts_type: str | None = None
    """Routed experts."""
    tensor_type: Sequence[tuple[str, str]] = ()
    """Regular expressions of tensors' names, and a type; the first that matches counts before all others."""

    def __post_init__(self) -> None:
        for name in ("type", "output_type", "experts_type"):
            if (value := getattr(self, name)) is not None:
                check_type(value, name)
        for pattern, kind in self.tensor_type:
            check_type(kind, "tensor_type")
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidParameter("tensor_type", f"a regular expression ({error})", value=pattern) from error

    def of(self, name: str, part: str) -> str | None:
        """The type of the tensor `name`, whose name in its layer is `part`; None: as it is."""
        for pattern, kind in self.tensor_type:
            if re.search(pattern, name):
                return kind
        if part == _OUTPUT and self.output_type:
            return self.output_type
        if _EXPERTS.fullmatch(part) and self.experts_type:
            return self.experts_type
        return self.type


@dataclass(frozen=True)
class Change:
    """A tensor that gets another type. `wanted`: which one was asked for, if its blocks do not fit the rows."""

    name: str
    before: str
    after: str
    wanted: str | None


def quantize_heads(
    path: StrPath, target: StrPath, types: HeadTypes, *, force: bool = False, on_write: OnWrite | None = None
) -> list[Change]:
    """Write the model or the heads at `path` to `target`, the heads' matrices in other types.

    Norms, biases and routers stay as they are, and so does everything of the trunk. Returns what has changed. Raises
    ModelError, and InvalidParameter for types that nothing can be converted to.
    """
    model, out = ModelFile(Path(path)), Path(target)
    need_heads(model)
    check_target(out, [shard.path for shard in model.shards], force=force)
    of_heads = {name: name.split(".", 2)[2] for name in model.tensors if name.startswith(model.head_prefixes)}
    matrices = {name: part for name, part in of_heads.items() if len(model.tensors[name].shape) > 1}
    parts = {name: part for name, part in matrices.items() if part.endswith(".weight") and not _KEPT.search(part)}
    for pattern, _ in types.tensor_type:
        allowed = f"a regular expression of a matrix of the heads ({', '.join([*parts][:3])}, ...)"
        require(any(re.search(pattern, name) for name in parts), "tensor_type", allowed, pattern)
    changes: list[Change] = []
    asked = {name: kind for name, part in parts.items() if (kind := types.of(name, part))}
    tensors = [_changed(each, asked.get(each.name), changes) for each in model.tensors.values()]
    if not changes:
        require(types != HeadTypes(), "type", "named where no other type is")
        raise UnsupportedModel(f"{path}: no matrix of its heads gets another type; name other types")
    metadata = Metadata(model.shards[0])
    if model.is_heads_alone and types.type and "general.file_type" in metadata.pairs:
        file_type = next(number for number, name in FILE_TYPES.items() if name.startswith(types.type.upper()))
        metadata.set("general.file_type", file_type)
    if "general.quantization_version" not in metadata.pairs:
        metadata.set("general.quantization_version", 2)
    write_gguf(out, metadata, tensors, on_write)
    return changes


def _changed(tensor: TensorInfo, name: str | None, changes: list[Change]) -> Tensor:
    """A tensor in the type that is called `name`, if there is one; `changes` notes it."""
    unchanged = stored(tensor)
    if name is None:
        return unchanged
    kind = fitting_type(name, tensor.shape[0], f"{tensor.path}: {tensor.name}")
    if kind == tensor.type_id:
        return unchanged
    before, after = TENSOR_TYPES[tensor.type_id].name, TENSOR_TYPES[kind].name
    changes.append(Change(tensor.name, before, after, None if kind == TYPE_IDS[name] else name.upper()))
    return Tensor(tensor.name, tensor.shape, kind, converted(tensor, kind))


def converted(tensor: TensorInfo, kind: int) -> Pieces:
    """A stored tensor as another ggml_type, a piece at a time."""
    n_per_row = tensor.shape[0]
    n_rows = max(1, PIECE_BYTES // (4 * n_per_row))  # as numbers of 32 bits
    size = n_rows * tensor_bytes((n_per_row,), tensor.type_id)
    what = f"{tensor.path}: {tensor.name}"
    return lambda: convert(stored(tensor, size).pieces(), (tensor.type_id, kind), n_per_row, what)


def check_type(name: str, parameter: str) -> None:
    """Raise InvalidParameter about `parameter` if rows cannot become what is called `name`."""
    require(name in WRITABLE_TYPES, parameter, f"one of {', '.join(WRITABLE_TYPES)}", name)


def fitting_type(name: str, n_per_row: int, what: str) -> int:
    """The ggml_type `name`, or the one in its place whose blocks fit rows of `n_per_row` numbers.

    Raises UnsupportedModel if there is none.
    """
    kind = name
    while n_per_row % TENSOR_TYPES[TYPE_IDS[kind]].block_elements:
        if kind not in _SMALLER_BLOCKS:
            why = f"has rows of {n_per_row} numbers, which the blocks of {name} do not fit"
            raise UnsupportedModel(f"{what} {why}; name another type for it (--tensor-type)")
        kind = _SMALLER_BLOCKS[kind]
    return TYPE_IDS[kind]


def convert(pieces: Iterable[Piece], kinds: tuple[int, int], n_per_row: int, what: str) -> Iterator[Piece]:
    """Rows of one type as rows of another; `kinds`: from, to. Each piece has whole rows.

    `what` they are, for errors. Raises ModelError for numbers that are not finite.
    """
    from pymtp.binding.library import check, ffi, lib

    sizes = [tensor_bytes((n_per_row,), kind) for kind in kinds]
    for piece in pieces:
        rows = ffi.from_buffer(piece)
        n_rows, rest = divmod(len(rows), sizes[0])
        assert rest == 0, what
        converted = bytearray(n_rows * sizes[1])
        try:
            check(lib.pymtp_convert_rows(*kinds, n_rows, n_per_row, rows, ffi.from_buffer(converted)))
        except PymtpError as error:
            raise ModelError(f"{what}: {error}; take another file") from error
        yield converted
