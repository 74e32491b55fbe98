"""What lies beside a ``.rec`` file: the index ``.idx`` and the list of images ``.lst``.

Both are lines of columns with tabs between them: a key and the byte at which its record
begins; a number, one label or more, and the path of an image.  The paths are names here,
and never opened.  Source: ``python/mxnet/recordio.py`` and ``tools/im2rec.py`` of MXNet.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np

from fastdata.errors import SourceError

from ..small_memory import StringTable
from ..text_lines import text_lines

__all__ = ["ImageList", "read_index"]


def read_index(path: Path) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return where the records begin that an index names, in ascending order.

    Raises
    ------
    SourceError
        If a line is not a key and a position.
    """
    positions = array("q")
    for number, line in text_lines(path):
        try:
            _, position = line.split("\t")
            positions.append(int(position))
        except (ValueError, OverflowError):
            raise SourceError(
                f"{path}, line {number}: {line[:60]!r} is not a key and a position with a tab "
                "between them. --option index=false reads the records without their index."
            ) from None
    return np.sort(np.array(positions, np.int64))


class ImageList:
    """Labels and names of images by their number.

    Raises
    ------
    SourceError
        If a line is no entry, or a number stands twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows = StringTable()
        ids = array("Q")
        for number, line in text_lines(path):
            try:
                columns = line.split("\t")
                ids.append(int(columns[0]))
                _entry(columns[1:])
            except (ValueError, OverflowError):
                raise SourceError(
                    f"{path}, line {number}: {line[:60]!r} is not a number, one label or more and "
                    "a path, with tabs between them"
                ) from None
            self._rows.append("\t".join(columns[1:]))
        known = np.array(ids, np.uint64)
        self._order = np.argsort(known, kind="stable")
        self._ids = known[self._order]
        twice = self._ids[1:][self._ids[1:] == self._ids[:-1]]
        if len(twice):
            raise SourceError(f"{path}: the number {twice[0]} stands twice")

    def __getitem__(self, number: int) -> tuple[list[float], str]:
        """Return the labels and the path of an image.

        Raises
        ------
        ValueError
            If the list does not have it.
        """
        at = int(np.searchsorted(self._ids, np.uint64(number)))
        if at == len(self._ids) or int(self._ids[at]) != number:
            raise ValueError(f"{self.path} has no image of the number {number}")
        return _entry(self._rows[int(self._order[at])].split("\t"))


def _entry(columns: list[str]) -> tuple[list[float], str]:
    labels = [float(column) for column in columns[:-1]]
    if not labels:
        raise ValueError("no label")
    return labels, columns[-1]
