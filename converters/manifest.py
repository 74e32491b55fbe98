"""Lists of images: CSV, TSV, a text file with blanks between columns, JSON Lines, a JSON list.

The column of paths, which are relative to the list, becomes the field ``image``; a column ``mask``
has paths of masks.  Other columns are image fields if every cell has an image's suffix and the
first file is there; else they hold int, float or text, whichever fits all cells that are not empty.
Text in ``label``, ``class`` or ``target`` becomes class numbers in sorted order, or an array of
class numbers if cells have several labels.  Where four columns are a box, a sample is an image with
all of its boxes.  If the list has a schema (`fastdata export` writes it), nothing is guessed.

The parts are in ``reading/lists``; docs/converters/manifest.md has all rules.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ImageField, ScalarField, Schema

from .base import FieldSpec, IndexedSource, Sample
from .reading.box_forms import parse_boxes
from .reading.cells import read_schema, schema_path
from .reading.class_names import read_class_names
from .reading.field_names import safe_name
from .reading.fields import check_names
from .reading.fingerprints import hash_samples
from .reading.lists.box_rows import BoxSamples
from .reading.lists.columns import BoxRoles, box_roles, image_column, is_usual, label_column
from .reading.lists.image_finder import ImageFinder
from .reading.lists.list_files import list_of_folder, lists_of_splits, not_used, split_siblings
from .reading.lists.list_table import ListTable
from .reading.lists.row_samples import ListInfo, RowSamples
from .reading.lists.text_table import JSON_SUFFIXES, TextTable, cells_of
from .reading.locations import first_bytes, printable
from .reading.options import CheckSize, ClassFile, Option
from .reading.selection import COLUMNS, joined, left_out
from .reading.text_lines import decoded
from .refusal import Way, refused

__all__ = ["ManifestSource"]

_TEXT: set[type] = {str}


class ManifestSource(IndexedSource):
    """Rows of a list, each an image; or each a box, and then put together by image."""

    name = "manifest"
    summary = "a list of images: CSV, TSV, text or JSON Lines, path,label[,more] or boxes"
    parts = ("*.csv|*.tsv|*.jsonl",)
    general = True
    _samples: RowSamples

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
        images: Annotated[str | None, Option("the folder of the images")] = None,
        label: Annotated[
            str | None, Option("images are labelled by their folder", ("folder",))
        ] = None,
        boxes: Annotated[
            tuple[str, ...],
            Option("xyxy, xywh or cxcywh, pixels or normalised; none: rows are samples"),
        ] = (),
        classes: ClassFile = None,
        split: Annotated[str | None, Option("only rows with this in their column split")] = None,
        check_size: CheckSize = True,
    ) -> None:
        self.notes, self._folder, self._images = [], Path(location), images or ""
        lists = self._lists()
        self.path = next(iter(lists.values()))
        # Names are relative to the list, or to the folder of the split folders.
        self._root = self._folder if "" not in lists else self.path.parent
        schema = read_schema(self.path)
        table = ListTable(
            {name: TextTable(path, exact=schema is not None) for name, path in lists.items()},
            splits={name: name for name in lists} if "" not in lists else None,
            chosen=schema is not None or bool(columns) or bool(fields),
        )
        if table.classes is not None:
            self.notes.append(f"the columns {joined(table.classes, 5)} are the classes")
        names, taken = self._choose(table, columns, schema is not None)
        known = {name: field for name, field in (schema or {}).items() if name in names}
        if images_known := [name for name, f in known.items() if isinstance(f, ImageField)]:
            image = names.index(images_known[0])
        elif columns and "image" in names:
            image = names.index("image")
        else:
            image = image_column(names)
            if not known and "image" not in names:
                names[image] = "image"
        if len(set(names)) < len(names):
            raise SourceError(f"{self.path}: a column stands twice in the header {table.titles}")
        check_names(fields or {}, names)
        if split is not None and "split" not in names:
            raise OptionError(
                f"split={split}: {self.path} has no column 'split', but {joined(names)}. Say which "
                "it is: --option columns=image=COLUMN,split=COLUMN"
            )
        if label and (classes is not None or "label" in names):
            raise OptionError(
                f"label={label}: {self.path} has a label, or classes= names other classes. Leave "
                "out one of the two"
            )
        names += ["label"] * bool(label)
        info = ListInfo(
            str(self.path), names, image,
            {**_of_channels(known, channels), **(fields or {})}, channels, self._finder,
            read_class_names(classes) if classes is not None else table.classes,
            table.kinds and [*(table.kinds[k] for k in taken), *[_TEXT] * bool(label)], split,
        )  # fmt: skip

        def rows_of(one: ListTable) -> Iterator[list[str]]:
            rows = map(cells_of(taken), one.rows())
            return ([*row, _folder_of(row[image])] for row in rows) if label else rows

        boxes = boxes or table.boxes
        samples: RowSamples
        if known or "none" in boxes or (roles := self._box_roles(names, boxes, fields)) is None:
            same_classes = not known and info.classes is None
            others = self._siblings(table) if same_classes else []
            rest = itertools.chain.from_iterable(map(rows_of, others))
            samples = RowSamples(info, rows_of(table), rest)
            if label:
                samples.schema = _short_names(samples.schema)
        else:
            used = {image, *roles.boxes, *roles.size, roles.label}
            kept = [k for k, name in enumerate(names) if k in used or name == "split"]
            self.notes += left_out("columns", [n for k, n in enumerate(names) if k not in kept])
            form = parse_boxes(boxes)
            info = info._replace(columns=[names[k] for k in kept], image=kept.index(image))
            samples = BoxSamples(info, map(cells_of(kept), rows_of(table)), form, check_size)
        if classes is not None and not {"label", "labels"} & set(samples.schema):
            raise OptionError(
                f"classes={classes}: the list has no field 'label' with class numbers"
            )
        title = table.titles[taken[image]]
        if not (known or is_usual(title)) and samples.images.is_there(title):
            raise SourceError(
                f"{self.path}: the first row names an image, {title!r}. Write a row "
                "with the names of the columns above it, such as path,label"
            )
        self.take(samples)
        if known:
            self.schema = samples.schema = Schema(
                {name: samples.schema[name] for name in names if name in samples.schema}
            )
        if self._folder.is_dir():
            paths = map(samples.path_at, range(self.num_samples))
            self.notes += not_used(self._folder, paths, lists.values())

    # -- samples -------------------------------------------------------------------------

    def take(self, samples: RowSamples) -> None:
        """Take the rows as the samples of this source."""
        self._samples, self.schema = samples, samples.schema
        self.num_samples = samples.num_samples
        self.notes += samples.notes

    def __getitem__(self, index: int) -> Sample:
        return Sample(self.key_at(index), self._samples.values(index))

    def key_at(self, index: int) -> str:
        return printable(self._samples.key_at(index).replace("\\", "/"))

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return hash_samples(self.num_samples, limit, self._samples.parts)

    # -- its files -----------------------------------------------------------------------

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

    def _siblings(self, table: ListTable) -> list[ListTable]:
        """Return the lists of other splits with the same columns: ``val.csv`` of ``train.csv``."""
        found = []
        for path in split_siblings(self.path):
            with contextlib.suppress(SourceError, OptionError):
                other = ListTable({"": TextTable(path)}, chosen=True)
                if other.titles == table.titles:
                    found.append(other)
                    self.notes.append(
                        f"classes are those of {printable(path.name)}, too, so both lists have "
                        "the same numbers"
                    )
        return found

    def _finder(self, main: bool) -> ImageFinder:
        """Return what finds the files of the column of the images, or of another."""
        elsewhere = not main and not (self._root / self._images).is_dir()
        return ImageFinder(self._root, "" if elsewhere else self._images)

    def _choose(
        self, table: ListTable, columns: tuple[str, ...], known: bool
    ) -> tuple[list[str], list[int]]:
        """Return the names of the fields, and the numbers of their columns.

        columns: the option; without it all are taken, except numbers of rows.
        known: whether the list has a schema.
        """
        titles = table.titles
        if columns:
            chosen = COLUMNS.parse(columns)
            COLUMNS.check(chosen, self.path, dict.fromkeys(titles, ""))
            self.notes += COLUMNS.left_out(t for t in titles if t not in chosen.values())
            return list(chosen), [titles.index(title) for title in chosen.values()]
        index = table.index_columns() if not known else []
        if index:
            self.notes.append("a column of row numbers, as pandas writes it, is left out")
        label = label_column(titles)
        if not known and table.second_repeats():
            label = 1 - image_column(titles)
            self.notes.append(
                f"the texts of {titles[label]!r} are the label (--option columns=image="
                f"{titles[1 - label]},{titles[label]}: text)"
            )
        taken = [k for k in range(len(titles)) if k not in index]
        return ["label" if k == label else safe_name(titles[k]) for k in taken], taken

    def _box_roles(
        self, names: list[str], boxes: tuple[str, ...], fields: FieldSpec | None
    ) -> BoxRoles | None:
        """Return the columns of boxes; None if there are none.  What is not clear is refused."""
        roles = box_roles(names, parse_boxes(boxes).form)
        if roles is not None and fields:
            raise OptionError(
                f"{self.path}: its rows are boxes, and fields= cannot change them; "
                "--option boxes=none makes each row a sample"
            )
        if roles is None and boxes:
            raise OptionError(
                f"boxes={','.join(boxes)}: no columns of boxes among {joined(names)}; name them: "
                "--option columns=image=COLUMN,xmin=COLUMN,ymin=COLUMN,xmax=COLUMN,ymax=COLUMN"
            )
        asked = box_roles(names, "xywh") if roles is None else None
        unclear = [names[k] for k in asked.boxes if names[k] not in (fields or {})] if asked else []
        if unclear:
            ways = {
                "xywh,pixels": "boxes of left, top, width, height",
                "xyxy,pixels": "boxes of left, top, right, bottom",
                "none": "each row as a sample",
            }
            raise refused(
                self.path,
                f"columns that may be boxes: {joined(unclear)}",
                [Way("", f"--option boxes={form}", meaning) for form, meaning in ways.items()],
            )
        return roles


def _folder_of(image: str) -> str:
    return os.path.dirname(image.replace("\\", "/"))


def _short_names(schema: Schema) -> Schema:
    """Return the classes of folders by their paths below the folder of all."""
    folders = schema.classes or ()
    above = os.path.commonpath(folders) if len(folders) > 1 else os.path.dirname(*folders)
    names = tuple(os.path.relpath(folder, above or ".") for folder in folders)
    return Schema({**schema, "label": ScalarField(classes=names)})


def _of_channels(fields: Mapping[str, Field], channels: int) -> dict[str, Field]:
    """Return the fields of a schema; for one channel, colour images are read as grey ones."""
    grey, colour = ImageField(channels=1), ImageField(channels=3)
    return {n: grey if channels == 1 and f == colour else f for n, f in fields.items()}
