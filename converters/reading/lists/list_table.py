"""The tables of a list as one: a list, or one list in each split folder."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from fastdata.errors import SourceError

from ..field_names import INDEX_COLUMNS
from ..selection import joined
from .columns import NUMBER, image_column, is_label, is_usual
from .text_table import TextTable, cells_of

__all__ = ["ListTable"]

_CREATE_ML = ("image", "label", "xcenter", "ycenter", "width", "height")
_SIDES = ("x", "y", "width", "height")
_YES, _NO = ("1", "1.0", "true"), ("0", "0.0", "false", "")
_LOOKED_AT = 200
_CHOOSE = "If not each column is a class, say which are taken: --option columns=image=COLUMN,..."


class ListTable:
    """One table.

    titles, kinds: of its columns, ``split`` last if there are splits.
    boxes: the default of the option ``boxes``.
    classes: the columns that are classes, 1 or 0 in each row; else None.
    """

    def __init__(
        self,
        tables: Mapping[str, TextTable],
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
        self._tables = tables
        first = next(iter(tables.values()))
        self.path, self._columns = first.path, first.columns
        for table in tables.values():
            if set(table.columns) != set(first.columns):
                raise SourceError(
                    f"{table.path}: its columns are {joined(table.columns)}; {first.path} has "
                    f"{joined(first.columns)}. Pack one folder at a time"
                )
        self._image = image_column(first.columns)
        self._files = [first.columns.index(title) for title in files] or [self._image]
        self.titles, self.boxes = list(first.columns), tuple[str, ...]()
        self.classes: tuple[str, ...] | None = None
        every = [table.kinds for table in tables.values() if table.kinds is not None]
        self.kinds: list[set[type]] | None = None
        if len(every) == len(tables):
            self.kinds = [set().union(*(k[title] for k in every)) for title in self.titles]
        self._rows_of: Callable[[TextTable, int, list[str]], Iterator[list[str]]] | None = None
        self._one_hot = False
        if not chosen:
            self._find_classes(first)
            self._find_objects()
        self._split_of = splits or {}
        if splits is not None and "split" not in self.titles:
            self.titles.append("split")
            self.kinds = self.kinds and [*self.kinds, {str}]
        else:
            self._split_of = {}

    def _find_classes(self, first: TextTable) -> None:
        """Take columns for classes: all of Roboflow's, or if each of the first rows has one 1."""
        others = tuple(t for k, t in enumerate(self.titles) if k != self._image)
        roboflow = first.path.name == "_classes.csv"
        if not roboflow and len(set(others)) > 1 and not any(map(is_usual, others)):
            rows = list(itertools.islice(first, _LOOKED_AT))
            flags = [[c.strip() for k, c in enumerate(row) if k != self._image] for row in rows]
            self._one_hot = bool(rows) and all(
                set(row) <= {*_YES[:2], *_NO[:2]} and sum(c in _YES for c in row) == 1
                for row in flags
            )
        if roboflow or self._one_hot:
            self.classes, self._files, self.kinds = others, [0], None
            self.titles = ["image", "label" if self._one_hot else "labels"]
            self._rows_of = self._labelled

    def _find_objects(self) -> None:
        """Take lists of objects for boxes, as Create ML has them."""
        kinds = dict(zip(self.titles, self.kinds or (), strict=False))
        if "image" in kinds and list in kinds.get("annotations", ()):
            self.titles, self.kinds, self._files = list(_CREATE_ML), None, [0]
            self.boxes, self._rows_of = ("cxcywh", "pixels"), self._boxed

    def rows(self) -> Iterator[list[str]]:
        """Yield the rows of all tables, with paths from the folder of all."""
        for folder, table in self._tables.items():
            rows = iter(table)
            if table.columns != self._columns:
                rows = map(cells_of([table.columns.index(title) for title in self._columns]), rows)
            if self._rows_of is not None:
                rows = itertools.chain.from_iterable(
                    map(self._rows_of, itertools.repeat(table), itertools.count(1), rows)
                )
            split = [self._split_of[folder]] if self._split_of else []
            if not folder and not split:
                yield from rows
                continue
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

    def second_repeats(self) -> bool:
        """Tell whether there are two columns, and the second has a few texts again and again."""
        second = 1 - self._image
        if len(self.titles) != 2 or any(
            map(is_label, (self.titles[second], self.titles[second][:-1]))
        ):
            return False
        cells = [row[second].strip() for row in itertools.islice(self.rows(), _LOOKED_AT)]
        texts = {cell for cell in cells if cell}
        return 0 < 2 * len(texts) <= len(cells) and not all(map(NUMBER.fullmatch, texts))

    def _labelled(self, table: TextTable, number: int, row: list[str]) -> Iterator[list[str]]:
        """Yield the image of a row, and the class or classes whose columns have a 1."""
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

    def _boxed(self, table: TextTable, number: int, row: list[str]) -> Iterator[list[str]]:
        """Yield a row for each object."""
        image, text = (row[self._columns.index(name)] for name in ("image", "annotations"))
        try:
            objects = json.loads(text or "[]")
            boxes = [
                [image, str(entry["label"]), *(str(entry["coordinates"][s]) for s in _SIDES)]
                for entry in objects
            ]
        except (KeyError, TypeError) as error:
            raise SourceError(
                f"{table.path}, row {number}: expected objects with a label and coordinates "
                f"x, y, width, height: {text:.80}"
            ) from error
        yield from boxes or [[image, "", "", "", "", ""]]
