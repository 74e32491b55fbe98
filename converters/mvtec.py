"""MVTec AD and MVTec LOCO AD, the anomaly detection datasets: one category or all.

::

    bottle/train/good/000.png                       breakfast_box/validation/good/000.png
    bottle/test/broken_large/000.png                breakfast_box/test/logical_anomalies/000.png
    bottle/ground_truth/broken_large/000_mask.png   breakfast_box/ground_truth/logical_anomalies/000/000.png

Sources: P. Bergmann et al., "MVTec AD: A Comprehensive Real-World Dataset for Unsupervised
Anomaly Detection", CVPR 2019; "Beyond Dents and Scratches", IJCV 2022; readmes in their archives.
"""  # noqa: E501

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdata.codecs.image import decode_image
from fastdata.codecs.lossy_masks import without_loss
from fastdata.errors import SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import Field, ImageField, ScalarField

from .listing import Listing
from .reading.annotations.annotated import frame_of
from .reading.image_files import files_below, is_image_name
from .reading.locations import folders_in, printable
from .reading.options import SplitOption
from .reading.selection import left_out

__all__ = ["MvtecSource"]

_GOOD = "good"
_SPLITS = ("train", "validation", "test")


class MvtecSource(Listing):
    """Images with their masks; fields ``image``, ``mask``, ``defect``, ``category``, ``split``."""

    name = "mvtec"
    summary = "MVTec AD or LOCO: a category's train, test and ground_truth, or all categories"
    parts = ("train/good", "test", "ground_truth")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return bool(_categories(Path(location)))

    def list_samples(self, location: Path, *, split: SplitOption = None) -> dict[str, Field]:
        tops = _categories(location)
        if not tops:
            raise SourceError(
                f"{location}: no MVTec AD. Expected train/good, test/<defect> and "
                "ground_truth/<defect> in it, or folders that have these."
            )
        if tops == [""]:  # one category; keys begin with its name
            self.root, tops = location.resolve().parent, [location.resolve().name]
        else:
            others = [printable(name) for name in folders_in(location) if name not in tops]
            self.notes += left_out("folders without train/good, test and ground_truth", others)
        folders = [
            (top, part, defect)
            for top in tops
            for part in _SPLITS
            if (self.root / top / part).is_dir()
            for defect in sorted(folders_in(self.root / top / part), key=lambda n: n != _GOOD)
        ]
        # The classes are those of all splits, whichever is taken.
        defects = [_GOOD, *sorted({defect for _, _, defect in folders} - {_GOOD})]
        found = {part for _, part, _ in folders}
        self.choose_splits([part for part in _SPLITS if part in found], split)
        for top, part, defect in folders:
            truth = f"{top}/ground_truth/{defect}"
            images = files_below(self.root, f"{top}/{part}/{defect}")
            for image in filter(is_image_name, images if part in self.splits else ()):
                masks = self._masks_of(truth, os.path.basename(image))
                if masks or defect == _GOOD:
                    label = {"defect": defects.index(defect), "category": tops.index(top)}
                    self.add(image, *masks, **label, **self.split_number(part))
                else:
                    self.reject(image, f"its mask {truth}/{Path(image).stem}_mask.png is missing")
        if not self.num_samples:
            raise SourceError(f"{location}: no images in its {len(folders)} folders")
        self.reader = MvtecReader()
        return {
            "mask": ImageField(channels=1, mask=True),
            "defect": ScalarField(classes=tuple(map(printable, defects))),
            "category": ScalarField(classes=tuple(map(printable, tops))),
            **self.split_field(),
        }

    def _masks_of(self, truth: str, name: str) -> list[str]:
        """Return the masks of an image: one file, or those of a folder, as LOCO has them."""
        start = os.path.join(truth, os.path.splitext(name)[0])
        if os.path.isdir(self.root / start):
            return [os.path.join(start, mask) for mask in sorted(os.listdir(self.root / start))]
        return [f"{start}_mask.png"] * os.path.isfile(self.root / f"{start}_mask.png")


@dataclass(frozen=True)
class MvtecReader:
    """How a worker reads an image with its mask: 255 is a defect, and a good image has zeros."""

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an image."""
        image, *masks = files
        data = read_regular(image)
        if len(masks) == 1 and masks[0].endswith("_mask.png"):
            return {"image": data, "mask": read_regular(masks[0])}
        frame = frame_of(data, None)
        mask = frame.mask(frame.blank())
        for path in masks:
            found = decode_image(without_loss(read_regular(path)), 1, mask=True).pixels[:, :, 0]
            if found.shape != mask.shape:
                raise SourceError(f"its mask {path} has {found.shape}, the image {mask.shape}")
            mask[found > 0] = 255
        return {"image": data, "mask": mask}


def _categories(root: Path) -> list[str]:
    """Return the folders of categories; "" if it is one.  Class folders have no ground truth."""
    parts = ("train/good", "test", "ground_truth")
    names = ("", *folders_in(root)) if root.is_dir() else ()
    return [name for name in names if all((root / name / part).is_dir() for part in parts)]
