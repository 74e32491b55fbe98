"""Which folders of a tree are classes, and whether they are.

Nearly every dataset is a folder of folders with images somewhere in them.  Taking masks, pairs,
splits or years for classes packs without an error and trains without one.  So folders
are classes only if nothing speaks against it: names of splits and masks, images at several depths,
lists and annotations next to the images, pictures that form pairs.

Wrapper folders are looked through.  If all folders are named like splits and have class folders in
them, their names become the field ``split``.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fastdata.errors import OptionError

from .reading.list_signs import HEAD_BYTES, describe_head
from .reading.locations import folders_in, printable
from .reading.picture_pairs import (
    PICTURE_WORDS,
    SAMPLE,
    SPLIT_WORDS,
    TARGET_WORDS,
    belong_together,
    belong_within,
    is_reserved,
    words,
)
from .reading.selection import joined
from .reading.splits import splits_next_to
from .refusal import Doubt, Way, doubted
from .tree import DiskTree, Tree, join

__all__ = ["ClassFolder", "ClassLayout", "class_layout", "unread_lists"]

_USUAL_ORDER = ("train", "validation", "test", "query")
_ANNOTATIONS = (
    *(".json", ".jsonl", ".ndjson", ".geojson", ".xml", ".csv", ".tsv", ".txt", ".yaml", ".yml"),
    *(".mat", ".npy", ".npz", ".pkl", ".pickle", ".parquet", ".feather", ".arrow"),
    *(
        ".toml",
        ".ini",
        ".shp",
        ".dbf",
        ".kml",
        ".xls",
        ".xlsx",
        ".ods",
        ".lst",
        ".list",
        ".names",
        ".db",
        ".sqlite",
        ".manifest",
    ),
)
_NO_TEXT = (
    *(".zip", ".tar", ".gz", ".tgz", ".7z", ".rar", ".mp4", ".avi", ".mov", ".wav", ".svg"),
    *(".pth", ".ckpt", ".onnx", ".tfrecord", ".pdf", ".psd", ".bak", ".tmp", ".md5", ".xmp"),
    *(".aae", ".cr2", ".nef", ".arw", ".dng", ".thm", ".heic", ".heif", ".jxl"),
)
_LABELS = {
    *("label", "labels", "annotation", "annotations", "target", "targets", "gt", "metadata"),
    *("attributes", "index"),
}
"""Words in names of files that may describe images are, whatever their suffix."""
_COMPARED = 8
_MOST_NAMED = 6
"""Files to look into; one is enough for a doubt."""


class ClassFolder(NamedTuple):
    """A folder of a class, in a split."""

    split: int
    name: str
    path: str


@dataclass
class ClassLayout:
    """Class folders, in the order of splits and then of names.

    base: the folder that keys are relative to, below wrapper folders.
    splits: values of the field ``split``; empty without that field.
    others: classes of the splits that are not taken; each split has the same numbers.
    """

    base: str
    folders: list[ClassFolder]
    splits: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    doubt: Doubt | None = None
    others: set[str] = field(default_factory=set)

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of their numbers."""
        return sorted({folder.name for folder in self.folders} | self.others)


def class_layout(tree: Tree, split: str) -> ClassLayout:
    """Return which folders are classes, and what speaks against it.

    split: "auto"; "none" if folders named like splits are classes; or the split to take.
    """
    base = _unwrapped(tree, "")
    names = tree.folder(base).folders
    if split == "none":
        return _as_classes(tree, base, [("", base)])
    if split != "auto":
        if split not in names:
            raise OptionError(
                f"split={split}: no such folder in {_place(tree, base)}, which has "
                f"{joined(map(printable, names), 12) or 'none'}"
            )
        layout = _as_classes(tree, base, [("", _unwrapped(tree, join(base, split)))])
        layout.doubt = _doubt(tree, layout, "")
        if _part_of(split):
            parts, _ = _split_parts(tree, base)
            layout.others = {inner for _, path in parts for inner in tree.folder(path).folders}
        return layout
    parts, left = _split_parts(tree, base)
    layout = _as_classes(tree, base, parts or [("", base)])
    layout.notes += left
    layout.splits = [name for name, _ in parts]
    layout.doubt = _doubt(tree, layout, base)
    if isinstance(tree, DiskTree) and not layout.splits and not layout.doubt:
        layout.doubt = _next_splits(tree, layout)
    if base:
        layout.notes.append(f"the wrapper folder {printable(base)} is not a class: its folders are")
    return layout


def _unwrapped(tree: Tree, name: str) -> str:
    """Return the first folder below wrappers: single folders that have no images in them."""
    start = name
    while True:
        found = tree.folder(name)
        if found.count or len(found.folders) != 1:
            return name
        inner = join(name, found.folders[0])
        below = tree.folder(inner)
        only_split = _part_of(found.folders[0]) and not _part_of(start.rpartition("/")[2])
        if below.count or not below.folders or only_split:
            return name
        name = inner


def _part_of(name: str) -> str:
    """Return which part of a dataset a folder is by its name: "train", "validation", ...; or ""."""
    return next((SPLIT_WORDS[word] for word in words(name) if word in SPLIT_WORDS), "")


def _split_parts(tree: Tree, base: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the splits, each with the folder of its classes, and notes on the other folders.

    There are none unless all folders with images are called like splits and have class folders.
    """
    names = [name for name in tree.folder(base).folders if tree.count(join(base, name))]
    copies = _copies(tree, base, names)
    names = [name for name in names if name not in copies]
    if not names or tree.folder(base).count or not all(map(_part_of, names)):
        return [], []
    parts: list[tuple[str, str]] = []
    flat: list[tuple[str, str]] = []
    for name in names:
        part = _unwrapped(tree, join(base, name))
        found = tree.folder(part)
        doubled = found.folders == [name] and not tree.folder(join(part, name)).folders
        is_flat = found.count or not found.folders or doubled
        (flat if is_flat else parts).append((name, part))
    # Competitions have pictures to predict; another folder of the same split may have the classes.
    known = {_part_of(name) for name, _ in parts if _only_split(name)}
    spare = all(
        "pred" in words(name) or (_part_of(name) in known and not _only_split(name))
        for name, _ in flat
    )
    if not parts or not spare:
        return [], []
    notes = [
        f"{tree.count(part):,} images in {printable(part)} have no class folders and are left out"
        for _, part in flat
    ]
    notes += [f"the folder {printable(n)} has the same files again and is left out" for n in copies]
    return sorted(parts, key=lambda p: (_USUAL_ORDER.index(_part_of(p[0])), p[0])), notes


def _next_splits(tree: DiskTree, layout: ClassLayout) -> Doubt | None:
    """Give a split the numbers of a split in the folder next to it that has more classes.

    There is a doubt if each has classes that the other has not.
    """
    names = set(layout.classes)
    for other in splits_next_to(tree.root):
        classes = set(folders_in(other))
        if names < classes:
            layout.others |= classes
            layout.notes.append(f"numbers of classes are those of {printable(str(other))}, too")
        elif names & classes and not classes <= names:
            few = joined(map(printable, sorted(classes ^ names)), 4)
            own = os.path.basename(os.path.abspath(tree.root))
            ways = (
                Way("..", "", "all splits, with one numbering"),
                Way("..", f"--option split={own}", f"{own} with these numbers"),
            )
            reason = f"{printable(other.name)} next to it has other classes ({few})"
            return Doubt(f"{reason}, so numbers would differ", ways)
    return None


def _copies(tree: Tree, base: str, names: Sequence[str]) -> list[str]:
    """Return the folders that have all files of the others once more, as some archives do."""
    for name in names:
        path = join(base, name)
        others = [other for other in names if other != name]
        if len(others) > 1 and set(others) == set(tree.folder(path).folders):
            both = [{i for one in others for i in _below(tree, top, one)} for top in (path, base)]
            some = sorted(both[0])[:: max(1, len(both[0]) // _COMPARED)]
            first, second = (tree.read([join(top, file) for file in some]) for top in (path, base))
            if both[0] == both[1] and first == second:
                return [name]
    return []


def _below(tree: Tree, top: str, name: str) -> Iterator[str]:
    """Yield the images below a folder, relative to its parent."""
    for image in _images_of(tree, join(top, name)):
        yield image[len(top) :].lstrip("/")


def _as_classes(tree: Tree, base: str, parts: Sequence[tuple[str, str]]) -> ClassLayout:
    """Return the folders in some folders as classes."""
    folders = [
        ClassFolder(number, name, join(path, name))
        for number, (_, path) in enumerate(parts)
        for name in tree.folder(path).folders
    ]
    if not folders:
        ways = (Way(base, "--format flat", "the images, without labels"),)
        reason = "it has no class folders (CLASS/IMAGE)"
        known = ways if tree.folder(base).count else ()
        raise doubted(tree.place, "folder", tree, Doubt(reason, known, plausible=False))
    layout = ClassLayout(base, folders)
    forms = {unicodedata.normalize("NFC", folder.name) for folder in folders}
    if len(forms) < len({folder.name for folder in folders}):
        layout.folders = [f._replace(name=unicodedata.normalize("NFC", f.name)) for f in folders]
        layout.notes.append("class folders whose names differ only in the form of accents are one")
    return layout


def _place(tree: Tree, path: str) -> str:
    return os.path.join(tree.place, path) if path else tree.place


# -- what speaks against it --------------------------------------------------------------


def _doubt(tree: Tree, layout: ClassLayout, base: str) -> Doubt | None:
    """Return the first reason why these are hardly classes."""
    reasons = (
        _images_beside(tree, layout),
        _target_names(layout),
        _unread_lists(tree, layout),
        *(() if layout.splits else (_split_names(tree, layout),)),
        _places(tree, layout),
        _numbered_folders(tree, layout),
        _too_few(layout),
        _pictures(tree, layout),
    )
    return next(filter(None, reasons), None)


def _parents(layout: ClassLayout) -> list[str]:
    """Return the folders that class folders are in."""
    return sorted({folder.path.rpartition("/")[0] for folder in layout.folders})


def _images_beside(tree: Tree, layout: ClassLayout) -> Doubt | None:
    beside = [join(p, name) for p in _parents(layout) for name in tree.folder(p).images]
    if not beside:
        return None
    shown = joined(map(printable, beside), 5)
    return Doubt(f"{len(beside):,} images ({shown}) next to the folders")


def _split_names(tree: Tree, layout: ClassLayout) -> Doubt | None:
    """Tell whether folders are splits: two of different parts, all, or a test next to classes."""
    names = layout.classes
    parts = {name: _part_of(name) for name in names if _part_of(name)}
    rest = {word for name in parts for word in words(name) if word not in SPLIT_WORDS}
    versions = all(len(word) == 1 or word.isdigit() or is_reserved(word) for word in rest)
    different = len(set(parts.values())) > 1 or (len(parts) == len(names) and versions)
    alone = {name for name in parts if _only_split(name)}
    held_out = any(parts[name] in ("validation", "test") for name in alone)
    deep = any(f.name in alone and not tree.folder(f.path).count for f in layout.folders)
    if not parts or not (different or held_out or deep):
        return None
    shown = joined(map(printable, parts), 4)
    parent = layout.folders[0].path.rpartition("/")[0]
    ways = [
        Way("", f"--option split={name}", f"the classes in {name}")
        if tree.folder(join(parent, name)).folders
        else Way(join(parent, name), "", f"the images in {name}, without labels")
        for name in parts
    ]
    what = "is a split" if len(parts) == 1 else "are splits"
    return Doubt(f"{shown} {what} by name, not classes", tuple(ways[:2]))


def _only_split(name: str) -> bool:
    """Tell whether a name is only that of a split."""
    return len(words(name)) == 1 and name.lower() in SPLIT_WORDS


def _target_names(layout: ClassLayout) -> Doubt | None:
    """Tell whether the folders are called as images and as what belongs to them."""
    names = layout.classes
    kinds = {name: set(words(name)) for name in names}
    lowered = {name.lower() for name in names}
    for name in names:  # CamVid: train and trainannot
        stem = re.sub(r"(annot|masks?|gt|labels?)$", "", name.lower())
        if stem != name.lower() and stem in lowered:
            kinds[name] |= {"mask"}
            kinds |= {n: kinds[n] | {"image"} for n in names if n.lower() == stem}
    plain = [
        name for name, found in kinds.items() if found & PICTURE_WORDS and not found & TARGET_WORDS
    ]
    targets = [name for name, found in kinds.items() if found & TARGET_WORDS]
    if not plain or not targets or len(plain) + len(targets) < len(names):
        return None
    shown = joined(map(printable, [*plain, *targets]), 4)
    return Doubt(
        f"the folders {shown} are named like images and what belongs to them",
        (_alone(layout, plain[0]), Way("", "--format masks", "images with their masks")),
        plausible=False,
    )


def _alone(layout: ClassLayout, name: str) -> Way:
    """Return the command for the images of one folder."""
    path = next(folder.path for folder in layout.folders if folder.name == name)
    return Way(path, "", f"the images in {name}, without labels")


def _places(tree: Tree, layout: ClassLayout) -> Doubt | None:
    """Tell whether images lie at several depths, or in several folders of a class."""
    inside = {
        folder.path: {
            path[len(folder.path) + 1 :]
            for path in tree.below(folder.path)
            if tree.folder(path).count
        }
        for folder in layout.folders
    }
    direct = next((path for path, found in inside.items() if "" in found), "")
    deeper = next((path for path, found in inside.items() if found and "" not in found), "")
    mixed = next((path for path, found in inside.items() if "" in found and len(found) > 1), "")
    if mixed:
        return Doubt(f"{printable(mixed)!r} has images directly in it and in inner folders")
    if direct and deeper:
        return Doubt(
            f"images lie at different depths: directly in {printable(direct)!r}, and in folders "
            f"of {printable(deeper)!r}"
        )
    inner = sorted(set().union(*inside.values())) if deeper else []
    if len(inner) > 1 or (deeper and len(inside) == 1):
        shown = printable(join(deeper, sorted(inside[deeper])[0]))
        return Doubt(
            f"images lie in folders of the folders, such as {shown!r}, and either may be the "
            "classes"
        )
    return None


def _unread_lists(tree: Tree, layout: ClassLayout) -> Doubt | None:
    """Tell whether there are files that may describe the images."""
    found = unread_lists(tree, layout)
    if not found:
        return None
    shown = joined(map(printable, found), 5)
    most = f"{len(found):,} files, the first {shown}," if len(found) > 5 else shown
    lists = [name for name in found if name.lower().endswith((".csv", ".tsv", ".txt", ".jsonl"))]
    ways = [Way(name, "", "the images that it lists, with its labels") for name in lists[:1]]
    return Doubt(f"{most} may describe the images", tuple(ways))


def unread_lists(tree: Tree, layout: ClassLayout) -> list[str]:
    """Return the files above, next to and in class folders that may describe the images."""
    above = {parent for path in _parents(layout) for parent in _chain(path)}
    inside = (path for folder in layout.folders for path in tree.below(folder.path))
    names: list[str] = []
    for path in (*sorted(above), *inside):
        folder = tree.folder(path)
        others = folder.others
        if {"manifest.csv", "manifest.schema.json"} <= set(others):  # written by an export
            others = [n for n in others if n not in ("manifest.csv", "manifest.schema.json")]
        stems = {os.path.splitext(image)[0] for image in folder.images} if others else set()
        for name in others:
            if os.path.splitext(name)[0] in stems:
                says = not name.lower().endswith(_NO_TEXT)
            elif len(names) >= _MOST_NAMED:
                says = name.lower().endswith(_ANNOTATIONS)
            else:
                says = _may_say(tree, layout, path, name)
            if says:
                names.append(join(path, name))
    return names


def _may_say(tree: Tree, layout: ClassLayout, path: str, name: str) -> bool:
    """Tell whether a file may describe the images, by its name and content."""
    plain = re.sub(r"(?i)(?<=\.(csv|tsv|txt))\.gz$|(?<=\.json)\.gz$", "", name)
    by_name = plain.lower().endswith(_ANNOTATIONS) or not _LABELS.isdisjoint(words(name))
    if plain.lower().endswith(_NO_TEXT):
        return False
    images = (image for folder in layout.folders for image in _images_of(tree, folder.path))
    kind = describe_head(name, tree.head(join(path, name), HEAD_BYTES), images)
    return kind == "list" or (by_name and kind == "unknown")


def _images_of(tree: Tree, top: str) -> Iterator[str]:
    """Yield the images in a folder and below it, by their path."""
    for path in tree.below(top):
        yield from (join(path, name) for name in tree.folder(path).images)


def _chain(path: str) -> Iterator[str]:
    """Yield a folder and all folders above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield ""


def _numbered_folders(tree: Tree, layout: ClassLayout) -> Doubt | None:
    """Tell whether folders are parts of one set: by number, by clip, or by the start of a hash."""
    names = layout.classes
    if len(names) < 2:
        return None
    split = [words(name) for name in names]
    starts = {tuple(parts[:-1]) for parts in split}
    counted = len(starts) == 1 and all(parts and parts[-1].isdigit() for parts in split)
    if counted and not _PARTS.isdisjoint(next(iter(starts))):
        return Doubt(f"{names[0]!r} and {names[1]!r} are parts of one set by name", _deep(layout))
    if not all(re.fullmatch(r"[0-9]+|[0-9a-f]{2,4}", name) for name in names):
        return None
    reason = ""
    stems = {
        folder.name: [os.path.splitext(image)[0] for image in tree.folder(folder.path).images]
        for folder in layout.folders
    }
    if all(name.isdecimal() for name in names):
        reason = _numbers(names, stems)
    else:
        begin = (re.fullmatch(rf"{n}[0-9a-f]{{6,}}", stem) for n in names for stem in stems[n])
        reason = "images by the start of their hash" if all(begin) else ""
    return Doubt(f"folders such as {names[0]!r} hold {reason}", _deep(layout)) if reason else None


def _numbers(names: Sequence[str], stems: Mapping[str, Sequence[str]]) -> str:
    """Return what folders with numbers for names hold; "" if they may be classes."""
    numbers = {n: sorted(int(s) for s in stems[n] if s.isdecimal()) for n in names}
    if not all(len(numbers[n]) == len(stems[n]) > 0 for n in names):
        return ""
    inside = [(number, int(n)) for n in names for number in numbers[n]]
    if any(all(k // size * step == n for k, n in inside) for size, step in _STEPS):
        return "images by their number"
    padded = all(len(n) > 2 for n in names) and min(map(int, names)) < 2
    if padded and all(found[:3] in ([0, 1, 2], [1, 2, 3]) for found in numbers.values()):
        return "the frames of clips"
    sizes = {len(numbers[n]) for n in sorted(names, key=int)[:-1]}
    running = [number for n in sorted(names, key=int) for number in numbers[n]]
    if len(names) > 3 and len(sizes) == 1 and running == list(range(running[0], running[-1] + 1)):
        return "images that are numbered through all folders"
    return ""


_PARTS = {
    *("clip", "video", "vid", "batch", "part", "images", "image", "imgs", "img", "seq", "sequence"),
    *(
        "cam",
        "camera",
        "shard",
        "chunk",
        "folder",
        "set",
        "subset",
        "fold",
        "session",
        "disc",
        "volume",
        "block",
    ),
}
"""Words before a number that say that folders are parts of one set."""

_STEPS = [(size, step) for size in (50, 100, 500, 1000, 2000, 5000, 10000) for step in (1, size)]


def _deep(layout: ClassLayout) -> tuple[Way, ...]:
    meaning = "all images in all folders, without labels"
    return (Way(layout.base, "--format flat --option recursive=true", meaning),)


def _too_few(layout: ClassLayout) -> Doubt | None:
    if len(layout.classes) > 1 or layout.splits:
        return None
    name = layout.classes[0]
    return Doubt(f"there is only one folder, {printable(name)!r}", (_alone(layout, name),))


def _pictures(tree: Tree, layout: ClassLayout) -> Doubt | None:
    """Tell whether the pictures of two folders form pairs."""
    for folder in layout.folders[:64]:
        within = belong_within(tree.folder(folder.path).images)
        if within:
            shown = " and ".join(map(printable, within))
            way = Way("", "--format masks", "images with their masks")
            ways = (way, *_deep(layout))
            return Doubt(f"{shown} in {folder.path!r} form pairs", ways, plausible=False)
    for split in range(max(1, len(layout.splits))):
        folders: dict[str, list[str]] = {}
        for folder in (folder for folder in layout.folders if folder.split == split):
            # A class has its images in one folder.
            inner = (p for p in tree.below(folder.path) if tree.folder(p).count)
            path = next(inner, folder.path)
            place = path[len(folder.path) :].lstrip("/")
            names = tree.folder(path).images[:SAMPLE]
            folders[folder.path] = [join(place, name) for name in names]
        reason = belong_together(folders, tree.read)
        if reason:
            ways = (
                Way("", "--format masks", "images with their masks"),
                _alone(layout, layout.classes[0]),
                _deep(layout)[0],
            )
            return Doubt(printable(reason), ways, plausible=False)
    named = [name for name in layout.classes if is_reserved(name)]
    if named:
        layout.notes.append(
            f"{joined(map(printable, named), 4)}: taken for classes: their pictures do not form "
            "pairs"
        )
    return None
