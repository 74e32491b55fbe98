"""Which of a file's arrays are what: by their usual names, or as the user says.

An array is known by its path.  What its last name says is a role (image, label, mask, boxes, names
of classes), and the rest of the name tells arrays of one dataset from another's:
``train_x`` belongs to ``train_y`` and not to ``test_y``, ``train/images`` to ``train/labels``.

Arrays of several splits may be in one place, ``train_images`` beside ``test_images``: the word for
the split is then taken out of the names, so that arrays of each split have the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from fastdata.errors import OptionError, SourceError

from ..field_names import BOXES, IMAGES, LABELS, MASKS
from ..selection import ARRAYS
from .columns import ArrayColumn

__all__ = ["SPLITS", "arrays_by_split", "chosen_arrays"]

_ROLES = {
    "image": (*IMAGES, "x", "data", "bytes"),
    "label": (*LABELS, "gt"),
    "mask": MASKS,
    **{name: (name,) for name in BOXES},
    "classes": ("classes", "names", "categories"),
}
SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing", "extra")
_WORDS = {word: role for role, words in _ROLES.items() for word in words}


def _role(path: str) -> tuple[str, tuple[str, ...]]:
    """Return what an array's name says that it is, and the rest of its path."""
    group, _, name = path.rpartition("/")
    words = [word for word in re.split(r"[_\-. ]+", name.lower()) if word]
    roles = [(word, _WORDS[word]) for word in words if word in _WORDS]
    if not roles:
        return "", (group, *words)
    # The more telling of two: label_names are names of classes.
    order = ("classes", "mask", "label", *BOXES, "image")
    word, role = min(roles, key=lambda found: order.index(found[1]))
    words.remove(word)
    if role == "classes":  # of what, they may say too
        words = [word for word in words if word not in _WORDS]
    return role, (group, *words)


def chosen_arrays(
    where: str, known: Mapping[str, ArrayColumn], arrays: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the array of each field, and the names of arrays that are left out.

    ``classes`` is no field but belongs to one.  `arrays` has the user's
    ``field=array``.  Raises OptionError if there is no such array, or nothing is clear.
    """
    if arrays:
        chosen = {field: array.strip("/") for field, array in ARRAYS.parse(arrays).items()}
        if "image" not in chosen:
            reason = f"arrays={','.join(arrays)} names no image"
            raise OptionError(ARRAYS.unclear(where, reason, _shown(known)))
    else:
        chosen = _usual(where, known)
    for field, array in chosen.items():
        if array not in known:
            raise ARRAYS.missing(where, field, array, _shown(known))
        refused = known[array].refused
        if refused or not known[array].shape:
            reason = f"cannot be read: {refused}" if refused else "is one value, not one a sample"
            raise ARRAYS.refused(where, array, reason)
    return chosen, sorted(set(known) - set(chosen.values()))


def _shown(known: Mapping[str, ArrayColumn]) -> Iterator[str]:
    return (f"{name}: {array}" for name, array in known.items())


def _usual(where: str, known: Mapping[str, ArrayColumn]) -> dict[str, str]:
    roles = {path: _role(path) for path in known}
    images = [path for path, (role, _) in roles.items() if role == "image" and _fits(known[path])]
    if not images:
        images = [
            path
            for path, array in known.items()
            if roles[path][0] == "" and array.dtype == np.uint8 and _fits(array)
        ]
    if len(images) != 1:
        several = f"{len(images)} may be" if images else "none is called like"
        reason = f"it is not clear which array has the images, {several} it"
        raise OptionError(ARRAYS.unclear(where, reason, _shown(known)))
    chosen = {"image": images[0]}
    count = known[images[0]].shape[:1]
    rest = roles[images[0]][1]
    for role in ("label", "mask", *BOXES, "classes"):
        found = [path for path, (name, _) in roles.items() if name == role]
        if role in ("label", "classes") and not found:
            found = [p for p, (name, _) in roles.items() if {name, role} == {"label", "classes"}]
        if role == "classes":
            found = [path for path in found if known[path].kind == "text"]
        elif role == "label":
            found = [path for path in found if path not in chosen.values()]
        else:
            found = [path for path in found if known[path].shape[:1] == count]
        same = [path for path in found if roles[path][1] == rest]
        beside = [path for path in found if roles[path][1][0] == rest[0]]
        for candidates in (same, beside) if role != "classes" else (same, beside, found):
            if len(candidates) == 1 and candidates[0] not in chosen.values():
                chosen[role] = candidates[0]
                break
    return chosen


def _fits(array: ArrayColumn) -> bool:
    """Tell whether an array may hold pictures; one that cannot be opened may."""
    if array.kind == "unknown" and not array.shape:
        return True
    return len(array.shape) == 1 if array.kind == "bytes" else len(array.shape) in (3, 4)


def arrays_by_split(place: object, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the arrays of each split, by their names without the split's.

    Empty if some names have no split.  Raises SourceError if splits have not the same arrays.
    """
    found: dict[str, dict[str, str]] = {}
    for name in names:
        words = re.split(r"[_\-. ]+", name)
        known = [word.lower() for word in words if word.lower() in SPLITS]
        rest = "_".join(word for word in words if word.lower() not in SPLITS)
        if len(known) != 1 or not rest or rest in found.get(known[0], {}):
            return {}
        found.setdefault(known[0], {})[rest] = name
    first = next(iter(found), "")
    for split, arrays in found.items():
        if arrays.keys() != found[first].keys():
            raise SourceError(
                f"{place}: {first} has the arrays {', '.join(sorted(found[first].values()))}, and "
                f"{split} {', '.join(sorted(arrays.values()))}. Take those of one: {ARRAYS.remedy}"
            )
    return {split: found[split] for split in SPLITS if split in found}
