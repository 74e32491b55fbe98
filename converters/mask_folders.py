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
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import SourceError
from fastdata.schema import ImageField, Schema

from .base import FieldSpec
from .reading.annotations.mask_layout import (
    are_masks,
    ending_of,
    images_of,
    mask_of,
    mask_pairs,
    masks_in,
)
from .reading.annotations.masks import (
    CITYSCAPES,
    TABLES,
    ClassTable,
    MaskReader,
    colours_of,
    modes_of,
    read_table,
)
from .reading.image_list import ImageListSource
from .reading.locations import folder_at
from .reading.options import Option, SplitOption
from .reading.refusals import refuse_fields
from .reading.splits import FolderPair

__all__ = ["MaskFoldersSource"]

_LOOKED_AT = 16
_WHERE = (
    "relative to the folder that is packed, where it has another name than usual, or several "
    "could be meant"
)


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

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        split: SplitOption = None,
        images: Annotated[str | None, Option(f"the folder of the images, {_WHERE}")] = None,
        masks: Annotated[str | None, Option(f"the folder of the masks, {_WHERE}")] = None,
        ending: Annotated[
            str | None,
            Option(
                "what the names of masks have before their suffix and those of images have not: "
                "_mask; default: found out"
            ),
        ] = None,
        which: Annotated[
            str,
            Option(
                "which masks of Cityscapes", ("labelIds", "labelTrainIds", "color", "instanceIds")
            ),
        ] = "labelIds",
        classes: Annotated[
            str | None,
            Option(
                "a file with names of classes, one a line, or with their colours too "
                "(name,r,g,b); default: one that is called as usual (labelmap.txt, ...)"
            ),
        ] = None,
        lossy: Annotated[bool, Option("whether a JPEG is taken for a mask")] = False,
    ) -> None:
        refuse_fields(fields, self.name)
        root = Path(location)
        if not root.is_dir():
            raise SourceError(f"{root}: not a folder")
        pairs = mask_pairs(root, images or "", masks or "")
        if not pairs:
            raise SourceError(
                f"{root}: no folders of images and masks. Name both: --option images=FOLDER "
                "--option masks=FOLDER"
            )
        names = list(dict.fromkeys(pair.split for pair in pairs))
        splits = self.begin_splits(root, names, split)
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
        table = self._table(classes, which, lossy)
        mask = ImageField(channels=1, mask=True, classes=table.names or None)
        image = ImageField(channels=channels)
        self.schema = Schema({"image": image, "mask": mask, **self.split_field()})
        count = len(table.names) or None
        self.reader = MaskReader(tuple(self.schema), table.colours, count, lossy)

    def _add_all(self, pair: FolderPair, which: str, ending: str | None) -> None:
        endings = ending_of(self.root, pair, which, ending)
        taken = 0
        for name in images_of(self.root, pair, endings):
            mask = mask_of(self.root, pair, name, endings) if endings else ""
            if mask:
                self.add(name, mask, numbers=self.split_number(pair.split))
                taken += 1
            else:
                self.reject(name, f"it has no mask in {pair.others}")
        if endings and pair.images != pair.others:
            others = masks_in(self.root, pair, endings) - taken
            if others > 0:
                self.notes.append(f"{others:,} masks in {pair.others} are of no image; left out")

    def _masks(self, count: int | None) -> list[Path]:
        rows = (row for row in range(self.num_samples) if row not in self._rejects)
        return [self.root / self.names_of(row)[1] for row in itertools.islice(rows, count)]

    def _table(self, classes: str | None, which: str, lossy: bool) -> ClassTable:
        """Return names and colours of the classes, from a file, or from what is in the masks."""
        modes = modes_of(self._masks(_LOOKED_AT))
        first = self._masks(1)[0].name
        if "JPEG" in modes and not lossy:
            raise SourceError(
                f"{self.root}: its masks are JPEGs, the first {first}; JPEG changes class numbers. "
                "Bring them as PNG; --option lossy=true takes them as they are."
            )
        if which == "instanceIds":
            self.notes.append("instanceIds: masks with numbers beyond 255 are rejects")
        path = self._table_file(classes)
        if path is not None:
            self.beside.append(path)
            table = read_table(path)
            how = "colours" if table.colours and modes & {"RGB", "RGBA", "P"} else "numbers"
            self.notes.append(f"classes are those of {path.name}, by {how} of pixels")
            return table if how == "colours" else table._replace(colours=())
        if first.endswith(f"_{which}.png") and which in CITYSCAPES:
            return ClassTable(CITYSCAPES[which])
        if "P" in modes:
            self.notes.append("masks have palettes: classes are the indices, not the colours")
        if not modes & {"RGB", "RGBA"}:
            return ClassTable(())
        colours = colours_of(self._masks(None))
        if colours:
            self.notes.append(
                f"no table of classes: they are the {len(colours)} colours that occur in masks, "
                "sorted (--option classes=TABLE names them)"
            )
        return ClassTable(tuple(f"#{colour:06x}" for colour in colours), colours)

    def _table_file(self, classes: str | None) -> Path | None:
        if classes:
            return Path(classes)
        folders = [self.root, *(self.root / name for name in ("train", "annotations", "masks"))]
        found = (folder / name for folder in folders for name in TABLES)
        return next((path for path in found if path.is_file()), None)
