"""Folders of images, and folders of masks: semantic segmentation.

::

    images/train/0.jpg                  train/0.png          leftImg8bit/val/bonn/0_leftImg8bit.png
    masks/train/0.png                   trainannot/0.png     gtFine/val/bonn/0_gtFine_labelIds.png

Words in the names of folders say which are which: those of Cityscapes, CamVid, ADE20K, mmseg,
LoveDA, KITTI, DRIVE, HRF, CVC-ClinicDB, DUTS, Penn-Fudan, the Oxford pets, U-Net and Roboflow.
Images and masks may also lie in one folder, as those of CHASE_DB1, MSRA10K and BUSI.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias
from unicodedata import normalize

import numpy as np
from PIL import Image

from fastdata.codecs.jpeg import is_jpeg
from fastdata.codecs.limits import MAX_PIXELS
from fastdata.codecs.pillow import open_image
from fastdata.errors import ImageError, OptionError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import Field, ImageField, ScalarField

from .listing import Listing
from .reading.annotations.masks import MaskReader, class_table
from .reading.image_files import files_below, is_image_name
from .reading.locations import first_bytes, folders_in, printable
from .reading.named_files import find_named
from .reading.options import ImageFolder, Option, SplitOption
from .reading.picture_pairs import words
from .reading.selection import left_out
from .reading.splits import (
    SPLIT_NAMES,
    FolderPair,
    in_usual_order,
    pairs_within,
    split_folders_in,
)

__all__ = ["MaskFoldersSource"]


class MaskFoldersSource(Listing):
    """Images with their masks of classes; fields ``image``, ``mask``, ``label``, ``split``."""

    name = "masks"
    summary = "folders of images and of masks (Cityscapes, CamVid, ADE20K, images/ and masks/)"
    parts = ("images|imgs|leftImg8bit|train", "masks|labels|annotations|gtFine|trainannot")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        root = Path(location)
        if any((root / "Annotations").glob("*.xml")):
            return False
        if (root / "ImageSets").is_dir() and not (root / "labelmap.txt").is_file():
            return False  # Pascal VOC, whose lists say what belongs to a split
        try:
            return are_masks(root, mask_pairs(root, []))
        except SourceError:  # several folders of masks: asked for by name, it says so
            return False

    def list_samples(
        self,
        location: Path,
        *,
        split: SplitOption = None,
        images: ImageFolder = None,
        masks: Annotated[
            str | None, Option("the folder of the masks, if not the usual one")
        ] = None,
        ending: Annotated[
            str | None, Option("what names of masks end in, and those of images do not: _mask")
        ] = None,
        which: Annotated[
            str,
            Option("which masks of Cityscapes", ("labelIds", "labelTrainIds", "color")),
        ] = "labelIds",
        classes: Annotated[
            str | None, Option("a file with names of classes, one a line, or name,r,g,b")
        ] = None,
    ) -> dict[str, Field]:
        if not location.is_dir():
            raise SourceError(f"{location}: not a folder")
        pairs = mask_pairs(location, self.notes, images or "", masks or "")
        if not pairs:
            raise SourceError(
                f"{location}: no folders of images and masks. Name both: --option images=FOLDER "
                "--option masks=FOLDER"
            )
        self._pairs = [(pair, ending_of(self.root, pair, which, ending)) for pair in pairs]
        names = list(dict.fromkeys(pair.split for pair in pairs))
        splits = self.choose_splits(names, split)
        labels = _labels(self.root, self._pairs)
        for pair, end in self._pairs:
            if pair.split in splits:
                self._add_all(pair, end, labels)
        if self.num_samples == len(self._rejects):
            raise SourceError(
                f"{location}: no image of {pairs[0].images} has a mask in {pairs[0].others}. If "
                "their names differ by an ending, name it: --option ending=_mask"
            )
        if (location / "ImageSets").is_dir():
            self.notes.append(
                "lists in ImageSets are not read (--format voc --option masks=classes reads them)"
            )
        table = class_table(location, self._mask_paths, classes, which, self.notes)
        self.beside += [table.path] if table.path is not None else []
        self.reader = MaskReader(table.colours, len(table.names) or None)
        found: dict[str, Field] = {
            "mask": ImageField(channels=1, mask=True, classes=table.names or None)
        }
        if labels:
            self.notes.append(f"folders are classes of images: {', '.join(labels)}")
            found["label"] = ScalarField(classes=tuple(map(printable, labels)))
        return {**found, **self.split_field()}

    def _add_all(self, pair: FolderPair, ending: Ending | None, labels: list[str]) -> None:
        taken = 0
        for name in images_of(self.root, pair, ending):
            masks = masks_of(self.root, pair, name, ending)
            if masks:
                label = {"label": labels.index(_folder_of(pair, name))} if labels else {}
                self.add(name, *masks, **label, **self.split_number(pair.split))
                taken += len(masks)
            else:
                self.reject(name, f"it has no mask in {pair.others}")
        files = files_below(self.root, pair.others)
        others = sum(is_mask_name(pair, name, ending) for name in files) - taken if ending else 0
        if others > 0:
            self.notes.append(f"{others:,} masks in {pair.others} are of no image; left out")

    def _mask_paths(self) -> Iterator[Path]:
        """Yield the masks of all splits, so that a colour has one number in each."""
        for pair, ending in self._pairs:
            for name in images_of(self.root, pair, ending):
                yield from (self.root / mask for mask in masks_of(self.root, pair, name, ending))


def _labels(root: Path, pairs: list[tuple[FolderPair, Ending | None]]) -> list[str]:
    """Return the folders of images and masks that are classes, as those of BUSI; none of others.

    Folders with digits in their names are patients or scenes.
    """
    if any(pair.images != pair.others for pair, _ in pairs):
        return []
    found = {_folder_of(pair, name) for pair, end in pairs for name in images_of(root, pair, end)}
    named = all(name and not any(map(str.isdigit, name)) for name in found)
    return sorted(found) if named and len(found) > 1 else []


def _folder_of(pair: FolderPair, name: str) -> str:
    return os.path.relpath(name, pair.images).rpartition("/")[0].rpartition("/")[2]


# -- where images and masks are ----------------------------------------------------------


_LOSSLESS = (".png", ".PNG", ".bmp", ".BMP", ".tif", ".tiff", ".TIF", ".ppm", ".pgm", ".gif")
_SUFFIXES = (*_LOSSLESS, ".webp", ".jpg", ".jpeg", ".JPG")
_IMAGES, _MASKS, _LESS = (
    frozenset(text.split())
    for text in (
        "image images img imgs photo photos picture pictures frame frames input inputs original "
        "originals",
        "mask masks label labels ann annot annots annotation annotations gt gts groundtruth truth "
        "segmentation segmentations trimap trimaps target targets manual semantic",
        "instance instances object objects color colors rgb vis depth nd",
    )
)
"""Words of folders of images, of masks, and of masks that stand behind others: ``2nd_manual``."""
_SPLITS = frozenset((*SPLIT_NAMES, "tr", "te"))

Ending: TypeAlias = tuple[str, str]
"""What the names of images, and those of their masks, end in."""
_ENDINGS = (
    *(("", ""), ("", "_mask"), ("", "_L"), ("", "_label"), ("", "_labels"), ("", "_gt")),
    *(("", "_segmentation"), ("", "_seg"), ("", "_annotation"), ("", "_m"), ("_sat", "_mask")),
    *(("_image", "_mask"), ("_img", "_mask"), ("_image", "_label"), ("_rgb", "_mask")),
    *(("_training", "_manual1"), ("_test", "_manual1"), ("", "_1stHO")),
)
_LOOKED_AT = 40
_MASKS_LOOKED_AT = 500
_FLAT = 0.7
"""Share of pixels of a mask that equal their neighbour; in a photograph few do."""


class _Named:
    """A folder with the words of its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        found = words(re.sub(r"(?<=[a-z])annot$", "_annot", name))
        self.words = frozenset(found)
        self.rest = [word for word in found if word not in _IMAGES | _MASKS]
        # Masks by hand come first, then other masks, then pictures of masks.
        self.rank = 2 if self.words & _LESS else int("manual" not in self.words)


class _Found(NamedTuple):
    """Folders that belong together."""

    pair: FolderPair
    rank: int


def mask_pairs(root: Path, notes: list[str], images: str = "", masks: str = "") -> list[FolderPair]:
    """Return the folders of images that have folders of masks.

    notes: gets a note on folders that are left out.
    images, masks: the folders, if they have unusual names.
    """
    if images or masks:
        for option, name in (("images", images), ("masks", masks)):
            if not name or not (root / name).is_dir():
                raise OptionError(
                    f"{option}={name}: no such folder in {root}; name both images= and masks="
                )
        return pairs_within(root, images, masks)
    left: list[str] = []
    found = _pairs_in(root, "", left)
    splits = [name for name in folders_in(root) if _Named(name).words & _SPLITS]
    for split in in_usual_order(splits) if not found else ():
        inner = _pairs_in(root, split, left)
        for name in folders_in(root / split) if not inner else ():
            inner += _pairs_in(root, f"{split}/{name}", left)
        found += [one._replace(pair=one.pair._replace(split=split)) for one in inner]
        left += [split] if not inner else []
    if not found:  # images and masks in one folder
        mixed = [FolderPair(s, s or ".", s or ".") for s in split_folders_in(root) or [""]]
        return [pair for pair in mixed if ending_of(root, pair) is not None]
    # Beside masks by hand others are something else, also where a split has only these.
    best = min(one.rank for one in found)
    left += [one.pair.images for one in found if one.rank > best]
    notes += left_out("folders", left)
    return [one.pair for one in found if one.rank == best]


def _pairs_in(root: Path, place: str, left: list[str]) -> list[_Found]:
    """Return the pairs among the folders in a folder, and add other folders of masks to `left`."""
    every = [_Named(name) for name in in_usual_order(folders_in(root / place))]
    reserved = [n for n in every if n.words & (_IMAGES | _MASKS) and _has_pictures(root, place, n)]
    masks = [n for n in reserved if n.words & _MASKS]
    images = [n for n in reserved if n not in masks]
    if not images:
        images = [n for n in every if n not in masks and any(n.rest == m.rest for m in masks)]
    found: list[_Found] = []
    used = []
    if masks and len(images) > 1 and all(map(_is_counted, images)):
        names = ", ".join(image.name for image in images)
        raise SourceError(
            f"{root / place}: {masks[0].name} may belong to each of {names}. Name one: --option "
            f"images={images[0].name} --option masks={masks[0].name}"
        )
    for image in images:
        fit = [m for m in masks if len(images) == 1 or m.rest == image.rest]
        fit = [m for m in fit if m.rank == min(other.rank for other in fit)]
        fit = [m for m in fit if len(fit) > 1 and m.rest == image.rest] or fit
        if len(fit) > 1:
            raise SourceError(
                f"{root / place}: the masks of {image.name} may be in "
                f"{', '.join(m.name for m in fit)}. Say in which: --option images={image.name} "
                f"--option masks={fit[0].name}"
            )
        for mask in fit:
            inner = f"{mask.name}/trimaps"  # the Oxford pets
            others = inner if (root / place / inner).is_dir() else mask.name
            both = (os.path.join(place, name) for name in (image.name, others))
            split = "-".join(image.rest) if len(images) > 1 else ""
            found += [
                _Found(pair._replace(split=pair.split or split), mask.rank)
                for pair in pairs_within(root, *both)
            ]
            used.append(mask)
    left += [os.path.join(place, mask.name) for mask in masks if found and mask not in used]
    return found


def _is_counted(folder: _Named) -> bool:
    """Tell whether a folder is one of several pictures of a scene: ``Image1``, ``B``, ``time2``."""
    return all(word.isdigit() or len(word) == 1 for word in folder.rest) and bool(folder.rest)


def _has_pictures(root: Path, place: str, folder: _Named) -> bool:
    files = files_below(root, os.path.join(place, folder.name))
    return any(file.endswith(_SUFFIXES) for file in files)


# -- one image's masks -------------------------------------------------------------------


def ending_of(
    root: Path, pair: FolderPair, which: str = "labelIds", chosen: str | None = None
) -> Ending | None:
    """Return the endings of images' and masks' names, without suffix, that belong together.

    chosen: the user's ending of masks.
    The result is the pair with masks for most of the first images; None if no pair has masks.
    """
    cityscapes = [("_leftImg8bit", f"_{kind}_{which}") for kind in ("gtFine", "gtCoarse")]
    endings = [*cityscapes, *_ENDINGS] if chosen is None else [("", chosen)]
    images = list(
        itertools.islice(filter(is_image_name, files_below(root, pair.images)), _LOOKED_AT)
    )
    files = list(itertools.islice(files_below(root, pair.others), _MASKS_LOOKED_AT))

    def count(ending: Ending) -> int:
        there = {normalize("NFC", _stem(n)) for n in files if is_mask_name(pair, n, ending)}
        names = (
            n for n in images if pair.images != pair.others or not is_mask_name(pair, n, ending)
        )
        return sum(normalize("NFC", _partner(pair, name, ending)) in there for name in names)

    counts = list(map(count, endings))
    return endings[counts.index(max(counts))] if max(counts) else None


def is_mask_name(pair: FolderPair, name: str, ending: Ending) -> bool:
    """Tell from its name whether a file is a mask.  Without an ending, a JPEG is the image.

    Beside an image there may be several: ``0_mask.png`` and ``0_mask_1.png`` of two objects, or
    ``0_2ndHO.png`` by a second person.
    """
    mixed = pair.images == pair.others
    if mixed and ending[1]:
        more = rf"({re.escape(ending[1])}(_\d+)?|_2ndHO)$"
        return name.endswith(_SUFFIXES) and re.search(more, _stem(name)) is not None
    return name.endswith(_LOSSLESS if mixed else _SUFFIXES) and _stem(name).endswith(ending[1])


def images_of(root: Path, pair: FolderPair, ending: Ending | None) -> Iterator[str]:
    """Yield the images of a folder, without its masks."""
    for name in filter(is_image_name, files_below(root, pair.images)):
        if pair.images != pair.others or ending is None or not is_mask_name(pair, name, ending):
            yield name


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]


def masks_of(root: Path, pair: FolderPair, image: str, ending: Ending | None) -> list[str]:
    """Return the masks of an image, relative to the root; none if there is none."""
    start = _partner(pair, image, ending) if ending else ""
    for suffix in _SUFFIXES if start else ():
        found = [os.path.relpath(find_named(root, start + suffix), root)]
        if found[0] != image and os.path.isfile(root / found[0]):
            more = (f"{start}_{k}{suffix}" for k in itertools.count(1))
            mixed = pair.images == pair.others
            return found + [*itertools.takewhile(lambda n: os.path.isfile(root / n), more)] * mixed
    return []


def _partner(pair: FolderPair, image: str, ending: Ending) -> str:
    """Return the name of an image's mask without suffix; "" if the image ends otherwise."""
    stem = _stem(os.path.relpath(image, pair.images))
    if not stem.endswith(ending[0]):
        return ""
    return os.path.normpath(os.path.join(pair.others, stem.removesuffix(ending[0]) + ending[1]))


# -- whether it is one -------------------------------------------------------------------


def are_masks(root: Path, pairs: list[FolderPair]) -> bool:
    """Tell whether the first images are photographs, and what may be their masks is flat."""
    looked_at = 0
    for pair in pairs[:3]:
        ending = ending_of(root, pair)
        if ending is None:
            continue
        for image, _ in zip(images_of(root, pair, ending), range(3), strict=False):
            for mask in masks_of(root, pair, image, ending)[:1]:
                looked_at += 1
                if not _is_mask_of(root / mask, root / image):
                    return False
    return looked_at > 0


def _is_mask_of(mask: Path, image: Path) -> bool:
    if is_jpeg(first_bytes(mask, 3)):
        return False
    try:
        with (
            open_image(read_regular(mask), MAX_PIXELS) as opened,
            open_image(read_regular(image), MAX_PIXELS) as seen,
        ):
            if opened.size not in (seen.size, seen.size[::-1]) or _flatness(opened) < _FLAT:
                return False
            return seen.format == "JPEG" or _flatness(seen) < _FLAT
    except (OSError, ImageError):
        return False


def _flatness(image: Image.Image) -> float:
    """Return the share of pixels in some rows that equal their left neighbour."""
    if image.width < 2:
        return 0
    image.load()
    step = max(1, image.height // 64)
    lines = (image.crop((0, top, image.width, top + 1)) for top in range(0, image.height, step))
    rows = np.concatenate(
        [np.asarray(line if line.mode != "RGBA" else line.convert("RGB")) for line in lines]
    )
    same = rows[:, 1:] == rows[:, :-1]
    return float((same.all(-1) if same.ndim == 3 else same).mean())
