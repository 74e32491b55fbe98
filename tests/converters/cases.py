"""What every format's tests share: pictures, and how a format's files are made of them.

A module ``case_<format>.py`` beside this one has a list ``CASES``; ``test_contract.py`` holds
each of them against the contract.  Files are written by the format's own library where one
installs easily, else from the specification, never by code that the reader uses.
"""

from __future__ import annotations

import functools
import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from samples import photo

__all__ = ["Case", "Picture", "all_cases", "make_pictures"]

CLASSES = ("ant", "bee", "cat")


@dataclass(frozen=True)
class Picture:
    """A picture to be written in some format.

    Attributes
    ----------
    name : str
        A file name without suffix; sorts like its number.
    data : bytes
        A JPEG file.
    pixels : numpy.ndarray
        What PIL reads from it, H x W x 3, uint8; all pictures of a list have one shape.
    label : int
        0, 1 or 2.
    """

    name: str
    data: bytes
    pixels: np.ndarray[Any, Any]
    label: int


def make_pictures(count: int, height: int = 40, width: int = 48) -> list[Picture]:
    """Return different pictures, which take little time to make; they are not to be changed."""
    return list(_made(count, height, width))


@functools.cache
def _made(count: int, height: int, width: int) -> tuple[Picture, ...]:
    base = photo(height, width, seed=9)
    made = []
    for index in range(count):
        file = io.BytesIO()
        rolled = np.roll(base, (index % height, 3 * index), axis=(0, 1))
        Image.fromarray(rolled).save(file, "JPEG", quality=85)
        pixels = np.array(Image.open(file).convert("RGB"))
        pixels.flags.writeable = False
        made.append(Picture(f"{index:06}", file.getvalue(), pixels, index % len(CLASSES)))
    return tuple(made)


@dataclass(frozen=True)
class Case:
    """One way to write a format.

    Attributes
    ----------
    name : str
        Of the case, for pytest.
    format : str
        What the source must be recognised as.
    write : callable
        Takes an empty folder and pictures; returns the location to pack.
    options : mapping
        ``source_options`` to read it with.
    holds : {"files", "pixels"}
        Whether the format keeps image files, which must come out byte for byte, or pixels.
    labels : bool
        Whether it has labels.
    shuffles : bool
        Whether it can be packed in any order.
    damage : callable, optional
        Given the folder, returns the files to damage; default: all files in it.
    keeps_order : bool
        Whether samples come in the order in which they were written; else they are matched.
    forks : bool
        Whether its library still works in a process forked from one that has used it.
    image : str
        The field that the pictures are in.
    files_each : int
        How many files a picture has in one folder.
    """

    name: str
    format: str
    write: Callable[[Path, Sequence[Picture]], Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    holds: Literal["files", "pixels"] = "files"
    labels: bool = True
    shuffles: bool = True
    damage: Callable[[Path], list[Path]] | None = None
    keeps_order: bool = True
    forks: bool = True
    image: str = "image"
    files_each: int = 1

    def damaged_files(self, folder: Path) -> list[Path]:
        """Return the files that tests of damage change."""
        if self.damage is not None:
            return self.damage(folder)
        return sorted(path for path in folder.rglob("*") if path.is_file())


def all_cases() -> list[Case]:
    """Return the cases of all formats."""
    found: list[Case] = []
    for path in sorted(Path(__file__).parent.glob("case_*.py")):
        found += importlib.import_module(path.stem).CASES
    return found
