"""Folders of images, and folders of masks: semantic segmentation.

::

    images/train/0.jpg                  train/0.png          leftImg8bit/val/bonn/0_leftImg8bit.png
    masks/train/0.png                   trainannot/0.png     gtFine/val/bonn/0_gtFine_labelIds.png

Words in the names of folders say which are which: those of Cityscapes, CamVid, ADE20K, mmseg,
LoveDA, KITTI, DRIVE, HRF, CVC-ClinicDB, DUTS, Penn-Fudan, the Oxford pets, U-Net and Roboflow.
Images and masks may also lie in one folder, as those of CHASE_DB1, MSRA10K and BUSI.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from unicodedata import normalize

import numpy as np
from PIL import Image

from fastdata.codecs.limits import MAX_PIXELS
from fastdata.codecs.pillow import open_image
from fastdata.errors import ImageError, OptionError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import Field, ImageField, ScalarField

from .listing import Listing
from .reading.annotations.masks import MaskReader, class_table
from .reading.image_files import files_below, is_image_name
from .reading.locations import folders_in, printable
from .reading.options import ImageFolder, Option, SplitOption
from .reading.picture_pairs import words
from .reading.selection import left_out
from .reading.splits import (
    SPLIT_NAMES,
    FolderPair,
    in_usual_order,
    pairs_within,
    split_folders_in,
    splits_next_to,
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
            pairs = [_Pair(root, *pair) for pair in mask_pairs(root)[:3]]
        except SourceError:  # several folders of masks: asked for by name, it says so
            return False
        first = (one for pair in pairs for one in pair.some[:3])
        looks = (_is_mask_of(root / mask, root / image) for image, mask in first)
        return next(looks, False) and all(looks)

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
        classes: Annotated[
            str | None, Option("a file with names of classes, one a line, or name,r,g,b")
        ] = None,
    ) -> dict[str, Field]:
        found = mask_pairs(location, images or "", masks or "")
        pairs = [_Pair(location, *pair, ending) for pair in found]
        if not pairs:
            raise SourceError(
                f"{location}: no folders of images and masks. Name both: --option images=FOLDER "
                "--option masks=FOLDER"
            )
        splits = self.choose_splits(list(dict.fromkeys(pair.split for pair in pairs)), split)
        labels = _labels(pairs)
        for pair in pairs:
            if pair.split in splits:
                self._add_all(pair, labels)
        if self.num_samples == len(self._rejects):
            raise SourceError(
                f"{location}: no image of {pairs[0].images} has a mask in {pairs[0].others}. If "
                "their names differ by an ending, name it: --option ending=_mask"
            )
        if self._are_alike(3) and self._are_alike(16):
            self.notes.append(
                "the masks show one shape, as those of a camera's field of view do; --option "
                "masks=FOLDER names others"
            )
        if (location / "ImageSets").is_dir():
            self.notes.append(
                "lists in ImageSets are not read (--format voc --option masks=classes reads them)"
            )
        self.notes += left_out("folders", _unused(location, found))

        table = class_table(location, self._masks_of_all(pairs), classes, self.notes)
        self.beside += [table.path] if table.path is not None else []
        self.reader = MaskReader(table.colours, len(table.names) or None)
        fields: dict[str, Field] = {
            "mask": ImageField(channels=1, mask=True, classes=table.names or None)
        }
        if labels:
            self.notes.append(f"folders are classes of images: {', '.join(labels)}")
            fields["label"] = ScalarField(classes=tuple(map(printable, labels)))
        return {**fields, **self.split_field()}

    def _add_all(self, pair: _Pair, labels: list[str]) -> None:
        left = sum(name.endswith(_SUFFIXES) for name in files_below(pair.root, pair.others))
        for name, masks in pair:
            left -= len(masks) + pair.mixed
            if masks:
                label = {"label": labels.index(pair.folder_of(name))} if labels else {}
                self.add(name, *masks, **label, **self.split_number(pair.split))
            else:
                self.reject(name, f"it has no mask in {pair.others}")
        if left > 0:
            self.notes.append(f"{left:,} other pictures in {pair.others} left out")

    def _are_alike(self, most: int) -> bool:
        """Tell whether some masks have one shape, and three or more are there to compare."""
        shapes = []
        for index in np.linspace(0, self.num_samples - 1, most).astype(int).tolist():
            with contextlib.suppress(OSError, ImageError):
                mask = read_regular(self.root / self.names_of(index)[-1])
                with open_image(mask, MAX_PIXELS) as image:
                    shapes.append(np.asarray(image.convert("L").resize((32, 32))) > 0)
        different = max((float((shape != shapes[0]).mean()) for shape in shapes), default=1)
        return self.num_samples > 2 and different < 0.02 < float(np.mean(shapes)) < 0.98

    def _masks_of_all(self, pairs: list[_Pair]) -> Iterator[Path]:
        """Yield the masks of all splits, also next to this one: a colour has one number in each."""
        for index in range(self.num_samples):
            yield from (self.root / mask for mask in self.names_of(index)[1:])
        others = [pair for pair in pairs if pair.split not in self.splits]
        for place in splits_next_to(self.root):
            with contextlib.suppress(SourceError):
                others += [_Pair(place, *pair) for pair in mask_pairs(place)]
        yield from (pair.root / mask for pair in others for _, masks in pair for mask in masks)


def _labels(pairs: list[_Pair]) -> list[str]:
    """Return the folders of images and masks that are classes, as those of BUSI; or none.

    Folders with digits in their names are patients or scenes.
    """
    found = {pair.folder_of(name) for pair in pairs if pair.mixed for name, _ in pair}
    named = all(name and not any(map(str.isdigit, name)) for name in found)
    mixed = all(pair.mixed for pair in pairs)
    return sorted(found) if mixed and named and len(found) > 1 else []


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
"""Words of folders of images, of masks, and of masks that are a second choice: ``2nd_manual``."""
_SPLITS = frozenset((*SPLIT_NAMES, "tr", "te"))


class _Folder:
    """A folder with the words of its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        found = words(re.sub(r"(?<=[a-z])annot$", "_annot", name))
        self.words = frozenset(found)
        self.rest = [word for word in found if word not in _IMAGES | _MASKS]
        # Masks by hand come first, then other masks, then pictures of masks.
        self.rank = 2 if self.words & _LESS else int("manual" not in self.words)

    @property
    def counted(self) -> bool:
        """Whether a scene has several such pictures: ``Image1``, ``B``, ``time2``."""
        return all(w.isdigit() or len(w) == 1 for w in self.rest) and bool(self.rest)


def mask_pairs(root: Path, images: str = "", masks: str = "") -> list[FolderPair]:
    """Return the folders of images that have folders of masks.

    images, masks: the folders, if they have unusual names.
    """
    if images or masks:
        if not all(name and (root / name).is_dir() for name in (images, masks)):
            raise OptionError(
                f"images={images}, masks={masks}: name both images= and masks=, folders in {root}"
            )
        return pairs_within(root, images, masks)
    found = _pairs_in(root, "")
    splits = [name for name in folders_in(root) if _Folder(name).words & _SPLITS]
    for split in in_usual_order(splits) if not found else ():
        inner = _pairs_in(root, split)
        for name in folders_in(root / split) if not inner else ():
            inner += _pairs_in(root, f"{split}/{name}")
        found += [(rank, pair._replace(split=split)) for rank, pair in inner]
    if not found:  # images and masks in one folder
        mixed = [FolderPair(s, s or ".", s or ".") for s in split_folders_in(root) or [""]]
        return [pair for pair in mixed if _Pair(root, *pair).some]
    # If some masks are by hand, the others are something else, also if a split has only these.
    best = min(rank for rank, _ in found)
    return [pair for rank, pair in found if rank == best]


def _pairs_in(root: Path, place: str) -> list[tuple[int, FolderPair]]:
    """Return the pairs among the folders in a folder, each with the rank of its masks."""
    every = [_Folder(name) for name in in_usual_order(folders_in(root / place))]
    named = [
        n for n in every if n.words & (_IMAGES | _MASKS) and _has_pictures(root, place, n.name)
    ]
    masks = [n for n in named if n.words & _MASKS]
    images = [n for n in named if n not in masks] or [
        n for n in every if n not in masks and any(n.rest == m.rest for m in masks)
    ]
    if masks and len(images) > 1 and all(image.counted for image in images):
        names = ", ".join(image.name for image in images)
        raise SourceError(
            f"{root / place}: {masks[0].name} may belong to each of {names}. Name one: --option "
            f"images={images[0].name} --option masks={masks[0].name}"
        )
    found: list[tuple[int, FolderPair]] = []
    for image in images:
        possible = [m for m in masks if len(images) == 1 or m.rest == image.rest]
        ranks = [(m.rank, m.rest != image.rest) for m in possible]
        fit = [m for m, rank in zip(possible, ranks, strict=True) if rank == min(ranks)]
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
                (mask.rank, pair._replace(split=pair.split or split))
                for pair in pairs_within(root, *both)
            ]
    return found


def _has_pictures(root: Path, place: str, folder: str) -> bool:
    return any(map(is_image_name, files_below(root, os.path.join(place, folder))))


def _unused(root: Path, pairs: list[FolderPair]) -> list[str]:
    """Return the folders of pictures that belong to no pair."""
    used = tuple(f"{os.path.normpath(name)}/" for pair in pairs for name in pair[1:])
    folders = {os.path.dirname(f) for f in files_below(root, ".") if f.endswith(_SUFFIXES)}
    return sorted(f for f in folders if "./" not in used and not f"{f}/".startswith(used))


# -- one image's masks -------------------------------------------------------------------


_ENDS = (
    *(("_leftImg8bit", "_gtFine_labelIds"), ("_leftImg8bit", "_gtCoarse_labelIds"), ("", "")),
    *(("", "_mask"), ("", "_L"), ("", "_label"), ("", "_labels"), ("", "_gt")),
    *(("", "_segmentation"), ("", "_seg"), ("", "_annotation"), ("", "_m"), ("_sat", "_mask")),
    *(("_image", "_mask"), ("_img", "_mask"), ("_image", "_label"), ("_rgb", "_mask")),
    *(("_training", "_manual1"), ("_test", "_manual1"), ("", "_1stHO")),
)
"""How names of images end, and how names of their masks end, without suffix."""
_LOOKED_AT, _MASKS_LOOKED_AT = 40, 500
_FLAT = 0.7
"""Share of pixels of a mask that equal their neighbour; in a photograph few do."""


class _Pair:
    """The images of a folder, each with its masks in another folder or in the same one.

    The ends of names are those with masks for most of the first images.

    some: some images with a mask of each.
    """

    def __init__(
        self, root: Path, split: str, images: str, others: str, ending: str | None = None
    ) -> None:
        self.root, self.split = root, split
        self.images, self.others = os.path.normpath(images), os.path.normpath(others)
        self.mixed = self.images == self.others
        # Each walk ends before the next: it keeps the names of a whole folder.
        names = list(itertools.islice(filter(is_image_name, files_below(root, images)), _LOOKED_AT))
        files = list(itertools.islice(files_below(root, others), _MASKS_LOOKED_AT))
        choices = _ENDS if ending is None else (("", ending), ("_leftImg8bit", ending))
        self.some: list[tuple[str, str]] = []
        best = choices[0]
        for ends in choices:
            self._take(*ends)
            masks = {self._of_mask(file): file for file in files}
            parts = [(self._of_image(name), name) for name in filter(self._is_image, names)]
            some = [(name, masks[part]) for part, name in parts if part and part in masks]
            if len(some) > len(self.some):
                best, self.some = ends, some
        self._take(*best)

    def _take(self, image_end: str, mask_end: str) -> None:
        more = r"(_\d+)?" if self.mixed and mask_end else ""
        self._end = image_end
        self._mask = re.compile(rf"(.*){re.escape(mask_end)}{more}", re.DOTALL)
        self._suffixes = _LOSSLESS if self.mixed and not mask_end else _SUFFIXES

    def _of_mask(self, name: str) -> str:
        """Return the part of a mask's name that its image has, too; "" for other files.

        Without an ending, a JPEG is the image.  Next to an image there may be several masks:
        ``0_mask.png`` and ``0_mask_1.png`` of two objects.
        """
        stem, suffix = _stem_of(name, self.others)
        match = self._mask.fullmatch(stem) if suffix in self._suffixes else None
        return match[1] if match else ""

    def _of_image(self, name: str) -> str:
        """Return the part of an image's name that its masks have, too; "" if it has another end."""
        stem, _ = _stem_of(name, self.images)
        return stem.removesuffix(self._end) if stem.endswith(self._end) else ""

    def _is_image(self, name: str) -> bool:
        if self.mixed and (self._of_mask(name) or "_2ndHO." in name):  # by a second person
            return False
        return is_image_name(name)

    def __iter__(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the images, each with its masks, relative to the root."""
        masks: dict[str, str] = {}  # several names with null bytes between them
        for name in files_below(self.root, self.others):
            if part := self._of_mask(name):
                masks[part] = f"{masks[part]}\0{name}" if part in masks else name
        for name in filter(self._is_image, files_below(self.root, self.images)):
            found = masks.get(self._of_image(name), "").split("\0")
            if len(found) > 1:
                found.sort(key=_order)
                found = [one for one in found if _order(one)[0] == _order(found[0])[0]]
            yield name, list(filter(None, found))

    def folder_of(self, image: str) -> str:
        """Return the name of the folder that an image is in."""
        return os.path.relpath(image, self.images).rpartition("/")[0].rpartition("/")[2]


def _stem_of(name: str, folder: str) -> tuple[str, str]:
    """Return a file's name in a folder, composed and without suffix, and the suffix."""
    stem, suffix = os.path.splitext(name if folder == "." else name[len(folder) + 1 :])
    return normalize("NFC", stem), suffix


def _order(name: str) -> tuple[int, int, str]:
    """Return the place of a mask among those of an image: by suffix, then by number."""
    stem, suffix = os.path.splitext(name)
    number = stem.rpartition("_")[2]
    return _SUFFIXES.index(suffix), int(number) if number.isdecimal() else -1, stem


def _is_mask_of(mask: Path, image: Path) -> bool:
    """Tell whether the image is a photograph, and the other file, of its size, is flat."""
    try:
        with (
            open_image(read_regular(mask), MAX_PIXELS) as opened,
            open_image(read_regular(image), MAX_PIXELS) as seen,
        ):
            fits = opened.size in (seen.size, seen.size[::-1]) and opened.format != "JPEG"
            photograph = seen.format == "JPEG" or _flatness(seen) < _FLAT
            return fits and photograph and _flatness(opened) >= _FLAT
    except (OSError, ImageError):
        return False


def _flatness(image: Image.Image) -> float:
    """Return the share of pixels in some rows that equal their left neighbour."""
    pixels = np.asarray(image.convert("RGB") if image.mode == "RGBA" else image)
    rows = np.atleast_3d(pixels[:: max(1, image.height // 64)])
    same = (rows[:, 1:] == rows[:, :-1]).all(-1)
    return float(same.mean()) if same.size else 0
