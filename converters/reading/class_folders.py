"""Class folders and split folders on disk, and what speaks against them.

Nearly every dataset is a folder of folders with images somewhere in them.  Taking masks, splits
or years for classes packs without an error and trains without one; so what speaks against classes
is looked for first, unless the user names the format.  `named_folders` has those in archives.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fastdata.errors import SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import Field, ScalarField

from .image_files import is_image_name
from .locations import is_folder, printable
from .selection import joined
from .splits import SPLIT_NAMES

__all__ = [
    "Places",
    "annotation_files",
    "class_fields",
    "doubts_of_names",
    "doubts_of_places",
    "images_beside",
    "is_annotation",
    "split_folders",
    "walk",
]

_PICTURES = re.compile(
    r"(jpeg)?(images?|imgs?|photos?|pictures?|inputs?|frames?|rgb|hr|leftimg8bit)"
)
_TARGETS = re.compile(
    r"(seg(mentation)?_?)?(masks?|labels?|annotations?|annot|anno|gt|gtfine|ground_?truths?|targets?|"
    r"trimaps?|segmentations?|segmentation(class|object)|bbox(es)?|xmls?|jsons?|depths?|lr)"
)
_ANNOTATIONS = (".json", ".jsonl", ".xml", ".csv", ".tsv", ".txt", ".yaml", ".yml", ".mat")
_PROSE = re.compile(
    r"(readme|licen[cs]e|copying|notice|citation|changelog|requirements|about|credits|attribution"
    r"|download|sources?|urls?)\b.*",
    re.IGNORECASE,
)
_LONGEST_LIST = 16 << 20

Places = Mapping[str, Collection[str]]
"""For each class folder, in which folders below it there are images: "" is directly in it."""


def class_fields(
    classes: Iterable[str], splits: Sequence[str], notes: list[str]
) -> dict[str, Field]:
    """Return the fields of images in class folders, with a field of the split if there are some."""
    fields: dict[str, Field] = {"label": ScalarField(classes=tuple(map(printable, classes)))}
    if splits:
        fields["split"] = ScalarField(classes=tuple(splits))
        notes.append(
            f"the field 'split' is which of {', '.join(splits)} an image is in "
            "(--option split=NAME takes one, split=none takes them for classes)"
        )
    return fields


# -- folders on disk ---------------------------------------------------------------------


def walk(folder: Path, loops: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder below one, itself included, with the files in it; links are followed.

    A link that leads to a folder above itself is added to `loops`.  A folder to which several
    links lead is yielded as often.
    """
    above = frozenset(_identity(parent) for parent in folder.absolute().parents)
    if _identity(folder) in above:
        raise SourceError(
            f"{folder} is a link to {folder.resolve()}, a folder above it, not to a class folder. "
            "Remove the link."
        )
    above |= {_identity(parent) for parent in [folder, *folder.resolve().parents]}
    waiting = [(str(folder), above)]
    while waiting:
        path, above = waiting.pop()
        files = []
        with os.scandir(path) as entries:
            for entry in entries:
                if not is_folder(entry):
                    files.append(entry.name)
                elif _identity(entry.path) in above:
                    loops.append(os.path.relpath(entry.path, folder.parent))
                else:
                    waiting.append((entry.path, above | {_identity(entry.path)}))
        yield path, files


def _identity(path: str | Path) -> tuple[int, int]:
    """Return what two names of one folder have in common."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def images_beside(root: Path, splits: list[str]) -> str:
    """Return how many images are in no class folder, and the first of them; "" if all are."""
    names = [
        os.path.join(part, entry.name)
        for part in splits
        for entry in os.scandir(root / part)
        if is_image_name(entry.name) and entry.is_file()
    ]
    shown = joined(map(printable, sorted(names)), 5)
    return f"{len(names):,} images ({shown})" if names else ""


def split_folders(root: Path, folders: list[str]) -> list[str]:
    """Return the folders if they are split folders, in the usual order; else none.

    Each is called so, has folders in it, and no images beside these.
    """
    if not folders or not all(name.lower() in SPLIT_NAMES for name in folders):
        return []
    if not all(_has_class_folders(root / name) for name in folders):
        return []
    return sorted(folders, key=lambda name: (SPLIT_NAMES.index(name.lower()), name))


def _has_class_folders(path: Path) -> bool:
    folders = 0
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir():
                folders += 1
            elif is_image_name(entry.name):
                return False
    return folders > 0


# -- what speaks against it --------------------------------------------------------------


def doubts_of_names(names: Sequence[str]) -> str:
    """Return why folders of these names are hardly classes; "" if nothing speaks against it."""
    lowered = {name.lower(): name for name in names}
    pictures = [name for low, name in lowered.items() if _PICTURES.fullmatch(low)]
    targets = [name for low, name in lowered.items() if _TARGETS.fullmatch(low)]
    for low, name in lowered.items():
        stem = re.sub(r"[-_ ]?(annot|masks?|gt|labels?)$", "", low)
        if stem != low and stem in lowered:  # CamVid: train and trainannot
            pictures.append(lowered[stem])
            targets.append(name)
    if pictures and targets:
        shown = joined(map(printable, [*pictures, *targets]), 4)
        return f"the folders {shown} are called as images and what belongs to them, not as classes"
    if len(names) == 1 and pictures:
        return (
            f"its only folder is {printable(names[0])!r}, which is hardly a class: pack that "
            "folder itself, if the classes are in it"
        )
    splits = [name for low, name in lowered.items() if low in SPLIT_NAMES]
    if splits:
        shown = ", ".join(map(printable, splits))
        return (
            f"{shown} {'is a split' if len(splits) == 1 else 'are splits'} by name, not classes "
            "(--option split=NAME takes the classes in one of them)"
        )
    return ""


def doubts_of_places(places: Places) -> str:
    """Return why images lie hardly as those of classes do; "" if nothing speaks against it."""
    mixed = next((name for name, found in places.items() if "" in found and len(found) > 1), "")
    if mixed:
        return f"{printable(mixed)!r} has images both in it and in folders of it"
    direct = next((name for name, found in places.items() if "" in found), "")
    deeper = next((name for name, found in places.items() if found and "" not in found), "")
    if direct and deeper:
        return (
            f"images lie at different depths: directly in {printable(direct)!r}, and in "
            f"folders of {printable(deeper)!r}"
        )
    inner = sorted(set().union(*places.values())) if deeper else []
    if len(inner) > 1 or (deeper and len(places) == 1):
        shown = printable(os.path.join(deeper, inner[0]))
        return (
            f"images lie in folders of the folders, as in {shown!r}, and either may be the classes"
        )
    return ""


def annotation_files(folder: Path, classes: Collection[str]) -> list[str]:
    """Return the names of files in a folder that may say what its images are, sorted.

    Not among them: prose by its name (README, LICENSE), a list of the classes, and what
    `fastdata.export` writes beside class folders.
    """
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    exported = {"manifest.csv", "manifest.schema.json"}
    if exported <= set(names):
        names = [name for name in names if name not in exported]
    return [name for name in names if is_annotation(name) and not _lists(folder / name, classes)]


def is_annotation(name: str) -> bool:
    """Tell whether a file may say what images are, by its name."""
    return (
        name.lower().endswith(_ANNOTATIONS)
        and not is_image_name(name)
        and not _PROSE.fullmatch(name)
        and not name.startswith(".")
    )


def _lists(path: Path, classes: Collection[str]) -> bool:
    """Tell whether a text is a list of the classes: one in each line, alone or beside a number."""
    if path.suffix != ".txt" or not classes or path.stat().st_size > _LONGEST_LIST:
        return False
    lines = read_regular(path).decode("utf-8", "surrogateescape").splitlines()
    known = set(classes)
    found = [
        known & {line.strip(), *line.split()[:1], *line.split()[-1:]} for line in lines if line
    ]
    return 0 < len(found) <= len(known) and all(found)
