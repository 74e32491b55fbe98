"""A folder of TensorFlow Datasets: what its own files say of the TFRecord files.

``dataset_info.json`` has the splits and how many records each of their files has, ``features.json``
the kinds of the features, and ``NAME.labels.txt`` the names of the classes of the feature ``NAME``
(``objects-label`` for ``objects/label``).  Source: ``core/dataset_info.py`` and ``core/features``
of ``tensorflow/datasets``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from fastdata.errors import SourceError

from ..class_names import read_class_names
from ..json_files import read_object
from ..splits import split_of

__all__ = ["INFO", "REMEDY", "Described", "read_description"]

INFO, _FEATURES, _CLASSES = "dataset_info.json", "features.json", ".labels.txt"
REMEDY = "Bring all files and no others, or name those to pack in a pattern in quotes."
_LARGEST = 64 << 20


class Described(NamedTuple):
    """What is known of files beside their records."""

    splits: list[str]  # of each file
    counts: list[int]  # of records in each file, as the folder says; empty if it does not
    classes: dict[str, tuple[str, ...]]  # names by the feature of the class numbers
    boxes: tuple[str, ...]  # features that are boxes: ymin, xmin, ymax, xmax in 0 to 1


def read_description(folder: Path | None, paths: Sequence[Path]) -> Described:
    """Return what a folder says of its files; of one that says nothing, splits by names alone.

    Raises SourceError if files of a split are missing, or files are there that it does not name.
    """
    nothing = Described([split_of(PurePath(path.name)) for path in paths], [], {}, ())
    if folder is None or not (folder / INFO).is_file():
        return nothing
    place = folder / INFO
    splits = read_object(place, _LARGEST).get("splits")
    found: dict[Path, tuple[str, int]] = {}
    for name, lengths in map(_split, splits if isinstance(splits, list) else (), repeat(place)):
        pattern = re.compile(rf"(.*[-.])?{re.escape(name)}\.\w+-[0-9]+-of-[0-9]+")
        files = [path for path in paths if pattern.fullmatch(path.name)]
        if files and len(files) != len(lengths):
            raise SourceError(
                f"{place}: the split {name!r} has {len(lengths):,} files, and {len(files):,} are "
                f"there, the first {files[0].name}. {REMEDY}"
            )
        found |= zip(files, ((name, length) for length in lengths), strict=False)
    unknown = [path.name for path in paths if path not in found]
    if found and unknown:
        raise SourceError(
            f"{place}: does not name {len(unknown):,} of the files, the first {unknown[0]}. "
            f"{REMEDY}"
        )
    if not found:
        return nothing
    names = {
        path.name.removesuffix(_CLASSES).replace("-", "/"): read_class_names(path)
        for path in sorted(folder.glob(f"*{_CLASSES}"))
    }
    features = folder / _FEATURES
    document = read_object(features, _LARGEST) if features.is_file() else {}
    own_splits, counts = zip(*map(found.__getitem__, paths), strict=True)
    return Described(list(own_splits), list(counts), names, tuple(_boxes(document, "")))


def _split(split: Any, place: Path) -> tuple[str, list[int]]:
    try:
        return str(split["name"]), [int(length) for length in split.get("shardLengths", ())]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"{place}: a split cannot be read: {error!r}") from error


def _boxes(node: Any, name: str) -> Iterator[str]:
    """Yield the boxes below a feature; older releases have ``content`` in place of each kind."""
    if not isinstance(node, dict):
        return
    kind = str(node.get("pythonClassName") or node.get("type")).rpartition(".")[2]
    content = node.get("content")
    children = node.get("featuresDict", {}).get("features") or content
    if kind == "BBoxFeature":
        form = (node.get("boundingBox") or {}).get("bboxFormat")
        if form in (None, "", "REL_YXYX"):
            yield name
    elif kind == "FeaturesDict" and isinstance(children, dict):
        for key, child in children.items():
            yield from _boxes(child, f"{name}/{key}" if name else key)
    elif kind == "Sequence":
        inner = node.get("sequence") or content
        yield from _boxes(inner.get("feature") if isinstance(inner, dict) else None, name)
