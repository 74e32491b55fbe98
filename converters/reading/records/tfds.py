"""A folder of TensorFlow Datasets: what its own files say of the TFRecord files.

``dataset_info.json`` has the splits and how many records each of their files has, ``features.json``
the kinds of the features, and ``NAME.labels.txt`` the names of the classes of the feature ``NAME``
(``objects-label`` for ``objects/label``).  Source: ``core/dataset_info.py`` and ``core/features``
of ``tensorflow/datasets``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from fastdata.errors import SourceError

from ..class_names import read_class_names
from ..json_files import read_object
from ..splits import split_of

__all__ = ["INFO", "Described", "read_description"]

INFO, _FEATURES, _CLASSES = "dataset_info.json", "features.json", ".labels.txt"
_LARGEST = 64 << 20


class Described(NamedTuple):
    """The description of a set of files."""

    splits: list[str]  # of each file
    counts: list[int]  # of records in each file, as the folder says; empty if it does not
    classes: dict[str, tuple[str, ...]]  # names by the feature of the class numbers
    boxes: tuple[str, ...]  # features that are boxes: ymin, xmin, ymax, xmax in 0 to 1


def read_description(folder: Path | None, paths: Sequence[Path]) -> Described:
    """Return the description that a folder has of its files; else splits by the names alone.

    Raises SourceError if there are files that it does not name.
    """
    place = (folder or Path()) / INFO
    document = read_object(place, _LARGEST) if folder is not None and place.is_file() else {}
    try:
        lengths = {
            str(split["name"]): [int(length) for length in split.get("shardLengths", ())]
            for split in document.get("splits", ())
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"{place}: its splits cannot be read: {error!r}") from error
    if folder is None or not any(lengths.values()):
        return Described([split_of(PurePath(path.name)) for path in paths], [], {}, ())
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
    return Described(splits, counts, names, tuple(_boxes(document, "")))


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
