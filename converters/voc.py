"""Pascal VOC: images, an XML file of objects for each, and lists of the images of each split.

::

    JPEGImages/2007_000027.jpg             images/0.jpg         0.jpg     train/0.jpg
    Annotations/2007_000027.xml            annotations/0.xml    0.xml     train/0.xml
    ImageSets/Main/train.txt                                              valid/1.jpg
    SegmentationClass/2007_000032.png

The first layout is VOC's; the others are those of LabelImg and Roboflow.

Source: M. Everingham and J. Winn, "The PASCAL Visual Object Classes Challenge 2012 (VOC2012)
Development Kit", sections 2 and 3.  Boxes there are of the pixels within, counted from 1.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import open_regular
from fastdata.schema import ArrayField, Field, ImageField

from .base import reject_reason
from .listing import Listing
from .reading.annotations.voc_files import VocReader, survey
from .reading.class_names import classes_of_texts, numbered, read_class_names
from .reading.fields import BOXES
from .reading.image_files import (
    BOTH_CASES,
    files_below,
    has_own_images,
    ignored_files,
    is_image_name,
    suffix_of,
)
from .reading.locations import path_inside, printable, start_of_first
from .reading.named_files import find_named
from .reading.options import AllowEmpty, CheckSize, ClassFile, OneBased, Option
from .reading.selection import joined, left_out
from .reading.splits import FolderPair, has_images, pairs_of_splits, pairs_within, splits_next_to

__all__ = ["VocSource"]

_IMAGES = "JPEGImages"
_MASKS = {"": "", "classes": "SegmentationClass", "instances": "SegmentationObject"}


class VocSource(Listing):
    """Images with the boxes, classes and flags of their objects."""

    name = "voc"
    summary = "Pascal VOC: JPEGImages, Annotations, ImageSets; XML files of LabelImg and Roboflow"
    parts = ("**/*.jpg|**/*.png", "**/*.xml|ImageSets/*|SegmentationClass")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = Path(location)
        return bool(voc_roots(folder) or xml_folders(folder))

    def list_samples(
        self,
        location: Path,
        *,
        split: Annotated[
            str | None, Option("the list or folder to take, e.g. trainval; default: all images")
        ] = None,
        masks: Annotated[
            str | None,
            Option(
                "add SegmentationClass or SegmentationObject; 0 background, 255 void",
                ("classes", "instances"),
            ),
        ] = None,
        classes: ClassFile = None,
        one_based: OneBased = None,
        empty: AllowEmpty = False,
        check_size: CheckSize = True,
    ) -> dict[str, Field]:
        roots = voc_roots(location)
        folders = [] if roots else xml_folders(location)
        if len(roots) > 1:
            raise OptionError(f"{location}: pack one of {', '.join(map(str, roots))}")
        if not roots and not folders:
            raise SourceError(
                f"{location}: no Pascal VOC. Expected JPEGImages and Annotations (or ImageSets, "
                "SegmentationClass) in it, or images and XML files in one folder, in images/ and "
                "annotations/, or in train/, valid/ and test/"
            )
        self.root = roots[0] if roots else location
        self._prefix = f"{_IMAGES}/" if roots else ""
        self._masks = _MASKS[masks or ""]
        if self._masks and not (self.root / self._masks).is_dir():
            raise OptionError(f"masks={masks}: there is no folder {self.root / self._masks}")
        own: tuple[str, ...] = ()
        lists = self.root / "ImageSets" / ("Segmentation" if masks else "Main")
        if roots:
            own = classes_of_lists(lists.with_name("Main"))
            self.choose_splits([""], None)
            if split:
                self._read_list(lists, split)
            else:
                self._read_folder(lists)
            folders = [FolderPair("", _IMAGES, "Annotations")]
        else:
            self.choose_splits([part.split for part in folders], split)
            for part in folders:
                if part.split in self.splits:
                    self._add_all(part)
        if not self.num_samples:
            listed = f"{lists}/{split}.txt: lists" if roots and split else f"{self.root}: has"
            raise SourceError(f"{listed} no images in {', '.join(p.images for p in folders)}")
        found: dict[str, Field] = {}
        if masks:
            found["mask"] = ImageField(channels=1, mask=True)
        boxed = (self.root / folders[0].others).is_dir()
        if boxed:
            names, first = self._classes(folders, own, classes, one_based)
            self.reader = VocReader(numbered(names), first, check_size, empty)
            self.notes += left_out("of annotations", ("pose", "occluded", "parts", "actions"))
            found["boxes"] = BOXES
            found["labels"] = ArrayField("int64", (None,), classes=names)
            found["difficult"] = found["truncated"] = ArrayField("bool", (None,))
        else:
            self.reader = VocReader({}, 1, check_size, empty, boxed=False)
            if not masks:
                self.notes.append(f"no folder {self.root / 'Annotations'}: only the images")
        return {**found, **self.split_field()}

    def _classes(
        self,
        folders: Sequence[FolderPair],
        own: tuple[str, ...],
        given: str | None,
        one_based: bool | None,
    ) -> tuple[tuple[str, ...], int]:
        """Return the classes, and the number of the first pixel.

        Both are of all XML files, so that they are the same in each split.

        own: the classes that the dataset names; then it is VOC, and no file is read.
        """
        names = own if given is None else read_class_names(given)
        if not names or (one_based is None and not own):
            next_to = [] if given or own else splits_next_to(self.root)
            both = [*folders, *(p for place in next_to for p in _xml_beside(self.root, str(place)))]
            files = (name for part in both for name in files_below(self.root, part.others))
            found, least = survey(
                os.path.join(self.root, name) for name in files if name.endswith(".xml")
            )
            if len(both) > len(folders):
                others = joined(printable(pair.others) for pair in both[len(folders) :])
                self.notes.append(f"numbers of classes are those of {others}, too")
            names = names or classes_of_texts(found, str(self.root))
            if one_based is None:
                one_based = least >= 1
                how = "1, as VOC's" if one_based else "0"
                self.notes.append(
                    f"pixels of boxes are counted from {how} (--option one_based="
                    f"{str(not one_based).lower()} counts from {int(not one_based)})"
                )
        if not names:
            self.notes.append("no objects in any annotation file")
        return names, int(one_based is not False)

    def _add(self, image: str, stem: str, split: str = "", only: bool = False) -> bool:
        """Add an image with its XML file and mask.  Tell whether its last file exists.

        stem: of the XML file's name.
        only: whether images without a mask are left out.
        """
        files = [f"{stem}.xml"]
        if self._masks:
            files.append(f"{self._masks}/{stem.partition('/')[2]}.png")
        paths = [find_named(self.root, os.path.normpath(file)) for file in files]
        there = os.path.isfile(paths[-1])
        if there or not (only and self._masks):
            names = (os.path.relpath(path, self.root) for path in paths)
            self.add(image, *names, **self.split_number(split))
        return there

    def _add_all(self, part: FolderPair) -> None:
        """Add the images of a folder; note XML files of no image."""
        taken = 0
        for name in filter(is_image_name, files_below(self.root, part.images)):
            stem = os.path.splitext(os.path.relpath(name, part.images))[0]
            # NEU-DET has its images in folders, and all XML files in one.
            inner = self.root / part.others / os.path.dirname(stem)
            stem = stem if inner.is_dir() else os.path.basename(stem)
            taken += self._add(name, f"{part.others}/{stem}", part.split)
        files = files_below(self.root, part.others)
        others = sum(name.endswith(".xml") for name in files) - taken
        if others > 0:
            self.notes.append(f"{others:,} XML files in {part.others} are of no image; left out")

    def _read_folder(self, lists: Path) -> None:
        """Take all images, or those that have a mask."""
        ignored: Counter[str] = Counter()
        for name in sorted(entry.name for entry in os.scandir(self.root / _IMAGES)):
            if not is_image_name(name):
                ignored[suffix_of(name)] += 1
            else:
                self._add(f"{_IMAGES}/{name}", f"Annotations/{Path(name).stem}", only=True)
        self.notes += ignored_files(ignored)
        if splits := splits_of(lists):
            self.notes.append(
                f"images of all splits; --option split=NAME takes one of {', '.join(splits[:12])}"
            )

    def _read_list(self, lists: Path, split: str) -> None:
        """Take the images that a list names."""
        others, seen = 0, set()
        for number, name in names_in_list(lists, split):
            if name is None:
                others += 1
                continue
            try:
                path_inside(self.root, name)
                tried = (find_named(self.root / _IMAGES, name + suffix) for suffix in BOTH_CASES)
                path = next(filter(os.path.exists, tried), None)
                if path is None:
                    place, suffixes = self.root / _IMAGES / name, ", ".join(BOTH_CASES)
                    raise SourceError(f"there is no image {place} with one of {suffixes}")
                image = os.path.relpath(path, self.root)
                if image in seen:
                    self.reject(image, "the list names it before")
                else:
                    self._add(
                        image, f"Annotations/{os.path.splitext(image[len(_IMAGES) + 1 :])[0]}"
                    )
                seen.add(image)
            except (OSError, SourceError) as error:
                key = f"{name} ({split}.txt, line {number})"
                self.reject(key, reject_reason(key, error))
        if others:
            self.notes.append(f"{others} images of {split}.txt left out, which it marks -1")

    def key_of(self, names: list[str], numbers: Mapping[str, int]) -> str:
        return printable(names[0].removeprefix(self._prefix))


# -- where files are ---------------------------------------------------------------------


_FLAGGED = re.compile(r"(\S+)\s+(-1|0|1)")
_LONGEST = 4096
_XML = re.compile(rb"<annotation\b.*?<(object|filename|size|folder)\b", re.DOTALL)


def voc_roots(location: Path) -> list[Path]:
    """Return the folders that are laid out like VOC's: this one, or ``VOC2007`` in it."""
    if _is_root(location):
        return [location]
    inner = [location / "VOCdevkit", location]
    found = [entry for folder in inner if folder.is_dir() for entry in sorted(folder.glob("VOC*"))]
    return [path for path in found if _is_root(path)]


def _is_root(path: Path) -> bool:
    if not (path / _IMAGES).is_dir() or not has_own_images(path / _IMAGES):
        return False
    # Where images are in these, they are class folders that happen to be called so.
    others = [path / part for part in ("Annotations", "ImageSets")]
    return (path / "SegmentationClass").is_dir() or any(
        other.is_dir() and not has_images(other) for other in others
    )


def splits_of(lists: Path) -> list[str]:
    """Return the names of the lists in a folder of ``ImageSets``."""
    return sorted(path.stem for path in lists.glob("*.txt"))


def names_in_list(lists: Path, split: str) -> Iterator[tuple[int, str | None]]:
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


def xml_folders(root: Path) -> list[FolderPair]:
    """Return the folders of images with XML files, in the same folder or in another."""
    return _xml_beside(root, "") or pairs_of_splits(root, _xml_beside)


def _xml_beside(root: Path, place: str) -> list[FolderPair]:
    """Return these folders in a folder of the dataset; those of splits, if there are such."""
    if not (root / place).is_dir():
        return []
    names = [entry.name for entry in os.scandir(root / place)]
    if _holds_xml(root / place) and any(map(is_image_name, names)):
        return [FolderPair("", place or ".", place or ".")]
    usual = ("images", "image", "imgs", "img", "jpegimages")
    files = ("annotations", "annotation", "xmls", "xml", "labels")
    for image in sorted(name for name in names if name.lower() in usual):
        for annotation in sorted(name for name in names if name.lower() in files):
            images, annotations = os.path.join(place, image), os.path.join(place, annotation)
            if (root / annotations / "xmls").is_dir():  # the Oxford pets
                annotations = os.path.join(annotations, "xmls")
            found = pairs_within(root, images, annotations)
            if all(_holds_xml(root / pair.others) for pair in found):
                return found
    return []


def _holds_xml(folder: Path) -> bool:
    """Tell whether this is a folder whose first XML file is an annotation."""
    start = start_of_first(folder, ".xml")
    return _XML.search(start.lstrip(b"\xef\xbb\xbf")) is not None
