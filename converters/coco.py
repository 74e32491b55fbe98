"""COCO: images, and one JSON file that describes them.

``{"images": [...], "annotations": [...], "categories": [...]}``, as
https://cocodataset.org/#format-data specifies it: boxes as left, top, width, height from the
top left corner, in pixels; regions as polygons or run lengths; captions.  Variants: LVIS,
iNaturalist (a class an image), Roboflow's export (a file a split).

A file is read once, entry by entry (``reading/json_files.py``).  In memory are the images' names
and numbers, and 57 bytes an annotation.  Workers read the rest again.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, Field, ScalarField, StringField

from .base import Deferred
from .listing import DeferredSample, Listing
from .reading.annotations.annotated import mask_field
from .reading.annotations.coco_annotations import CocoIndex, CocoReader, Id, read_categories
from .reading.fields import BOXES
from .reading.locations import first_bytes, folders_in
from .reading.named_files import find_named
from .reading.options import CheckSize, ImageFolder, Option, PaintedMasks
from .reading.picture_pairs import SPLIT_WORDS, words
from .reading.selection import joined, left_out
from .reading.splits import in_usual_order

__all__ = ["CocoSource"]

_USED = {"id", "image_id", "category_id", "bbox", "area", "iscrowd", "caption", "segmentation"}


class CocoSource(Listing):
    """Images of a COCO annotation file, each with its boxes, or its captions."""

    name = "coco"
    summary = "COCO, LVIS, iNaturalist: a JSON file of boxes, regions, captions or classes"
    parts = ("*instances*.json|annotations/*.json|**/_annotations.coco.json", "**/*.jpg|**/*.png")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        path = Path(location)
        return _looks_so(path) if path.is_file() else bool(_files_in(path, _LOOKED_AT))

    def list_samples(
        self,
        location: Path,
        *,
        images: ImageFolder = None,
        masks: PaintedMasks = None,
        split: Annotated[str | None, Option("take only this split, if each has a file")] = None,
        check_size: CheckSize = True,
    ) -> dict[str, Field]:
        self.root, files = annotation_files(location, self.notes)
        splits = self.choose_splits(list(files), split)
        self.beside = [files[name] for name in splits]
        self._indices = list(map(CocoIndex, self.beside))
        known = {index.path: index.categories for index in self._indices}
        categories = {
            path: known[path] if path in known else read_categories(path) for path in files.values()
        }
        classes = classes_of(categories, self.notes)
        found = self._fields_of(masks, classes)
        self._text_ids = any(index.text_ids for index in self._indices)
        found["image_id"] = StringField() if self._text_ids else ScalarField("int64")
        found |= self.split_field()
        folders = [image_folder(self.root, i.path, images, i.first_names()) for i in self._indices]
        # If there are several folders, keys begin with them.
        self.root = folders[0] if len(folders) == 1 else self.root
        for number, (index, folder) in enumerate(zip(self._indices, folders, strict=True)):
            index.number_classes(classes)
            self._add_all(index, folder, number)
        self.reader = CocoReader(tuple(map(str, self.beside)), ("image", *found), masks, check_size)
        return found

    def _add_all(self, index: CocoIndex, folder: Path, split: int) -> None:
        inside = os.path.relpath(folder, self.root)
        for row in range(len(index.names)):
            name = index.names[row]
            if row in index.rejects:
                self.reject(*index.rejects[row])
                continue
            if "\\" in name or not name.isascii():
                name = os.path.relpath(find_named(folder, name), folder)
            self.add(name if inside == "." else f"{inside}/{name}", split=split, row=row)
        for key, reason in index.strays:
            self.reject(key, reason)

    def _fields_of(self, masks: str | None, classes: tuple[str, ...]) -> dict[str, Field]:
        """Return the fields, by the members of annotations."""
        seen = set().union(*(index.seen for index in self._indices))
        of_image = "category_id" in seen and not seen & {"bbox", "segmentation"}
        boxed = not of_image and bool(
            seen & {"bbox", "category_id"} or (classes and "caption" not in seen)
        )
        if (boxed or of_image) and not classes:
            raise SourceError(f"{self.root}: has boxes, but no categories that they are of")
        if masks and not boxed:
            raise OptionError(f"masks={masks}: the annotations of {self.root} have no regions")
        fields = mask_field(masks, classes)
        if boxed:
            fields["boxes"] = BOXES
            fields["labels"] = ArrayField("int64", (None,), classes=classes)
            fields["crowd"] = ArrayField("bool", (None,))
            fields["areas"] = ArrayField("float32", (None,))
        elif of_image and all(index.single for index in self._indices):
            fields["label"] = ScalarField(classes=classes)
        elif of_image:
            fields["labels"] = ArrayField("int64", (None,), classes=classes)
        if "caption" in seen:
            fields["captions"] = StringField()
        if not fields:
            self.notes.append("no annotations: only the images")
        left = sorted(filter(str.isprintable, seen - _USED))
        if "segmentation" in seen and not masks:
            left.append("segmentation (--option masks=classes paints it)")
        self.notes += left_out("of annotations", left)
        return fields

    def values(self, files: list[str], numbers: dict[str, int]) -> Deferred:
        index, row = self._indices[numbers["split"]], numbers["row"]
        known = {
            "image_id": str(index.id_of(row)) if self._text_ids else index.ids[row],
            "split": numbers["split"],
            "size": tuple(index.sizes[2 * row : 2 * row + 2]),
            "annotations": index.rows_of(row).tobytes(),
        }
        assert self.reader is not None
        return DeferredSample(self.reader, self._fields, files, known)


# -- where files are ---------------------------------------------------------------------


_MEMBER = re.compile(rb'"(images|annotations|categories)"\s*:\s*\[')
_ENTRY = re.compile(rb'"(file_name|image_id|supercategory|coco_url)"\s*:')
_LOOKED_AT = 50
_PEEK = 1 << 16
"""If the keys are sorted, the file begins with the polygon of an annotation."""
_ROBOFLOW = "_annotations.coco.json"


def _looks_so(path: Path) -> bool:
    start = first_bytes(path, _PEEK).removeprefix(b"\xef\xbb\xbf").lstrip()
    return start.startswith(b"{") and all(part.search(start) for part in (_MEMBER, _ENTRY))


def _files_in(folder: Path, most: int | None = None) -> list[str]:
    """Return the annotation files of a folder, or those among its first `most` JSON files."""
    places = (sorted((folder / place).glob("*.json"))[:most] for place in ("annotations", ""))
    paths = [path for found in places for path in found]
    paths += [folder / split / _ROBOFLOW for split in folders_in(folder)]
    return [os.path.relpath(path, folder) for path in paths if _looks_so(path)]


def annotation_files(location: Path, notes: list[str]) -> tuple[Path, dict[str, Path]]:
    """Return the dataset's folder and its annotation file, or those of its splits.

    A dataset without splits has the name "".
    """
    if location.is_file():
        inner = location.parent.name == "annotations"
        return (location.parent.parent if inner else location.parent), {"": location}
    files = _files_in(location)
    if not files:
        raise SourceError(f"{location}: no COCO annotation file in it, such as annotations/*.json")
    usual = [name for name in files if Path(name).name.startswith("instances")] or files
    notes += left_out("annotation files", sorted({*files} - {*usual}), "SOURCE may be one file")
    if len(usual) == 1:
        return location, {"": location / usual[0]}
    splits = {
        os.path.dirname(name) if name.endswith(f"/{_ROBOFLOW}") else _split_in(name): name
        for name in usual
    }
    found = (words(Path(name).stem) for name in usual)
    rest = {tuple(word for word in one if word not in SPLIT_WORDS) for one in found}
    if len(rest) > 1 or "" in splits or len(splits) < len(usual):
        raise SourceError(
            f"{location}: has the annotation files {joined(files)}. Name one: SOURCE "
            f"{location / usual[0]}"
        )
    return location, {split: location / splits[split] for split in in_usual_order(splits)}


def image_folder(root: Path, file: Path, chosen: str | None, names: Sequence[str]) -> Path:
    """Return the folder of the images.

    chosen: the folder, relative to `root`; else the usual folders are tried, and then all folders
        that are not named after another split.
    """
    if chosen:
        if not (root / chosen).is_dir():
            raise OptionError(f"images={chosen}: no such folder in {root}")
        return root / chosen
    parts, split = file.stem.split("_"), _split_in(file.stem)
    near = ["_".join(parts[k:]) for k in range(len(parts))] + [split] * bool(split)
    usual = [root / place / name for place in ("", "images") for name in near]
    usual += [root / "images", root / "data", file.parent, root]
    same = ("", SPLIT_WORDS.get(split))  # "val" and "valid" are one split
    others = [
        root / name
        for name in folders_in(root)
        if not split or SPLIT_WORDS.get(_split_in(name), "") in same
    ]
    found = [folder for folder in usual if _has_any(folder, names)][:1]
    found = found or [folder for folder in others if _has_any(folder, names)]
    if len(found) != 1:
        tried = found or [folder for folder in dict.fromkeys(usual) if folder.is_dir()]
        raise SourceError(
            f"{file}: its first images ({joined(names[:3])}) are in {'each' if found else 'none'} "
            f"of {', '.join(map(str, tried))}. Name the folder: --option images=FOLDER, or the "
            "annotation file whose images are there: SOURCE FILE"
        )
    return found[0]


def _has_any(folder: Path, names: Sequence[str]) -> bool:
    for name in names:
        with contextlib.suppress(SourceError, OSError):
            if os.path.isfile(find_named(folder, name)):
                return True
    return False


def _split_in(name: str) -> str:
    """Return the word of a split in a name; "" if there is none."""
    return next((word for word in words(Path(name).stem) if word in SPLIT_WORDS), "")


def classes_of(files: Mapping[Path, Mapping[Id, str]], notes: list[str]) -> tuple[str, ...]:
    """Return the classes of all files of a dataset, in the order of their ids.

    Files may have some of the categories, or number the same names in another way.
    """
    first, *others = files
    for path, categories in files.items():
        for name in [name for name, n in Counter(categories.values()).items() if n > 1][:1]:
            twice = [number for number in categories if categories[number] == name]
            raise SourceError(
                f"{path}: the categories {joined(map(str, twice))} are all called {name!r}. Give "
                "each a name of its own, or give their annotations one category_id"
            )
    merged = dict(files[first])
    for path in others:
        differ = [n for n, name in files[path].items() if merged.setdefault(n, name) != name]
        if differ and {*files[path].values()} != {*files[first].values()}:
            raise SourceError(
                f"{path}: its categories are not those of {first}: {differ[0]} is "
                f"{files[path][differ[0]]!r} here and {merged[differ[0]]!r} there. Give both files "
                f"the same categories, or pack this file as a dataset of its own: SOURCE {path}"
            )
        if differ:
            notes.append(f"{path.name} and {first.name} have other ids of the same categories")
    return tuple(dict.fromkeys(merged[n] for n in sorted(merged, key=lambda n: (str(n) == n, n))))
