"""Where a COCO dataset has its annotation file and its images."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastdata.errors import OptionError, SourceError

from ..locations import first_bytes, path_inside, path_of
from ..selection import listed
from ..splits import in_usual_order

__all__ = ["annotation_files", "image_folder", "is_coco", "segment_folder"]

_MEMBER = re.compile(rb'"(images|annotations|categories)"\s*:\s*\[')
_ENTRY = re.compile(rb'"(file_name|image_id|supercategory|coco_url)"\s*:')
_LOOKED_AT = 50
_PEEK = 1 << 16
"""Where the keys are sorted, the first annotation's polygon is what a file begins with."""


def is_coco(location: Any) -> bool:
    """Tell whether this is a COCO annotation file, or a folder with one where it usually is."""
    path = path_of(location)
    if path is None or path.is_file():
        return path is not None and _looks_so(path)
    return path.is_dir() and bool(_files_in(path, _LOOKED_AT))


def _looks_so(path: Path) -> bool:
    start = first_bytes(path, _PEEK).removeprefix(b"\xef\xbb\xbf").lstrip()
    return start.startswith(b"{") and all(part.search(start) for part in (_MEMBER, _ENTRY))


def _files_in(folder: Path, most: int | None = None) -> list[str]:
    """Return the annotation files of a folder, relative to it, or those among the first."""
    found = [
        os.path.join(place, name)
        for place in ("annotations", "")
        for name in _jsons(folder / place, most)
        if _looks_so(folder / place / name)
    ]
    with os.scandir(folder) as entries:
        splits = sorted(entry.name for entry in entries if entry.is_dir())
    inner = [os.path.join(split, "_annotations.coco.json") for split in splits]
    return found + [name for name in inner if _looks_so(folder / name)]


def _jsons(folder: Path, most: int | None) -> list[str]:
    """Return names of JSON files in a folder, sorted: of all, or of the first that are listed."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = (entry.name for entry in entries if entry.name.endswith(".json"))
        return sorted(itertools.islice(names, most))


def annotation_files(location: Path, chosen: str) -> tuple[Path, dict[str, Path]]:
    """Return the dataset's folder and its annotation file, or those of its splits.

    The name of what is no split is "".

    location: what is packed: the annotation file, or the folder.
    chosen: the annotation file, relative to the folder; "" where there is one to be found.
    """
    if location.is_file():
        if chosen:
            raise OptionError(f"annotations={chosen}: {location} is an annotation file already")
        inner = location.parent.name == "annotations"
        return (location.parent.parent if inner else location.parent), {"": location}
    files = _files_in(location)
    if chosen:
        if not (location / chosen).is_file():
            raise OptionError(
                f"annotations={chosen}: no such file in {location}; there are {listed(files)}"
            )
        return location, {"": location / chosen}
    if not files:
        raise SourceError(f"{location}: no COCO annotation file in it, as annotations/*.json")
    boxed = [name for name in files if Path(name).name.startswith("instances")]
    usual = boxed if boxed else files
    splits = {os.path.dirname(name): location / name for name in usual}
    if len(usual) > 1 and all(name.endswith("/_annotations.coco.json") for name in usual):
        return location, {split: splits[split] for split in in_usual_order(splits)}
    if len(usual) > 1:
        raise OptionError(
            f"{location}: has the annotation files {listed(files)}. Name one: "
            f"--option annotations={usual[0]}"
        )
    return location, {"": location / usual[0]}


def segment_folder(file: Path) -> Path:
    """Return the folder of the masks of a panoptic annotation file: called as the file is."""
    tried = [file.with_suffix(""), file.parent.parent / file.stem]
    for folder in tried:
        if folder.is_dir():
            return folder
    raise SourceError(
        f"{file}: a panoptic file, whose masks are in none of {', '.join(map(str, tried))}. "
        "Unpack them there."
    )


def image_folder(root: Path, file: Path, chosen: str, names: Sequence[str]) -> Path:
    """Return the folder of the images.

    chosen: the folder, relative to `root`; "" to try what is usual.
    """
    if chosen:
        if not (root / chosen).is_dir():
            raise OptionError(f"images={chosen}: no such folder in {root}")
        return root / chosen
    split = file.stem.removeprefix("image_info_").removeprefix("person_keypoints_")
    split = split if split != file.stem else file.stem.partition("_")[2]
    usual = [root / split, root / "images" / split, root / "images", file.parent, root]
    folders = list(dict.fromkeys(usual))
    for folder in folders:
        for name in names:
            with contextlib.suppress(SourceError, OSError):
                if os.path.isfile(path_inside(folder, name)):
                    return folder
    tried = ", ".join(map(str, folders))
    raise SourceError(
        f"{file}: none of its first images ({listed(names[:3])}) is in {tried}. Name the folder: "
        "--option images=FOLDER"
    )
