"""Names of classes: the option ``classes=``, which names a file of them, and labels of text."""

from __future__ import annotations

import dataclasses
import os
import unicodedata
from collections.abc import Iterable, Mapping

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import Field, ScalarField, StringField

__all__ = [
    "MOST_CLASSES",
    "check_different",
    "classes_of_texts",
    "known_numbers",
    "named_classes",
    "numbered",
    "of_one_number",
    "one_form",
    "read_class_names",
]

MOST_CLASSES = 1 << 20
"""Different texts that labels may have."""

_LARGEST = 64 << 20


def read_class_names(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Read names of classes from a text file, one a line, the first for class 0."""
    try:
        if os.path.getsize(path) > _LARGEST:
            raise OptionError(f"classes={os.fspath(path)}: too large for a list of names")
        text = read_regular(path).decode("utf-8-sig")
    except OSError as error:
        raise OptionError(f"classes={os.fspath(path)}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"classes={os.fspath(path)}: not a text in UTF-8") from error
    names = tuple(line.strip() for line in text.rstrip().splitlines())
    if not names or not all(names):
        raise OptionError(f"classes={os.fspath(path)}: expected a name on every line")
    check_different(names, path)
    return names


def check_different(names: Iterable[str], place: object) -> None:
    """Refuse two classes of one name."""
    first: dict[str, int] = {}
    for number, name in enumerate(names):
        composed = unicodedata.normalize("NFC", name)
        if first.setdefault(composed, number) != number:
            raise SourceError(
                f"{place}: classes {first[composed]} and {number} are both called {name!r}. Give "
                "each a name of its own, or use one number in the labels"
            )


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Return the numbers of classes by their names, with composed and decomposed accents."""
    found: dict[str, int] = {}
    for number, name in enumerate(names):
        for form in ("NFC", "NFD"):
            found.setdefault(unicodedata.normalize(form, name), number)
        found[name] = number
    return found


def known_numbers(names: tuple[str, ...]) -> dict[str, int]:
    """Return `numbered` of classes, which is made once for all samples."""
    found = _known.get(id(names))
    if found is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = _known[id(names)] = names, numbered(names)
    return found[1]


_known: dict[int, tuple[tuple[str, ...], dict[str, int]]] = {}
_MOST_KNOWN = 16


def one_form(names: Iterable[str]) -> tuple[str, ...]:
    """Return the different names, sorted; of one in two forms of accents, the composed form."""
    found: dict[str, str] = {}
    for name in names:
        composed = name if name.isascii() else unicodedata.normalize("NFC", name)
        found[composed] = name if found.get(composed, name) == name else composed
    return tuple(sorted(found.values()))


def of_one_number(texts: Iterable[str]) -> tuple[str, ...]:
    """Return two texts that name one number, such as 7 and 007, or none."""
    found: dict[float, str] = {}
    for text in texts:
        number = int(text) if text.lstrip("+-").isdecimal() else float(text)
        if found.setdefault(number, text) != text:
            return found[number], text
    return ()


def named_classes(
    fields: Mapping[str, Field],
    name: str,
    path: str | os.PathLike[str] | None,
) -> dict[str, Field]:
    """Return fields in which the numbers of one field have the names that a file gives.

    path: the option ``classes=``; without it the fields stay as they are.
    """
    if path is None:
        return dict(fields)
    field = fields.get(name)
    if isinstance(field, StringField):
        field = ScalarField()  # `convert` makes numbers of the names
    if not isinstance(field, ScalarField) or "int" not in field.dtype:
        raise OptionError(f"classes={os.fspath(path)}: there is no field {name!r} of class numbers")
    return {**fields, name: dataclasses.replace(field, classes=read_class_names(path))}


def classes_of_texts(
    texts: Iterable[str], what: str, path: str | os.PathLike[str] | None = None
) -> tuple[str, ...]:
    """Return the names of the classes of labels that are text, in the order of their numbers.

    They are those of the user's file, so that the option ``classes=`` means the same whether
    labels are numbers or text; without it the different texts, sorted.

    texts: of all samples; not read where the user names a file.
    path: the option ``classes=``.
    """
    if path is not None:
        return read_class_names(path)
    names: set[str] = set()
    for text in texts:
        names.add(text)
        if len(names) > MOST_CLASSES:
            raise OptionError(
                f"{what} has more than {MOST_CLASSES:,} different texts, too many for classes; "
                "keep it as text: --field label=string"
            )
    return one_form(names)
