"""Masks of classes: their files as workers read them, and the tables that say what classes are.

Indices, grey values and colours become class numbers.  Tables have names, with the colours or the
numbers that pixels have:

===========================  ==================================
``labelmap.txt`` of CVAT     ``road:128,64,128::``
``label_colors.txt``         ``64 128 64<tab>Animal``, of CamVid
``class_dict.csv``           ``Animal,64,128,64``
``_classes.csv``             ``1, Animal``, of Roboflow
``class_names.txt``, ...     ``Animal``, one a line
===========================  ==================================
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastdata.codecs.image import decode_image
from fastdata.codecs.jpeg import is_jpeg
from fastdata.codecs.limits import MAX_PIXELS
from fastdata.codecs.pillow import open_image, orient, pil_orientation, row_bands
from fastdata.errors import ImageError, SourceError
from fastdata.regular_files import read_regular

from ..class_names import check_different
from ..splits import split_folders_in
from ..text_lines import text_lines

__all__ = ["ClassTable", "MaskReader", "class_table", "read_table"]

_MOST = 256
"""Classes that a mask of 8 bits holds."""
_COLOURED = ("RGB", "RGBA")
_VOID = 255
_LOOKED_AT = 16

_TABLES = (
    *("labelmap.txt", "label_colors.txt", "class_dict.csv", "_classes.csv"),
    *("class_names.txt", "codes.txt", "classes.txt"),
)
"""Files that such a table is usually in, those with colours first."""

_COLOUR_NAME = re.compile(r"(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\S.*)")
_NAME_COLOUR = re.compile(
    r"(.*?\S)(?:\s*[:,]\s*|\s+)(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})\s*(?::.*)?"
)
_NUMBER_NAME = re.compile(r"(\d{1,3})\s*,\s*(\S.*)")

# Names of Cityscapes' classes, by ``cityscapesscripts/helpers/labels.py``, except those with
# a train id of 255.
_TRAINED = (
    *("road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign"),
    *("vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus", "train"),
    *("motorcycle", "bicycle"),
)
_ALL = (
    *("unlabeled", "ego vehicle", "rectification border", "out of roi", "static", "dynamic"),
    *("ground", "road", "sidewalk", "parking", "rail track", "building", "wall", "fence"),
    *("guard rail", "bridge", "tunnel", "pole", "polegroup", "traffic light", "traffic sign"),
    *("vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus", "caravan"),
    *("trailer", "train", "motorcycle", "bicycle"),
)

_CITYSCAPES = {"labelIds": _ALL, "labelTrainIds": _TRAINED}


@dataclass(frozen=True)
class MaskReader:
    """How a worker reads an image and its mask."""

    colours: tuple[int, ...]  # of classes 0, 1, ..., (256 R + G) 256 + B; empty: pixels are numbers
    classes: int | None  # their number, if they have names

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an image; errors name the mask's file.

        If an image has several masks, each of one object, later ones cover earlier ones.
        """
        image, *paths = files
        mask: NDArray[np.uint8] | None = None
        for path in paths:
            try:
                found = class_numbers(read_regular(path), self)
                mask = found if mask is None else np.where(found > 0, found, mask)
            except ValueError as error:
                raise ImageError(f"{Path(path).name}: {error}") from None
        return {"image": Path(image), "mask": mask}


def class_numbers(data: bytes, reader: MaskReader) -> NDArray[np.uint8]:
    """Return the class numbers of a mask, H x W."""
    if is_jpeg(data):
        raise ImageError("a JPEG, which does not keep class numbers; save masks as PNG")
    with open_image(data, MAX_PIXELS) as image:
        colours = image.mode in _COLOURED or (image.mode == "P" and bool(reader.colours))
        if colours:
            return _by_colour(image, reader)
    try:
        numbers = decode_image(data, 1, mask=True).pixels[:, :, 0]
    except ImageError as error:
        if "do not fit 8 bits" in str(error):
            raise ImageError(f"{error}. {_INSTANCES}") from None
        raise
    return _checked(numbers, reader)


_INSTANCES = (
    "These are numbers of instances, which a mask of classes does not hold: pack class masks"
)


def _checked(numbers: NDArray[np.uint8], reader: MaskReader) -> NDArray[np.uint8]:
    if reader.classes is not None:
        beyond = numbers[(numbers >= reader.classes) & (numbers != _VOID)]
        if len(beyond):
            raise ImageError(f"has the class {beyond[0]}, and there are {reader.classes} names")
    return numbers


def _by_colour(image: Image.Image, reader: MaskReader) -> NDArray[np.uint8]:
    if image.mode == "P":
        # Only the used part of the palette; 255, which no table has, does not change.
        indices = np.asarray(image)
        palette = image.getpalette("RGB") or []
        used = np.unique(indices)
        used = used[used != _VOID]
        packed = _packed(np.array([*palette, *[0] * 768][:768]).reshape(256, 3))
        numbers = np.full(256, _VOID, np.uint8)
        numbers[used] = to_numbers(packed[used], reader.colours)
        found: NDArray[np.uint8] = numbers[indices]
        return found
    image.load()
    found = np.empty((image.height, image.width), np.uint8)
    for rows, packed in _packed_rows(image):
        if reader.colours:
            found[rows] = to_numbers(packed, reader.colours)
        elif _is_grey(packed).all():
            found[rows] = _checked((packed & 255).astype(np.uint8), reader)
        else:
            raise ImageError("has colours, and no table has their classes (--option classes=TABLE)")
    return orient(found[:, :, None], pil_orientation(image))[:, :, 0]


def _packed_rows(image: Image.Image) -> Iterator[tuple[slice, NDArray[np.uint32]]]:
    """Yield the colours of an image as numbers, some rows at a time."""
    for rows, band in row_bands(image):
        yield rows, _packed(np.asarray(band.convert("RGB")))


def _packed(pixels: NDArray[Any]) -> NDArray[np.uint32]:
    """Return colours, [..., 3], as numbers."""
    wide = pixels.astype(np.uint32)
    found = (wide[..., 0] << 16) | (wide[..., 1] << 8) | wide[..., 2]
    return np.asarray(found, np.uint32)


def _is_grey(packed: NDArray[np.uint32]) -> NDArray[np.bool_]:
    return np.asarray(packed == (packed & 255) * 0x010101, np.bool_)


# -- before packing ----------------------------------------------------------------------


def _looks_of(paths: Iterable[Path]) -> tuple[set[str], set[bytes]]:
    """Return the PIL modes of masks, "JPEG" for a JPEG, and their palettes, cut to one length."""
    modes, palettes = set(), set()
    for path in paths:
        try:
            with open_image(read_regular(path)) as image:
                modes.add("JPEG" if image.format == "JPEG" else image.mode)
                if image.mode == "P":
                    palettes.add(bytes(image.getpalette("RGB") or ()))
        except Exception:  # the worker that reads it rejects it, with the reason
            continue
    shortest = min(map(len, palettes), default=0)
    return modes, {palette[:shortest] for palette in palettes}


def _colours_of(paths: Iterable[Path]) -> tuple[int, ...]:
    """Return the colours that occur in masks, sorted; none where all are grey."""
    found: set[int] = set()
    for path in paths:
        try:
            with open_image(read_regular(path), MAX_PIXELS) as image:
                if image.mode in _COLOURED:
                    image.load()
                    for _, packed in _packed_rows(image):
                        found.update(np.unique(packed).tolist())
        except Exception:  # the worker that reads it rejects it, with the reason
            continue
        if len(found) > _MOST:
            raise SourceError(
                f"{path}: with it masks have more than {_MOST} colours, so these are not classes. "
                "If they are, give a table with the colour of each: --option classes=TABLE"
            )
    colours = np.array(sorted(found), np.uint32)
    return () if _is_grey(colours).all() else tuple(colours.tolist())


# -- tables of classes -------------------------------------------------------------------


class ClassTable(NamedTuple):
    """Names of classes from 0 on, and the colour of each (256 R + G) 256 + B, if they have any."""

    names: tuple[str, ...]
    colours: tuple[int, ...] = ()
    path: Path | None = None  # the file that it is from


def class_table(
    root: Path,
    masks: Callable[[], Iterator[Path]],
    given: str | None,
    which: str,
    notes: list[str],
) -> ClassTable:
    """Return names and colours of the classes, from a file or from the masks.

    masks: iterates over the masks of the dataset.
    given: the option ``classes=``.
    which: of Cityscapes' masks.
    """
    modes, palettes = _looks_of(itertools.islice(masks(), _LOOKED_AT))
    first = next(masks()).name
    if "JPEG" in modes:
        raise SourceError(
            f"{root}: its masks are JPEGs, the first {first}; JPEG changes class numbers. "
            "Bring them as PNG; masks of 0 and 255 are found again by a threshold of 128"
        )
    folders = [root, *(root / name for name in (*split_folders_in(root), "annotations", "masks"))]
    usual = [folder / name for folder in folders for name in _TABLES]
    paths = [Path(given)] if given else [path for path in usual if path.is_file()]
    tables = [read_table(path)._replace(path=path) for path in paths]
    for other, table in zip(paths, tables, strict=True):
        if table[:2] != tables[0][:2] and other.name == paths[0].name:
            raise SourceError(
                f"{other}: its classes are not those of {paths[0]}. Give both the same lines, or "
                "name one: --option classes=TABLE"
            )
    if tables:
        table, path = tables[0], paths[0]
        check_different(table.names, path)
        how = "colours" if table.colours and modes & {"RGB", "RGBA", "P"} else "numbers"
        notes.append(f"classes are those of {path.name}, by {how} of pixels")
        return table if how == "colours" else table._replace(colours=())
    if first.endswith(f"_{which}.png") and which in _CITYSCAPES:
        return ClassTable(_CITYSCAPES[which])
    if len(palettes) > 1:
        raise SourceError(
            f"{root}: its masks have palettes of different colours, so an index is not a class. "
            "Say what classes are: --option classes=TABLE, with lines of name,r,g,b, or with a "
            "name a line if they are the indices all the same"
        )
    if "P" in modes:
        notes.append("masks have palettes: classes are the indices, not the colours")
    if not modes & {"RGB", "RGBA"}:
        return ClassTable(())
    colours = _colours_of(masks())
    if colours:
        notes.append(
            f"no table of classes: they are the {len(colours)} colours that occur in masks, "
            "sorted (--option classes=TABLE names them)"
        )
    return ClassTable(tuple(f"#{colour:06x}" for colour in colours), colours)


def read_table(path: Path) -> ClassTable:
    """Read a table."""
    lines = [line.strip().lstrip("\ufeff") for _, line in text_lines(path)]
    lines = [line for line in lines if not line.startswith("#")]
    if not 0 < len(lines) <= _MOST + 1:
        raise SourceError(f"{path}: {len(lines)} lines; expected those of 1 to {_MOST} classes")
    for body in (lines, lines[1:]):  # the first may be a header
        for pattern in (_COLOUR_NAME, _NAME_COLOUR):
            found = [pattern.fullmatch(line) for line in body]
            if body and all(found):
                rows = [match.groups() for match in found if match]
                if pattern is _NAME_COLOUR:
                    rows = [(*row[1:], row[0]) for row in rows]
                return _coloured(path, rows)
        numbered = [_NUMBER_NAME.fullmatch(line) for line in body]
        if path.suffix == ".csv" and body and all(numbered):
            names = {int(match[1]): match[2].strip() for match in numbered if match}
            count = max(names) + 1
            return ClassTable(tuple(names.get(k, f"class {k}") for k in range(count)))
    if path.suffix == ".csv":
        raise SourceError(
            f"{path}: expected lines as name,r,g,b or number,name; found {lines[0]!r}"
        )
    return ClassTable(tuple(lines[lines[0] == "__ignore__" :]))  # labelme's name for -1


def _coloured(path: Path, rows: list[tuple[str | None, ...]]) -> ClassTable:
    colours = [tuple(int(text or 0) for text in row[:3]) for row in rows]
    if max(max(colour) for colour in colours) > 255:
        raise SourceError(f"{path}: has a colour with a part beyond 255")
    packed = [(r * 256 + g) * 256 + b for r, g, b in colours]
    if len(set(packed)) < len(packed):
        double = next(colour for colour in colours if colours.count(colour) > 1)
        raise SourceError(f"{path}: two classes have the colour {double}. Give them one line.")
    return ClassTable(tuple(str(row[3]).strip() for row in rows), tuple(packed))


def to_numbers(packed: NDArray[np.uint32], colours: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return class numbers of pixels, by their colours."""
    known = np.array(colours, np.uint32)
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known[order], packed), len(known) - 1)
    numbers = order[place]
    unknown = packed[known[numbers] != packed]
    if len(unknown):
        colour = int(unknown[0])
        raise ValueError(
            f"its mask has the colour {colour >> 16}, {colour >> 8 & 255}, {colour & 255} "
            f"({np.count_nonzero(unknown == colour):,} pixels), which is that of no class"
        )
    found: NDArray[np.uint8] = numbers.astype(np.uint8)
    return found
