"""Folders of images, and folders of masks: semantic segmentation.

::

    images/train/0.jpg                  train/0.png          leftImg8bit/val/bonn/0_leftImg8bit.png
    masks/train/0.png                   trainannot/0.png     gtFine/val/bonn/0_gtFine_labelIds.png

Layouts: those of Cityscapes, CamVid, ADE20K (scene parsing), the Oxford pets, Pascal VOC's
``JPEGImages`` and ``SegmentationClass`` alone, U-Net's ``imgs`` and ``masks``, what Roboflow and
CVAT export as masks; any two folders can be named.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from PIL import Image

from fastdata.codecs.jpeg import is_jpeg
from fastdata.codecs.limits import MAX_PIXELS
from fastdata.codecs.pillow import open_image
from fastdata.errors import ImageError, OptionError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import Field, ImageField

from .reading.annotations.masks import MaskReader, class_table
from .reading.image_files import files_below, is_image_name
from .reading.image_list import ImageListSource
from .reading.locations import first_bytes, folders_in
from .reading.options import ImageFolder, Option, SplitOption
from .reading.splits import FolderPair, pairs_of_splits, pairs_within, split_folders_in

__all__ = ["MaskFoldersSource"]


class MaskFoldersSource(ImageListSource):
    """Images with their masks of classes; fields ``image``, ``mask``, ``split``."""

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
            return are_masks(root, mask_pairs(root), "labelIds")
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
            Option(
                "which masks of Cityscapes", ("labelIds", "labelTrainIds", "color", "instanceIds")
            ),
        ] = "labelIds",
        classes: Annotated[
            str | None, Option("a file with names of classes, one a line, or name,r,g,b")
        ] = None,
        lossy: Annotated[bool, Option("whether a JPEG is taken for a mask")] = False,
    ) -> dict[str, Field]:
        if not location.is_dir():
            raise SourceError(f"{location}: not a folder")
        pairs = mask_pairs(location, images or "", masks or "")
        if not pairs:
            raise SourceError(
                f"{location}: no folders of images and masks. Name both: --option images=FOLDER "
                "--option masks=FOLDER"
            )
        names = list(dict.fromkeys(pair.split for pair in pairs))
        splits = self.choose_splits(names, split)
        for pair in pairs:
            if pair.split in splits:
                self._add_all(pair, which, ending)
        if self.num_samples == len(self._rejects):
            raise SourceError(
                f"{location}: no image of {pairs[0].images} has a mask in {pairs[0].others}. If "
                "their names differ by an ending, name it: --option ending=_mask"
            )
        if (location / "ImageSets").is_dir():
            self.notes.append(
                "lists in ImageSets are not read (--format voc --option masks=classes reads them)"
            )
        table = class_table(location, self._mask_paths, classes, which, lossy, self.notes)
        self.beside += [table.path] if table.path is not None else []
        mask = ImageField(channels=1, mask=True, classes=table.names or None)
        self.reader = MaskReader(table.colours, len(table.names) or None, lossy)
        return {"mask": mask, **self.split_field()}

    def _add_all(self, pair: FolderPair, which: str, ending: str | None) -> None:
        endings = ending_of(self.root, pair, which, ending)
        taken = 0
        for name in images_of(self.root, pair, endings):
            mask = mask_of(self.root, pair, name, endings) if endings else ""
            if mask:
                self.add(name, mask, **self.split_number(pair.split))
                taken += 1
            else:
                self.reject(name, f"it has no mask in {pair.others}")
        if endings and pair.images != pair.others:
            others = masks_in(self.root, pair, endings) - taken
            if others > 0:
                self.notes.append(f"{others:,} masks in {pair.others} are of no image; left out")

    def _mask_paths(self) -> Iterator[Path]:
        for row in range(self.num_samples):
            if row not in self._rejects:
                yield self.root / self.names_of(row)[1]


# -- where images and masks are ----------------------------------------------------------


_LOSSLESS = (".png", ".PNG", ".bmp", ".BMP", ".tif", ".tiff", ".TIF", ".ppm", ".pgm", ".gif")
_SUFFIXES = (*_LOSSLESS, ".webp", ".jpg", ".jpeg", ".JPG")
_IMAGES = (
    *("images", "image", "imgs", "img", "jpegimages", "leftimg8bit", "input", "inputs"),
    *("photos", "frames"),
)
_MASKS = (
    *("masks", "mask", "labels", "label", "annotations", "annotation", "annot", "annots"),
    *("gt", "gts", "groundtruth", "ground_truth", "gtfine", "gtcoarse", "segmentation"),
    *("segmentations", "segmentationclass", "segmentationclassraw", "segmentationclasspng"),
    *("trimaps", "targets", "target"),
)
_AFFIXES = ("annot", "_annot", "_labels", "_label", "_masks", "_mask", "_gt", "_annotations")
_ENDINGS = (
    *(("", ""), ("", "_mask"), ("", "_L"), ("", "_label"), ("", "_labels"), ("", "_gt")),
    *(("", "_segmentation"), ("", "_seg"), ("", "_annotation"), ("", "_m"), ("_sat", "_mask")),
    *(("_image", "_mask"), ("_img", "_mask"), ("_image", "_label"), ("_rgb", "_mask")),
)
_LOOKED_AT = 40
_MASKS_LOOKED_AT = 500
_FLAT = 0.7
"""Share of pixels of a mask that equal their neighbour; in a photograph few do."""


def mask_pairs(root: Path, images: str = "", masks: str = "") -> list[FolderPair]:
    """Return the folders of images that have folders of masks.

    images, masks: the folders, if they have unusual names.
    """
    if images or masks:
        for option, name in (("images", images), ("masks", masks)):
            if not name or not (root / name).is_dir():
                raise OptionError(
                    f"{option}={name}: no such folder in {root}; name both images= and masks="
                )
        return pairs_within(root, images, masks)
    found = _side_by_side(root, "")
    found += pairs_of_splits(root, _side_by_side)
    if not found:
        found = _called_alike(root)
    if not found:  # images and masks in one folder
        for split in split_folders_in(root) or [""]:
            pair = FolderPair(split, split or ".", split or ".")
            if ending_of(root, pair) is not None:
                found.append(pair)
    return found


def _side_by_side(root: Path, place: str) -> list[FolderPair]:
    names = folders_in(root / place)
    images = [name for name in names if name.lower() in _IMAGES]
    masks = [name for name in names if name.lower() in _MASKS]
    masks = [_inner(root / place, name) for name in masks]
    masks = [name for name in masks if _first_image(root / place, name)]
    if len(images) != 1 or not masks:
        return []
    if len(masks) > 1:
        raise SourceError(
            f"{root / place}: the masks of {images[0]} may be in {', '.join(masks)}. Say in which: "
            f"--option images={images[0]} --option masks={masks[0]}"
        )
    return pairs_within(root, os.path.join(place, images[0]), os.path.join(place, masks[0]))


def _inner(folder: Path, name: str) -> str:
    """Return the folder of trimaps in one of annotations: that of the Oxford pets."""
    return f"{name}/trimaps" if (folder / name / "trimaps").is_dir() else name


def _first_image(folder: Path, name: str) -> str | None:
    return next((file for file in files_below(folder, name) if file.endswith(_SUFFIXES)), None)


def _called_alike(root: Path) -> list[FolderPair]:
    """Return pairs as ``train`` and ``trainannot``, ``val_images`` and ``val_masks``."""
    names = set(folders_in(root))
    found = []
    for name in [*split_folders_in(root), *sorted(names)]:
        plain = name.removesuffix("_images").removesuffix("_imgs")
        others = [plain + affix for affix in _AFFIXES if plain + affix in names - {name}]
        pair = FolderPair(plain, name, others[0]) if others else None
        if pair and pair not in found:
            found.append(pair)
    return [found[0]._replace(split="")] if len(found) == 1 else found


# -- one image's mask --------------------------------------------------------------------


def ending_of(
    root: Path, pair: FolderPair, which: str = "labelIds", chosen: str | None = None
) -> tuple[str, str] | None:
    """Return the endings of images' and masks' names, without suffix, that belong together.

    chosen: the user's ending of masks.
    The result is the pair with masks for most of the first images; None if no pair has masks.
    """
    cityscapes = [("_leftImg8bit", f"_{kind}_{which}") for kind in ("gtFine", "gtCoarse")]
    endings = [*cityscapes, *_ENDINGS] if chosen is None else [("", chosen)]
    if pair.images == pair.others:
        endings = [ending for ending in endings if ending[1]]
    images = list(itertools.islice(images_of(root, pair, None), _LOOKED_AT))
    files = (name for name in files_below(root, pair.others) if name.endswith(_SUFFIXES))
    there = {_stem(name) for name in itertools.islice(files, _MASKS_LOOKED_AT)}
    counts = [sum(_partner(pair, name, end) in there for name in images) for end in endings]
    return endings[counts.index(max(counts))] if max(counts, default=0) else None


def images_of(root: Path, pair: FolderPair, ending: tuple[str, str] | None) -> Iterator[str]:
    """Yield the images of a folder, without its masks."""
    for name in files_below(root, pair.images):
        mixed = ending is not None and pair.images == pair.others
        if is_image_name(name) and not (mixed and ending and _stem(name).endswith(ending[1])):
            yield name


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]


def mask_of(root: Path, pair: FolderPair, image: str, ending: tuple[str, str]) -> str:
    """Return the mask of an image, relative to the root; "" if there is none."""
    start = _partner(pair, image, ending)
    for suffix in _SUFFIXES if start else ():
        if start + suffix != image and os.path.isfile(os.path.join(root, start + suffix)):
            return start + suffix
    return ""


def _partner(pair: FolderPair, image: str, ending: tuple[str, str]) -> str:
    """Return the name of an image's mask without suffix; "" if the image ends otherwise."""
    stem = _stem(os.path.relpath(image, pair.images))
    if not stem.endswith(ending[0]):
        return ""
    return os.path.normpath(os.path.join(pair.others, stem.removesuffix(ending[0]) + ending[1]))


def masks_in(root: Path, pair: FolderPair, ending: tuple[str, str]) -> int:
    """Return how many masks there are in a folder, whether of images or not."""
    names = files_below(root, pair.others)
    return sum(name.endswith(_SUFFIXES) and _stem(name).endswith(ending[1]) for name in names)


# -- whether it is one -------------------------------------------------------------------


def are_masks(root: Path, pairs: list[FolderPair], which: str) -> bool:
    """Tell whether the first images are photographs, and what may be their masks is flat."""
    looked_at = 0
    for pair in pairs[:3]:
        ending = ending_of(root, pair, which)
        if ending is None:
            continue
        for image, _ in zip(images_of(root, pair, ending), range(3), strict=False):
            mask = mask_of(root, pair, image, ending)
            if mask:
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
