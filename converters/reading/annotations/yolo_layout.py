"""The images, labels and classes of a YOLO dataset.

There are three layouts: ``data.yaml`` (Ultralytics, Roboflow), Darknet's ``*.names`` with lists of
images, and the folders ``images`` and ``labels`` without a description.
"""

from __future__ import annotations

import contextlib
import os
import re
import reprlib  # what anchors repeat may be endless as text
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import read_regular

from ..class_names import check_different, read_class_names
from ..image_files import is_image_name
from ..locations import first_bytes, path_inside
from ..named_files import find_named
from ..refusals import require
from ..splits import in_usual_order, split_folders_in
from ..text_lines import text_lines

__all__ = ["YoloLayout", "is_yolo", "label_of", "listed_images", "yolo_layout"]

_SPLITS = ("train", "val", "valid", "test")
_TRIED = 16
_LARGEST = 1 << 20
_LOOKED_AT = 20
_FILES_LOOKED_AT = 5_000
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
    numbers: int = 0  # in each line, of poses; 0 for boxes and polygons
    absent: bool = False  # whether a test split is named that is not there


def is_yolo(path: Path) -> bool:
    """Tell whether this is described as a YOLO dataset, or has labels like one."""
    if path.is_file():
        return _is_description(path)
    described = bool(_descriptions(path)) and _has_labels(path)
    return described or bool(_lists(path)) or bool(_folders(path))


def yolo_layout(location: Path, root: str = "") -> YoloLayout:
    """Return where a dataset is.

    root: the folder that names in the description are relative to, if not its own.
    """
    folder = Path(root) if root else location if location.is_dir() else location.parent
    if not folder.is_dir():
        raise OptionError(f"root={root}: not a folder")
    found = [location] if location.is_file() else _descriptions(location)
    if len(found) > 1:
        raise OptionError(f"{location}: pack one of {', '.join(map(str, found))}")
    if found:
        return _described(found[0], folder)
    if lists := _lists(folder):
        names = next(iter(sorted(folder.glob("*.names"))))
        splits = {path.stem: [path.name] for path in lists}
        ordered = {split: splits[split] for split in in_usual_order(splits)}
        return YoloLayout(folder, [names, *lists], read_class_names(names), ordered)
    splits = _folders(folder)
    if not splits:
        raise SourceError(
            f"{folder}: no YOLO. Expected data.yaml in it, or the folders images and labels, or "
            "obj.names and train.txt"
        )
    named = [folder / name for name in ("classes.txt", "labels/classes.txt", "obj.names")]
    beside = [path for path in named if path.is_file()][:1]
    return YoloLayout(folder, beside, read_class_names(beside[0]) if beside else None, splits)


def label_of(image: str) -> str:
    """Return the label file of an image: in ``labels`` for ``images``, the last in its path."""
    before, between, after = f"/{image}".rpartition("/images/")
    return os.path.splitext(f"{before}/labels/{after}"[1:] if between else image)[0] + ".txt"


# -- described by data.yaml --------------------------------------------------------------


def _is_description(path: Path) -> bool:
    start = first_bytes(path, 1 << 16)
    return bool(_NAMES.search(start) and _PARTS.search(start))


def _descriptions(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.endswith((".yaml", ".yml"))]
    paths = [folder / name for name in sorted(names)]
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
    splits = {}
    for split in _SPLITS:
        given = content.get(split) or []
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise SourceError(f"{path}: {split} is neither a folder, nor a list, nor several")
        if names:
            splits[split] = [_place(path, folder, content.get("path"), name) for name in names]
    there = {split: names for split, names in splits.items() if any(filter(None, names))}
    if not there:
        raise SourceError(
            f"{path}: nothing that it names is in {folder}: {splits or 'train, val'}. "
            "--option root=FOLDER says where the dataset is."
        )
    for split, names in there.items():
        if not all(names):
            raise SourceError(f"{path}: {split} names {content[split]}, which is not in {folder}")
    missing = set(splits) - set(there) - {"test"}
    if missing:
        raise SourceError(
            f"{path}: {', '.join(sorted(missing))} is not in {folder}. Bring it, or take it out of "
            f"{path.name}"
        )
    absent = set(splits) != set(there)
    names, numbers = _class_names(path, content), _numbers_of_poses(path, content)
    return YoloLayout(folder, [path], names, there, numbers, absent)


def _place(path: Path, folder: Path, base: Any, name: str) -> str:
    """Return a folder or list relative to the dataset's; "" if it does not exist.

    Names are relative to ``path``, often of another machine, or to another folder: Roboflow writes
    ``../train/images`` for a folder next to the file.
    """
    bases = [re.split(r"[/\\]", base.rstrip("/\\"))[-1]] if isinstance(base, str) else []
    tail = re.sub(r"^(\.{0,2}[/\\])+", "", name)
    if os.path.isabs(name) and Path(name).is_relative_to(folder.resolve()):
        tail = str(Path(name).relative_to(folder.resolve()))
    for start in ("", *bases):
        place = f"{start}/{tail}" if start not in ("", ".", "..") else tail
        if tail in ("", "."):
            place = start or "."
        else:
            found = find_named(folder, place)
            if os.path.exists(found):
                return os.path.relpath(found, folder)
    return "." if tail in ("", ".") else ""


def _class_names(path: Path, content: dict[str, Any]) -> tuple[str, ...] | None:
    names = content.get("names")
    if isinstance(names, dict):
        try:
            numbered = {int(number): name for number, name in names.items()}
        except ValueError:
            raise SourceError(f"{path}: names has a number that is none") from None
        if sorted(numbered) != list(range(len(names))):
            raise SourceError(f"{path}: the {len(names)} names are not numbered from 0 on")
        names = [numbered[number] for number in range(len(numbered))]
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SourceError(f"{path}: names are neither a list of text nor numbered text")
    if "nc" in content and content["nc"] != str(len(names)):
        raise SourceError(
            f"{path}: nc is {reprlib.repr(content['nc'])[:20]}, and there are {len(names)} names"
        )
    check_different(names, path)
    return tuple(names)


def _numbers_of_poses(path: Path, content: dict[str, Any]) -> int:
    """Return how many numbers the line of a pose has behind its class; 0 if there are no poses."""
    shape = content.get("kpt_shape")
    if shape is None:
        return 0
    try:
        count, width = map(int, shape)
    except (TypeError, ValueError):
        raise SourceError(
            f"{path}: kpt_shape is {reprlib.repr(shape)[:40]}, not as [17, 3]"
        ) from None
    return 4 + count * width


# -- not described -----------------------------------------------------------------------


def _lists(folder: Path) -> list[Path]:
    """Return Darknet's lists of images, next to a list of names."""
    if not any(folder.glob("*.names")):
        return []
    lists = [folder / f"{split}.txt" for split in _SPLITS]
    return [path for path in lists if path.is_file() and _names_images(path)]


def _names_images(path: Path) -> bool:
    return next((is_image_name(line.strip()) for _, line in text_lines(path, cut=True)), False)


def _folders(folder: Path) -> dict[str, list[str]]:
    """Return the folders of images that have folders of labels, by split."""
    found: dict[str, list[str]] = {}
    for split in split_folders_in(folder):
        if _are_labels(folder / split / "labels") and (folder / split / "images").is_dir():
            found[split] = [f"{split}/images"]
    if found:
        return found
    images, labels = folder / "images", folder / "labels"
    for split in split_folders_in(images):
        if _are_labels(labels / split):
            found[split] = [f"images/{split}"]
    if not found and images.is_dir() and _are_labels(labels):
        found[""] = ["images"]
    if not found and (folder / "classes.txt").is_file() and _are_labels(folder, beside=True):
        found[""] = ["."]
    return found


def _are_labels(folder: Path, beside: bool = False) -> bool:
    """Return whether a folder has labels, by its first files; with `beside`, next to images."""
    seen = 0
    for path in _texts(folder) if folder.is_dir() else ():
        start = first_bytes(path, 1 << 12).removeprefix(b"\xef\xbb\xbf").strip()
        if path.name == "classes.txt" or not start:
            continue
        if not _LABEL.match(start.splitlines()[0]):
            return False
        if not beside or any(path.with_suffix(s).is_file() for s in (".jpg", ".jpeg", ".png")):
            return True
        seen += 1
        if seen == _LOOKED_AT:
            break
    return False


def _has_labels(folder: Path) -> bool:
    """Tell whether there is a folder of labels, or a label file, among the first files.

    Class folders may have a ``data.yaml`` too.
    """
    left, folders = _FILES_LOOKED_AT, [os.fspath(folder)]
    for path in folders:  # which grows meanwhile
        with contextlib.suppress(OSError), os.scandir(path) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    return False
                if entry.is_dir():
                    if entry.name == "labels":
                        return True
                    folders.append(entry.path)
                elif entry.name.endswith(".txt") and _LABEL.match(first_bytes(Path(entry.path))):
                    return True
    return False


def _texts(folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.endswith(".txt") and entry.is_file():
            yield Path(entry.path)


# -- lists of images ----------------------------------------------------------------------
#
# Their paths, one per line, are relative to the list's folder, to the dataset's, or begin with
# folders of another machine: ``data/obj_train_data/0.jpg``, ``/home/me/coco/images/0.jpg``.  The
# first paths decide how many leading folders to remove from all.


def listed_images(root: Path, path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, name below the root, and an error or ""."""
    base, leading = _relocation(root, path)
    for number, line in text_lines(path):
        name = _parts(line)
        try:
            inside = path_inside("", "/".join(name[leading:] or name))
            found = find_named(root, os.path.join(base, inside))
            problem = "" if os.path.isfile(found) else "there is no such image"
            yield number, os.path.relpath(found, root), problem
        except SourceError as error:
            yield number, line.strip()[:200], str(error)


def _parts(line: str) -> list[str]:
    text = line.strip().lstrip("\ufeff").replace("\\", "/")
    return [part for part in text.split("/") if part not in ("", ".")]


def _relocation(root: Path, path: Path) -> tuple[str, int]:
    """Return the folder that names are relative to, and how many of their folders are not here."""
    bases = list(dict.fromkeys([os.path.relpath(path.parent, root), "."]))
    for (_, line), _ in zip(text_lines(path, cut=True), range(_TRIED), strict=False):
        parts = _parts(line)
        for leading in range(len(parts)):
            for base in bases:
                with contextlib.suppress(SourceError):
                    found = find_named(root, os.path.join(base, *parts[leading:]))
                    if ".." in parts[leading:] or not os.path.isfile(found):
                        continue
                    return "" if base == "." else base, leading
    return "", 0
