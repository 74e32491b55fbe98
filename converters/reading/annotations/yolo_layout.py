"""The images, labels and classes of a YOLO dataset.

There are three layouts: ``data.yaml`` (Ultralytics, Roboflow), Darknet's ``*.names`` with lists of
images, and the folders ``images`` and ``labels`` without a description.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import reprlib  # what anchors repeat may be endless as text
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import read_regular

from ..class_names import check_different, read_class_names
from ..image_files import SUFFIXES, is_image_name
from ..locations import first_bytes
from ..named_files import find_named
from ..refusals import require
from ..splits import in_usual_order, split_folders_in
from ..text_lines import text_lines

__all__ = ["YoloLayout", "is_yolo", "label_of", "listed_images", "yolo_layout"]

_SPLITS = ("train", "val", "valid", "test")
_TRIED = 16
_LARGEST = 1 << 20
_LOOKED_AT = 20
_NAMES = re.compile(rb"^(names|nc)\s*:", re.MULTILINE)
_PARTS = re.compile(rb"^(train|val|test)\s*:", re.MULTILINE)
_LABEL = re.compile(rb"\d+(\s+-?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?){4,}")


class YoloLayout(NamedTuple):
    """A dataset."""

    root: Path  # the folder that all else is relative to
    beside: list[Path]  # the files that describe it
    classes: tuple[str, ...] | None
    # from the name of a split, "" if there are none, to its folders and lists of images
    splits: dict[str, list[str]]
    absent: bool = False  # whether a test split is named that is not there


def is_yolo(path: Path) -> bool:
    """Tell whether this is described as a YOLO dataset, or has labels like one."""
    if path.is_file():
        return _is_description(path)
    described = bool(_descriptions(path)) and _has_labels(path)
    return described or bool(_lists(path)) or bool(_folders(path))


def yolo_layout(location: Path) -> YoloLayout:
    """Return the places of a dataset, by its description or by its folders."""
    folder = location if location.is_dir() else location.parent
    found = [location] if location.is_file() else _descriptions(location)
    if len(found) > 1:
        raise OptionError(f"{location}: pack one of {', '.join(map(str, found))}")
    if found:
        return _described(found[0], folder)
    splits = {path.stem: [path.name] for path in _lists(folder)} or _folders(folder)
    if not splits:
        raise SourceError(
            f"{folder}: no YOLO. Expected data.yaml in it, or the folders images and labels, or "
            "obj.names and train.txt"
        )
    named = (*sorted(folder.glob("*.names")), folder / "classes.txt", folder / "labels/classes.txt")
    beside = [path for path in named if path.is_file()][:1]
    classes = read_class_names(beside[0]) if beside else None
    return YoloLayout(folder, beside, classes, {s: splits[s] for s in in_usual_order(splits)})


def label_of(image: str) -> str:
    """Return the label file of an image: in ``labels`` for ``images``, the last in its path."""
    before, between, after = f"/{image}".rpartition("/images/")
    return os.path.splitext(f"{before}/labels/{after}"[1:] if between else image)[0] + ".txt"


# -- described by data.yaml --------------------------------------------------------------


def _is_description(path: Path) -> bool:
    start = first_bytes(path, 1 << 16)
    return bool(_NAMES.search(start) and _PARTS.search(start))


def _descriptions(folder: Path) -> list[Path]:
    paths = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    found = [path for path in paths if path.is_file() and _is_description(path)]
    return [path for path in found if path.stem == "data"] or found


def _described(path: Path, folder: Path) -> YoloLayout:
    yaml = require("yaml", "yolo", f"reading {path.name}")
    if path.stat().st_size > _LARGEST:
        raise SourceError(f"{path}: too large for the description of a dataset")
    try:
        # Text stays text, as that of a class called "no" must.
        content = yaml.load(read_regular(path), yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SourceError(f"{path}: no sound YAML: {error}") from error
    if not isinstance(content, dict):
        raise SourceError(f"{path}: expected names, train and val, found {type(content).__name__}")
    if "kpt_shape" in content:
        raise SourceError(
            f"{path}: keypoints are not kept, and labels with kpt_shape are not read. For boxes, "
            "keep the first five numbers of each line of the labels, and take kpt_shape out"
        )
    splits: dict[str, list[str]] = {}
    missing = {}
    for split in _SPLITS:
        given = content.get(split) or []
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise SourceError(f"{path}: {split} is neither a folder, nor a list, nor several")
        places = [_place(folder, content.get("path"), name) for name in names]
        if all(places):
            splits |= {split: places} if places else {}
        else:
            missing[split] = reprlib.repr(given)
    if not splits or set(missing) - {"test"}:
        raise SourceError(
            f"{path}: {', '.join(f'{s} is not in {folder}: {g}' for s, g in missing.items())}. "
            f"Bring it, take it out of {path.name}, or copy {path.name} into the dataset's folder"
        )
    return YoloLayout(folder, [path], _class_names(path, content), splits, bool(missing))


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
    for start in dict.fromkeys(("", last)):
        found = find_named(folder, os.path.join(start.strip("."), tail))
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


def _lists(folder: Path) -> list[Path]:
    """Return Darknet's lists of images, next to a list of names."""
    lists = [folder / f"{split}.txt" for split in _SPLITS if any(folder.glob("*.names"))]
    return [
        path
        for path in lists
        if path.is_file() and is_image_name(next(text_lines(path, cut=True), (0, ""))[1].strip())
    ]


def _folders(folder: Path) -> dict[str, list[str]]:
    """Return the folders of images that have folders of labels, by split."""
    places = {split: f"{split}/images" for split in split_folders_in(folder)}
    within = {split: f"images/{split}" for split in split_folders_in(folder / "images")}
    for found in (places, within, {"": "images"}):
        there = {
            split: [place]
            for split, place in found.items()
            if (folder / place).is_dir() and _are_labels((folder / label_of(f"{place}/0")).parent)
        }
        if there:
            return there
    beside = (folder / "classes.txt").is_file() and _are_labels(folder, beside=True)
    return {"": ["."]} if beside else {}


def _are_labels(folder: Path, beside: bool = False) -> bool:
    """Return whether a folder has labels, by its first files; with `beside`, next to images."""
    found = sorted(folder.glob("*.txt"))
    for path in itertools.islice(
        (path for path in found if path.name != "classes.txt"), _LOOKED_AT
    ):
        start = first_bytes(path, 1 << 12).removeprefix(b"\xef\xbb\xbf").strip()
        if start and not _LABEL.match(start.splitlines()[0]):
            return False
        if start and (not beside or any(path.with_suffix(s).is_file() for s in SUFFIXES)):
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


def listed_images(root: Path, path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, name below the root, and an error or ""."""
    base, leading = _relocation(root, path)
    for number, line in text_lines(path):
        parts = _parts(line)
        try:
            found = find_named(root, os.path.join(base, *(parts[leading:] or parts)))
            problem = "" if os.path.isfile(found) else "there is no such image"
            yield number, os.path.relpath(found, root), problem
        except SourceError as error:
            yield number, line.strip()[:200], str(error)


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
