"""Which of a file's arrays are what: by their usual names, or as the user says.

An array is known by its path.  What its last name says is a role (image, label, mask, names
of classes, offsets), and the rest of the name tells arrays of one dataset from another's:
``train_x`` belongs to ``train_y`` and not to ``test_y``, ``train/images`` to ``train/labels``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fastdata.errors import OptionError

from ..field_names import IMAGES, LABELS, MASKS
from ..selection import ARRAYS

__all__ = ["Known", "chosen_arrays"]

_ROLES = {
    "image": (*IMAGES, "x", "data", "bytes"),
    "label": (*LABELS, "gt"),
    "mask": MASKS,
    "classes": ("classes", "names", "categories"),
    "offsets": ("offset", "offsets", "indptr", "starts", "lengths", "sizes", "ends"),
}
_WORDS = {word: role for role, words in _ROLES.items() for word in words}


class Known(NamedTuple):
    """An array that a file has.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype or None
        None where rows are bytes or text.
    kind : {"numbers", "bytes", "text"}
    refused : str
        Why it cannot be read, with what helps; empty where it can.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic] | None
    kind: str = "numbers"
    refused: str = ""

    def __str__(self) -> str:
        what = self.kind if self.dtype is None else str(self.dtype)
        return f"{what} of shape {self.shape}" + (" (cannot be read)" if self.refused else "")


def _role(path: str) -> tuple[str, tuple[str, ...]]:
    """Return what an array's name says that it is, and the rest of its path."""
    group, _, name = path.rpartition("/")
    words = [word for word in re.split(r"[_\-. ]+", name.lower()) if word]
    roles = [(word, _WORDS[word]) for word in words if word in _WORDS]
    if not roles:
        return "", (group, *words)
    # The more telling of two: image_offsets are offsets, label_names names of classes.
    order = ("offsets", "classes", "mask", "label", "image")
    word, role = min(roles, key=lambda found: order.index(found[1]))
    words.remove(word)
    if role in ("offsets", "classes"):  # of what, they may say too
        words = [word for word in words if word not in _WORDS]
    return role, (group, *words)


def chosen_arrays(
    where: str, known: Mapping[str, Known], arrays: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the array of each field, and the names of arrays that are left out.

    ``classes`` and ``offsets`` are no fields but belong to those.

    Parameters
    ----------
    where : str
        The file, for messages.
    known : mapping
        What the file has.
    arrays : sequence of str
        The user's word: ``field=array``, or an array that is named like its field.

    Raises
    ------
    OptionError
        If there is no such array, or it is not clear which hold the pictures.
    """
    if arrays:
        chosen = {field: array.strip("/") for field, array in ARRAYS.parse(arrays).items()}
        if "image" not in chosen:
            reason = f"arrays={','.join(arrays)} names no image"
            raise OptionError(ARRAYS.unclear(where, reason, _told(known)))
    else:
        chosen = _usual(where, known)
    for field, array in chosen.items():
        if array not in known:
            raise ARRAYS.missing(where, field, array, _told(known))
        if known[array].refused:
            raise ARRAYS.refused(where, array, f"cannot be read: {known[array].refused}")
    return chosen, sorted(set(known) - set(chosen.values()))


def _told(known: Mapping[str, Known]) -> Iterator[str]:
    return (f"{name}: {array}" for name, array in known.items())


def _usual(where: str, known: Mapping[str, Known]) -> dict[str, str]:
    roles = {path: _role(path) for path in known}
    images = [path for path, (role, _) in roles.items() if role == "image" and _may(known[path])]
    if not images:
        images = [
            path
            for path, array in known.items()
            if roles[path][0] == "" and array.dtype == np.uint8 and _may(array, flat=False)
        ]
    if len(images) != 1:
        several = f"{len(images)} may be" if images else "none is called like"
        reason = f"it is not clear which array has the images, {several} it"
        raise OptionError(ARRAYS.unclear(where, reason, _told(known)))
    chosen = {"image": images[0]}
    count = known[images[0]].shape[0]
    rest = roles[images[0]][1]
    for role in ("label", "mask", "classes", "offsets"):
        if role == "offsets" and not _is_flat(known[images[0]]):
            continue
        found = [path for path, (name, _) in roles.items() if name == role]
        if role in ("label", "classes") and not found:
            found = [p for p, (name, _) in roles.items() if {name, role} == {"label", "classes"}]
        if role == "classes":
            found = [path for path in found if known[path].kind == "text"]
        elif role == "label":
            found = [path for path in found if path not in chosen.values()]
        elif role == "mask":
            found = [path for path in found if known[path].shape[:1] == (count,)]
        same = [path for path in found if roles[path][1] == rest]
        beside = [path for path in found if roles[path][1][0] == rest[0]]
        for candidates in (same, beside) if role != "classes" else (same, beside, found):
            if len(candidates) == 1 and candidates[0] not in chosen.values():
                chosen[role] = candidates[0]
                break
    return chosen


def _may(array: Known, flat: bool = True) -> bool:
    """Tell whether an array may hold pictures."""
    if array.kind == "bytes":
        return len(array.shape) == 1
    return len(array.shape) in (3, 4) or (flat and _is_flat(array))


def _is_flat(array: Known) -> bool:
    return array.dtype == np.uint8 and len(array.shape) == 1
