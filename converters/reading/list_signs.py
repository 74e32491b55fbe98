"""The kind of a file next to images: a list of images or of classes, prose, or unknown.

A file that may describe the images must not be left out without a refusal.  So a file is prose
only if its name or its text shows that, and everything in doubt is ``unknown``.
"""

from __future__ import annotations

import csv
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from .image_files import SUFFIXES, is_image_name
from .locations import first_bytes
from .text_lines import decoded

__all__ = ["HEAD_BYTES", "ListKind", "describe_head", "describe_list", "is_submission"]

HEAD_BYTES = 1 << 20
_MENTIONED = 0.5
"""Share of the lines of a README that may name an image."""
_LEAST_SHARE = 0.1
"""Share of the lines that must name images by ids: the files of the others may be missing."""

_DOCUMENTS = re.compile(
    r"(readme|licen[cs]e|copying|copyright|notice|citation|changelog|changes|requirements|credits"
    r"|attribution)(?![a-z]).*"
    r"|.*\.(md|rst|pdf|html?|docx?|rtf|tex|bib|url|md5|sha(1|256|512)|py|ipynb|sh|m)",
    re.IGNORECASE,
)
_CHECKSUMS = re.compile(r"(md5|sha(1|256|512)|check)(sums?)?(?![a-z]).*", re.IGNORECASE)
_NOTES = re.compile(
    r"(notes?|about|info|description|terms|sources?|urls?|download|authors?|contact)\b[^.]*(\.txt)?",
    re.IGNORECASE,
)
_SUBMISSION = re.compile(r"sample.?submission.*|submission.?(sample|format).*", re.IGNORECASE)
_TEXT_SUFFIXES = ("", ".txt", ".text", ".log", ".lst", ".list", ".names", ".dat")
_TABLE_SUFFIXES = (".csv", ".tsv", *_TEXT_SUFFIXES)
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson", ".geojson")
_JSON_TEXT = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_SUFFIX = re.compile("(?:{})$".format("|".join(map(re.escape, SUFFIXES))), re.IGNORECASE)


ListKind: TypeAlias = Literal["list", "classes", "prose", "unknown"]
"""What a file is.

list: a table or a text in which a column names images; the format ``manifest`` may read it.
classes: the names of the classes, and nothing of single images.
prose: it says nothing of single images.
unknown: it may be annotations.
"""


def is_submission(name: str) -> bool:
    """Tell whether a file is the example of a result that competitions of Kaggle have."""
    return _SUBMISSION.fullmatch(name) is not None


def describe_list(path: Path, images: Iterable[str]) -> ListKind:
    """Return the kind of a file by its name and its first MB; see `describe_head`."""
    head = first_bytes(path, HEAD_BYTES)
    empty = not head and path.is_file() and path.stat().st_size == 0
    return describe_head(path.name, head if head or empty else None, images)


def describe_head(name: str, head: bytes | None, images: Iterable[str]) -> ListKind:
    """Return the kind of a file.

    head: its first MB; None if it cannot be read.
    images: paths of the images, with ``/``; the names of their folders may be classes.  They are
        read once, and only if the text may name them.
    """
    suffix = os.path.splitext(name)[1].lower()
    is_text = suffix in (*_TABLE_SUFFIXES, *_JSON_SUFFIXES)
    document = _DOCUMENTS.fullmatch(name) is not None
    if is_submission(name) or _CHECKSUMS.fullmatch(name) or (document and not is_text):
        return "prose"
    if not head:
        return "unknown" if head is None else "prose"
    text = decoded(head)
    if text is None or not is_text:
        return "unknown"
    if len(head) == HEAD_BYTES:  # the last line may be cut
        text = text[: text.rfind("\n")] if "\n" in text else text
    if suffix in _JSON_SUFFIXES or text.lstrip()[:1] in ("{", "<"):
        return _describe_json(text.lstrip(), suffix, images)
    rows = _rows(text)
    names = _Named([row for _, row in rows], images)
    if document and names.files <= _MENTIONED * len(rows):
        return "prose"
    if names.files:
        return "list"
    if rows and names.lists_classes([[line.strip(), row[0], row[-1]] for line, row in rows]):
        return "classes"
    if names.ids:
        return "list"
    return "prose" if suffix in _TEXT_SUFFIXES and _is_prose(name, rows) else "unknown"


class _Named:
    """What rows name of the images.

    files: how many images.
    ids: how many rows have ids of images, which are names without a suffix; 0 if these are few.
    """

    def __init__(self, rows: Sequence[Sequence[str]], images: Iterable[str]) -> None:
        wanted = {_last_part(cell) for row in rows for cell in row} - {""}
        self.files, stems = 0, set[str]()
        self._folders, self._parents = set[str](), set[str]()
        folder = None
        for image in images:
            parent, _, name = image.rpartition("/")
            if parent != folder:
                folder, parts = parent, _composed(parent).split("/")
                self._folders.update(parts)
                self._parents.add(parts[-1])
            name = _composed(name)
            self.files += name in wanted
            stem = _SUFFIX.sub("", name)
            if stem in wanted:
                stems.add(stem)
        found = Counter(
            k for row in rows for k, cell in enumerate(row) if _last_part(cell) in stems
        )
        most = max(found.values(), default=0)
        self.ids = most if most > _LEAST_SHARE * len(rows) else 0

    def lists_classes(self, lines: Sequence[Sequence[str]]) -> bool:
        """Tell whether each line has a class that no other line has, or all classes have a line."""
        classes = self._folders - {""}
        for below in (lines, lines[1:]):  # with or without a header
            found = [next((cell for cell in line if cell in classes), None) for line in below]
            known = [name for name in found if name is not None]
            if not known or len(set(known)) < len(known):
                return False
            if len(known) == len(found) or set(known) >= self._parents:
                return True
        return False


def _composed(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def _last_part(cell: str) -> str:
    """Return the name of a file in a cell, without its folders."""
    return _composed(cell.strip().replace("\\", "/").rpartition("/")[2])


def _rows(text: str) -> list[tuple[str, list[str]]]:
    """Return lines with their cells."""
    lines = [line for line in text.splitlines() if line.strip()]
    body = lines[1:3] or lines
    sign = next((s for s in "\t;|," if body and all(s in line for line in body)), "")
    if not sign:
        return [(line, line.split()) for line in lines]
    reader = csv.reader((line.replace("\0", " ") for line in lines), delimiter=sign)
    try:
        return [(sign.join(row), [cell.strip() for cell in row]) for row in reader]
    except csv.Error:  # a quote that is never closed
        return [(line, [cell.strip(' "') for cell in line.split(sign)]) for line in lines]


def _is_prose(name: str, rows: list[tuple[str, list[str]]]) -> bool:
    """Tell whether lines are sentences: no paths, and no columns."""
    words = [line.split() for line, _ in rows]
    if any(is_image_name(word.strip("\"'(),;:")) for line in words for word in line):
        return False
    widths = {len(row) for _, row in rows}
    if len(rows) > 1 and len(widths) == 1 and widths != {1}:
        return False
    if _NOTES.fullmatch(name):
        return not all(len(line) == 1 for line in words)
    return 2 * sum(len(line) >= 4 for line in words) >= len(words) and any(
        word.isalpha() and len(word) > 3 for line in words for word in line
    )


def _describe_json(text: str, suffix: str, images: Iterable[str]) -> ListKind:
    """Return what JSON is: a list of objects that name images, or anything else."""
    if text.startswith("<"):
        return "unknown"
    texts = _JSON_TEXT.findall(text)
    names = _Named([[cell] for cell in texts], images)
    rows = suffix != ".geojson" and (
        text[:1] == "[" if suffix == ".json" else text[:1] == "{" and suffix != ""
    )
    if rows and (names.files or names.ids):
        return "list"
    if texts and not names.files and names.lists_classes([[cell] for cell in texts]):
        return "classes"
    return "unknown"
