"""Folders of images, and folders of masks: semantic segmentation.

::

    images/train/0.jpg                  train/0.png          leftImg8bit/val/bonn/0_leftImg8bit.png
    masks/train/0.png                   trainannot/0.png     gtFine/val/bonn/0_gtFine_labelIds.png

Layouts: those of Cityscapes, CamVid, ADE20K (scene parsing), the Oxford pets, Pascal VOC's
``JPEGImages`` and ``SegmentationClass`` alone, U-Net's ``imgs`` and ``masks``, what Roboflow and
CVAT export as masks; any two folders can be named.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import SourceError
from fastdata.schema import Field, ImageField

from .reading.annotations.mask_layout import (
    are_masks,
    ending_of,
    images_of,
    mask_of,
    mask_pairs,
    masks_in,
)
from .reading.annotations.masks import MaskReader, class_table
from .reading.image_list import ImageListSource
from .reading.locations import folder_at
from .reading.options import Option, SplitOption
from .reading.splits import FolderPair

__all__ = ["MaskFoldersSource"]


class MaskFoldersSource(ImageListSource):
    """Images with their masks of classes; fields ``image``, ``mask``, ``split``."""

    name = "masks"
    summary = "folders of images and of masks (Cityscapes, CamVid, ADE20K, images/ and masks/)"
    parts = ("images|imgs|leftImg8bit|train", "masks|labels|annotations|gtFine|trainannot")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        root = folder_at(location)
        if root is None or any((root / "Annotations").glob("*.xml")):
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
        images: Annotated[
            str | None, Option("the folder of the images, if not the usual one")
        ] = None,
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
        root = location
        if not root.is_dir():
            raise SourceError(f"{root}: not a folder")
        pairs = mask_pairs(root, images or "", masks or "")
        if not pairs:
            raise SourceError(
                f"{root}: no folders of images and masks. Name both: --option images=FOLDER "
                "--option masks=FOLDER"
            )
        names = list(dict.fromkeys(pair.split for pair in pairs))
        splits = self.choose_splits(names, split)
        for pair in pairs:
            if pair.split in splits:
                self._add_all(pair, which, ending)
        if self.num_samples == len(self._rejects):
            raise SourceError(
                f"{root}: no image of {pairs[0].images} has a mask in {pairs[0].others}. If their "
                "names differ by an ending, say by which: --option ending=_mask"
            )
        if (root / "ImageSets").is_dir():
            self.notes.append(
                "lists in ImageSets are not read (--format voc --option masks=classes reads them)"
            )
        table = class_table(root, self._mask_paths, classes, which, lossy, self.notes)
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
