"""What a refused source looks like, and the commands to use instead.

A refusal shows the tree as it was found, the reason, and one to three complete commands.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import SourceError
from fastdata.printable import printable

from .reading.image_files import is_image_name
from .reading.locations import folder_at
from .tree import DiskTree, Tree, join

__all__ = ["Doubt", "Way", "doubted", "drawing", "not_recognised", "refused"]

_LINES = 18
_WIDE = 6
_DEEP = 4
_LISTS = (".csv", ".tsv", ".jsonl", ".txt", ".json", ".parquet")


class Way(NamedTuple):
    """A command that may be meant: a path in the source, options, and a comment."""

    path: str
    options: str
    meaning: str


class Doubt(NamedTuple):
    """Why folders may be no classes, and what may be meant.

    plausible: whether they may be classes all the same.
    """

    reason: str
    ways: tuple[Way, ...] = ()
    plausible: bool = True


def doubted(place: str, format: str, tree: Tree, doubt: Doubt) -> SourceError:
    """Return the error for folders that are hardly classes."""
    ways = [*doubt.ways]
    if doubt.plausible:
        ways.append(Way("", f"--format {format}", "the folders as classes, all the same"))
    reason = printable(f"{place}: not packed as class folders: {doubt.reason}.")
    return SourceError(f"{reason}\n{drawing(tree)}\n{_meant(place, ways)}")


def refused(place: str | Path, reason: str, ways: Sequence[Way]) -> SourceError:
    """Return the error for a folder or list that is not read, with commands to use instead."""
    tree = f"\n{drawing(DiskTree(Path(place)))}" if os.path.isdir(place) else ""
    text = printable(f"{place}: {reason}.")
    return SourceError(f"{text}{tree}\n{_meant(os.fspath(place), ways)}")


def not_recognised(location: Any, works: Callable[[Way], bool]) -> SourceError:
    """Return the error for a source that is in no format that is known.

    works: whether a command would begin to pack.
    """
    folder = folder_at(location)
    place = os.fspath(location) if isinstance(location, (str, os.PathLike)) else repr(location)
    if folder is None:
        return SourceError(
            f"{place}: not recognised. Expected a folder of images, or of class folders with "
            "images, a .csv or .tsv with the columns path,label, another format that `fastdata "
            "formats` lists, or, from Python, an iterable or a torch Dataset."
        )
    tree = DiskTree(folder)
    ways = []
    top = tree.folder("")
    lists = [name for name in top.others if name.lower().endswith(_LISTS)]
    ways += [Way(name, "", "the images that this file lists") for name in lists[:1]]
    if any(is_image_name(name) for path in _some(tree) for name in tree.folder(path).images):
        options = "--format flat --option recursive=true"
        ways.append(Way("", options, "all images in all folders, without labels"))
    elif top.folders:
        ways.append(Way(top.folders[0], "", "this folder"))
    reason = printable(
        f"{place}: not recognised: no format that `fastdata formats` lists fits, and "
        "it has no class folders (CLASS/IMAGE)."
    )
    return SourceError(f"{reason}\n{drawing(tree)}\n{_meant(place, list(filter(works, ways)))}")


def _some(tree: Tree) -> list[str]:
    """Return the folders down to a depth, some of each."""
    found = [""]
    for name in found:
        if name.count("/") < _DEEP and len(found) < 100:
            found += [join(name, inner) for inner in tree.folder(name).folders[:_WIDE]]
    return found


def _meant(place: str, ways: Sequence[Way]) -> str:
    """Return the commands to use instead; by default the one that lists the formats."""
    lines = _commands(place, ways) or "  fastdata formats  # what pack reads"
    return f"What may be meant:\n{lines}"


def _commands(place: str, ways: Sequence[Way]) -> str:
    """Return at most three commands, one a line, each with a comment.

    Before the first one for a file inside an archive stands the command that extracts it.
    """
    lines: list[str] = []
    for way in ways[:3]:
        source = place
        inside = way.path or not way.options.startswith(("--format archive", "--option split"))
        if os.path.isfile(place) and inside and not place.lower().endswith(_LISTS):
            source, first = _extracted(place)
            if first not in lines:
                lines.append(first)
        source = os.path.normpath(os.path.join(source, way.path)) if way.path else source
        stem = Path(os.path.abspath(source)).name.split(".")[0] or "images"
        options = map(shlex.quote, way.options.split())
        words = [shlex.quote(source), shlex.quote(f"{stem}.lmdb"), *options]
        lines.append(printable(f"  fastdata pack {' '.join(words)}  # {way.meaning}"))
    return "\n".join(lines)


def _extracted(archive: str) -> tuple[str, str]:
    """Return the folder for the files of an archive, and the command that extracts them."""
    folder = archive.split(".")[0] if "." in os.path.basename(archive) else f"{archive}.files"
    name, to = shlex.quote(archive), shlex.quote(folder)
    if archive.lower().endswith(".zip"):
        return folder, f"  unzip -q {name} -d {to}"
    return folder, f"  mkdir {to} && tar -xf {name} -C {to}"


def drawing(tree: Tree) -> str:
    """Return the tree as lines of text: folders, and how many files of each suffix are in them."""
    lines: list[str] = []
    top = os.path.basename(tree.place.rstrip("/")) or tree.place
    waiting = [("", 0)]
    while waiting and len(lines) < _LINES:
        name, depth = waiting.pop(0)
        found = tree.folder(name)
        kinds = Counter(os.path.splitext(file)[1] or file for file in found.images + found.others)
        parts = [f"{count:,} {printable(kind)}" for kind, count in kinds.most_common(4)]
        shown = found.folders if len(found.folders) <= _WIDE else found.folders[: _WIDE - 1]
        if depth == _DEEP:
            shown = []
        if len(shown) < len(found.folders):
            parts.append(f"{len(found.folders) - len(shown):,} more folders")
        label = "  " * depth + printable(name.rpartition("/")[2] or top) + "/"
        lines.append(f"  {label:<24}{', '.join(parts) or ('' if shown else 'empty')}".rstrip())
        waiting[:0] = [(join(name, inner), depth + 1) for inner in shown]
    return "\n".join([*lines, "  ..."] if waiting else lines)
