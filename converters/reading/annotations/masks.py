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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastdata.codecs.image import decode_image
from fastdata.codecs.limits import MAX_PIXELS
from fastdata.codecs.lossy_masks import ClassNumbersLostError, without_loss
from fastdata.codecs.pillow import open_image, orient, pil_orientation, row_bands
from fastdata.errors import ImageError, SourceError
from fastdata.regular_files import read_regular

from ..class_names import check_different
from ..splits import split_folders_in
from ..text_lines import text_lines

__all__ = ["MaskReader", "class_table", "read_table"]

_MOST = 256
"""Classes that a mask of 8 bits holds."""
_COLOURED = ("RGB", "RGBA")
_GREYS = tuple(k * 0x010101 for k in range(256))
_VOID = 255
_LOOKED_AT = 16

_TABLES = (
    *("labelmap.txt", "label_colors.txt", "class_dict.csv", "_classes.csv"),
    *("class_names.txt", "codes.txt", "classes.txt"),
)
"""Files that such a table is usually in, those with colours first."""

_COLOUR = r"(?P<red>\d{1,3})[\s,]+(?P<green>\d{1,3})[\s,]+(?P<blue>\d{1,3})"
_COLOURS = (
    re.compile(rf"{_COLOUR}[\s,]+(?P<name>\S.*)"),
    re.compile(rf"(?P<name>.*?\S)(?:\s*[:,]\s*|\s+){_COLOUR}\s*(?::.*)?"),
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
                found = _numbers(read_regular(path), self.colours)
                beyond = found[(found >= (self.classes or 256)) & (found != _VOID)]
                if len(beyond):
                    raise ImageError(
                        f"has the class {beyond[0]}, and there are {self.classes} names"
                    )
            except ValueError as error:
                lost = isinstance(error, ClassNumbersLostError)
                kind = ClassNumbersLostError if lost else ImageError
                raise kind(f"{Path(path).name}: {error}") from None
            mask = found if mask is None else np.where(found > 0, found, mask)
        return {"image": Path(image), "mask": mask}


def _numbers(data: bytes, colours: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the class numbers of a mask, H x W."""
    data = without_loss(data)
    with open_image(data, MAX_PIXELS) as image:
        if image.mode == "P" and colours:
            found = _by_palette(image, colours)[:, :, None]
            return orient(found, pil_orientation(image))[:, :, 0]
        if image.mode in _COLOURED:
            image.load()
            found = np.empty((image.height, image.width, 1), np.uint8)
            for rows, packed in _packed_rows(image):
                found[rows, :, 0] = to_numbers(packed, colours or _GREYS)
            return orient(found, pil_orientation(image))[:, :, 0]
    return decode_image(data, 1, mask=True).pixels[:, :, 0]


def _by_palette(image: Image.Image, colours: tuple[int, ...]) -> NDArray[np.uint8]:
    # Only the used part of the palette; 255, which no table has, does not change.
    indices, palette = np.asarray(image), image.getpalette("RGB") or []
    used = np.unique(indices)
    used = used[used != _VOID]
    packed = _packed(np.array([*palette, *[0] * 768][:768]).reshape(256, 3))
    numbers = np.full(256, _VOID, np.uint8)
    numbers[used] = to_numbers(packed[used], colours)
    return np.asarray(numbers[indices], np.uint8)


def to_numbers(packed: NDArray[np.uint32], colours: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return class numbers of pixels, by their colours.

    Only one pixel of each run of equal ones is looked up.
    """
    flat, known = packed.reshape(-1), np.array(colours, np.uint32)
    starts = np.flatnonzero(np.append(True, flat[1:] != flat[:-1]))[: len(flat)]
    lengths = np.diff(starts, append=len(flat))
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known[order], flat[starts]), len(known) - 1)
    numbers = order[place]
    unknown = known[numbers] != flat[starts]
    if unknown.any():
        colour = int(flat[starts][unknown][0])
        count = lengths[flat[starts] == colour].sum()
        raise ValueError(
            f"its mask has the colour {colour >> 16}, {colour >> 8 & 255}, {colour & 255} "
            f"({count:,} pixels), which is that of no class (--option classes=TABLE says which are)"
        )
    return np.repeat(numbers.astype(np.uint8), lengths).reshape(packed.shape)


def _packed_rows(image: Image.Image) -> Iterator[tuple[slice, NDArray[np.uint32]]]:
    """Yield the colours of an image as numbers, some rows at a time."""
    for rows, band in row_bands(image):
        yield rows, _packed(np.asarray(band.convert("RGB")))


def _packed(pixels: NDArray[Any]) -> NDArray[np.uint32]:
    """Return colours, [..., 3], as numbers."""
    wide = pixels.astype(np.uint32)
    return np.asarray((wide[..., 0] << 16) | (wide[..., 1] << 8) | wide[..., 2], np.uint32)


# -- before packing ----------------------------------------------------------------------


class ClassTable(NamedTuple):
    """Names of classes from 0 on, and the colour of each (256 R + G) 256 + B, if they have any."""

    names: tuple[str, ...]
    colours: tuple[int, ...] = ()
    path: Path | None = None  # its file


def class_table(
    root: Path, masks: Iterator[Path], given: str | None, notes: list[str]
) -> ClassTable:
    """Return names and colours of the classes, from a file or from the masks.

    masks: of the dataset.
    given: the option ``classes=``.
    """
    some = list(itertools.islice(masks, _LOOKED_AT))
    modes, palettes = _looks_of(some)
    first = some[0].name
    folders = [root, *(root / name for name in (*split_folders_in(root), "annotations", "masks"))]
    usual = [folder / name for folder in folders for name in _TABLES]
    paths = [Path(given)] if given else [path for path in usual if path.is_file()]
    tables = [read_table(path) for path in paths]
    for path, table in zip(paths, tables, strict=True):
        if table != tables[0] and path.name == paths[0].name:
            raise SourceError(
                f"{path}: its classes are not those of {paths[0]}. Give both the same lines, or "
                "name one: --option classes=TABLE"
            )
    if tables:
        table, path = tables[0], paths[0]
        check_different(table.names, path)
        how = "colours" if table.colours and modes & {*_COLOURED, "P"} else "numbers"
        notes.append(f"classes are those of {path.name}, by {how} of pixels")
        return ClassTable(table.names, table.colours if how == "colours" else (), path)
    for kind, names in _CITYSCAPES.items():
        if first.endswith(f"_{kind}.png"):
            return ClassTable(names)
    if len(palettes) > 1:
        raise SourceError(
            f"{root}: its masks have palettes of different colours, so an index is not a class. "
            "Say what classes are: --option classes=TABLE, with lines of name,r,g,b, or with a "
            "name a line if they are the indices all the same"
        )
    if "P" in modes:
        notes.append("masks have palettes: classes are the indices, not the colours")
    colours = _colours_of(itertools.chain(some, masks)) if modes & {*_COLOURED} else ()
    if colours:
        notes.append(
            f"no table of classes: they are the {len(colours)} colours that occur in masks, "
            "sorted (--option classes=TABLE names them)"
        )
    return ClassTable(tuple(f"#{colour:06x}" for colour in colours), colours)


def _looks_of(paths: Iterable[Path]) -> tuple[set[str], set[bytes]]:
    """Return the PIL modes of masks, and their palettes, cut to one length."""
    modes, palettes = set(), set()
    for image in _opened(paths):
        modes.add(image.mode)
        if image.mode == "P":
            palettes.add(bytes(image.getpalette("RGB") or ()))
    shortest = min(map(len, palettes), default=0)
    return modes, {palette[:shortest] for palette in palettes}


def _colours_of(paths: Iterable[Path]) -> tuple[int, ...]:
    """Return the colours that occur in masks, sorted; none if all are grey."""
    found: set[int] = set()
    for image in _opened(paths):
        if image.mode in _COLOURED:
            for _, packed in _packed_rows(image):
                found.update(np.unique(packed).tolist())
        if len(found) > _MOST:
            raise SourceError(
                f"masks have more than {_MOST} colours, so these are not classes. "
                "If they are, give a table with the colour of each: --option classes=TABLE"
            )
    return () if found.issubset(_GREYS) else tuple(sorted(found))


def _opened(paths: Iterable[Path]) -> Iterator[Image.Image]:
    """Yield the masks that can be read; workers reject the others, with the reason.

    `SourceError` at a mask that lost its class numbers by compression.
    """
    for path in paths:
        try:
            with open_image(without_loss(read_regular(path)), MAX_PIXELS) as image:
                image.load()
                yield image
        except ClassNumbersLostError as error:
            raise SourceError(f"{path}: {error}") from error
        except Exception:
            continue


def read_table(path: Path) -> ClassTable:
    """Read a table."""
    lines = [line.strip() for _, line in text_lines(path)]
    lines = [line for line in lines if not line.startswith("#")]
    if not 0 < len(lines) <= _MOST + 1:
        raise SourceError(f"{path}: {len(lines)} lines; expected those of 1 to {_MOST} classes")
    for body in filter(None, (lines, lines[1:])):  # the first may be a header
        for pattern in _COLOURS:
            rows = [match.groupdict() for match in map(pattern.fullmatch, body) if match]
            if len(rows) == len(body):
                return _coloured(path, rows)
        numbered = [match for match in map(_NUMBER_NAME.fullmatch, body) if match]
        if path.suffix == ".csv" and len(numbered) == len(body):
            names = {int(match[1]): match[2] for match in numbered}
            return ClassTable(tuple(names.get(k, f"class {k}") for k in range(max(names) + 1)))
    if path.suffix == ".csv":
        raise SourceError(
            f"{path}: expected lines as name,r,g,b or number,name; found {lines[0]!r}"
        )
    return ClassTable(tuple(lines[lines[0] == "__ignore__" :]))  # labelme's name for -1


def _coloured(path: Path, rows: list[dict[str, str]]) -> ClassTable:
    colours = [tuple(int(row[part]) for part in ("red", "green", "blue")) for row in rows]
    if max(map(max, colours)) > 255:
        raise SourceError(f"{path}: has a colour with a part beyond 255")
    if double := [colour for colour in colours if colours.count(colour) > 1]:
        raise SourceError(f"{path}: two classes have the colour {double[0]}. Give them one line.")
    packed = _packed(np.array(colours)).tolist()
    return ClassTable(tuple(row["name"].strip() for row in rows), tuple(packed))
