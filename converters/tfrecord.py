"""TFRecord files of ``tf.train.Example``, without TensorFlow.

In ``reading/records``, ``framing.py`` reads the records of a file, and ``examples.py`` the content
of a record.  In a folder of TensorFlow Datasets, ``dataset_info.json`` has the splits and the
number of records in each of their files, ``features.json`` the kinds of the features, and
``NAME.labels.txt`` the names of the classes of the feature ``NAME`` (``objects-label`` for
``objects/label``).  Sources: TensorFlow's guide "TFRecord and tf.train.Example";
``core/dataset_info.py`` and ``core/features`` of ``tensorflow/datasets``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import Annotated, Any, NamedTuple

from fastdata.errors import MissingExtraError, OptionError, SourceError
from fastdata.regular_files import mirror_of
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, Schema, StringField

from .base import FieldSpec
from .reading.box_forms import BoxesOption, BoxNumbers, parse_boxes
from .reading.class_names import classes_of_texts, named_classes, read_class_names
from .reading.exported import read_exported
from .reading.field_names import BOXES
from .reading.fields import convert, resolve_boxes, resolve_fields
from .reading.image_files import is_hidden, is_image_name
from .reading.json_files import read_object
from .reading.locations import files_at, folder_at, map_files
from .reading.options import CheckSize, ClassFile, Option, SplitOption
from .reading.records.examples import (
    OBJECTS,
    Objects,
    class_texts,
    exported_value,
    field_of_feature,
    has_objects,
    parse_example,
    usual_boxes,
    usual_features,
    value_of_feature,
)
from .reading.records.framing import crc32c, frame_rows, has_frames, is_compressed, record_of
from .reading.refusals import no_files
from .reading.selection import FEATURES
from .reading.splits import choose_folder, choose_split, in_usual_order, mixed_splits, split_of
from .scan import Found, IncompleteError, Input, Keyed, Row, Scan, ScanSource

__all__ = ["TFRecordSource"]

_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".record", ".records", ".jpeg_records")
_SHARD = re.compile(r"-[0-9]{5}-of-[0-9]{5}$")
"""How TensorFlow's scripts call shards that have no suffix: ``train-00000-of-01024``."""
_INFO, _FEATURES, _CLASSES = "dataset_info.json", "features.json", ".labels.txt"
_LARGEST = 64 << 20
_LOOKED_AT = 16
"""Files of a folder without such names that are asked whether they are TFRecord."""


class TFRecordSource(ScanSource):
    """Shards of TFRecord; each Example is a sample."""

    name = "tfrecord"
    summary = "TFRecord files of tf.train.Example, plain, gzip or zlib"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = _files(location)
        if not files:
            return False
        try:
            return has_frames(files[0])
        except MissingExtraError:  # opening it says what to install
            name = files[0].name
            return bool(_SHARD.search(name)) or any(suffix in name for suffix in _SUFFIXES)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        features: Annotated[
            tuple[str, ...],
            Option(
                "FIELD=FEATURE or FEATURE; default: image/encoded, image/class/label, or the like"
            ),
        ] = (),
        classes: ClassFile = None,
        label_offset: Annotated[
            int, Option("added to the label: -1 where classes are counted from 1, as in ImageNet's")
        ] = 0,
        split: SplitOption = None,
        boxes: BoxesOption = (),
        check_size: CheckSize = True,
    ) -> None:
        crc32c()
        paths, notes = _files(location), list[str]()
        if not paths:
            raise no_files(location, "TFRecord files")
        exported = None if features else read_exported(paths, self.name)
        about = _read_description(folder_at(location) if exported is None else None, paths)
        taken = choose_split(paths, about.splits, split)
        paths, splits = [paths[k] for k in taken], [about.splits[k] for k in taken]
        names = in_usual_order(set(splits)) if about.counts else []
        rows = frame_rows
        if about.counts:
            numbers = [(names.index(one),) if len(names) > 1 else () for one in splits]
            rows = partial(_counted_rows, [about.counts[k] for k in taken], numbers)
        else:
            notes += mixed_splits(paths)
        scan = Scan(paths, rows, ["auto" if it else "" for it in map_files(is_compressed, paths)])
        first = scan.first(_example, paths[0], "record can be read as an Example")
        known = sorted({name for example in first for name in example})
        objects, forms = None, dict[str, BoxNumbers]()
        if exported is not None:
            resolved, chosen = exported.resolve_fields(fields, channels), dict(exported.stored_as)
            for feature in chosen.values():
                exported.check_place(feature, [feature], known, paths[0])
        else:
            chosen = FEATURES.parse(features) if features else usual_features(first)
            has_boxes = not features and has_objects(first)
            if not features and not has_boxes:
                chosen |= usual_boxes(first, about.boxes)
            FEATURES.check(chosen, paths[0], dict.fromkeys(known, ""), "the first records have")
            resolved, forms = _fields_of(chosen, first, about, fields or {}, channels, boxes, notes)
            if has_boxes:
                listed = classes if "label" not in resolved else None
                named = any(map(class_texts, first))
                objects = Objects(_class_names(scan, named, listed, notes), named, check_size)
                resolved |= objects.fields
                classes = None if listed else classes
            if not features:
                left = set(known) - set(chosen.values()) - (OBJECTS if has_boxes else set())
                notes += FEATURES.left_out(sorted(left))
        if label_offset:
            label = resolved.get("label")
            if not isinstance(label, ScalarField) or "int" not in label.dtype:
                raise OptionError("label_offset: the source has no field 'label' of class numbers")
            notes.append(f"labels are those of the files {label_offset:+d}")
        resolved = named_classes(resolved, "label", classes)
        if len(names) > 1:
            choose_folder(names, None, notes)
            resolved["split"] = ScalarField(classes=tuple(names))
        schema = Schema(resolved, stored=exported is not None)
        features = tuple(chosen.values())
        reader = ExampleReader(schema, features, label_offset, exported is not None, objects)
        super().__init__(scan, schema, reader, notes=notes, exported=exported, box_forms=forms)


class ExampleReader(NamedTuple):
    """Reads an Example; the split of its file, if any, is its last value."""

    schema: Mapping[str, Field]
    features: tuple[str, ...]  # of each field but boxes, labels and split, which come last
    label_offset: int
    exported: bool  # whether fastdata wrote it, with a key and with shapes of arrays
    objects: Objects | None

    def __call__(self, values: tuple[Any, ...]) -> list[Any] | Keyed:
        example = _example(values)
        found = []
        for (name, field), feature in zip(self.schema.items(), self.features, strict=False):
            if feature not in example:
                raise ValueError(f"the feature {feature!r} is missing")
            if self.exported:
                value = exported_value(example, feature, field)
            else:
                value = value_of_feature(example[feature], field, feature)
            if name == "label" and self.label_offset:
                value += self.label_offset
            found.append(convert(value, field, name))
        if self.objects is not None:
            found += self.objects.values(example, found[0])
        found += values[1:]
        if self.exported and "key" in example:
            return Keyed(value_of_feature(example["key"], StringField(), "key"), found)
        return found


def _example(values: tuple[Any, ...]) -> dict[str, Any]:
    """Return the features of a record."""
    return parse_example(record_of(values[0]))


def _fields_of(
    chosen: Mapping[str, str],
    first: Sequence[Mapping[str, Any]],
    about: _Described,
    fields: FieldSpec,
    channels: int,
    boxes: Sequence[str],
    notes: list[str],
) -> tuple[dict[str, Field], dict[str, BoxNumbers]]:
    """Return the fields of the chosen features, from the first Examples, and what boxes are."""
    columns = {
        name: [example[feature] for example in first if feature in example]
        for name, feature in chosen.items()
    }

    def own(name: str) -> Field:
        field = field_of_feature(columns[name], channels, name)
        if name == "labels" and any(other.lower() in BOXES for other in chosen):
            field = ArrayField("int64", (None,))
        names = about.classes.get(chosen[name])
        if names is None or not isinstance(field, (ScalarField, ArrayField)):
            return field
        return replace(field, classes=names)

    resolved = resolve_fields(chosen, fields, channels, own)
    option = parse_boxes(boxes, whole=True)
    if not boxes and chosen.get("boxes") in about.boxes:
        option = BoxNumbers("yxyx", "normalised")
    values = {
        name: [value_of_feature(one, resolved[name], name) for one in column]
        for name, column in columns.items()
        if isinstance(resolved[name], (ArrayField, ImageField))
    }
    return resolved, resolve_boxes(resolved, values, option, fields, notes)


def _class_names(
    scan: Scan, named: bool, classes: str | None, notes: list[str]
) -> tuple[str, ...] | None:
    """Return the classes of objects; without a file of them, all records are read for their names.

    named: whether records have the names of their classes.
    """
    if classes is not None:
        return read_class_names(classes)
    if not named:
        notes.append(
            "classes of objects have no names here, and 'labels' are the numbers of the files "
            "(--option classes=FILE names them)"
        )
        return None
    place = scan.paths[0]
    if mirror_of(place) is not None and len(scan.paths) > 1:
        raise SourceError(
            f"{place}: the names of classes of objects are in the records, and the files of a "
            "store are not read twice. Write the names to a file: --option classes=FILE"
        )
    return classes_of_texts(_texts(scan), str(place))


def _texts(scan: Scan) -> Iterator[str]:
    for *_, row in itertools.chain.from_iterable(map(scan.file, range(len(scan.paths)))):
        with contextlib.suppress(ValueError):  # the worker reports it
            if isinstance(row, Row):
                yield from class_texts(_example(row.values))


def _counted_rows(
    counts: Sequence[int],
    splits: Sequence[tuple[int, ...]],
    input: Input,
    start: int,
    stop: int | None,
) -> Iterator[Found]:
    """Yield the records of a file, with its split; refuse a file with more or fewer than said."""
    count, is_whole = 0, True
    for begin, end, row in frame_rows(input, start, stop):
        count, is_whole = count + 1, isinstance(row, Row)
        if isinstance(row, Row):
            row = Row(row.key, (*row.values, *splits[input.number]))
        yield begin, end, row
    if stop is None and is_whole and count != counts[input.number]:
        raise IncompleteError(
            f"{input.path}: has {count:,} records, and {_INFO} says "
            f"{counts[input.number]:,}. Copy the file again, or name the files to pack in a "
            "pattern in quotes."
        )


def _files(location: Any) -> list[Path]:
    """Return the files of a location; of a folder those with a suffix, those like shards, or all.

    Where names do not tell, the checksum of the first record's length does.
    """
    found = files_at(location, _SUFFIXES)
    folder = folder_at(location)
    if found or folder is None:
        return found
    with os.scandir(folder) as entries:
        names = sorted(e.name for e in entries if not is_image_name(e.name) and e.is_file())
    every = [folder / name for name in names if not is_hidden(name)]
    found = [path for path in every if _SHARD.search(path.name)]
    if found:
        return found
    with contextlib.suppress(MissingExtraError):
        if any(map_files(has_frames, every[:_LOOKED_AT])):
            return list(itertools.compress(every, map_files(has_frames, every)))
    return []


# -- TensorFlow Datasets ----------------------------------------------------------------


class _Described(NamedTuple):
    """The description of a set of files."""

    splits: list[str]  # of each file
    counts: list[int]  # of records in each file, as the folder says; empty if it does not
    classes: dict[str, tuple[str, ...]]  # names by the feature of the class numbers
    boxes: tuple[str, ...]  # features that are boxes: ymin, xmin, ymax, xmax in 0 to 1


def _read_description(folder: Path | None, paths: Sequence[Path]) -> _Described:
    """Return the description that a folder has of its files; else splits by the names alone.

    Raises SourceError if there are files that it does not name.
    """
    place = (folder or Path()) / _INFO
    document = read_object(place, _LARGEST) if folder is not None and place.is_file() else {}
    try:
        lengths = {
            str(split["name"]): [int(length) for length in split.get("shardLengths", ())]
            for split in document.get("splits", ())
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"{place}: its splits cannot be read: {error!r}") from error
    if folder is None or not any(lengths.values()):
        return _Described([split_of(PurePath(path.name)) for path in paths], [], {}, ())
    pattern = re.compile(rf"(?:.*[-.])?({'|'.join(map(re.escape, lengths))})\.\w+-([0-9]+)-of-.*")
    splits, counts = list[str](), list[int]()
    for path in paths:
        found = pattern.fullmatch(path.name)
        if found is None or int(found[2]) >= len(lengths[found[1]]):
            raise SourceError(
                f"{place}: does not name {path.name}. Move away files of other datasets, or name "
                "the files to pack in a pattern in quotes."
            )
        splits.append(found[1])
        counts.append(lengths[found[1]][int(found[2])])
    names = {
        path.name.removesuffix(_CLASSES).replace("-", "/"): read_class_names(path)
        for path in sorted(folder.glob(f"*{_CLASSES}"))
    }
    features = folder / _FEATURES
    document = read_object(features, _LARGEST) if features.is_file() else {}
    return _Described(splits, counts, names, tuple(_boxes(document, "")))


def _boxes(node: Any, name: str) -> Iterator[str]:
    """Yield the boxes below a feature."""
    if not isinstance(node, dict):
        return
    kind = str(node.get("pythonClassName")).rpartition(".")[2]
    if kind == "BBoxFeature":
        form = (node.get("boundingBox") or {}).get("bboxFormat")
        if form in (None, "", "REL_YXYX"):
            yield name
    elif kind == "FeaturesDict":
        for key, child in ((node.get("featuresDict") or {}).get("features") or {}).items():
            yield from _boxes(child, f"{name}/{key}" if name else key)
    elif kind == "Sequence":
        yield from _boxes((node.get("sequence") or {}).get("feature"), name)
