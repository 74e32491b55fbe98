"""Where a Pascal VOC dataset is, and the lists of its images."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import open_regular

from ..splits import has_images

__all__ = ["classes_of_lists", "listed", "splits_of", "voc_root", "voc_roots"]

_FLAGGED = re.compile(r"(\S+)\s+(-1|0|1)")
_LONGEST = 4096


def voc_roots(location: Path) -> list[Path]:
    """Return the folders that are laid out like VOC's: this one, or ``VOC2007`` in it."""
    if _is_root(location):
        return [location]
    inner = [location / "VOCdevkit", location]
    found = [entry for folder in inner if folder.is_dir() for entry in sorted(folder.glob("VOC*"))]
    return [path for path in found if _is_root(path)]


def _is_root(path: Path) -> bool:
    if not (path / "JPEGImages").is_dir():
        return False
    # Where images are in these, they are class folders that happen to be called so.
    others = [path / part for part in ("Annotations", "ImageSets")]
    return (path / "SegmentationClass").is_dir() or any(
        other.is_dir() and not has_images(other) for other in others
    )


def voc_root(location: Path) -> Path:
    """Return the one folder that is laid out like VOC's.

    Raises
    ------
    SourceError
        If there is none.
    OptionError
        If there are several.
    """
    found = voc_roots(location)
    if not found:
        raise SourceError(
            f"{location}: no Pascal VOC. Expected JPEGImages and Annotations (or ImageSets, "
            "SegmentationClass) in it."
        )
    if len(found) > 1:
        raise OptionError(f"{location}: pack one of {', '.join(map(str, found))}")
    return found[0]


def splits_of(lists: Path) -> list[str]:
    """Return the names of the lists in a folder of ``ImageSets``."""
    return sorted(path.stem for path in lists.glob("*.txt"))


def listed(lists: Path, split: str) -> Iterator[tuple[int, str | None]]:
    """Yield the line and the name of each image of a list; None where that is marked -1.

    Raises
    ------
    OptionError
        If there is no such list.
    """
    path = lists / f"{split}.txt"
    if os.sep in split or not path.is_file():
        known = ", ".join(splits_of(lists)[:30]) or "none"
        raise OptionError(f"split={split}: not in {lists}, which has {known}")
    with open(path, "rb", opener=open_regular) as file:
        for number, data in enumerate(file, 1):
            line = data[:_LONGEST].decode("utf-8", "surrogateescape").strip()
            flagged = _FLAGGED.fullmatch(line)
            if flagged is not None:
                yield number, flagged[1] if flagged[2] != "-1" else None
            elif line:
                yield number, line


def classes_of_lists(lists: Path) -> tuple[str, ...]:
    """Return the classes that have lists of their own, as ``cat_train.txt``; none if none has."""
    splits = splits_of(lists)
    found = set()
    for split in ("train", "val", "trainval", "test"):
        for name in splits if split in splits else ():
            if name.endswith(f"_{split}") and _is_flagged(lists / f"{name}.txt"):
                found.add(name[: -len(split) - 1])
    return tuple(sorted(found))


def _is_flagged(path: Path) -> bool:
    with open(path, "rb", opener=open_regular) as file:
        line = file.readline(_LONGEST).decode("utf-8", "replace").strip()
    return _FLAGGED.fullmatch(line) is not None
