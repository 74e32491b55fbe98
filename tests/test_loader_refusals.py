"""What a loader refuses when it is made, not at its first batch: no pixel is read for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from boxed import boxed_shard
from memory_data import MemoryData, MemoryImages
from samples import photo, pil_encode
from unpacked_helpers import write_class_folders

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, StringField

CROP = T.RandomResizedCrop(16)
LABELLED: dict[str, Field] = {"image": ImageField(), "label": ScalarField()}
UNLABELLED: dict[str, Field] = {"image": ImageField(), "text": StringField()}


class Unequal(MemoryData):
    """Data whose second image field has images of another size than the first."""

    def _images(self, name: str, indices: np.ndarray, decoder: Any = None) -> MemoryImages:
        images = super()._images(name, indices, decoder)
        images.heights = images.heights + (name == "mask")
        return images


class OneArgument:
    """An object that is called with an image; its class is not."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image


def two_arguments(image: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return image


def data_of(fields: dict[str, Field] = LABELLED) -> MemoryData:
    return MemoryData(20, fields=fields)  # images of 20 to 26 x 20 to 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": T.RandomCrop(21)}, r"RandomCrop takes 21 x 21 pixels, but sample 0 has 20"),
        (
            {"transform": T.RandomCrop(24, padding=1)},
            r"takes 24 x 24 pixels, but sample 0 has 22 x 22",
        ),
        ({"transform": [T.Resize(8), T.RandomCrop(9)]}, "takes 9 x 9 pixels, but sample 0 has 8 x"),
        ({"transform": T.Views(2, [T.RandomCrop(30)])}, "takes 30 x 30 pixels, but sample 0"),
        ({"transform": [T.RandomCrop(30), lambda image: image]}, "takes 30 x 30 pixels, but samp"),
        ({"transform": [CROP, T.RandomErasing(), T.RandomCrop(17)]}, "17 pixels, but sample 0 has"),
        ({"transform": [CROP, T.GaussianBlur(33)]}, "needs larger images than 16 x 16"),
        ({"transform": [T.Resize((9, 50)), T.GaussianBlur((5, 19))]}, "larger images than 50 x 9"),
        ({"transform": [CROP, T.MixUp(num_classes=57)]}, "num_classes=57 met the label 57; labels"),
        ({"transform": [CROP, T.CutMix(num_classes=5)]}, "CutMix with num_classes=5 met the label"),
        (
            {"transform": T.RandomResizedCrop},
            "RandomResizedCrop is the class of a transform; m",
        ),
        ({"transform": [CROP, OneArgument]}, r"OneArgument is the class of a transform; make one"),
        ({"transform": [CROP, T.OnPIL]}, r"OnPIL is the class of a transform"),
        ({"transform": [CROP, two_arguments]}, r"two_arguments\(.*\) -> .* is called with one arg"),
        ({"transform": [CROP, T.PerSample(two_arguments)]}, "called with one argument, the sample"),
        ({"transform": [CROP, T.OnPIL(two_arguments)]}, "called with one argument, the image: mis"),
        ({"dtype": torch.float8_e5m2}, "dtype is a floating torch.dtype, not torch.float8_e5m2"),
        ({"sampler": [3, 20]}, "the sampler yielded 20, but the dataset has 20 samples"),
        ({"sampler": range(21)}, "the sampler yielded 20, but the dataset has 20 samples"),
        ({"sampler": np.array([0.5])}, "the sampler yielded .*0.5.*, which is not an index"),
        ({"sampler": torch.tensor([0.5])}, "which is not an index"),
        ({"sampler": "012"}, "the sampler yielded '0', which is not an index"),
        ({"sampler": [[0, 1]]}, r"the sampler yielded \[0, 1\], which is not an index"),
        ({"batch_sampler": [[0], [20]]}, "in batch 1, yielded 20, but the dataset has 20 samples"),
        ({"batch_sampler": [0, 1]}, "a batch is a list of sample indices"),
        ({"batch_sampler": [[0], []]}, "in batch 1, yielded no samples"),
        ({"batch_sampler": ((-1,),)}, "negative indices are not taken here"),
        ({"weights": ["a"] * 20}, "weights are one number for each sample .could not convert"),
        ({"weights": object()}, "weights are one number for each sample"),
        ({"multiprocessing_context": "thread"}, "multiprocessing_context is one of .*not 'thread'"),
        ({"multiprocessing_context": 5}, "multiprocessing_context is one of .*, not 5"),
        (
            {
                "transform": [CROP, lambda image: image],
                "multiprocessing_context": "spawn",
                "num_workers": 1,
            },
            "transforms cannot be sent to worker processes: .*no lambda",
        ),
        ({"device": "mps"}, "device is 'mps', which torch .* cannot use here"),
        ({"rank": "0", "world_size": "2"}, "rank='0' is not None or an integer"),
        ({"rank": 0, "world_size": 2.0}, "world_size=2.0 is not None or an integer"),
        ({"drop_last": "no"}, "drop_last is one of True, False, not 'no'"),
        ({"even": None}, "even is one of True, False, not None"),
    ],
)
def test_wrong_options_are_refused_when_the_loader_is_made(
    options: dict[str, Any], message: str
) -> None:
    data = data_of()
    with pytest.raises(OptionError, match=message):
        fastdata.loader(data, **{"transform": CROP, "num_workers": 0} | options)
    assert data.reads == []


@pytest.mark.parametrize(
    ("fields", "transform", "message"),
    [
        (LABELLED, T.Normalize([0.5] * 4, [0.5] * 4), "4 means, but images have 3 channel"),
        (UNLABELLED, T.MixUp(num_classes=2), "mixes the labels of one field of whole numbers"),
        (LABELLED, T.MixUp(), "needs to know how many classes"),
        (LABELLED, T.MixUp(labels="target", num_classes=2), "not of 'target'"),
        (LABELLED, T.DropEmptyBoxes(), "drops from one field of boxes, not from none"),
        (LABELLED, T.RandomErasing(value=[1, 2]), "channel"),
        ({"image": ImageField(channels=1)}, T.Normalize([0.5] * 3, [0.5] * 3), "3 means"),
    ],
)
def test_transforms_that_do_not_suit_the_fields_are_refused_when_the_loader_is_made(
    fields: dict[str, Field], transform: Any, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        fastdata.loader(data_of(fields), transform=[CROP, transform], num_workers=0)


def test_images_and_masks_of_different_sizes_are_refused_when_the_loader_is_made() -> None:
    fields: dict[str, Field] = {"image": ImageField(), "mask": ImageField(channels=1, mask=True)}
    said = "sample 0 has 'image' of 20 x 20 and 'mask' of 21 x 20 pixels"
    data = Unequal(6, fields=fields)
    for transform in (CROP, T.RandomHorizontalFlip(), T.Views(2, [CROP])):
        if isinstance(transform, T.Views):
            data = Unequal(6, fields={"image": ImageField(), "mask": ImageField(channels=1)})
        with pytest.raises(OptionError, match=said):
            fastdata.loader(data, transform=transform)
    assert data.reads == []
    fastdata.loader(data)  # nothing moves


def test_a_sample_that_is_left_out_may_be_too_small() -> None:
    options: dict[str, Any] = {"transform": T.RandomCrop(24), "num_workers": 0}
    data = MemoryData(30)  # one of 35 is of 26 x 24
    (large,) = (i for i in range(30) if (20 + i % 7) >= 24 and (20 + i % 5) >= 24 and i < 5)
    weights = np.arange(30) == large
    for order in ({"sampler": [large]}, {"batch_sampler": [[large]]}, {"weights": weights}):
        batch = next(iter(fastdata.loader(data, **options, **order)))
        assert batch.image.shape == (1, 3, 24, 24)
    with pytest.raises(OptionError, match="takes 24 x 24 pixels, but sample 0 has 20 x 20"):
        fastdata.loader(data, **options)


def test_the_first_sample_that_is_too_small_is_named() -> None:
    with pytest.raises(OptionError, match="but sample 7 has 20 x 22 with its padding"):
        fastdata.loader(MemoryData(50), transform=T.RandomCrop((21, 20)), weights=np.arange(50) > 0)


def test_files_that_are_not_packed_are_looked_at(tmp_path: Path) -> None:
    pixels = pil_encode(photo(30, 40), "PNG")
    write_class_folders(tmp_path, {f"{n}.png": pixels for n in range(4)})
    with pytest.raises(OptionError, match="takes 31 x 31 pixels, but sample 0 has 30 x 40"):
        fastdata.loader(tmp_path, transform=T.RandomCrop(31))


def test_boxes_of_the_wrong_fields_are_refused_when_the_loader_is_made(tmp_path: Path) -> None:
    path = boxed_shard(tmp_path / "x.lmdb", count=4)
    for drop in (T.DropEmptyBoxes("first"), T.DropEmptyBoxes("boxes", also="number")):
        with pytest.raises(OptionError, match="array field whose first length varies"):
            fastdata.loader(path, transform=[CROP, drop])


def test_data_without_images_refuse_transforms_of_images() -> None:
    fields: dict[str, Field] = {"label": ScalarField(), "points": ArrayField("int16", (2, 3))}
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 0}
    with pytest.raises(OptionError, match="changes images, but the dataset has none"):
        fastdata.loader(data_of(fields), transform=[CROP, OneArgument()], **options)
    with pytest.raises(OptionError, match="changes images, but the dataset has none"):
        fastdata.loader(data_of(fields), transform=[OneArgument()], **options)
    batch = next(iter(fastdata.loader(data_of(fields), **options)))
    assert batch.label.tolist() == [0, 3, 6, 9]
