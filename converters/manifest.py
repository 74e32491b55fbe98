"""Lists of images: CSV, TSV, a text file with blanks between columns, JSON Lines, a JSON list.

Paths are relative to the list.  A first row in which nothing names a file, or looks like a path or
a number, is the header; without one the columns are ``path``, ``label``, ``column2`` and so on.
The path column becomes the field ``image``; a column ``mask`` holds paths of masks.  Other columns
of image files become image fields too, if every cell is called like one and the first is there:
masks where ``mask`` is in their name.  The rest hold int, float, or text, whichever fits all cells
that are not empty (a row with an empty cell in a column of numbers or images is rejected; a column
of empty cells is text).  Text in ``label``, ``class`` or ``target`` becomes class numbers in sorted
order, or an array of these if cells have several labels (``lists/labels.py``).  Field names are the
columns' as far as a field can be called so: ``class`` becomes ``label``, or ``class_`` beside a
``label``.

Where images are not at the paths of the list, ``lists/image_finder.py`` looks for them; where four
columns are a box, a sample is an image with all of its boxes (``lists/box_rows.py``).  A folder is
read by the one list in it, or by one list in each split folder (``lists/list_files.py``).

Nothing is guessed where a schema lies beside the manifest, as `fastdata export`
leaves it there (``cells.py``).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ImageField, Schema

from .base import FieldSpec, IndexedSource, Sample
from .reading.cells import schema_path
from .reading.class_names import read_class_names
from .reading.fields import check_names
from .reading.fingerprints import hash_samples
from .reading.image_files import is_image_name
from .reading.lists.box_rows import BoxSamples
from .reading.lists.boxed_image import box_form
from .reading.lists.columns import (
    box_columns,
    box_roles,
    choose_columns,
    image_column,
    is_label,
    known_fields,
)
from .reading.lists.image_finder import ImageFinder
from .reading.lists.labels import sign_named
from .reading.lists.list_files import list_of_folder, lists_of_splits, not_used, split_siblings
from .reading.lists.list_table import ListTable
from .reading.lists.row_samples import ListInfo, RowSamples
from .reading.lists.text_table import JSON_SUFFIXES, TextTable, cells_of
from .reading.locations import first_bytes, printable
from .reading.options import CheckSize, ClassFile, Option
from .reading.selection import joined, left_out
from .reading.text_lines import decoded
from .refusal import Way, refused

__all__ = ["ManifestSource"]


class ManifestSource(IndexedSource):
    """Rows of a list, each an image; or each a box, and then put together by image."""

    name = "manifest"
    summary = "a list of images: CSV, TSV, text or JSON Lines, path,label[,more] or boxes"
    parts = ("*.csv|*.tsv|*.jsonl",)
    general = True

    @classmethod
    def recognises(cls, location: Any) -> bool:
        path = Path(location)
        if path.is_dir():
            return list_of_folder(path) is not None or bool(lists_of_splits(path))
        start = decoded(first_bytes(path))
        if start is None and not schema_path(path).exists():
            return False
        suffix = path.suffix.lower()
        if suffix in JSON_SUFFIXES:
            opening = "[" if suffix == ".json" else "{"
            return start is not None and start.lstrip().startswith(opening)
        return suffix in (".csv", ".tsv", ".txt")

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        columns: Annotated[
            tuple[str, ...], Option("FIELD=COLUMN or COLUMN; the rest is left out")
        ] = (),
        images: Annotated[
            str | None, Option("the folder of the images, or a pattern: {scene}/{:06}.png")
        ] = None,
        suffix: Annotated[str | None, Option("what names of images lack: .jpg")] = None,
        label: Annotated[
            str | None, Option("images are labelled by their folder", ("folder",))
        ] = None,
        labels: Annotated[
            str | None, Option("between labels: bar, blank, semicolon, comma; none: one a cell")
        ] = None,
        boxes: Annotated[
            tuple[str, ...],
            Option("xyxy, xywh or cxcywh, pixels or normalised; none: rows are samples"),
        ] = (),
        classes: ClassFile = None,
        split: Annotated[str | None, Option("only rows with this in their column split")] = None,
        separator: Annotated[str | None, Option("comma, tab, semicolon, bar or blank")] = None,
        header: Annotated[bool | None, Option("whether the first row names the columns")] = None,
        check_size: CheckSize = True,
    ) -> None:
        self.notes, self._folder = [], Path(location)
        self._images, self._suffix = images or "", suffix or ""
        lists = self._lists()
        self.path = next(iter(lists.values()))
        # Names are relative to the list, or to the folder of the split folders.
        self._root = self._folder if "" not in lists else self.path.parent
        known = schema_path(self.path).exists()
        table = ListTable(
            {
                name: TextTable(path, self._is_file(path.parent), separator, header, exact=known)
                for name, path in lists.items()
            },
            splits={name: name for name in lists} if "" not in lists else None,
            chosen=known or bool(columns) or bool(fields),
        )
        if table.classes is not None:
            self.notes.append(f"the columns {joined(table.classes, 5)} are the classes")
        index = table.index_columns() if not (columns or known) else []
        if index:
            self.notes.append("a column of row numbers, as pandas writes it, is left out")
        second = 1 - image_column(table.titles) if not known and table.second_repeats() else -1
        if second >= 0 and not columns:
            self.notes.append(
                f"the texts of {table.titles[second]!r} are the label (--option columns=image="
                f"{table.titles[1 - second]},{table.titles[second]}: text)"
            )
        taken = choose_columns(self.path, table.titles, columns, self.notes, index, second)
        names = list(taken.names)
        fixed = known_fields(self.path, names, channels)
        image = _image_column(names, fixed, bool(columns))
        if label:
            names.append("label")
        if len(set(names)) < len(names):
            raise SourceError(f"{self.path}: a column stands twice in the header {table.titles}")
        check_names(fields or {}, names)
        rows: Iterator[list[str]] = map(cells_of(taken.indices), table.rows())
        kinds = table.kinds and [table.kinds[k] for k in taken.indices] + [{str}] * bool(label)
        if label:
            rows = _with_folders(rows, image)
        if split is not None and "split" not in names:
            raise OptionError(
                f"split={split}: {self.path} has no column 'split', but {joined(names)}. Say which "
                "it is: --option columns=image=COLUMN,split=COLUMN"
            )
        class_names = read_class_names(classes) if classes is not None else table.classes
        self._samples: RowSamples | BoxSamples
        roles = None if fixed else box_roles(names, boxes or table.boxes)
        place = str(self.path)
        at = names.index("split") if "split" in names else None
        if roles is not None:
            if fields:
                raise OptionError(
                    f"{self.path}: its rows are boxes, put together by image, and fields= cannot "
                    "change what they are; --option boxes=none makes each row a sample"
                )
            form = box_form(boxes or table.boxes, check_size)
            form = form._replace(form="xyxy" if roles.form == "corners" else roles.form)
            self._samples = BoxSamples(
                place, rows, image=image, roles=roles, form=form, channels=channels,
                finder=self._finder("image", True), classes=class_names, split=at, only=split,
            )  # fmt: skip
            if roles.form == "corners":
                self.notes.append("boxes are the hulls of quadrilaterals: x1, y1, ..., x4, y4")
            used = {image, at, *roles.used}
            self.notes += left_out("columns", [n for k, n in enumerate(names) if k not in used])
        else:
            unclear = [k for k in box_columns(names, "xywh")[1] if names[k] not in (fields or {})]
            if unclear and not (fixed or boxes):
                ways = {
                    "xywh,pixels": "boxes of left, top, width, height",
                    "xyxy,pixels": "boxes of left, top, right, bottom",
                    "none": "each row as a sample",
                }
                raise refused(
                    self.path,
                    f"columns that may be boxes: {joined(names[k] for k in unclear)}",
                    [Way("", f"--option boxes={form}", meaning) for form, meaning in ways.items()],
                )
            info = ListInfo(
                place, names, image, {**fixed, **(fields or {})}, channels, class_names,
                kinds, self._sign(labels, names),
                None if split is None else (names.index("split"), split), bool(label),
            )  # fmt: skip
            others = (
                [] if class_names or label or known else self._siblings(table, separator, header)
            )
            cells = (map(cells_of(taken.indices), other.rows()) for other in others)
            rest = itertools.chain.from_iterable(cells)
            self._samples = RowSamples(info, rows, self._finder, rest)
        schema = self._samples.schema
        if classes is not None and not {"label", "labels"} & set(schema):
            raise OptionError(f"classes={classes}: there is no field 'label' of class numbers")
        if fixed:
            self._samples.schema = Schema({name: schema[name] for name in names})
        elif split is not None and isinstance(self._samples, RowSamples):
            self._samples.leave_out("split")
        self.schema = self._samples.schema
        self.num_samples = self._samples.num_samples
        self.notes += self._samples.notes
        if self._folder.is_dir():
            paths = map(self._samples.path_at, range(self.num_samples))
            self.notes += not_used(self._folder, paths, lists.values())

    # -- files and samples ---------------------------------------------------------------

    def _lists(self) -> dict[str, Path]:
        """Return the list that the location is, or that is in the folder or its split folders."""
        if not self._folder.is_dir():
            return {"": self._folder}
        if (found := list_of_folder(self._folder)) is not None:
            self.notes.append(
                f"the samples are those of the list {printable(found.name)} (--format flat: all)"
            )
            return {"": found}
        if lists := lists_of_splits(self._folder):
            shown = joined(
                printable(str(path.relative_to(self._folder))) for path in lists.values()
            )
            self.notes.append(f"the samples are those of the lists {shown}")
            return lists
        raise SourceError(f"{self._folder}: no list there that names the images; name the file")

    def _siblings(
        self, table: ListTable, separator: str | None, header: bool | None
    ) -> list[ListTable]:
        """Return the lists of other splits with the same columns: ``val.csv`` of ``train.csv``."""
        found = []
        for path in split_siblings(self.path):
            with contextlib.suppress(SourceError, OptionError):
                text = TextTable(path, self._is_file(path.parent), separator, header)
                other = ListTable({"": text}, chosen=True)
                if other.titles == table.titles:
                    found.append(other)
                    self.notes.append(
                        f"classes are those of {printable(path.name)}, too, so both lists have "
                        "the same numbers"
                    )
        return found

    def _sign(self, labels: str | None, names: list[str]) -> str | None:
        """Return the sign between labels; None if the cells decide."""
        if labels is None:
            return None
        sign = sign_named(labels)
        if not any(name == "labels" or is_label(name) for name in names):
            raise OptionError(
                f"labels={labels}: there is no column of labels; there are {joined(names)}. Say "
                "which: --option columns=image=COLUMN,labels=COLUMN"
            )
        return sign

    def _finder(self, name: str, main: bool) -> ImageFinder:
        """Return what finds the files of a column."""
        pattern = "{" in self._images
        images = self._images if main or not pattern else ""
        if images and not main and not (self._root / images).is_dir():
            images = ""
        return ImageFinder(self._root, images, self._suffix if main else "")

    def _is_file(self, root: Path) -> Callable[[str], bool]:
        finder = ImageFinder(root)
        return lambda cell: is_image_name(cell) or finder.is_there(cell)

    def __getitem__(self, index: int) -> Sample:
        return Sample(self.key_at(index), self._samples.values(index))

    def key_at(self, index: int) -> str:
        return printable(self._samples.key_at(index).replace("\\", "/"))

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return hash_samples(self.num_samples, limit, self._samples.parts)


def _with_folders(rows: Iterator[list[str]], image: int) -> Iterator[list[str]]:
    """Yield rows with one cell more: the folder that the image is in."""
    for row in rows:
        yield [*row, os.path.dirname(row[image].replace("\\", "/"))]


def _image_column(names: list[str], known: Mapping[str, Field], chosen: bool) -> int:
    """Return the number of the column of the images, which gets its usual name."""
    if images := [name for name, field in known.items() if isinstance(field, ImageField)]:
        return names.index(images[0])
    image = names.index("image") if chosen and "image" in names else image_column(names)
    if not known and "image" not in names:
        names[image] = "image"
    return image
