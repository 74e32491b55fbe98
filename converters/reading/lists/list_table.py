"""The tables of a list as one: a list, or one list in each split folder."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fastdata.errors import SourceError

from ..field_names import INDEX_COLUMNS
from ..selection import joined
from .columns import NUMBER, image_column, is_label, is_usual
from .text_table import TextTable, cells_of

__all__ = ["ListTable"]

_CREATE_ML = ("image", "label", "xcenter", "ycenter", "width", "height")
_SIDES = ("x", "y", "width", "height")
_FLAGS = {"1": True, "1.0": True, "true": True} | dict.fromkeys(("0", "0.0", "false", ""), False)
_NUMBERS = {"1", "1.0", "0", "0.0"}
_Transform = Callable[[list[str], Path, int], Iterator[list[str]]]
_LOOKED_AT = 200


class ListTable:
    """One table.

    titles, kinds: of its columns, ``split`` last if there are splits.
    first: the cells of the first rows.
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
        self._rows_of: _Transform | None = None
        self._split_of: Mapping[str, str] = {}
        if not chosen:
            self._find_classes(first)
            self._find_objects()
        if splits is not None and "split" not in self.titles:
            self._split_of = splits
            self.titles.append("split")
            self.kinds = self.kinds and [*self.kinds, {str}]
        self.first = list(itertools.islice(self.rows(), _LOOKED_AT))

    def _find_classes(self, first: TextTable) -> None:
        """Take columns for classes: all of Roboflow's, or if each of the first rows has one 1."""
        others = tuple(t for k, t in enumerate(self.titles) if k != self._image)
        several = one = first.path.name == "_classes.csv"
        if not several and len(set(others)) > 1 and not any(map(is_usual, others)):
            rows = list(itertools.islice(first, _LOOKED_AT))
            one = bool(rows) and all(
                set(flags) <= _NUMBERS and sum(map(float, flags)) == 1
                for flags in (
                    [c.strip() for k, c in enumerate(r) if k != self._image] for r in rows
                )
            )
        if one:
            self.classes, self._files, self.kinds = others, [0], None
            self.titles = ["image", "labels" if several else "label"]
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
                numbers, path = itertools.count(1), itertools.repeat(table.path)
                rows = itertools.chain.from_iterable(map(self._rows_of, rows, path, numbers))
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
        found = []
        for k, title in enumerate(self.titles):
            if k != self._image and (title in INDEX_COLUMNS or title.startswith("Unnamed:")):
                cells = [row[k] for row in self.first]
                if all(map(str.isdecimal, cells)) and len(set(cells)) == len(cells):
                    found.append(k)
        return found

    def second_repeats(self) -> bool:
        """Tell whether there are two columns, and the second has a few texts again and again."""
        title = self.titles[-1 - self._image]
        if len(self.titles) != 2 or is_label(title) or is_label(title[:-1]):
            return False
        cells = [row[1 - self._image].strip() for row in self.first]
        texts = {cell for cell in cells if cell}
        return 0 < 2 * len(texts) <= len(cells) and not all(map(NUMBER.fullmatch, texts))

    def _labelled(self, row: list[str], path: Path, number: int) -> Iterator[list[str]]:
        """Yield the image of a row, and the class or classes whose columns have a 1."""
        cells = [cell.strip().lower() for k, cell in enumerate(row) if k != self._image]
        flags, one = list(map(_FLAGS.get, cells)), self.titles[1] == "label"
        chosen = [name for name, flag in zip(self.classes or (), flags, strict=True) if flag]
        if None in flags or (one and len(chosen) != 1):
            raise SourceError(
                f"{path}, row {number}: {joined(row)}: expected 1 or 0 for each class"
                f"{', and one 1' if one else ''}. If not each column is a class, say which are "
                "taken: --option columns=image=COLUMN,..."
            )
        yield [row[self._image], chosen[0] if one else json.dumps(chosen)]

    def _boxed(self, row: list[str], path: Path, number: int) -> Iterator[list[str]]:
        """Yield a row for each object."""
        image, text = (row[self._columns.index(name)] for name in ("image", "annotations"))
        try:
            boxes = [
                [image, str(entry["label"]), *(str(entry["coordinates"][s]) for s in _SIDES)]
                for entry in json.loads(text or "[]")
            ]
        except (KeyError, TypeError) as error:
            raise SourceError(
                f"{path}, row {number}: expected objects with a label and coordinates "
                f"x, y, width, height: {text:.80}"
            ) from error
        yield from boxes or [[image, "", "", "", "", ""]]
