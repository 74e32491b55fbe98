"""Transforms of whole batches in a loader: where they run, and that nothing else changes."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from memory_data import MemoryData, digest

from fastdata import loader
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.random import Draws, SampleKeys, operation_id
from fastdata.schema import ImageField, ScalarField, Schema
from fastdata.transforms.pipeline import Pipeline
from fastdata.transforms.pixel import PixelLookup

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]
NAMED = {"image": ImageField(), "label": ScalarField(classes=tuple(map(str, range(300))))}
WITH_MASK = {
    "image": ImageField(),
    "mask": ImageField(channels=1, mask=True),
    "label": ScalarField(),
}


def batches(*transforms: Any, data: MemoryData | None = None, **options: Any) -> list[Any]:
    with loader(
        data or MemoryData(20, fields=NAMED),
        batch_size=8,
        transform=[*CROP, *transforms],
        **options,
    ) as it:
        return list(it)


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_batch_stage_is_its_transforms_one_after_another(epoch: int) -> None:
    steps = T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomErasing(value=7)
    made = {}
    for transforms in ((), (*steps, T.Normalize(MEAN, STD))):
        data = MemoryData(20, fields=NAMED)
        with loader(data, batch_size=8, seed=5, transform=[*CROP, *transforms]) as it:
            it.set_epoch(epoch)
            made[len(transforms)] = list(it)
    start = 0
    for before, after in zip(made[0], made[3], strict=True):
        indices = np.arange(start, start + len(before.image))
        start += len(indices)
        images = before.image
        for position, transform in enumerate(steps, start=2):
            number = operation_id(position, type(transform).__name__)
            draws = Draws(5, epoch, number, indices)
            images = transform.apply(images, transform.draw(draws, tuple(images.shape)))
        assert torch.equal(after.image, T.Normalize(MEAN, STD)(images))
        assert after.image.is_contiguous()
        assert torch.equal(after.label, before.label)


def test_batches_are_the_same_for_any_workers_and_after_resuming() -> None:
    transforms = [*CROP, T.RandAugment(), T.CutMix(), T.Normalize(MEAN, STD)]
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 2, "transform": transforms}
    expected = digest(loader(MemoryData(50, fields=NAMED), num_workers=0, **options))
    with loader(MemoryData(50, fields=NAMED), num_workers=3, **options) as it:
        assert digest(it) == expected
        second = [batch.image for batch in it]
        it.set_epoch(1)
        rest = iter(it)
        next(rest)
        state = it.state_dict()
    with loader(MemoryData(50, fields=NAMED), num_workers=1, **options) as other:
        other.load_state_dict(state)
        for there, here in zip(second[1:], other, strict=True):
            assert torch.equal(there, here.image)
    assert digest(loader(MemoryData(50, fields=NAMED), **{**options, "seed": 3})) != expected


def test_worker_methods_agree() -> None:
    made = batches(
        T.ColorJitter(0.4), T.MixUp(), num_workers=2, worker_method="process", dtype=torch.float16
    )
    expected = batches(T.ColorJitter(0.4), T.MixUp(), num_workers=0, dtype=torch.float16)
    for there, here in zip(made, expected, strict=True):
        assert there.image.dtype == torch.float16
        assert torch.equal(there.image, here.image)
        assert torch.equal(there.label, here.label)


def test_a_pipeline_with_a_batch_stage_can_be_pickled() -> None:
    pipeline = Pipeline(
        [*CROP, T.ToDtype(torch.float32), T.ColorJitter(0.3), T.MixUp(), T.Normalize(MEAN, STD)],
        Schema(NAMED),
    )
    batch = batches(T.ToDtype(torch.float32))[0]
    assert pipeline.pixels is not None
    pipeline.pixels.lookup(torch.zeros((1, 3, 2, 2), dtype=torch.uint8))
    stages = pipeline.batch, pickle.loads(pickle.dumps(pipeline)).batch
    made = [
        stage.run(batch, 1, SampleKeys(2, np.arange(8))) for stage in stages if stage is not None
    ]
    assert len(made) == 2
    assert digest([made[0]]) == digest([made[1]])


def test_callables_come_before_batches() -> None:
    def invert(image: torch.Tensor) -> torch.Tensor:
        return 255 - image

    made = batches(invert, T.RandomGrayscale(1.0), T.Normalize(MEAN, STD))
    plain = batches()
    grey = T.RandomGrayscale(1.0).apply(255 - plain[0].image, {"applied": np.ones(8, bool)})
    assert torch.equal(made[0].image, T.Normalize(MEAN, STD)(grey))


def test_pixel_transforms_before_stay_with_the_workers() -> None:
    pipeline = Pipeline(
        [*CROP, T.ToDtype(torch.float32), T.MixUp(), T.Normalize(MEAN, STD)], Schema(NAMED)
    )
    assert pipeline.direct
    assert pipeline.pixels is not None
    assert len(pipeline.pixels.transforms) == 1
    made = batches(T.ToDtype(torch.float32), T.ColorJitter(0.4), T.Normalize(MEAN, STD))
    assert made[0].image.dtype == torch.float32


@pytest.mark.parametrize(
    "moves",
    [
        [T.RandomCrop(14, padding=3), T.RandomHorizontalFlip()],
        [T.CenterCrop((30, 12))],
        [T.RandomResizedCrop(16), T.RandomHorizontalFlip()],
    ],
)
def test_geometry_behind_a_batch_transform_moves_masks_too(moves: list[Any]) -> None:
    # Neither a jitter nor a resize to the size that is there does anything, but the jitter
    # moves what is behind it to the device.
    data = MemoryData(20, fields=WITH_MASK, size=(20, 22))
    here = list(loader(data, batch_size=8, transform=[T.Resize((20, 22)), *moves]))
    there = list(loader(data, batch_size=8, transform=[T.ColorJitter(), *moves]))
    for a, b in zip(here, there, strict=True):
        assert (a.image.int() - b.image.int()).abs().max() <= 1
        assert torch.equal(a.mask, b.mask)


def test_a_batch_transform_of_ones_own() -> None:
    class Darken(T.BatchTransform):
        def draw(self, draws: Draws, shape: tuple[int, int, int, int]) -> T.Parameters:
            return {"factor": draws.uniform()[:, 0]}

        def apply(self, images: torch.Tensor, parameters: T.Parameters) -> torch.Tensor:
            factor = torch.from_numpy(parameters["factor"]).to(images.device)
            return (images * factor[:, None, None, None]).to(images.dtype)

    for before, after in zip(batches(), batches(Darken()), strict=True):
        assert (after.image <= before.image).all()
        assert len((after.image.amax((1, 2, 3))).unique()) > 1


def test_masks_are_left_as_they_are() -> None:
    data = MemoryData(8, fields=WITH_MASK)
    transforms = [T.ColorJitter(0.5), T.RandomErasing(1.0), T.Normalize(MEAN, STD)]
    made = batches(*transforms, data=data)
    assert torch.equal(made[0].mask, batches(data=data)[0].mask)


@pytest.mark.parametrize(
    "transform",
    [
        T.MixUp(num_classes=9),
        T.CutMix(num_classes=9),
        T.RandAugment(),
        T.TrivialAugmentWide(),
        T.AutoAugment(),
        T.AugMix(),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_masks_that_could_not_follow_are_refused(transform: T.BatchTransform) -> None:
    data = MemoryData(8, fields=WITH_MASK)
    message = r"masks cannot follow, .* the mask 'mask'; leave .* T.RandomRotation, .* move masks"
    with pytest.raises(OptionError, match=message):
        batches(transform, data=data)


def test_images_of_a_sample_get_the_same_draws() -> None:
    fields = {"image": ImageField(), "second": ImageField()}
    made = batches(
        T.ColorJitter(0.5, hue=0.2),
        T.CutMix(labels="label", num_classes=300),
        data=MemoryData(8, fields={**fields, "label": ScalarField()}),
    )[0]
    assert torch.equal(made.image, made.second)


def test_mixed_labels_are_shares_of_classes() -> None:
    plain = batches()
    for kind in (T.MixUp, T.CutMix):
        for before, after in zip(plain, batches(kind()), strict=True):
            assert after.label.shape == (len(before.label), 300)
            assert after.label.dtype == torch.float32
            torch.testing.assert_close(after.label.sum(1), torch.ones(len(after.label)))
            own = after.label[torch.arange(len(before.label)), before.label]
            assert (own > 0).sum() >= len(own) - 1
    twice = batches(T.MixUp(), T.CutMix())[0]
    torch.testing.assert_close(twice.label.sum(1), torch.ones(8))
    assert ((twice.label > 0).sum(1) > 2).any()


@pytest.mark.parametrize(
    ("fields", "transform", "message"),
    [
        ({"label": ScalarField()}, T.MixUp(), "'label' has no names of classes; give it num_class"),
        (
            {"a": ScalarField(), "b": ScalarField()},
            T.CutMix(),
            r"'a' or 'b'; name one with labels=",
        ),
        ({"a": ScalarField()}, T.CutMix(labels="c"), r"'c'; .*there are: a"),
        ({"a": ScalarField("float32")}, T.MixUp(), "not of none.*there are: none"),
        ({}, T.RandomErasing(value="random"), "'image'.*put it after Normalize"),
        ({}, T.RandomErasing(value=(1, 2)), "2 values, but images have 3"),
    ],
)
def test_what_does_not_fit_the_fields_is_refused(
    fields: dict[str, Any], transform: Any, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        Pipeline([*CROP, transform], Schema({"image": ImageField(), **fields}))


def test_what_comes_after_normalize_is_checked() -> None:
    schema = Schema(NAMED)
    after = [T.Normalize(MEAN, STD), T.RandomErasing(value="random")]
    Pipeline([*CROP, *after], schema)
    Pipeline([*CROP, T.ColorJitter(), *after], schema)
    with pytest.raises(OptionError, match="RandAugment takes uint8 images; put it before"):
        Pipeline([*CROP, T.ColorJitter(), T.Normalize(MEAN, STD), T.RandAugment()], schema)
    with pytest.raises(OptionError, match="CenterCrop comes after Normalize"):
        Pipeline([T.ColorJitter(), T.Normalize(MEAN, STD), T.CenterCrop(3)], schema)
    with pytest.raises(OptionError, match=r"'image'.*2 means"):
        Pipeline([T.ColorJitter(), T.Normalize((1, 2), (1, 2))], schema)


def test_uint8_arrives_and_is_finished_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    to = torch.Tensor.to

    def watch(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        if tensor.ndim == 4 and arguments and arguments[0] == torch.device("meta"):
            seen.append(tensor.dtype)
        return to(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "to", watch)
    transforms = [
        T.ColorJitter(0.4, 0.4, 0.4, 0.1),
        T.GaussianBlur(3),
        T.RandAugment(),
        T.CenterCrop(12),
        T.MixUp(),
        T.Normalize(MEAN, STD),
        T.RandomErasing(value="random"),
    ]
    made = batches(*transforms, device="meta", dtype=torch.bfloat16)
    assert len(seen) >= 3
    assert set(seen) == {torch.uint8}
    assert made[0].image.device.type == "meta"
    assert made[0].image.dtype == torch.bfloat16
    assert made[0].image.shape == (8, 3, 12, 12)
    assert made[0].label.shape == (8, 300)


# -- pixel transforms in one pass ---------------------------------------------------------

CHAINS = {
    "float32": [T.Normalize(MEAN, STD)],
    "float16": [T.Normalize(MEAN, STD), T.ToDtype(torch.float16)],
    "bfloat16": [T.ToDtype(torch.bfloat16), T.Normalize(MEAN, STD)],
    "unscaled": [T.ToDtype(torch.float32, scale=False)],
    "float64": [T.ToDtype(torch.float64), T.Normalize(MEAN, STD)],
}


def composed(chain: list[Any], images: torch.Tensor) -> torch.Tensor:
    for transform in chain:
        images = transform(images)
    return images


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_one_pass_is_the_composition_bit_for_bit(name: str, memory_format: Any) -> None:
    chain = CHAINS[name]
    images = (
        torch.arange(256, dtype=torch.uint8)
        .repeat(2, 3, 4, 1)
        .contiguous(memory_format=memory_format)
    )
    images[1, 1] = 255 - images[1, 1]
    expected = composed(chain, images)
    look = PixelLookup(chain)
    for made in (look(images), pickle.loads(pickle.dumps(look))(images)):
        assert made.dtype == expected.dtype
        assert torch.equal(made, expected)
        assert made.is_contiguous(memory_format=memory_format)
    assert torch.equal(look(expected.float()), composed(chain, expected.float()))


def test_one_pass_takes_empty_and_grey_images() -> None:
    look = PixelLookup([T.ToDtype(torch.float32)])
    assert look(torch.zeros((0, 3, 4, 5), dtype=torch.uint8)).shape == (0, 3, 4, 5)
    grey = torch.arange(24, dtype=torch.uint8).view(2, 1, 3, 4)
    torch.testing.assert_close(look(grey), grey / 255)


# -- on a GPU --------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHAINS)
def test_one_pass_on_a_gpu_is_the_composition_bit_for_bit(cuda: torch.device, name: str) -> None:
    images = torch.randint(0, 256, (4, 3, 30, 31), dtype=torch.uint8)
    look = PixelLookup(CHAINS[name])
    for count in (4, 3, 1):
        made = look(images[:count].to(cuda))
        assert made.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(made.cpu(), composed(CHAINS[name], images[:count]))


@pytest.mark.gpu
def test_a_gpu_makes_the_batches_of_the_cpu(cuda: torch.device) -> None:
    for transform in (
        T.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        T.RandomGrayscale(0.5),
        T.Grayscale(),
        T.GaussianBlur(5, p=0.5),
        T.RandomErasing(value=(1, 2, 3)),
        T.RandAugment(interpolation="bilinear"),
        T.TrivialAugmentWide(interpolation="bilinear"),
        T.AutoAugment("svhn", interpolation="bilinear"),
        T.AugMix(),
        T.MixUp(),
        T.CutMix(),
        T.RandomCrop(14, padding=2),
    ):
        moves = [T.ColorJitter(), transform]
        for here, there in zip(batches(*moves), batches(*moves, device=cuda), strict=True):
            assert there.image.is_cuda
            difference = (there.image.cpu().int() - here.image.int()).abs()
            # Several steps may each be 1 apart, and an equalisation tells them apart more.
            assert (difference > 4).float().mean() < 0.01, transform
            torch.testing.assert_close(there.label.cpu(), here.label)
