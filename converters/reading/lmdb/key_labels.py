"""Labels of the values of an LMDB file: a part of their keys, or lines of a file."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from fastdata.errors import OptionError

from ..class_names import classes_of_texts
from ..text_lines import text_lines

__all__ = ["NO_LABEL", "labels_in_file", "labels_in_keys"]

Labels: TypeAlias = "tuple[array[int], tuple[str, ...] | None]"
"""A number a key, and names of classes where labels are text."""

NO_LABEL = -(2**63)
"""In the place of a label that there is not."""

_NUMBER = re.compile(r"-?[0-9]{1,18}")


def labels_in_keys(keys: Iterable[str], pattern: str, classes: str | None) -> Labels:
    """Return the labels that the first group of a pattern matches in keys.

    Raises
    ------
    OptionError
        If the pattern is none, has no group, or matches no key.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise OptionError(f"label_pattern={pattern!r}: {error}") from error
    if compiled.groups < 1:
        raise OptionError(f"label_pattern={pattern!r} has no group (...) for the label")
    found = [compiled.search(key) for key in keys]
    return _numbered([match[1] if match else None for match in found], classes)


def labels_in_file(keys: Iterable[str], path: Path, classes: str | None) -> Labels:
    """Return the labels that a file of lines ``key label`` has of keys.

    Raises
    ------
    OptionError
        If the file cannot be read, a line is none, or it is of other keys.
    """
    known: dict[str, str] = {}
    for number, line in text_lines(path, "backslashreplace", OptionError):
        separator = "\t" if "\t" in line else "," if "," in line else " "
        key, found, label = line.rstrip().rpartition(separator)
        if not found or key in known:
            raise OptionError(
                f"labels={path}, line {number}: {line[:60]!r} "
                + ("has a key that stands before" if found else "is not `key label`")
            )
        known[key] = label.strip()
    labels, first = [], ""
    for key in keys:
        first = first or key
        labels.append(known.get(key))
    if known and not any(label is not None for label in labels):
        raise OptionError(
            f"labels={path}: none of its keys is in the database, where the first is {first!r}"
        )
    if all(label is None or _NUMBER.fullmatch(label) for label in labels):
        return array("q", (NO_LABEL if v is None else int(v) for v in labels)), None
    return _numbered(labels, classes)


def _numbered(labels: list[str | None], classes: str | None) -> Labels:
    """Return names of classes as their numbers, and the names."""
    if all(label is None for label in labels):
        raise OptionError("no key has a label")
    texts = (label for label in labels if label is not None)
    names = classes_of_texts(texts, "what keys are labelled by", classes)
    numbers = {name: number for number, name in enumerate(names)}
    return array(
        "q", (numbers.get(v, NO_LABEL) if v is not None else NO_LABEL for v in labels)
    ), names
