"""YOLO: images, and a text file for each with a line for every object.

::

    data.yaml                     names, train, val
    images/train/000000000009.jpg
    labels/train/000000000009.txt     45 0.479492 0.688771 0.955609 0.5955

There are three layouts: ``data.yaml`` (Ultralytics, Roboflow), Darknet's ``*.names`` with lists of
images (CVAT), and the folders ``images`` and ``labels`` without a description.  Source:
https://docs.ultralytics.com/datasets/ and ``ultralytics/data`` (8.4), which trains on them.

A line of a label file is an object: its class, then numbers that are fractions of the upright
picture's width and height.  Four are a box (middle, width, height), six and more a polygon.
Source: ``ultralytics/data/utils.py``, `verify_image_label`, 8.4.  It reads pictures with
``cv2.imread``, which applies an Exif orientation.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import reprlib  # anchors that repeat may be endless as text
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import ArrayField, Field

from .listing import Listing
from .reading.annotations.annotated import Frame, mask_field, paint_objects, upright_frame_of
from .reading.class_names import check_different, read_class_names
from .reading.fields import BOXES
from .reading.image_files import SUFFIXES, files_below, is_image_name
from .reading.locations import first_bytes
from .reading.named_files import find_named
from .reading.options import ClassFile, PaintedMasks, SplitOption
from .reading.refusals import require
from .reading.splits import in_usual_order, split_folders_in
from .reading.text_lines import text_lines

__all__ = ["YoloSource"]

_SPLITS = ("train", "val", "valid", "test")


class YoloSource(Listing):
    """Images with the boxes and classes of their objects."""

    name = "yolo"
    summary = "YOLO: data.yaml, images and labels (boxes, polygons)"
    parts = ("*.yaml|classes.txt|obj.names", "**/labels/**/*.txt")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        path = Path(location)
        if path.is_file():
            return _is_description(path)
        return bool((_descriptions(path) and _has_labels(path)) or _undescribed(path))

    def list_samples(
        self,
        location: Path,
        *,
        split: SplitOption = None,
        masks: PaintedMasks = None,
        classes: ClassFile = None,
    ) -> dict[str, Field]:
        self.root = location if location.is_dir() else location.parent
        found = [location] if location.is_file() else _descriptions(location)
        if len(found) > 1:
            raise OptionError(f"{location}: pack one of {', '.join(map(str, found))}")
        if found:
            content = _content(found[0])
            places, names = self._places(found[0], content), _class_names(found[0], content)
        else:
            places = _undescribed(self.root)
            lists = [*sorted(self.root.glob("*.names")), self.root / "classes.txt"]
            found = [path for path in (*lists, self.root / "labels/classes.txt") if path.is_file()]
            names = read_class_names(found[0]) if found else None
        if not places:
            raise SourceError(
                f"{self.root}: no YOLO. Expected data.yaml in it, or the folders images and "
                "labels, or obj.names and train.txt"
            )
        self.beside += found[:1]
        names = read_class_names(classes) if classes else names
        self.reader = YoloReader(None if names is None else len(names), masks)
        self._unlabelled = 0
        for name in self.choose_splits(in_usual_order(places), split):
            for place in places[name]:
                self._add_all(place, self.split_number(name))
        self._check_counts(masks)
        if names is None:
            self.notes.append("no names of classes (--option classes=FILE gives them)")
        return {
            **mask_field(masks, names),
            "boxes": BOXES,
            "labels": ArrayField("int64", (None,), classes=names),
            **self.split_field(),
        }

    def _places(self, path: Path, content: dict[str, Any]) -> dict[str, list[str]]:
        """Return the folders and lists of images of each split that a description names."""
        splits: dict[str, list[str]] = {}
        missing = {}
        for split in _SPLITS:
            given = content.get(split) or []
            names = [given] if isinstance(given, str) else given
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise SourceError(f"{path}: {split} is neither a folder, nor a list, nor several")
            places = [_place(self.root, content.get("path"), name) for name in names]
            if not all(places):
                missing[split] = reprlib.repr(given)
            elif places:
                splits[split] = places
        if not splits or set(missing) - {"test"}:
            shown = ", ".join(f"{s} is not in {self.root}: {g}" for s, g in missing.items())
            raise SourceError(
                f"{path}: {shown}. Bring it, take it out of {path.name}, or copy {path.name} into "
                "the dataset's folder"
            )
        if missing:
            self.notes.append(f"test, which {path.name} names, is not there")
        return splits

    def _add_all(self, place: str, split: dict[str, int]) -> None:
        """Add an image, or the images of a folder or of a list."""
        path = self.root / place
        if path.is_dir():
            names = files_below(self.root, place)
        elif is_image_name(place):
            names = iter([place])
        else:
            self.beside.append(path)
            names = self._listed(path)
        for name in filter(is_image_name, names):
            label = find_named(self.root, label_of(name))
            labels = [os.path.relpath(label, self.root)] * os.path.isfile(label)
            self._unlabelled += not labels
            self.add(name, *labels, **split)

    def _listed(self, path: Path) -> Iterator[str]:
        """Yield the images of a list; reject those that are missing."""
        base, leading = _relocation(self.root, path)
        for number, line in text_lines(path):
            parts, name, problem = _parts(line), line.strip()[:200], "the image is missing"
            try:
                found = find_named(self.root, os.path.join(base, *(parts[leading:] or parts)))
                name = os.path.relpath(found, self.root)
                if os.path.isfile(found):
                    yield name
                    continue
            except SourceError as error:
                problem = str(error)
            self.reject(f"{name} ({path.name}, line {number})", problem)

    def _check_counts(self, masks: str | None) -> None:
        """Note or refuse labels that are missing, or whose meaning is not kept."""
        if not self.num_samples:
            raise SourceError(f"{self.root}: no images where its description says")
        if self._unlabelled == self.num_samples:
            raise SourceError(
                f"{self.root}: none of {self.num_samples:,} images has a label file; of "
                f"{self.names_of(0)[0]} expected {label_of(self.names_of(0)[0])}"
            )
        if self._unlabelled:
            self.notes.append(
                f"{self._unlabelled:,} of {self.num_samples:,} images have no label file and are "
                "taken for images without objects"
            )
        labels = (name for k in range(min(self.num_samples, 50)) for name in self.names_of(k)[1:])
        lines = (x for n in labels for x in first_bytes(self.root / n, 1 << 16).splitlines())
        widths = {len(line.split()) for line in lines} - {0}
        if widths == {9} and not masks:
            raise SourceError(
                f"{self.root}: each label has 8 numbers, as oriented boxes have, whose angle is "
                "not kept. --option masks=classes paints them and takes their upright boxes"
            )
        if max(widths, default=0) > 5 and not masks:
            self.notes.append(
                "of polygons their boxes are taken (--option masks=classes paints them)"
            )


def label_of(image: str) -> str:
    """Return the label file of an image: in ``labels`` for ``images``, the last in its path."""
    before, between, after = f"/{image}".rpartition("/images/")
    return os.path.splitext(f"{before}/labels/{after}"[1:] if between else image)[0] + ".txt"


# -- described by data.yaml --------------------------------------------------------------


_LARGEST = 1 << 20
_NAMES = re.compile(rb"^(names|nc)\s*:", re.MULTILINE)
_PARTS = re.compile(rb"^(train|val|test)\s*:", re.MULTILINE)


def _is_description(path: Path) -> bool:
    start = first_bytes(path, 1 << 16)
    return bool(_NAMES.search(start) and _PARTS.search(start))


def _descriptions(folder: Path) -> list[Path]:
    paths = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    found = [path for path in paths if path.is_file() and _is_description(path)]
    return [path for path in found if path.stem == "data"] or found


def _content(path: Path) -> dict[str, Any]:
    """Return the content of a description."""
    yaml = require("yaml", "yolo", f"reading {path.name}")
    try:
        # Text stays text, as that of a class called "no" must.
        content = yaml.load(read_regular(path, _LARGEST), yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SourceError(f"{path}: no sound YAML: {error}") from error
    if not isinstance(content, dict):
        raise SourceError(f"{path}: expected names, train and val, found {type(content).__name__}")
    if "kpt_shape" in content:
        raise SourceError(
            f"{path}: keypoints are not kept, and labels with kpt_shape are not read. For boxes, "
            "keep the first five numbers of each line of the labels, and take kpt_shape out"
        )
    return content


def _place(folder: Path, base: Any, name: str) -> str:
    """Return a folder or list relative to the dataset's; "" if it does not exist.

    base: the member ``path`` of the description, often of another machine.
    name: relative to it or to another folder: Roboflow writes ``../train/images`` for a folder next
        to the file.
    """
    tail = re.sub(r"^(\.{0,2}[/\\])+", "", name)
    if os.path.isabs(name) and Path(name).is_relative_to(folder.resolve()):
        tail = str(Path(name).relative_to(folder.resolve()))
    if tail in ("", "."):
        return "."
    last = re.split(r"[/\\]", base.rstrip("/\\"))[-1] if isinstance(base, str) else ""
    for start in ("", last.strip(".")):
        found = find_named(folder, os.path.join(start, tail))
        if os.path.exists(found):
            return os.path.relpath(found, folder)
    return ""


def _class_names(path: Path, content: dict[str, Any]) -> tuple[str, ...] | None:
    names = content.get("names")
    if isinstance(names, dict):
        try:
            numbered = {int(number): name for number, name in names.items()}
            names = [numbered[number] for number in range(len(names))]
        except (KeyError, ValueError):
            raise SourceError(f"{path}: the names are not numbered from 0 on") from None
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SourceError(f"{path}: names are neither a list of text nor numbered text")
    if content.get("nc", str(len(names))) != str(len(names)):
        raise SourceError(
            f"{path}: nc is {reprlib.repr(content['nc'])[:20]}, and there are {len(names)} names"
        )
    check_different(names, path)
    return tuple(names)


# -- not described -----------------------------------------------------------------------


_LABEL = re.compile(rb"\d+(\s+-?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?){4,}")
_LOOKED_AT = 20


def _undescribed(folder: Path) -> dict[str, list[str]]:
    """Return the lists of images next to a list of names, or the folders that have labels."""
    lists = [folder / f"{split}.txt" for split in _SPLITS if any(folder.glob("*.names"))]
    names = {path: next(text_lines(path, cut=True), (0, ""))[1] for path in lists if path.is_file()}
    found = {path.stem: [path.name] for path, name in names.items() if is_image_name(name.strip())}
    splits = {split: f"{split}/images" for split in split_folders_in(folder)}
    within = {split: f"images/{split}" for split in split_folders_in(folder / "images")}
    for places in (splits, within, {"": "images"}):
        found = found or {
            split: [place]
            for split, place in places.items()
            if (folder / place).is_dir() and _are_labels((folder / label_of(f"{place}/0")).parent)
        }
    one = not found and (folder / "classes.txt").is_file() and _are_labels(folder, next_to=True)
    return {"": ["."]} if one else found


def _are_labels(folder: Path, next_to: bool = False) -> bool:
    """Tell whether the first text files of a folder are labels, perhaps next to images."""
    paths = [path for path in sorted(folder.glob("*.txt")) if path.name != "classes.txt"]
    for path in paths[:_LOOKED_AT]:
        start = first_bytes(path, 1 << 12).removeprefix(b"\xef\xbb\xbf").strip()
        if start and not _LABEL.match(start.splitlines()[0]):
            return False
        if start and (not next_to or any(path.with_suffix(s).is_file() for s in SUFFIXES)):
            return True
    return False


def _has_labels(folder: Path) -> bool:
    """Tell whether there is a folder of labels, or a label file: class folders may have a YAML."""
    if any(next(folder.glob(f"{above}labels"), None) for above in ("", "*/", "*/*/")):
        return True
    texts = itertools.chain(folder.glob("*.txt"), folder.glob("*/*.txt"), folder.glob("*/*/*.txt"))
    return any(_LABEL.match(first_bytes(path)) for path in itertools.islice(texts, _LOOKED_AT))


# -- lists of images ----------------------------------------------------------------------
#
# Their paths, one per line, are relative to the list's folder, to the dataset's, or begin with
# folders of another machine: ``data/obj_train_data/0.jpg``, ``/home/me/coco/images/0.jpg``.  The
# first paths decide how many leading folders to remove from all.


_TRIED = 16


def _parts(line: str) -> list[str]:
    return [part for part in line.strip().replace("\\", "/").split("/") if part not in ("", ".")]


def _relocation(root: Path, path: Path) -> tuple[str, int]:
    """Return the folder that names are relative to, and how many of their folders are not here."""
    bases = dict.fromkeys([os.path.relpath(path.parent, root).removeprefix("."), ""])
    for (_, line), _ in zip(text_lines(path, cut=True), range(_TRIED), strict=False):
        parts = _parts(line)
        for leading, base in itertools.product(range(len(parts)), bases):
            with contextlib.suppress(SourceError):  # a name that leads out of the dataset
                if os.path.isfile(find_named(root, os.path.join(base, *parts[leading:]))):
                    return base, leading
    return "", 0


# -- one label file, read by a worker ----------------------------------------------------


_LARGEST_LABEL = 64 << 20
_BEYOND = 0.01
"""By how much Ultralytics lets coordinates lie outside of a picture."""


@dataclass(frozen=True)
class YoloReader:
    """How a worker reads an image and its label file, if it has one."""

    classes: int | None  # their number, if it is known
    masks: str | None

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an image; errors name file and line."""
        image, *paths = files
        data = read_regular(image)
        frame = upright_frame_of(data)
        labels: list[int] = []
        outlines: list[NDArray[np.float64]] = []
        for path in paths:
            text = read_regular(path, _LARGEST_LABEL).decode("utf-8-sig")
            for number, line in enumerate(text.splitlines(), 1):
                try:
                    if parts := line.split():
                        labels.append(self._class_number(parts[0]))
                        outlines.append(_outline(parts[1:], frame))
                except ValueError as error:
                    place = f"{os.path.basename(path)}, line {number}"
                    raise SourceError(f"{place}: {error}") from None
        values = {
            "image": data,
            "boxes": frame.boxes([[*one.min(0), *one.max(0)] for one in outlines]),
            "labels": np.array(labels, np.int64),
        }
        if self.masks:  # the larger objects below
            order = sorted(range(len(outlines)), key=lambda k: -_area(outlines[k]))
            values["mask"] = paint_objects(
                frame, self.masks, labels, order, lambda k: [outlines[k].reshape(-1).tolist()]
            )
        return values

    def _class_number(self, text: str) -> int:
        number, count = float(text), 1 << 31 if self.classes is None else self.classes
        if not (number.is_integer() and 0 <= number < count):
            raise ValueError(f"its class is {text!r:.40}, not a number from 0 to {count - 1}")
        return int(number)


def _outline(parts: list[str], frame: Frame) -> NDArray[np.float64]:
    """Return the corners of a polygon or a box, [n, 2], in pixels of the upright picture."""
    given = np.array(list(map(float, parts)))
    if len(given) < 4 or len(given) % 2:
        raise ValueError(
            f"{len(given)} numbers; expected 4 of a box, or x and y of three or more corners"
        )
    if not (given.min() >= -_BEYOND and given.max() <= 1 + _BEYOND):  # or NaN
        raise ValueError(
            "coordinates are fractions of width and height, from 0 to 1, "
            f"not {given[np.argmax(np.abs(given - 0.5))]:g}"
        )
    size = np.array([frame.width, frame.height], np.float64)
    if len(given) > 4:
        return given.reshape(-1, 2) * size
    if min(given[2:]) < 0:
        raise ValueError(f"a box of {given[2]:g} x {given[3]:g}")
    middle, half = given[:2] * size, given[2:] * size / 2
    (left, top), (right, bottom) = middle - half, middle + half
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


def _area(outline: NDArray[np.float64]) -> float:
    x, y = outline.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1)))
