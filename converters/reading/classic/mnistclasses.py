"""The names of classes of MNIST and of the datasets in its format.

Only EMNIST brings them in files.  Fashion-MNIST has MNIST's file names; it is told by its
folder, or by its first labels.  Sources: the README of Fashion-MNIST; Cohen, Afshar, Tapson
and van Schaik, "EMNIST: an extension of MNIST to handwritten letters", table II.
"""

from __future__ import annotations

import string
from pathlib import Path

from fastdata.errors import SourceError
from fastdata.regular_files import read_regular

__all__ = ["KNOWN_CLASSES", "known_classes", "read_mapping"]

_DIGITS = tuple(string.digits)
_MERGED = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")

KNOWN_CLASSES = {
    "mnist": _DIGITS,
    "fashion": ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt",
                "Sneaker", "Bag", "Ankle boot"),
    "emnist-digits": _DIGITS,
    "emnist-mnist": _DIGITS,
    "emnist-letters": ("N/A", *(a + b for a, b in zip(string.ascii_uppercase,
                                                      string.ascii_lowercase, strict=True))),
    "emnist-balanced": _MERGED,
    "emnist-bymerge": _MERGED,
    "emnist-byclass": tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase),
    "qmnist": _DIGITS,
}  # fmt: skip
"""Letters are counted from 1, so 0 is no class of theirs."""

_STARTS = {
    bytes([5, 0, 4, 1, 9, 2, 1, 3, 1, 4]): "mnist",
    bytes([7, 2, 1, 0, 4, 1, 4, 9, 5, 9]): "mnist",
    bytes([9, 0, 0, 3, 0, 2, 7, 2, 5, 5]): "fashion",
    bytes([9, 2, 1, 1, 6, 1, 4, 6, 5, 7]): "fashion",
}
"""The first ten labels of train and test."""


def known_classes(dataset: str, path: Path, start: bytes) -> tuple[str, ...]:
    """Return the names of the classes; none where they are not known.

    Parameters
    ----------
    dataset : str
        As file names tell it.
    path : Path
        Of the images.
    start : bytes
        The first ten labels.
    """
    mapping = path.parent / f"{dataset}-mapping.txt"
    if dataset and mapping.is_file():
        return read_mapping(mapping)
    folders = [part.lower().replace("-", "").replace("_", "") for part in path.absolute().parts]
    if any(name in ("fashion", "fashionmnist", "fmnist") for name in folders):
        return KNOWN_CLASSES["fashion"]
    return KNOWN_CLASSES.get(_STARTS.get(start, dataset), ())


def read_mapping(path: Path) -> tuple[str, ...]:
    """Read a mapping of EMNIST's: lines of a class and the ASCII codes that are in it.

    Raises
    ------
    SourceError
        If a line is none, or a class stands twice.
    """
    names: dict[int, str] = {}
    try:
        lines = read_regular(path)[: 1 << 16].split(b"\n")
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            if not line.strip():
                continue
            label, *codes = map(int, line.split())
            if not codes or not 0 <= label < 1000 or label in names:
                raise ValueError
            names[label] = bytes(codes).decode("ascii")
        except ValueError:
            raise SourceError(
                f"{path}, line {number}: {line[:40]!r} is not a class with its ASCII codes. "
                "Mend or remove it: the classes of EMNIST are known without."
            ) from None
    return tuple(names.get(label, "N/A") for label in range(max(names, default=-1) + 1))
