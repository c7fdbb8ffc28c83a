"""Images in prompts: files, and the projector (mmproj) that turns them into rows of embeddings.

Owns the handles of both. Knows files, texts and token ids; no session.
"""

import hashlib
import math
import os
import re
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from pymtp.binding.library import error_message, ffi, lib, model_pointer
from pymtp.errors import InvalidParameter, ModelError, require
from pymtp.gguf.header import ArrayLength, Shard, read_numbers
from pymtp.gguf.shards import read_single
from pymtp.gguf.weights import fingerprint
from pymtp.loading.params import ModelParams
from pymtp.loading.vocabulary import Vocabulary
from pymtp.text.files import StrPath, read_record

IMAGE_MARKER = "<__media__>"
"""Stands for an image in a prompt's text, as in llama.cpp."""

MAX_IMAGES = 256
"""The most images of a prompt."""

_MAX_BYTES: int = lib.PYMTP_IMAGE_BYTES_MAX
_MAX_PIXELS: int = lib.PYMTP_IMAGE_PIXELS_MAX
_PLACEHOLDERS = ("<|image_pad|>", "<|image|>", "<|video_pad|>", "<image>")
_KNOWN = "a JPEG, PNG, BMP or GIF"
_OTHER_KINDS = {
    rb"RIFF....WEBP": "is WebP, which is not supported; convert it",
    rb"....ftyp": "is AVIF, HEIC or a video, which are not supported; convert it",
    rb"II\*\0|MM\0\*": "is TIFF, which is not supported; convert it",
    rb"%PDF-": "is a PDF, which is not supported; make an image of each page",
    rb"GGUF": "is a GGUF; name an image",
    rb"\s*<.{,1000}<svg|\s*<svg": "is SVG, which is not supported; convert it",
}
"""How files of other kinds begin, and what to say of them."""


class Image:
    """An image for a prompt: a file (JPEG, PNG, BMP, GIF), or its bytes.

    Raises InvalidParameter if it is of another kind, damaged, longer than 64 MiB or of more than 64 Mi pixels.
    """

    def __init__(self, source: StrPath | bytes) -> None:
        name, data = ("the image", bytes(source)) if isinstance(source, (bytes, bytearray)) else _read(source)
        require(data, "image", f"{_KNOWN}; {name} is empty")
        handle, width, height = ffi.new("struct pymtp_image **"), ffi.new("int32_t *"), ffi.new("int32_t *")
        file = ffi.from_buffer("uint8_t[]", data)
        if lib.pymtp_image_load(file, len(data), handle, width, height) != lib.PYMTP_OK:
            kinds = (kind for begin, kind in _OTHER_KINDS.items() if re.match(begin, data, re.DOTALL))
            why = next(kinds, f"cannot be used: {error_message()}")
            raise InvalidParameter("image", f"{_KNOWN}; {name} {why}")
        self.native: Any = ffi.gc(handle[0], lib.pymtp_free)
        self.data = bytes(data)
        """The file."""
        self.digest = hashlib.sha256(data).digest()
        """SHA-256 of the file."""
        self.width: int = width[0]
        self.height: int = height[0]

    def __repr__(self) -> str:
        return f"<pymtp.Image {self.width} x {self.height}>"


class PlacedImage(NamedTuple):
    """An image, or a part of one, in a prompt."""

    position: int
    n_pos: int
    n_rows: int
    """Rows of embeddings, of which each takes a cell of the cache: as many as positions, or more."""
    keys: tuple[int, ...]
    """(n_pos,) numbers below 0 that stand for it where prompts are compared, in the place of tokens."""
    media: Any
    """The native handle of its prompt."""
    chunk: int
    """Its number there."""

    @property
    def end(self) -> int:
        return self.position + self.n_pos


def n_more_cells(images: Iterable[PlacedImage]) -> int:
    """Cells of the cache that a prompt's images take in addition to one for each position."""
    return sum(image.n_rows - image.n_pos for image in images)


class ImagePrompt(list[int]):
    """Tokens of a prompt, one for each position; those at images stand for nothing."""

    def __init__(self, tokens: Sequence[int], images: Sequence[PlacedImage]) -> None:
        super().__init__(tokens)
        self.images = tuple(images)
        self.n_rows = sum(image.n_rows for image in images)
        self.n_cells = len(tokens) + n_more_cells(images)


class Projector:
    """A loaded projector. Any number of threads may use it."""

    def __init__(self, model: object, vocabulary: Vocabulary, params: ModelParams, n_threads: int) -> None:
        """Raises ModelError for a file that is no projector of the model."""
        assert params.mmproj is not None
        path = Path(params.mmproj)
        file = read_single(path)
        _check_header(file)
        asked = ffi.new("struct pymtp_projector_params *")
        asked.use_gpu = params.n_gpu_layers != 0 and params.device != ()
        asked.n_threads = n_threads
        asked.n_rows_min, asked.n_rows_max = params.image_min_tokens or -1, params.image_max_tokens or -1
        handle = ffi.new("struct pymtp_projector **")
        if lib.pymtp_projector_load(model_pointer(model), os.fsencode(path), asked, handle) != lib.PYMTP_OK:
            raise ModelError(f"{path} cannot be used with the model: {error_message()}")
        self._native = ffi.gc(handle[0], lib.pymtp_free)
        # what it makes of a file: kept prefixes with images belong to it
        limits = f"{fingerprint([file])} {params.image_min_tokens} {params.image_max_tokens}"
        self._identity = hashlib.sha256(limits.encode()).digest()
        single = [vocabulary.tokenize(text, is_start=False) for text in _PLACEHOLDERS]
        self._placeholder = next((tokens[0] for tokens in single if len(tokens) == 1), 0)

    def close(self) -> None:
        """Free it, once prompts with its images are gone too; closing twice is harmless."""
        ffi.release(self._native)

    def prompt(self, parts: Sequence[str | Image]) -> ImagePrompt:
        """The prompt of texts and images in their order. Special tokens in texts are recognised.

        Raises InvalidParameter for an image that cannot be prepared.
        """
        data = [part.encode(errors="replace") if isinstance(part, str) else None for part in parts]
        texts = [ffi.NULL if each is None else ffi.new("char[]", each) for each in data]
        lengths = [len(each or b"") for each in data]
        images = [part.native if isinstance(part, Image) else ffi.NULL for part in parts]
        made = ffi.new("struct pymtp_media **")
        if lib.pymtp_media_init(self._native, len(parts), texts, lengths, images, True, made) != lib.PYMTP_OK:
            raise InvalidParameter("image", f"one that the projector takes: {error_message()}")
        return self._placed(ffi.gc(made[0], lib.pymtp_free), parts)

    def _placed(self, media: Any, parts: Sequence[str | Image]) -> ImagePrompt:
        tokens: list[int] = []
        images: list[PlacedImage] = []
        chunk = ffi.new("struct pymtp_media_chunk *")
        i = 0
        while lib.pymtp_media_chunk(media, i, chunk) == lib.PYMTP_OK:
            if chunk.part < 0:
                text = ffi.new("int32_t[]", chunk.n_rows)
                lib.pymtp_media_tokens(media, i, chunk.n_rows, text)
                tokens += list(text)
            else:
                image = parts[chunk.part]
                assert isinstance(image, Image)
                keys = _keys(self._identity + image.digest, sum(each.media is media for each in images), chunk.n_pos)
                images.append(PlacedImage(len(tokens), chunk.n_pos, chunk.n_rows, keys, media, i))
                tokens += [self._placeholder] * chunk.n_pos
            i += 1
        return ImagePrompt(tokens, images)


def _check_header(file: Shard) -> None:
    """Raise ModelError for a file that is no projector, or whose numbers llama.cpp would divide by or multiply with."""
    path, metadata = file.path, file.metadata
    if metadata.get("general.architecture") != "clip":
        what = "a LoRA adapter (--lora)" if metadata.get("general.type") == "adapter" else "a model"
        raise ModelError(f"{path} is no projector but {what}; --mmproj takes the file with mmproj in its name")
    for key, most in _NUMBERS.items():
        value = metadata.get(f"clip.vision.{key}", 1)
        if not isinstance(value, int) or not 1 <= value <= most:
            raise ModelError(f"{path} is damaged: clip.vision.{key} is {value}; download it again")
    n_embd, n_head = (metadata.get(f"clip.vision.{key}", 1) for key in ("embedding_length", "attention.head_count"))
    if isinstance(n_embd, int) and isinstance(n_head, int) and n_embd % n_head:
        raise ModelError(f"{path} is damaged: {n_head} heads share {n_embd} dimensions; download it again")
    for key in ("image_mean", "image_std"):
        array = metadata.get(f"clip.vision.{key}")
        values = read_numbers(path, array, 3) if isinstance(array, ArrayLength) else []
        are_finite = all(isinstance(value, float) and math.isfinite(value) for value in values)
        if not are_finite or (key == "image_std" and not all(values)):
            raise ModelError(f"{path} is damaged: clip.vision.{key} is {values}; download it again")


_NUMBERS = {
    "embedding_length": 1 << 16,
    "feed_forward_length": 1 << 20,
    "block_count": 1024,
    "projection_dim": 1 << 20,
    "attention.head_count": 1024,
    "attention.head_count_kv": 1024,
    "image_size": 1 << 14,
    "patch_size": 1024,
    "spatial_merge_size": 16,
    "window_size": 1 << 14,
    "projector.scale_factor": 64,
}
"""The greatest numbers of a projector's metadata; the least is 1."""


def load_images(sources: Sequence[Image | StrPath | bytes]) -> list[Image]:
    """The images of a prompt. Raises InvalidParameter for one that cannot be used, and if they are too many."""
    is_list = isinstance(sources, Sequence) and not isinstance(sources, (str, bytes))
    require(is_list, "images", "a list of images", sources)
    require(len(sources) <= MAX_IMAGES, "images", f"at most {MAX_IMAGES} in a prompt", len(sources))
    images: list[Image] = []
    for source in sources:
        images.append(source if isinstance(source, Image) else Image(source))
        require(fit_together(images), "images", f"of at most {_MAX_PIXELS >> 20} Mi pixels together")
    return images


def fit_together(images: Sequence[Image]) -> bool:
    """Whether one prompt may have all of them."""
    return len(images) <= MAX_IMAGES and sum(image.width * image.height for image in images) <= _MAX_PIXELS


def split_at_markers(text: str, images: Sequence[Image], marker: str = IMAGE_MARKER) -> list[str | Image]:
    """A text with a marker for each image as its parts. Raises InvalidParameter if there are more or fewer markers.

    Of another marker than the usual one a chat template has to keep one for each image: ModelError if it does not.
    """
    texts = text.split(marker)
    n_found = len(texts) - 1
    if n_found != len(images) and marker != IMAGE_MARKER:
        what = f"the chat template of this model dropped the image: its prompt has {n_found} of {len(images)}"
        fix = "use another template (chat_template, --chat-template-file), or send a text alone"
        raise ModelError(f"{what}; {fix}")
    require(n_found == len(images), "images", f"as many as the prompt has {marker}: {n_found}", len(images))
    parts = chain.from_iterable(zip_longest(texts, images, fillvalue=""))
    return [part for part in parts if part != ""]


def _keys(digest: bytes, n_before: int, n_pos: int) -> tuple[int, ...]:
    """Numbers that no other image shares, and no token. `n_before`: images before it in the prompt."""
    begin = digest + n_before.to_bytes(4, "big")
    hashes = (hashlib.sha256(begin + i.to_bytes(4, "big")).digest() for i in range(n_pos))
    return tuple(-1 - (int.from_bytes(each[:8], "big") >> 2) for each in hashes)


def _read(source: StrPath) -> tuple[str, bytes]:
    require(isinstance(source, (str, os.PathLike)), "image", "a file or bytes", source)
    name = os.fspath(source)
    require(not os.path.isdir(name), "image", f"a file; {name} is a directory: name an image in it")
    try:
        return name, read_record(source, _MAX_BYTES)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidParameter("image", f"a file that can be read; {name}: {why}") from None
