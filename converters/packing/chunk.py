"""The work of a pack: a list of samples in, a list of encoded records out.

`encode_chunk` is a pure function of its arguments (and of the files they
name), and everything it takes and returns can be pickled, so it can run on
any ``concurrent.futures.Executor``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import cv2
import numpy as np

from fastdata.codecs import Pixels
from fastdata.codecs.bilinear import resize_bilinear, resize_bilinear_window
from fastdata.codecs.blobs import (
    check_header,
    decode_stored,
    encode_jpeg,
    encode_png,
    resize_jpeg,
    transcode_jpeg,
)
from fastdata.codecs.image import Decoded, dct_scale, decode_image, decode_jpeg
from fastdata.codecs.image_header import is_stored_as_jpeg, size_of
from fastdata.codecs.jpeg import JpegHeader, check_scans, is_jpeg, read_jpeg_header
from fastdata.codecs.limits import check_pixels
from fastdata.codecs.lossy_masks import (
    THRESHOLD_NOTE,
    ClassNumbersLostError,
    took_threshold,
    without_loss,
)
from fastdata.codecs.pillow import orient, unoriented
from fastdata.codecs.resize import resize_pixels, resize_window
from fastdata.errors import ImageError, SourceError, is_of_machine
from fastdata.formats.layout import CODECS, checksum
from fastdata.formats.writer import EncodedImage, Record
from fastdata.native.library import compiled, decode_resized
from fastdata.regular_files import read_regular
from fastdata.schema import Field, ImageField, Schema

from ..base import Deferred, Reject, Sample
from ..reading.box_forms import BoxNumbers
from ..reading.fields import convert, pixels_of
from ..reading.spans import FileSpan
from .boxes import Placement, check_masks, image_with_boxes, place_boxes
from .options import EncodeOptions
from .remarks import unless_all
from .sizes import Sizes, resized_size

__all__ = ["CHUNK_BYTES", "RECIPE", "bytes_of", "encode_chunk", "place_image"]

RECIPE = 3
"""Increased if the same source and options give other bytes than before, so that an unfinished pack
of another release is not continued.  2: bilinear by `resize_bilinear` instead of PyTorch.  3: the
orientation of XMP, and TIFFs of 2, 4 and 12 bits."""

CHUNK_BYTES = 64 << 20
"""A chunk ends when it has this many bytes in memory."""

TWO_VALUES = (
    "masks hold 0 and 255 alone, and losses take class numbers 0 and 1: "
    "write (mask > 0).squeeze(1).long() in the training loop"
)

_RAW_SIDE = 64
"""Codec ``auto`` stores images up to this many pixels a side raw."""

_LARGE_PIXELS = 1 << 24
"""From this size on an image is the cause if memory is not enough for it, not the machine."""


def encode_chunk(
    samples: Sequence[Sample | Reject],
    schema: Schema,
    options: EncodeOptions,
    box_forms: Mapping[str, BoxNumbers] = MappingProxyType({}),
) -> list[Record | Reject]:
    """Read, decode, resize and encode some samples; return the result of each.

    box_forms: what boxes are of fields that have no corners in pixels, as `Source.box_forms`.
    A sample that cannot be encoded becomes a `Reject`.  Errors with another cause are
    raised: `StorageError` if a store does not answer, `SourceError` if a mask shows that the class
    numbers of all masks are lost, else `MachineError`.
    """
    results: list[Record | Reject] = []
    plan = _Plan.of(schema, box_forms)
    for sample in samples:
        if isinstance(sample, Reject):
            results.append(sample)
            continue
        try:
            results.append(_encode_sample(sample, plan, options))
        except ClassNumbersLostError as error:
            raise SourceError(
                f"{sample.key}: {error}. Then start again with overwrite=True (--overwrite)"
            ) from error
        except Exception as error:  # a bad sample, or a user's Dataset, may raise anything
            results.append(Reject.of(sample.key, error))
    return results


def bytes_of(sample: Sample | Reject) -> int:
    """Return the bytes that a sample has in memory; a path or a span has none."""
    if isinstance(sample, Reject):
        return 0
    values = sample.values
    return _bytes_in(tuple(vars(values).values()) if isinstance(values, Deferred) else values)


def _bytes_in(value: Any) -> int:
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(map(_bytes_in, value)) if type(value) is tuple else 0


class _Plan(NamedTuple):
    """What a schema asks for, worked out once a chunk."""

    fields: tuple[tuple[str, Field], ...]
    masks: bool
    """Whether there are masks, which must have the size of their image."""
    boxes: tuple[tuple[int, BoxNumbers | None], ...]
    """Positions of the fields that hold boxes, and what their numbers are."""
    picture: str
    """The image field that these belong to."""

    @classmethod
    def of(cls, schema: Schema, forms: Mapping[str, BoxNumbers]) -> _Plan:
        masks = any(field.mask for field in schema.images.values())
        fields = enumerate(schema)
        boxes = tuple((at, forms.get(name)) for at, name in fields if name in schema.boxes)
        return cls(tuple(schema.items()), masks, boxes, image_with_boxes(schema) if boxes else "")


def _encode_sample(sample: Sample, plan: _Plan, options: EncodeOptions) -> Record:
    key, given = sample
    if plan.masks:
        took_threshold()  # for the sample before
    if isinstance(given, Deferred):
        loaded = given.load()
        key = key if given.stored_key is None else given.stored_key
        given = loaded
    values: list[Any] = []
    images: dict[str, EncodedImage] = {}
    placements: dict[str, Placement] = {}
    notes: list[str] = []
    for value, (name, field) in zip(given, plan.fields, strict=True):
        if not isinstance(field, ImageField):
            values.append(convert(value, field, name))
            continue
        if isinstance(value, Path):
            value = read_regular(value)
        elif isinstance(value, FileSpan):
            value = value.read()
        try:
            images[name], placements[name] = place_image(value, field, options, notes)
        except (MemoryError, cv2.error) as error:
            raise (_too_large(value, options, error) or error) from None
        values.append(images[name])
    if plan.masks:
        check_masks(plan.fields, images)
        notes += [THRESHOLD_NOTE] * took_threshold()
    for at, form in plan.boxes:
        values[at] = place_boxes(values[at], placements[plan.picture], form)
    key.encode()  # UnicodeEncodeError, a ValueError, if it is not text
    return Record(key, tuple(values), tuple(dict.fromkeys(notes)))


def _too_large(value: Any, options: EncodeOptions, error: Exception) -> ImageError | None:
    """Return why an image that needs too much memory is rejected; None if it is small."""
    if not is_of_machine(error):
        return None
    try:
        rows, columns = size_of(value) if isinstance(value, bytes) else np.shape(value)[:2]
        target = resized_size(rows, columns, options)
    except Exception:  # not even its size can be read
        return None
    if max(rows * columns, target[0] * target[1]) < _LARGE_PIXELS:
        return None
    return ImageError(
        f"there is not enough memory for it: {columns} x {rows} pixels, which become "
        f"{target[1]} x {target[0]}"
    )


def place_image(
    value: Any, field: ImageField, options: EncodeOptions, notes: list[str] | None = None
) -> tuple[EncodedImage, Placement]:
    """Bring one image into the form in which it is stored, and return where its pixels went.

    Remarks on it are added to `notes`.

    `value` is an image file as bytes; or pixels in memory, as `pixels_of` takes them; or an
    `EncodedImage`, as it lies in a shard, which codec ``keep`` takes over.
    """
    if isinstance(value, EncodedImage):
        check_pixels(value.height, value.width, options.max_pixels)
        shape = value.height, value.width, field.channels
        check_header(memoryview(value.data), CODECS[value.codec], shape)
        if is_jpeg(value.data):
            check_scans(value.data, shape[:2], options.max_pixels)
        if options.codec == "keep":
            size = value.height, value.width
            return value, Placement(size, 1, size)
        value = _unpacked(value, field)
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = without_loss(bytes(value), options.max_pixels) if field.mask else bytes(value)
        header = read_jpeg_header(data) if is_jpeg(data) else None
        if header is not None:
            size = header.height, header.width
            check_pixels(*size, options.max_pixels)
            check_scans(data, size, options.max_pixels, header)
        kept = _keep(data, header, field, options, notes)
        if kept is not None:
            return kept

        made = None if header is None else _compiled(data, header, field, options)
        if made is not None:
            return made

        def scale(height: int, width: int) -> int:
            return dct_scale(
                height, width, resized_size(height, width, options), options.dct_margin
            )

        decoded = decode_image(
            data,
            field.channels,
            mask=field.mask,
            max_pixels=options.max_pixels,
            header=header,
            scale=scale,
            notes=notes,
        )
    else:
        pixels = pixels_of(value, field)
        check_pixels(pixels.shape[0], pixels.shape[1], options.max_pixels)
        decoded = Decoded(pixels, pixels.shape[:2])
    sizes = Sizes.of(decoded.size, decoded.orientation, options)
    pixels = _resized(decoded, sizes, field, options)
    _look_at_mask(pixels, field, notes)
    # At most one of the two orientations is not 1.
    placement = sizes.placement(max(decoded.orientation, decoded.turned))
    return _encode(pixels, field, options), placement


def _look_at_mask(pixels: Pixels, field: ImageField, notes: list[str] | None) -> None:
    """Note whether a mask holds 0 and 255 alone."""
    if notes is None or not field.mask or not pixels.size:
        return
    above = int((pixels + np.uint8(1)).max())  # 255 becomes 0, and 0 becomes 1
    if above > 1:
        notes.append(unless_all(TWO_VALUES))
    elif pixels.any():
        notes.append(TWO_VALUES)


def _unpacked(image: EncodedImage, field: ImageField) -> Any:
    """Return a stored image as a file, or as pixels."""
    if CODECS[image.codec] != "raw":
        return image.data
    shape = image.height, image.width, field.channels
    return decode_stored(memoryview(image.data), "raw", shape)


def _compiled(
    data: bytes, header: JpegHeader, field: ImageField, options: EncodeOptions
) -> tuple[EncodedImage, Placement] | None:
    """Decode, resize and encode a JPEG by the compiled library.

    None if the library refuses the JPEG as damaged or rare: another decoder must try it.
    """
    if field.mask or options.filter != "bilinear" or not compiled():
        return None
    whole = header.height, header.width
    sizes = Sizes.of(whole, header.orientation, options)
    if sizes.is_thin:
        return None
    sizes.check(options, field.channels)
    factor = dct_scale(*sizes.upright, sizes.target, options.dct_margin)
    placement = sizes.placement(header.orientation)
    upright = header.orientation == 1 and sizes.window is None
    if upright and _codec_of(sizes.wanted, field, options) == "jpeg":
        coded = resize_jpeg(data, header, factor, sizes.wanted, field.channels, options.quality)
        if coded is None:
            return None
        return EncodedImage(coded, CODECS.index("jpeg"), *sizes.wanted, checksum(coded)), placement
    pixels = np.empty((*sizes.wanted, field.channels), np.uint8)
    if not decode_resized(data, whole, pixels, factor=factor):
        return None
    return _encode(_upright(pixels, sizes, header.orientation), field, options), placement


def _resized(decoded: Decoded, sizes: Sizes, field: ImageField, options: EncodeOptions) -> Pixels:
    """Resize, turn upright and crop; of a thin picture only the crop is resized."""
    filter = "nearest" if field.mask else options.filter
    if sizes.is_thin and sizes.window is not None:
        window = unoriented(sizes.window, sizes.target, decoded.orientation)
        if filter == "bilinear":
            pixels = resize_bilinear_window(
                decoded.pixels, sizes.wanted, window, decoded.size, decoded.factor
            )
        else:
            pixels = resize_window(decoded.pixels, sizes.wanted, window, filter, decoded.extent)
        return orient(pixels, decoded.orientation)
    sizes.check(options, field.channels)
    if filter == "bilinear":
        pixels = resize_bilinear(decoded.pixels, sizes.wanted, decoded.size, decoded.factor)
    else:
        pixels = resize_pixels(decoded.pixels, sizes.wanted, filter, decoded.extent)
    return _upright(pixels, sizes, decoded.orientation)


def _upright(pixels: Pixels, sizes: Sizes, orientation: int) -> Pixels:
    """Turn resized pixels upright, and crop them."""
    if orientation != 1:
        pixels = orient(pixels, orientation)
    if sizes.window is None:
        return pixels
    top, left, height, width = sizes.window
    return np.ascontiguousarray(pixels[top : top + height, left : left + width])


def _keep(
    data: bytes,
    header: JpegHeader | None,
    field: ImageField,
    options: EncodeOptions,
    notes: list[str] | None,
) -> tuple[EncodedImage, Placement] | None:
    """Return a file unchanged, with ``codec="keep"``, or a JPEG of the right size; else None.

    A JPEG is transcoded without changing its pixels, so that windows can be cut out of it; if that
    is not possible, it stays unchanged.  Unchanged files are decoded once, to reject broken ones.
    """
    keep = options.codec == "keep"
    if header is not None and not field.mask:
        size = header.height, header.width
        jpeg = options.codec == "jpeg" or (options.codec == "auto" and max(size) > _RAW_SIDE)
        crop = options.resize == "crop"
        final = jpeg and (options.size if crop else resized_size(*size, options)) == size
        coded = transcode_jpeg(data, header, field.channels) if final and options.compiled else None
        if (
            coded is None
            and (keep or final)
            and is_stored_as_jpeg(data, header, field.channels, mask=field.mask)
        ):
            decode_jpeg(data, header, field.channels)
            coded = data
        if coded is not None:
            kept = EncodedImage(coded, CODECS.index("jpeg"), *size, checksum(coded))
            return kept, Placement(size, 1, size, (0, 0, *size) if crop else None)
    if not keep:
        return None
    decoded = decode_image(
        data, field.channels, mask=field.mask, max_pixels=options.max_pixels, notes=notes
    )
    _look_at_mask(decoded.pixels, field, notes)
    height, width = orient(decoded.pixels, decoded.orientation).shape[:2]
    kept = EncodedImage(data, CODECS.index("file"), height, width, checksum(data))
    size, orientation = (height, width), max(decoded.orientation, decoded.turned)
    return kept, Placement(size, orientation, size)


def _codec_of(size: tuple[int, int], field: ImageField, options: EncodeOptions) -> str:
    """Return the codec that stores pixels of this height and width."""
    if field.mask:
        return "raw" if options.codec == "raw" else "png"  # a mask is never stored with loss
    if options.codec == "keep":
        return "png"  # pixels, not a file: nothing to keep but them
    if options.codec == "auto":
        return "raw" if max(size) <= _RAW_SIDE else "jpeg"
    return options.codec


def _encode(pixels: Pixels, field: ImageField, options: EncodeOptions) -> EncodedImage:
    height, width = pixels.shape[:2]
    codec = _codec_of((height, width), field, options)
    if codec == "jpeg":
        data = encode_jpeg(pixels, options.quality)
    elif codec == "png":
        data = encode_png(pixels)
    else:
        data = pixels.tobytes()
    return EncodedImage(data, CODECS.index(codec), height, width, checksum(data))
