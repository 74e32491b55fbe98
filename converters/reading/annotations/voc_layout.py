"""Where a Pascal VOC dataset is, and the lists of its images."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import open_regular

from ..image_files import is_image_name
from ..locations import first_bytes
from ..splits import has_images, split_folders_in

__all__ = [
    "XmlFolders",
    "classes_of_lists",
    "listed",
    "splits_of",
    "voc_root",
    "voc_roots",
    "xml_folders",
]

_FLAGGED = re.compile(r"(\S+)\s+(-1|0|1)")
_LONGEST = 4096
_IMAGES = ("images", "image", "imgs", "img", "jpegimages")
_ANNOTATIONS = ("annotations", "annotation", "xmls", "xml", "labels")
_XML = re.compile(rb"<annotation\b.*?<(object|filename|size|folder)\b", re.DOTALL)


def voc_roots(location: Path) -> list[Path]:
    """Return the folders that are laid out like VOC's: this one, or ``VOC2007`` in it."""
    if _is_root(location):
        return [location]
    inner = [location / "VOCdevkit", location]
    found = [entry for folder in inner if folder.is_dir() for entry in sorted(folder.glob("VOC*"))]
    return [path for path in found if _is_root(path)]


def _is_root(path: Path) -> bool:
    if not (path / "JPEGImages").is_dir():
        return False
    # Where images are in these, they are class folders that happen to be called so.
    others = [path / part for part in ("Annotations", "ImageSets")]
    return (path / "SegmentationClass").is_dir() or any(
        other.is_dir() and not has_images(other) for other in others
    )


def voc_root(location: Path) -> Path:
    """Return the one folder that is laid out like VOC's."""
    found = voc_roots(location)
    if not found:
        raise SourceError(
            f"{location}: no Pascal VOC. Expected JPEGImages and Annotations (or ImageSets, "
            "SegmentationClass) in it."
        )
    if len(found) > 1:
        raise OptionError(f"{location}: pack one of {', '.join(map(str, found))}")
    return found[0]


def splits_of(lists: Path) -> list[str]:
    """Return the names of the lists in a folder of ``ImageSets``."""
    return sorted(path.stem for path in lists.glob("*.txt"))


def listed(lists: Path, split: str) -> Iterator[tuple[int, str | None]]:
    """Yield the line and the name of each image of a list; None where that is marked -1."""
    path = lists / f"{split}.txt"
    if os.sep in split or not path.is_file():
        known = ", ".join(splits_of(lists)[:30]) or "none"
        raise OptionError(f"split={split}: not in {lists}, which has {known}")
    with open(path, "rb", opener=open_regular) as file:
        for number, data in enumerate(file, 1):
            line = data[:_LONGEST].decode("utf-8", "surrogateescape").strip()
            flagged = _FLAGGED.fullmatch(line)
            if flagged is not None:
                yield number, flagged[1] if flagged[2] != "-1" else None
            elif line:
                yield number, line


def classes_of_lists(lists: Path) -> tuple[str, ...]:
    """Return the classes that have lists of their own, as ``cat_train.txt``; none if none has."""
    splits = splits_of(lists)
    found = set()
    for split in ("train", "val", "trainval", "test"):
        for name in splits if split in splits else ():
            if name.endswith(f"_{split}") and _is_flagged(lists / f"{name}.txt"):
                found.add(name[: -len(split) - 1])
    return tuple(sorted(found))


def _is_flagged(path: Path) -> bool:
    with open(path, "rb", opener=open_regular) as file:
        line = file.readline(_LONGEST).decode("utf-8", "replace").strip()
    return _FLAGGED.fullmatch(line) is not None


# -- without VOC's other folders ---------------------------------------------------------


class XmlFolders(NamedTuple):
    """A folder of images and that of their XML files, relative to the root; the split of both."""

    split: str
    images: str
    annotations: str


def xml_folders(root: Path) -> list[XmlFolders]:
    """Return the folders of images whose objects are in XML files, beside them or in a folder."""
    found = _xml_beside(root, "")
    if not found:
        for split in split_folders_in(root):
            found += [folders._replace(split=split) for folders in _xml_beside(root, split)]
    return found


def _xml_beside(root: Path, place: str) -> list[XmlFolders]:
    """Return these folders in a folder of the dataset; those of splits, if there are such."""
    if not (root / place).is_dir():
        return []
    names = [entry.name for entry in os.scandir(root / place)]
    if _holds_xml(root / place) and any(map(is_image_name, names)):
        return [XmlFolders("", place or ".", place or ".")]
    for image in sorted(name for name in names if name.lower() in _IMAGES):
        for annotation in sorted(name for name in names if name.lower() in _ANNOTATIONS):
            images, annotations = os.path.join(place, image), os.path.join(place, annotation)
            if (root / annotations / "xmls").is_dir():  # the Oxford pets
                annotations = os.path.join(annotations, "xmls")
            splits = [
                s for s in split_folders_in(root / images) if (root / annotations / s).is_dir()
            ]
            found = [XmlFolders(s, f"{images}/{s}", f"{annotations}/{s}") for s in splits]
            found = found or [XmlFolders("", images, annotations)]
            if all(_holds_xml(root / folders.annotations) for folders in found):
                return found
    return []


def _holds_xml(folder: Path) -> bool:
    """Tell whether this is a folder whose first XML file is an annotation."""
    if not folder.is_dir():
        return False
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".xml") and not entry.name.startswith("."):
                start = first_bytes(Path(entry.path)).lstrip(b"\xef\xbb\xbf")
                return _XML.search(start) is not None
    return False
