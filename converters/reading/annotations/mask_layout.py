"""Where folders of images have their masks: beside them, in split folders, under other endings."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from fastdata.codecs.image import is_jpeg
from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import open_regular

from ..image_files import files_below, is_image_name
from ..locations import first_bytes
from ..splits import FolderPair, pairs_of_splits, pairs_within, split_folders_in

__all__ = ["are_masks", "ending_of", "images_of", "mask_of", "mask_pairs", "masks_in"]

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
"""Share of pixels that are as the one beside them, in a mask. In a photograph few are."""


def mask_pairs(root: Path, images: str = "", masks: str = "") -> list[FolderPair]:
    """Return the folders of images that have folders of masks.

    images, masks: the folders, where they are not called as usual.
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
    names = sorted(entry.name for entry in os.scandir(root / place) if entry.is_dir())
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
    names = {entry.name for entry in os.scandir(root) if entry.is_dir()}
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

    chosen: the ending of masks, where the user names it.
    The pair by which most of the first images have masks; None if by none any has.
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
    """Yield the images of a folder; of one that has masks too, those that are none of these."""
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
            open(mask, "rb", opener=open_regular) as one,
            open(image, "rb", opener=open_regular) as other,
            Image.open(one) as opened,
            Image.open(other) as seen,
        ):
            if opened.size not in (seen.size, seen.size[::-1]) or _flatness(opened) < _FLAT:
                return False
            return seen.format == "JPEG" or _flatness(seen) < _FLAT
    except Exception:  # PIL's plugins raise nearly anything on damaged files
        return False


def _flatness(image: Image.Image) -> float:
    """Return the share of pixels that are as the one to their left, of some rows."""
    pixels = np.asarray(image if image.mode != "RGBA" else image.convert("RGB"))
    if pixels.ndim < 2 or pixels.shape[1] < 2:
        return 0
    rows = pixels[:: max(1, pixels.shape[0] // 64)]
    same = rows[:, 1:] == rows[:, :-1]
    return float((same.all(-1) if same.ndim == 3 else same).mean())
