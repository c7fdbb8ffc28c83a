"""Images in the messages of a chat: taken out, with a marker in the place of each.

Knows messages; decodes no image.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pymtp.errors import InvalidParameter, require

_DATA_URL = re.compile(r"data:[^,]*?(?P<encoding>;base64)?,", re.IGNORECASE)
_KINDS = {b"\x89PNG": "png", b"\xff\xd8": "jpeg", b"GIF8": "gif", b"BM": "bmp"}


def as_url(data: bytes) -> str:
    """An image file as a URL, which `source_of` takes apart."""
    kind = next((kind for begin, kind in _KINDS.items() if data.startswith(begin)), "*")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def take_images(messages: Sequence[Mapping[str, Any]], marker: str) -> tuple[Sequence[Mapping[str, Any]], list[Any]]:
    """`messages` with a marker in the place of each image, and the parts of messages that were the images."""
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        return messages, []  # refused by the template
    images: list[Any] = []
    return [_taken(message, marker, images) for message in messages], images


def _taken(message: Mapping[str, Any], marker: str, images: list[Any]) -> Mapping[str, Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list) or not any(map(_is_image, content)):
        return message
    images += filter(_is_image, content)
    mark = {"type": "media_marker", "text": marker}
    return {**message, "content": [mark if _is_image(part) else part for part in content]}


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and (
        part.get("type") == "image_url" or (part.get("type") == "image" and "image" in part)
    )


def source_of(part: Mapping[str, Any]) -> Any:
    """What a part has: an image as it was given, or the bytes in a URL, `{"url": "data:image/png;base64,..."}`.

    Raises InvalidParameter for a URL that has no data.
    """
    if part["type"] == "image":
        return part["image"]
    image_url = part.get("image_url")
    url = image_url.get("url") if isinstance(image_url, Mapping) else image_url
    if not isinstance(url, str) or not url:
        raise InvalidParameter("image_url", 'an object with a "url"')
    if not (found := _DATA_URL.match(url)):
        scheme = url.partition(":")[0][:20] if ":" in url else "no scheme"
        raise InvalidParameter("image_url", f"a data: URL; images are not fetched from elsewhere ({scheme})")
    require(found["encoding"], "image_url", "base64: data:image/png;base64,...")
    try:
        return base64.b64decode(url[found.end() :], validate=True)
    except ValueError as error:
        raise InvalidParameter("image_url", f"base64 ({error})") from None
