"""The annotation files and the images of a COCO dataset, and the classes of all its files."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fastdata.errors import OptionError, SourceError

from ..locations import first_bytes, folders_in
from ..named_files import find_named
from ..picture_pairs import SPLIT_WORDS, words
from ..selection import joined, left_out
from ..splits import in_usual_order
from .coco_annotations import Id

__all__ = ["annotation_files", "classes_of", "image_folder", "is_coco"]

_MEMBER = re.compile(rb'"(images|annotations|categories)"\s*:\s*\[')
_ENTRY = re.compile(rb'"(file_name|image_id|supercategory|coco_url)"\s*:')
_LOOKED_AT = 50
_PEEK = 1 << 16
"""If the keys are sorted, the file begins with the polygon of an annotation."""
_ROBOFLOW = "_annotations.coco.json"


def is_coco(path: Path) -> bool:
    """Tell whether this is a COCO annotation file, or a folder with one in the usual place."""
    return _looks_so(path) if path.is_file() else bool(_files_in(path, _LOOKED_AT))


def _looks_so(path: Path) -> bool:
    start = first_bytes(path, _PEEK).removeprefix(b"\xef\xbb\xbf").lstrip()
    return start.startswith(b"{") and all(part.search(start) for part in (_MEMBER, _ENTRY))


def _files_in(folder: Path, most: int | None = None) -> list[str]:
    """Return the annotation files of a folder, or those among its first `most` JSON files."""
    places = [os.path.join("annotations", name) for name in _jsons(folder / "annotations", most)]
    places += _jsons(folder, most)
    places += [os.path.join(split, _ROBOFLOW) for split in folders_in(folder)]
    return [place for place in places if _looks_so(folder / place)]


def _jsons(folder: Path, most: int | None) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = (entry.name for entry in entries if entry.name.endswith(".json"))
        return sorted(itertools.islice(names, most))


def annotation_files(location: Path, notes: list[str]) -> tuple[Path, dict[str, Path]]:
    """Return the dataset's folder and its annotation file, or those of its splits.

    A dataset without splits has the name "".
    """
    if location.is_file():
        inner = location.parent.name == "annotations"
        return (location.parent.parent if inner else location.parent), {"": location}
    files = _files_in(location)
    if not files:
        raise SourceError(f"{location}: no COCO annotation file in it, such as annotations/*.json")
    usual = [name for name in files if Path(name).name.startswith("instances")] or files
    notes += left_out("annotation files", sorted({*files} - {*usual}), "SOURCE may be one file")
    if len(usual) == 1:
        return location, {"": location / usual[0]}
    if all(name.endswith(f"/{_ROBOFLOW}") for name in usual):
        splits, alike = {os.path.dirname(name): location / name for name in usual}, True
    else:
        splits = {_split_in(name): location / name for name in usual}
        found = (words(Path(name).stem) for name in usual)
        rest = {tuple(word for word in one if word not in SPLIT_WORDS) for one in found}
        alike = len(rest) == 1 and "" not in splits and len(splits) == len(usual)
    if not alike:
        raise SourceError(
            f"{location}: has the annotation files {joined(files)}. Pack one of them: SOURCE "
            f"{location / usual[0]}"
        )
    return location, {split: splits[split] for split in in_usual_order(splits)}


def image_folder(root: Path, file: Path, chosen: str, names: Sequence[str]) -> Path:
    """Return the folder of the images.

    chosen: the folder, relative to `root`; "" to try the usual folders, and then any folder that is
        not named after another split.
    """
    if chosen:
        if not (root / chosen).is_dir():
            raise OptionError(f"images={chosen}: no such folder in {root}")
        return root / chosen
    parts, split = file.stem.split("_"), _split_in(file.stem)
    near = ["_".join(parts[k:]) for k in range(len(parts))] + [split] * bool(split)
    usual = [root / place / name for place in ("", "images") for name in near]
    usual += [root / "images", root / "data", file.parent, root]
    same = ("", SPLIT_WORDS.get(split))  # "val" and "valid" are one split
    others = [
        root / name
        for name in folders_in(root)
        if not split or SPLIT_WORDS.get(_split_in(name), "") in same
    ]
    found = [folder for folder in usual if _has_any(folder, names)][:1]
    found = found or [folder for folder in others if _has_any(folder, names)]
    if len(found) != 1:
        tried = found or [folder for folder in dict.fromkeys(usual) if folder.is_dir()]
        raise SourceError(
            f"{file}: its first images ({joined(names[:3])}) are in {'each' if found else 'none'} "
            f"of {', '.join(map(str, tried))}. Name the folder: --option images=FOLDER"
        )
    return found[0]


def _has_any(folder: Path, names: Sequence[str]) -> bool:
    for name in names:
        with contextlib.suppress(SourceError, OSError):
            if os.path.isfile(find_named(folder, name)):
                return True
    return False


def _split_in(name: str) -> str:
    """Return the word of a split in a name; "" if there is none."""
    return next((word for word in words(Path(name).stem) if word in SPLIT_WORDS), "")


def classes_of(files: Mapping[Path, Mapping[Id, str]], notes: list[str]) -> tuple[str, ...]:
    """Return the classes of all files of a dataset, in the order of their ids.

    Files may have some of the categories, or number the same names in another way.
    """
    first, *others = files
    for path, categories in files.items():
        for name in [name for name, n in Counter(categories.values()).items() if n > 1][:1]:
            twice = [number for number in categories if categories[number] == name]
            raise SourceError(
                f"{path}: the categories {joined(map(str, twice))} are all called {name!r}. Give "
                "each a name of its own, or give their annotations one category_id"
            )
    merged = dict(files[first])
    for path in others:
        differ = [n for n, name in files[path].items() if merged.setdefault(n, name) != name]
        if differ and {*files[path].values()} != {*files[first].values()}:
            raise SourceError(
                f"{path}: its categories are not those of {first}: {differ[0]} is "
                f"{files[path][differ[0]]!r} here and {merged[differ[0]]!r} there. Give both files "
                f"the same categories, or pack this file as a dataset of its own: SOURCE {path}"
            )
        if differ:
            notes.append(f"{path.name} and {first.name} have other ids of the same categories")
    return tuple(dict.fromkeys(merged[n] for n in sorted(merged, key=lambda n: (str(n) == n, n))))
