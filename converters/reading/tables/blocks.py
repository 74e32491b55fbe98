"""Where the rows of a source are that is read in blocks: three numbers a block."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

__all__ = ["Block", "Blocks"]


class Block(NamedTuple):
    """Rows that are read together.

    Attributes
    ----------
    file : int
        Number of the file.
    number : int
        In the file.
    start, rows : int
        The first row, counted over all files, and how many there are.
    lost : str
        Why it cannot be read at all; it then counts as one row.
    """

    file: int
    number: int
    start: int
    rows: int
    lost: str


class Blocks:
    """The blocks of a source, in order.

    Attributes
    ----------
    num_rows : int
    """

    def __init__(self) -> None:
        self.num_rows = 0
        self._files, self._numbers, self._starts = array("i"), array("q"), array("q")
        self._file_starts = array("q")
        self._lost: dict[int, str] = {}

    def begin_file(self) -> None:
        """Say that what is added from here on is of the next file."""
        self._file_starts.append(self.num_rows)

    def add(self, number: int, rows: int | str) -> None:
        """Add a block by its number of rows; one that is lost by why it is."""
        if isinstance(rows, str):
            self._lost[len(self._files)] = rows
            rows = 1
        if rows > 0:
            self._files.append(len(self._file_starts) - 1)
            self._numbers.append(number)
            self._starts.append(self.num_rows)
            self.num_rows += rows

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Block:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = self._starts[index]
        behind = self._starts[index + 1] if index + 1 < len(self) else self.num_rows
        lost = self._lost.get(index, "")
        return Block(self._files[index], self._numbers[index], start, behind - start, lost)

    def number_of(self, row: int) -> int:
        """Return which block has a row, counted over all files."""
        return bisect_right(self._starts, row) - 1

    def block_of(self, row: int) -> Block:
        """Return the block that has a row.

        Raises
        ------
        IndexError
            If there is no such row.
        """
        if not 0 <= row < self.num_rows:
            raise IndexError(row)
        return self[self.number_of(row)]

    def in_file(self, row: int) -> tuple[int, int]:
        """Return the file of a row, and its number there."""
        file = bisect_right(self._file_starts, row) - 1
        return file, row - self._file_starts[file]
