"""A list of images: CSV, TSV, a text file with blanks between columns, JSON Lines, a JSON list.

Paths are relative to the list.  A first row in which nothing names a file, or looks like a path or
a number, is the header; without one the columns are ``path``, ``label``, ``column2`` and so on.
The path column becomes the field ``image``; a column ``mask`` holds paths of masks.  Other columns
of image files become image fields too, if every cell is called like one and the first is there:
masks where ``mask`` is in their name.  The rest hold int, float, or text, whichever fits all cells
that are not empty (a row with an empty cell in a column of numbers or images is rejected; a column
of empty cells is text).  Text in ``label``, ``class`` or ``target`` becomes class numbers in sorted
order.  Field names are the columns' as far as a field can be called so: ``class`` becomes
``label``, or ``class_`` beside a ``label``.

Where images are named by numbers, ``lists/image_finder.py`` looks for the files; where four columns
are a box, a sample is an image with all of its boxes (``lists/box_rows.py``).

Nothing is guessed where a schema lies beside the manifest, as `fastdata export`
leaves it there (``cells.py``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
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
    known_fields,
    label_separator,
)
from .reading.lists.image_finder import ImageFinder
from .reading.lists.list_files import images_not_listed, list_of_folder
from .reading.lists.row_samples import ListInfo, RowSamples
from .reading.lists.rows import join_flags, rows_of_split
from .reading.lists.text_table import JSON_SUFFIXES, TextTable, cells_of
from .reading.locations import first_bytes, printable
from .reading.options import CheckSize, ClassFile, Option
from .reading.selection import joined, left_out

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
            return list_of_folder(path) is not None
        start = first_bytes(path)
        if b"\0" in start and not schema_path(path).exists():
            return False
        suffix = path.suffix.lower()
        if suffix in JSON_SUFFIXES:
            opening = b"[" if suffix == ".json" else b"{"
            return start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(opening)
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
            str | None, Option("between labels: bar, blank, semicolon, comma; or columns of 1, 0")
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
        self.notes = []
        self.path = _list_at(Path(location), self.notes)
        self._images, self._suffix = images or "", suffix or ""
        table = TextTable(self.path, self._is_file, separator, header)
        taken = choose_columns(self.path, table.columns, columns, self.notes)
        names = list(taken.names)
        known = known_fields(self.path, names, channels)
        image = _image_column(names, known, bool(columns))
        if label:
            names.append("label")
        if len(set(names)) < len(names):
            raise SourceError(f"{self.path}: a column stands twice in the header {table.columns}")
        check_names(fields or {}, names)
        rows: Iterator[list[str]] = map(cells_of(taken.indices), table)
        rows = rows_of_split(str(self.path), rows, names, split)
        if label:
            rows = _with_folders(rows, image)
        class_names = read_class_names(classes) if classes is not None else None
        kinds = None if table.kinds is None else [table.kinds[title] for title in taken.titles]
        roles = None if known else box_roles(names, boxes)
        self._samples: RowSamples | BoxSamples
        if roles is not None:
            form = box_form(boxes, check_size)._replace(form=roles.form)
            finder = self._finder("image", True)
            if fields:
                raise OptionError(
                    f"{self.path}: its rows are boxes, put together by image, and fields= cannot "
                    "change what they are; --option boxes=none makes each row a sample"
                )
            self._samples = BoxSamples(
                str(self.path), rows, image=image, roles=roles, form=form, finder=finder,
                channels=channels, classes=class_names,
            )  # fmt: skip
            unused = [name for k, name in enumerate(names) if k not in {image, *roles.used}]
            self.notes += left_out("columns", unused)
        else:
            if not known and (unclear := box_columns(names, "xywh")[1]):
                self.notes.append(
                    f"{joined(names[k] for k in unclear)} may be boxes: --option boxes=xyxy or "
                    "boxes=xywh reads them as such"
                )
            between = label_separator(labels or "", names, kinds)
            if labels == "columns":
                flags = join_flags(str(self.path), names, taken.titles, rows, image)
                names, rows, image = flags.names, flags.rows, flags.image
                class_names, kinds = flags.classes, None
            info = ListInfo(
                str(self.path), names, image, {**known, **(fields or {})}, channels, class_names,
                kinds and kinds + [{str}] * bool(label), between,
            )  # fmt: skip
            self._samples = RowSamples(info, rows, self._finder)
        schema = self._samples.schema
        if classes is not None and not {"label", "labels"} & set(schema):
            raise OptionError(f"classes={classes}: there is no field 'label' of class numbers")
        if known:
            self._samples.schema = Schema({name: schema[name] for name in names})
        elif split is not None and "split" in schema:
            self._samples.schema = Schema({n: f for n, f in schema.items() if n != "split"})
        self.schema = self._samples.schema
        self.num_samples = self._samples.num_samples
        self.notes += self._samples.notes
        if Path(location).is_dir():
            keys = map(self._samples.key_at, range(self.num_samples))
            self.notes += images_not_listed(Path(location), keys)

    # -- files and samples ---------------------------------------------------------------

    def _finder(self, name: str, main: bool) -> ImageFinder:
        """Return what finds the files of a column."""
        pattern = "{" in self._images
        images = self._images if main or not pattern else ""
        if images and not main and not (self.path.parent / images).is_dir():
            images = ""
        return ImageFinder(self.path.parent, images, self._suffix if main else "")

    def _is_file(self, cell: str) -> bool:
        return is_image_name(cell) or ImageFinder(self.path.parent).is_there(cell)

    def __getitem__(self, index: int) -> Sample:
        return Sample(self.key_at(index), self._samples.values(index))

    def key_at(self, index: int) -> str:
        return printable(self._samples.key_at(index))

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return hash_samples(self.num_samples, limit, self._samples.parts)


def _list_at(location: Path, notes: list[str]) -> Path:
    """Return the list that a location is, or that lies beside the images of a folder."""
    if not location.is_dir():
        return location
    found = list_of_folder(location)
    if found is None:
        raise SourceError(f"{location}: no list there that names the images; name the file")
    notes.append(f"the samples are those of the list {printable(found.name)} (--format flat: all)")
    return found


def _with_folders(rows: Iterator[list[str]], image: int) -> Iterator[list[str]]:
    """Yield rows with one cell more: the name of the folder that the image is in."""
    for row in rows:
        yield [*row, os.path.basename(os.path.dirname(row[image]))]


def _image_column(names: list[str], known: Mapping[str, Field], chosen: bool) -> int:
    """Return the number of the column of the images, which gets its usual name."""
    if images := [name for name, field in known.items() if isinstance(field, ImageField)]:
        return names.index(images[0])
    image = names.index("image") if chosen and "image" in names else image_column(names)
    if not known and "image" not in names:
        names[image] = "image"
    return image
