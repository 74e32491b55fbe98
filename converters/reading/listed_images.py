"""Lists of images, a path a line, that somebody made in a folder of another name.

Paths are relative to the list's folder, to the dataset's, or begin with folders of the machine on
which the list was made: ``data/obj_train_data/0.jpg``, ``/home/me/coco/images/0.jpg``.  How much of
their beginning is to be left out is found out by the first of them, and the same for all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fastdata.errors import SourceError

from .safe_paths import path_inside
from .text_lines import text_lines

__all__ = ["listed_images"]

_TRIED = 16


def listed_images(root: Path, path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, name below the root, and what is wrong with it ("" if nothing is)."""
    base, leading = _relocation(root, path)
    for number, line in text_lines(path):
        name = _parts(line)
        try:
            kept = "/".join(name[leading:] or name)
            place = os.path.join(base, path_inside("", kept))
            problem = "" if os.path.isfile(os.path.join(root, place)) else "there is no such image"
            yield number, place, problem
        except SourceError as error:
            yield number, line.strip()[:200], str(error)


def _parts(line: str) -> list[str]:
    text = line.strip().lstrip("\ufeff").replace("\\", "/")
    return [part for part in text.split("/") if part not in ("", ".")]


def _relocation(root: Path, path: Path) -> tuple[str, int]:
    """Return the folder that names are relative to, and how many of their folders are not here."""
    bases = list(dict.fromkeys([os.path.relpath(path.parent, root), "."]))
    for (_, line), _ in zip(text_lines(path), range(_TRIED), strict=False):
        parts = _parts(line)
        for leading in range(len(parts)):
            for base in bases:
                if ".." not in parts[leading:] and os.path.isfile(
                    os.path.join(root, base, *parts[leading:])
                ):
                    return "" if base == "." else base, leading
    return "", 0
