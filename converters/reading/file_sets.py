"""Sets of files: ``train-00001-of-00004.parquet`` with its siblings, or ``000000.tar`` and so on.

If a file of a set is missing, a pack would have a part of the data; two exports of one set would
give it twice.  A folder must have the whole set; a pattern may choose a part.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError

from .locations import folder_at, is_pattern, printable
from .selection import joined

__all__ = ["check_file_set"]

_OF = re.compile(r"(.*?)([0-9]+)[-_. ]?of[-_. ]?([0-9]+)(.*)", re.DOTALL | re.IGNORECASE)
_HASH = re.compile(r"-[0-9a-f]{8,}(?=[.]|$)")
"""What exports to Hugging Face's hub append: ``train-00000-of-00001-0f3d5c1e2b4a6978.parquet``."""
_MOST = 1_000_000
_NUMBERED = re.compile(r"(.*?)([0-9]+)((?:[.][a-z][^.]*)+)", re.DOTALL | re.IGNORECASE)


def check_file_set(paths: Sequence[Path], location: Any) -> list[str]:
    """Compare the names of a source's files, and return notes on files that a pattern leaves out.

    Raises
    ------
    SourceError
        If files of a folder's set are missing, or if there are two exports of one set.
    """
    folder = folder_at(location)
    there = {os.path.basename(path) for path in paths}
    if "index.json" in there or (folder is None and not is_pattern(location)):
        return []  # MDS and LitData list their files; a single file is the user's choice
    sets: dict[tuple[str, str, str], dict[int, dict[int, str]]] = defaultdict(dict)
    numbered: dict[tuple[str, str, str], dict[int, str]] = defaultdict(dict)
    for path in paths:
        place, name = os.path.split(path)
        if found := _OF.fullmatch(name):
            stem, number, total, end = found.groups()
            members = sets[place, stem, _HASH.sub("", end)].setdefault(int(total), {})
            if members.setdefault(int(number), name) != name:
                raise _two_exports(place, members[int(number)], name)
        elif found := _NUMBERED.fullmatch(name):
            numbered[place, found[1], found[3]][int(found[2])] = found[2]
    for (place, *_), totals in sets.items():
        if len(totals) > 1:
            raise _two_exports(place, *(next(iter(totals[total].values())) for total in totals))
    missing = [
        os.path.join(place, name)
        for place, name in (*_missing_of(sets), *_gaps(numbered))
        if name not in there  # it may be in the folder of another split
    ]
    if not missing:
        return []
    count = f"{len(missing):,} file{'s' * (len(missing) > 1)} of the set"
    shown = joined(map(printable, missing), 4)
    if folder is None:
        return [f"{count} {'are' if len(missing) > 1 else 'is'} not taken or not there: {shown}"]
    deeper = any(path.parent != folder for path in paths)
    pattern = os.path.join(folder, *["**"] * deeper, f"*{os.path.splitext(missing[0])[1]}")
    raise SourceError(
        f"{folder}: {count} missing: {shown}. Bring the missing files, or pack the others by a "
        f"pattern in quotes: fastdata pack '{printable(pattern)}' ..."
    )


def _two_exports(place: str, *names: str) -> SourceError:
    return SourceError(
        f"{place}: {joined(map(printable, names), 4)} are of two exports of one set, and their "
        "samples may be the same. Remove the old files, or name those of one export in a pattern "
        f"in quotes: fastdata pack '{_pattern_of(place, names[-1])}' ..."
    )


def _pattern_of(place: str, name: str) -> str:
    """Return the pattern for all files of an export."""
    found = _OF.fullmatch(name)
    assert found is not None
    start, end = found.span(2)[0], found.span(2)[1]
    return printable(os.path.join(place, f"{name[:start]}*{_HASH.sub('*', name[end:])}"))


def _missing_of(
    sets: dict[tuple[str, str, str], dict[int, dict[int, str]]],
) -> Iterator[tuple[str, str]]:
    """Yield folder and name of files that ``-of-00004`` promises."""
    for (place, *_), totals in sets.items():
        ((total, members),) = totals.items()
        first = 0 if 0 in members or total not in members else 1
        example = next(iter(members.values()))
        found = _OF.fullmatch(example)
        assert found is not None
        start, end = found.span(2)
        for number in range(first, first + total) if total <= _MOST else ():
            if number not in members:
                ending = _HASH.sub("", example[end:])
                yield place, f"{example[:start]}{number:0{end - start}}{ending}"


def _gaps(numbered: dict[tuple[str, str, str], dict[int, str]]) -> Iterator[tuple[str, str]]:
    """Yield folder and name of files that are missing between others, if most are there.

    Names must look like counters: filled with zeros, or counted from 0 or 1.
    """
    for (place, stem, end), members in numbered.items():
        least, most = min(members), max(members)
        filled = len(set(map(len, members.values()))) == 1 and members[least][0] == "0"
        gaps = most - least + 1 - len(members)
        if (filled or least <= 1) and 0 < gaps <= len(members):
            width = len(members[least]) if filled else 1
            for number in range(least, most):
                if number not in members:
                    yield place, f"{stem}{number:0{width}}{end}"
