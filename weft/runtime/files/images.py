"""Images as u8[height, width, channels], by Pillow (extra `data`)."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.ir.errors import DataLossError, InvalidArgumentError, UnsupportedError
from weft.runtime.files.streams import Path, opened

Array = np.ndarray[Any, Any]
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_CHANNELS = {"1": 1, "L": 1, "LA": 2, "La": 2, "PA": 4, "RGBA": 4, "RGBa": 4}
_DEEP = ("I", "F")  # modes of more than 8 bits begin like this
_FILTERS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")


def pillow() -> Any:
    """Pillow's `Image`. UnsupportedError where it is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UnsupportedError(
            "images need the package Pillow", hint="pip install 'weft[data]'"
        ) from error
    return Image


def read_image(
    path: Path, channels: int | None = None, size: tuple[int, int] | None = None,
    method: str = "bilinear",
) -> Array:  # fmt: skip
    """`decode_image` of a file."""
    with opened(path) as file:
        return decode_image(file.read(), channels, size, method, os.fspath(path))


def decode_image(
    data: bytes, channels: int | None = None, size: tuple[int, int] | None = None,
    method: str = "bilinear", source: str = "an image",
) -> Array:  # fmt: skip
    """A PNG, JPEG or other image as u8[height, width, channels].

    channels: 1 (grey), 2 (with alpha), 3 (RGB), 4 (RGBA); None: as the file has them. size:
    (height, width) to resize to. DataLossError for what is no whole image, UnsupportedError for
    more than 8 bits a channel.
    """
    Image = pillow()
    _check(channels, size, method)
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode.startswith(_DEEP):
                raise UnsupportedError(
                    f"{source}: an image of mode {image.mode}: only 8 bits a channel are read"
                )
            transparent = image.mode == "P" and "transparency" in image.info
            wanted = channels or (4 if transparent else _CHANNELS.get(image.mode, 3))
            made = image.convert(_MODES[wanted])
    except Image.DecompressionBombError as error:
        raise InvalidArgumentError(
            f"{source}: {error}", hint="PIL.Image.MAX_IMAGE_PIXELS is the limit"
        ) from error
    except Image.UnidentifiedImageError as error:
        raise DataLossError(f"{source} ({len(data)} bytes): no kind that Pillow knows") from error
    # what Pillow's decoders raise for damaged files is not documented further than this
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, OverflowError) as error:
        raise DataLossError(f"{source} ({len(data)} bytes): {error}") from error
    return _pixels(_resized(Image, made, size, method))


def decode_sized(data: bytes, height: int, width: int, channels: int) -> Array:
    """`decode_image` of the channels wanted (0: as it is). InvalidArgumentError if it is not of
    that height and width (-1: any)."""
    made = decode_image(data, channels or None)
    wanted = (height, width)
    if any(n not in (-1, found) for n, found in zip(wanted, made.shape, strict=False)):
        raise InvalidArgumentError(
            f"an image is {made.shape[0]} x {made.shape[1]}, {height} x {width} is wanted"
        )
    return made


def resize_image(image: Any, size: tuple[int, int], method: str = "bilinear") -> Array:
    """u8[h, w, c] (1 to 4 channels) or u8[h, w] resized to (height, width), u8 of the same rank.

    method: "nearest", "bilinear", "bicubic", "lanczos", "box" or "hamming", as Pillow has them
    (filters that widen when they shrink, so without aliasing; colours are weighted by their
    alpha).
    """
    Image = pillow()
    _check(None, size, method)
    pixels = np.asarray(image)
    flat = pixels.ndim == 2
    if pixels.dtype != np.uint8 or not (flat or (pixels.ndim == 3 and pixels.shape[2] in _MODES)):
        raise InvalidArgumentError(
            f"resize_image takes uint8 of [h, w] or [h, w, 1 to 4], not {pixels.dtype} of "
            f"{list(pixels.shape)}"
        )
    one = pixels.ndim == 3 and pixels.shape[2] == 1
    given = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if one else pixels))
    made = np.array(_resized(Image, given, size, method))
    return made[..., None] if one else made


def _check(channels: int | None, size: Sequence[int] | None, method: str) -> None:
    if channels is not None and channels not in _MODES:
        raise InvalidArgumentError(f"channels={channels!r} is none of 1, 2, 3, 4, None")
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise InvalidArgumentError(f"size={size!r} is no (height, width)")
    if method not in _FILTERS:
        raise InvalidArgumentError(f"method={method!r} is none of {', '.join(_FILTERS)}")


def _resized(Image: Any, image: Any, size: tuple[int, int] | None, method: str) -> Any:
    if size is None or (image.height, image.width) == tuple(size):
        return image
    return image.resize((int(size[1]), int(size[0])), Image.Resampling[method.upper()])


def _pixels(image: Any) -> Array:
    pixels = np.array(image)  # a copy: Pillow's own is read-only and in rows of its own
    return pixels[..., None] if pixels.ndim == 2 else pixels
