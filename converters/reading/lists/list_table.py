"""The tables of a list as one: a list, or one list in each split folder."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fastdata.errors import SourceError

from ..cells import NUMBER
from ..field_names import INDEX_COLUMNS
from ..selection import joined
from .columns import image_column, is_label, is_usual
from .text_table import cells_of

__all__ = ["ListTable", "Table"]

_CREATE_ML = ("image", "label", "xcenter", "ycenter", "width", "height")
_YES, _NO = ("1", "1.0", "true"), ("0", "0.0", "false", "")
_LOOKED_AT = 200
_CHOOSE = "If not each column is a class, say which are taken: --option columns=image=COLUMN,..."


class Table(Protocol):
    """A file of rows; see `TextTable`."""

    path: Path
    columns: list[str]

    @property
    def kinds(self) -> Mapping[str, set[type]] | None: ...
    def __iter__(self) -> Iterator[list[str]]: ...


class ListTable:
    """One table.

    titles, kinds: of its columns, ``split`` last if there are splits.
    boxes: the default of the option ``boxes``.
    classes: the columns that are classes, 1 or 0 in each row; else None.
    """

    def __init__(
        self,
        tables: Mapping[str, Table],
        splits: Mapping[str, str] | None = None,
        files: Sequence[str] = (),
        chosen: bool = False,
    ) -> None:
        """Compare the tables.

        tables: by their folders; "" for that of the list.
        splits: the split of each folder, for a column ``split``.
        files: titles of columns with paths from the folder; without any, the usual one of images.
        chosen: whether the user says what columns are.
        """
        self._tables, self._splits = tables, splits
        first = next(iter(tables.values()))
        for table in tables.values():
            if set(table.columns) != set(first.columns):
                raise SourceError(
                    f"{table.path}: its columns are {joined(table.columns)}; {first.path} has "
                    f"{joined(first.columns)}. Pack one folder at a time"
                )
        self._columns, self._image = first.columns, image_column(first.columns)
        self._files = [first.columns.index(title) for title in files] or [self._image]
        self.titles, self.boxes = list(first.columns), tuple[str, ...]()
        self.classes: tuple[str, ...] | None = None
        every = [table.kinds for table in tables.values() if table.kinds is not None]
        self.kinds: list[set[type]] | None = None
        if len(every) == len(tables):
            self.kinds = [set().union(*(k[title] for k in every)) for title in self.titles]
        self._objects = -1
        others = tuple(t for k, t in enumerate(self.titles) if k != self._image)
        roboflow = first.path.name == "_classes.csv"
        plain = len(set(others)) > 1 and not any(map(is_usual, others))
        self._one_hot = not roboflow and not chosen and plain and self._are_one_hot(first)
        if not chosen and (roboflow or self._one_hot):
            self.classes, self._files = others, [0]
            self.titles, self.kinds = ["image", "label" if self._one_hot else "labels"], None
        elif self.kinds and {"image", "annotations"} <= set(self.titles):
            self._objects = self.titles.index("annotations")
            if list in self.kinds[self._objects]:
                self.titles, self.kinds, self._files = list(_CREATE_ML), None, [0]
                self.boxes = ("cxcywh", "pixels")
        self._with_split = splits is not None and "split" not in self.titles
        if self._with_split:
            self.titles.append("split")
            self.kinds = self.kinds and [*self.kinds, {str}]

    def rows(self) -> Iterator[list[str]]:
        """Yield the rows of all tables, with paths from the folder of all."""
        for folder, table in self._tables.items():
            rows = iter(table)
            if table.columns != self._columns:
                rows = map(cells_of([table.columns.index(title) for title in self._columns]), rows)
            if self.classes is not None:
                rows = self._labelled(table, rows)
            elif self.boxes:
                rows = self._boxed(table, rows)
            if not folder and not self._with_split:
                yield from rows
                continue
            split = [self._splits[folder]] if self._splits and self._with_split else []
            for row in rows:
                for k in self._files if folder else ():
                    row[k] = os.path.normpath(os.path.join(folder, row[k])) if row[k] else ""
                yield row + split

    def index_columns(self) -> list[int]:
        """Return the columns that are the row's numbers, as pandas writes its index."""
        named = [
            k
            for k, title in enumerate(self.titles)
            if k != self._image and (title in INDEX_COLUMNS or title.startswith("Unnamed:"))
        ]
        first = list(itertools.islice(self.rows(), _LOOKED_AT)) if named else []
        return [
            k
            for k in named
            if all(row[k].isdecimal() for row in first)
            and len({row[k] for row in first}) == len(first)
        ]

    def _are_one_hot(self, table: Table) -> bool:
        """Tell whether one of the other columns is 1 in each of the first rows, and the rest 0."""
        rows = list(itertools.islice(table, _LOOKED_AT))
        flags = [[c.strip() for k, c in enumerate(row) if k != self._image] for row in rows]
        return bool(rows) and all(
            set(row) <= {*_YES[:2], *_NO[:2]} and sum(c in _YES for c in row) == 1 for row in flags
        )

    def second_repeats(self) -> bool:
        """Tell whether there are two columns, and the second has a few texts again and again."""
        if len(self.titles) != 2 or is_label(self.titles[1 - self._image]):
            return False
        cells = [row[1 - self._image].strip() for row in itertools.islice(self.rows(), _LOOKED_AT)]
        texts = {cell for cell in cells if cell}
        return 0 < 2 * len(texts) <= len(cells) and not all(map(NUMBER.fullmatch, texts))

    def _labelled(self, table: Table, rows: Iterable[list[str]]) -> Iterator[list[str]]:
        """Yield the image of each row, and the class or classes whose columns have a 1."""
        for number, row in enumerate(rows, 1):
            chosen = []
            for k, cell in enumerate(row):
                flag = cell.strip().lower()
                if k != self._image and flag in _YES:
                    chosen.append(self._columns[k])
                elif k != self._image and flag not in _NO:
                    raise SourceError(
                        f"{table.path}, row {number}: {self._columns[k]!r} is {cell!r:.40}, "
                        f"neither 1 nor 0. {_CHOOSE}"
                    )
            if self._one_hot and len(chosen) != 1:
                raise SourceError(
                    f"{table.path}, row {number}: {len(chosen)} of its classes are 1. {_CHOOSE}"
                )
            yield [row[self._image], chosen[0] if self._one_hot else json.dumps(chosen)]

    def _boxed(self, table: Table, rows: Iterable[list[str]]) -> Iterator[list[str]]:
        """Yield a row for each object of Create ML's annotations."""
        image = self._columns.index("image")
        for number, row in enumerate(rows, 1):
            try:
                objects: Sequence[dict[str, dict[str, float]]]
                objects = json.loads(row[self._objects] or "[]")
                for entry in objects:
                    sides = [entry["coordinates"][side] for side in ("x", "y", "width", "height")]
                    yield [row[image], str(entry["label"]), *map(str, sides)]
            except (KeyError, TypeError) as error:
                raise SourceError(
                    f"{table.path}, row {number}: expected objects with a label and coordinates "
                    f"x, y, width, height: {row[self._objects]:.80}"
                ) from error
            if not objects:
                yield [row[image], "", "", "", "", ""]
