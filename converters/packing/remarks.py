"""Remarks on images, counted, so that the report of a pack has one line for each kind.

A decoder tells of steps that the user may not expect; the record carries that to
the packer.  The counts are part of a pack's progress and of a part's receipt, in JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from fastdata.formats.writer import Record

__all__ = ["Remarks", "remark_lines", "unless_all", "with_records", "with_remarks"]

Remarks: TypeAlias = Mapping[str, Sequence[Any]]
"""By their text, the number of samples, and the key of the first one."""

_NOT = "not: "
"""Begins a remark that contradicts another, and is not shown."""


def with_records(remarks: Remarks, records: Iterable[Any]) -> Remarks:
    """Return the remarks with those of some results; the same object if there are none."""
    for record in records:
        if isinstance(record, Record) and record.notes:
            found = {text: (1, record.key) for text in record.notes}
            remarks = with_remarks(remarks, found)
    return remarks


def with_remarks(first: Remarks, then: Remarks) -> Remarks:
    """Return the sum of two."""
    added = {
        text: (count + first[text][0], first[text][1]) if text in first else (count, key)
        for text, (count, key) in then.items()
    }
    return {**first, **added}


def remark_lines(remarks: Remarks) -> list[str]:
    """Return the lines of a report; remarks that an image contradicts are left out."""
    return [
        f"{text}: {count:,} {'image' if count == 1 else 'images, the first'} {key}"
        for text, (count, key) in remarks.items()
        if not text.startswith(_NOT) and _NOT + text not in remarks
    ]


def unless_all(text: str) -> str:
    """Return the remark of an image that contradicts the remark `text` on others."""
    return _NOT + text
