"""RandomApply, RandomChoice and RandomOrder: each image decides for itself, in any batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from boxed import boxed_shard, visible
from memory_data import MemoryData, digest
from samples import write_shard
from worker_helpers import FIELDS, PICTURES, SCENES, pictures, scenes

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.random import Draws, operation_id
from fastdata.schema import ImageField, ScalarField
from fastdata.transforms.boxes import transform_boxes
from fastdata.transforms.color import to_grayscale
from fastdata.transforms.geometry import Geometry
from fastdata.transforms.warps import shifts

COUNT, SEED = 24, 3
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def invert(image: torch.Tensor) -> torch.Tensor:
    return 255 - image


def same(image: torch.Tensor) -> torch.Tensor:
    """A callable, with which images are made sample by sample, and JPEGs never reduced."""
    return image


def noisy(image: torch.Tensor) -> torch.Tensor:
    noise = torch.randint(0, 20, image.shape, dtype=torch.uint8)
    return image // 2 + noise


class Add(T.BatchTransform):
    """Adds a number, so that the order in which it comes is seen after `Double`."""

    def draw(self, draws: Draws, shape: Any) -> T.Parameters:
        return {"number": draws.integers(9)[:, 0] + 1}

    def apply(self, images: torch.Tensor, parameters: T.Parameters) -> torch.Tensor:
        return images + torch.from_numpy(parameters["number"])[:, None, None, None].to(torch.uint8)


class Double(T.BatchTransform):
    def draw(self, draws: Draws, shape: Any) -> T.Parameters:
        return {}

    def apply(self, images: torch.Tensor, parameters: T.Parameters) -> torch.Tensor:
        return images * 2


class Turn(T.GeometricTransform):
    """Turns each image by one to three quarters."""

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        return geometry.turn(draws.integers(3)[:, 0] + 1)


class Shift(T.GeometricTransform):
    """Shifts each image by parts of a pixel, which is a warp."""

    keeps_size = True

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        x, y = draws.uniform(2).T * 9
        every = np.ones(len(geometry), np.bool_)
        height, width = geometry.height, geometry.width
        return geometry.warp(shifts(x, y), every, height, width, interpolation="bilinear")


CROP = T.RandomResizedCrop(24)

MEMBERS: dict[str, Callable[[Any], list[Any]]] = {
    "flip": lambda one: [CROP, one(T.RandomHorizontalFlip(1.0))],
    "flip first": lambda one: [one(T.RandomHorizontalFlip(1.0)), CROP],
    "crop first": lambda one: [one(T.RandomCrop(120)), CROP],
    "padding": lambda one: [one(T.CenterCrop((400, 90))), T.Resize((40, 50)), T.RandomCrop(24)],
    "resized first": lambda one: [one(T.Resize(200)), CROP],
    "cubic": lambda one: [one(T.Resize((90, 70), "bicubic")), T.RandomResizedCrop(24)],
    "then cubic": lambda one: [one(T.RandomCrop(120)), T.RandomResizedCrop(24, antialias=True)],
    "flip down": lambda one: [CROP, one(T.RandomVerticalFlip(1.0)), T.RandomHorizontalFlip()],
    "filled": lambda one: [one(T.Pad((9, 30), fill=(9, 99, 199))), T.Resize((50, 50)), CROP],
    "reflected": lambda one: [CROP, one(T.Pad(7, padding_mode="reflect")), T.CenterCrop(38)],
    "zoomed out": lambda one: [one(T.RandomZoomOut(fill=9, p=1.0)), T.Resize((40, 40))],
    "turned": lambda one: [CROP, one(Turn()), T.RandomCrop(20)],
    "turned first": lambda one: [T.RandomHorizontalFlip(), one(Turn()), CROP],
    "warped": lambda one: [CROP, one(Shift())],
    "warped first": lambda one: [T.RandomHorizontalFlip(), one(Shift()), CROP],
    "colours": lambda one: [CROP, one(T.ColorJitter(0.5, 0.5, 0.5, 0.2))],
    "erasing": lambda one: [CROP, T.Normalize(MEAN, STD), one(T.RandomErasing(1.0))],
    "geometry on batches": lambda one: [
        CROP,
        T.RandomGrayscale(0.5),
        one(T.RandomHorizontalFlip(1.0)),
    ],
    "callable": lambda one: [CROP, one(invert), T.Normalize(MEAN, STD)],
    "callable that draws": lambda one: [CROP, one(noisy)],
    "colours before a callable": lambda one: [CROP, one(T.ColorJitter(0.5)), invert],
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs as JPEGs and pixels; large ones, which are decoded reduced."""
    records = pictures(COUNT, size=(300, 340))[::2] + pictures(COUNT, "raw", (130, 140))[1::2]
    return write_shard(tmp_path_factory.mktemp("stored") / "p.lmdb", records, PICTURES)


def images(path: Any, transform: Any, **options: Any) -> Any:
    """Return all images of an epoch in order, [n, C, H, W]."""
    options = {"batch_size": 8, "seed": SEED, "num_workers": 0, **options}
    with fastdata.loader(path, transform=transform, **options) as it:
        return torch.cat([batch.image for batch in it])


def uniform(position: int, path: str, count: int = COUNT, draws: int = 1) -> Any:
    """Return what a transform draws in epoch 0, [n, draws]."""
    number = operation_id(position, path)
    return Draws(SEED, 0, number, np.arange(count)).uniform(draws)


# -- one decision for each image ---------------------------------------------------------------


@pytest.mark.parametrize("case", MEMBERS)
def test_random_apply_changes_the_images_that_it_chose(stored: Path, case: str) -> None:
    def with_p(p: float) -> list[Any]:
        return MEMBERS[case](lambda member: T.RandomApply([member], p=p))

    made = images(stored, with_p(0.4))
    applied, left = images(stored, with_p(1.0)), images(stored, with_p(0.0))
    position = next(n for n, one in enumerate(with_p(0.4)) if isinstance(one, T.RandomApply))
    which = torch.from_numpy(uniform(position, "RandomApply")[:, 0] < 0.4)
    assert 0 < which.sum() < COUNT
    assert (applied != left).flatten(1).any(1).all()  # so that the two can be told apart
    assert torch.equal(made[which], applied[which])
    assert torch.equal(made[~which], left[~which])


@pytest.mark.parametrize("case", MEMBERS)
def test_an_image_is_the_same_in_any_batch(stored: Path, case: str) -> None:
    transform = MEMBERS[case](lambda member: T.RandomApply([member], p=0.5))
    expected = images(stored, transform)
    assert torch.equal(images(stored, transform, batch_size=1), expected)
    assert torch.equal(images(stored, transform, batch_size=COUNT), expected)
    workers = {"num_workers": 2, "worker_method": "process"}
    assert torch.equal(images(stored, transform, batch_size=COUNT, **workers), expected)


def test_an_image_with_several_choices_is_the_same_in_any_batch(
    stored: Path, tmp_path: Path
) -> None:
    pads = [T.Pad(9, fill=9), T.Pad(4, padding_mode="edge"), T.RandomCrop(40)]
    resize = T.Resize((40, 44))
    on_batches = [T.Resize((64, 64)), T.RandomGrayscale(0.5)]
    on_batches += [T.RandomApply([one]) for one in pads]
    for transform in ([*on_batches, resize], [T.RandomPerspective(p=0.5), CROP]):
        made = [images(stored, transform, batch_size=n) for n in (1, 8, COUNT)]
        assert torch.equal(made[0], made[1])
        assert torch.equal(made[0], made[2])

    path = boxed_shard(tmp_path / "boxed.lmdb", COUNT)
    members = [T.RandomIoUCrop(0.2, 0.8), T.RandomPerspective(p=1.0)]
    transform = [T.RandomRotation(20), *(T.RandomApply([one]) for one in members), resize]
    boxes = []
    for batch_size in (1, 8, COUNT):
        with fastdata.loader(path, batch_size=batch_size, seed=SEED, transform=transform) as it:
            boxes.append([one for batch in it for one in batch.boxes])
    for alone, some, every in zip(*boxes, strict=True):
        assert torch.equal(alone, some)
        assert torch.equal(alone, every)


def test_p_of_one_and_none_are_the_members_and_nothing(stored: Path) -> None:
    class Same(T.BatchTransform):
        def draw(self, draws: Draws, shape: Any) -> T.Parameters:
            return {}

        def apply(self, images: torch.Tensor, parameters: T.Parameters) -> torch.Tensor:
            return images.flip(3)

    flips = [T.RandomHorizontalFlip(1.0), Same()]
    crop = [T.CenterCrop(100)]
    assert torch.equal(images(stored, [*crop, T.RandomApply(flips, 1)]), images(stored, crop))
    assert torch.equal(images(stored, [*crop, T.RandomApply(flips, 0)]), images(stored, crop))


def test_all_members_of_random_apply_share_its_decision(stored: Path) -> None:
    """Geometry, colours and a callable: two flips of an image are none."""

    def flipped(image: torch.Tensor) -> torch.Tensor:
        return image.flip(2)

    both = [T.RandomHorizontalFlip(1.0), T.RandomGrayscale(1.0), flipped]
    made = images(stored, [T.CenterCrop(100), T.RandomApply(both, p=0.5)])
    plain = images(stored, T.CenterCrop(100))
    grey = images(stored, [T.CenterCrop(100), T.RandomGrayscale(1.0)])
    which = torch.from_numpy(uniform(1, "RandomApply")[:, 0] < 0.5)
    assert torch.equal(made[which], grey[which])
    assert torch.equal(made[~which], plain[~which])


CHOICES: dict[str, tuple[list[Any], list[Any]]] = {
    "crops": ([T.RandomResizedCrop(24, scale=(0.05, 0.2)), CROP, T.CenterCrop(24)], []),
    "crops and resizes": (
        [T.Resize((24, 24)), CROP, T.RandomApply([T.Resize(40), T.RandomCrop(24)], 1)],
        [],
    ),
    "filters": ([T.RandomResizedCrop(24, interpolation="bicubic"), CROP, T.Resize((24, 24))], []),
    "warps and turns": ([Shift(), Turn(), T.RandomVerticalFlip(1.0)], [CROP]),
    "colours": ([T.ColorJitter(0.5), T.GaussianBlur(3), T.RandomGrayscale(1.0)], [CROP]),
    "kinds": ([T.RandomHorizontalFlip(1.0), T.ColorJitter(0.5), invert], [CROP]),
}


@pytest.mark.parametrize("case", CHOICES)
def test_random_choice_applies_the_member_that_it_chose(stored: Path, case: str) -> None:
    members, before = CHOICES[case]
    made = images(stored, [*before, T.RandomChoice(members, p=[1, 2, 1])])
    choice = np.searchsorted([0.25, 0.75], uniform(len(before), "RandomChoice")[:, 0], "right")
    for number in range(3):
        weights = [float(number == other) for other in range(3)]
        alone = images(stored, [*before, T.RandomChoice(members, p=weights)])
        which = torch.from_numpy(choice == number)
        assert which.any()
        assert torch.equal(made[which], alone[which])
    workers = {"num_workers": 2, "worker_method": "process", "batch_size": COUNT}
    transform = [*before, T.RandomChoice(members, p=[1, 2, 1])]
    assert torch.equal(images(stored, transform, **workers), made)


def test_random_order_is_a_plain_loop(stored: Path) -> None:
    members = [Add(), Double(), T.RandomErasing(1.0, value=50)]
    before = images(stored, CROP)
    made = images(stored, [CROP, T.RandomOrder(members)])
    order = uniform(1, "RandomOrder", draws=3).argsort(axis=1)
    assert len({tuple(row) for row in order.tolist()}) > 3
    for at in range(COUNT):
        image = before[at : at + 1]
        for number in order[at]:
            member = members[number]
            path = f"RandomOrder/{number}/{type(member).__name__}"
            draws = Draws(SEED, 0, operation_id(1, path), np.array([at]))
            image = member.apply(image, member.draw(draws, tuple(image.shape)))  # type: ignore[arg-type]
        assert torch.equal(made[at], image[0])


def test_random_order_of_geometry_colours_and_callables(stored: Path) -> None:
    transform = [CROP, T.RandomOrder([T.RandomHorizontalFlip(1.0), T.RandomGrayscale(1.0), invert])]
    made = images(stored, transform)
    plain = images(stored, [CROP, same]).flip(3)
    order = uniform(1, "RandomOrder", draws=3).argsort(axis=1)
    grey_first = torch.from_numpy((order == 1).argmax(1) < (order == 2).argmax(1))
    first, last = 255 - to_grayscale(plain), to_grayscale(255 - plain)
    assert torch.equal(made, torch.where(grey_first[:, None, None, None], first, last))
    assert torch.equal(images(stored, transform, num_workers=2, batch_size=5), made)


def test_choices_are_as_frequent_as_they_should_be() -> None:
    count = 3000
    data = MemoryData(count, size=(2, 2))
    error = 4 * np.sqrt(0.25 / count)

    def values(transform: Any) -> Any:
        black = T.RandomErasing(0.0)  # so that all begin with the same value
        white = [T.ToDtype(torch.float32), Fill(0.0), black, transform]
        return images(data, white, batch_size=500)[:, 0, 0, 0].numpy()

    chosen = values(T.RandomApply([Fill(1.0)], p=0.3))
    assert abs(chosen.mean() - 0.3) < error
    chosen = values(T.RandomChoice([Fill(1.0), Fill(2.0), Fill(3.0)], p=[2, 0, 6]))
    assert abs((chosen == 1).mean() - 0.25) < error
    assert set(chosen.tolist()) == {1.0, 3.0}
    chosen = values(T.RandomChoice([Fill(1.0), Fill(2.0)]))
    assert abs((chosen == 1).mean() - 0.5) < error
    last = values(T.RandomOrder([Fill(1.0), Fill(2.0), Fill(3.0)]))
    for number in (1, 2, 3):
        assert abs((last == number).mean() - 1 / 3) < error


class Fill(T.BatchTransform):
    def __init__(self, value: float) -> None:
        self.value = value

    def draw(self, draws: Draws, shape: Any) -> T.Parameters:
        return {}

    def apply(self, images: torch.Tensor, parameters: T.Parameters) -> torch.Tensor:
        return torch.full_like(images, self.value)


def test_choosers_in_choosers(stored: Path) -> None:
    inner = T.RandomChoice([T.RandomHorizontalFlip(1.0), T.RandomGrayscale(1.0)])
    made = images(stored, [CROP, T.RandomApply([inner, invert], p=0.6)])
    applied = uniform(1, "RandomApply")[:, 0] < 0.6
    choice = (uniform(1, "RandomApply/0/RandomChoice")[:, 0] >= 0.5).astype(int)
    plain = images(stored, [CROP, same])
    kinds = [plain.flip(3), images(stored, [CROP, same, T.RandomGrayscale(1.0)])]
    for at in range(COUNT):
        expected = 255 - kinds[choice[at]][at] if applied[at] else plain[at]
        assert torch.equal(made[at], expected)
    assert {*zip(applied.tolist(), choice.tolist(), strict=True)} == {
        (applied, choice) for applied in (False, True) for choice in (0, 1)
    }


def test_epochs_differ_and_resuming_goes_on(stored: Path) -> None:
    transform = [
        T.RandomChoice([T.RandomResizedCrop(24, scale=(0.1, 0.3)), T.CenterCrop(24)]),
        T.RandomApply([T.ColorJitter(0.5), invert], p=0.5),
        T.RandomOrder([T.GaussianBlur(3), T.ColorJitter(0.3)]),
    ]
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 1, "transform": transform}
    with fastdata.loader(stored, num_workers=2, **options) as it:
        epochs = [list(it), list(it)]
        assert digest(epochs[0]) != digest(epochs[1])
        it.set_epoch(1)
        rest = iter(it)
        next(rest)
        state = it.state_dict()
    with fastdata.loader(stored, num_workers=0, **options) as other:
        other.load_state_dict(state)
        assert digest(other) == digest(epochs[1][1:])


# -- masks, boxes, labels ----------------------------------------------------------------------


def test_masks_and_boxes_move_with_the_member_of_their_image(tmp_path: Path) -> None:
    """Box k of a sample is a rectangle in channel k, and in the mask."""
    path = boxed_shard(tmp_path / "boxed.lmdb", 40)
    member = T.RandomChoice(
        [
            T.RandomResizedCrop((90, 70), scale=(0.5, 1.0)),
            T.RandomApply([T.RandomHorizontalFlip(1.0), T.Resize((90, 70))], 1),
            T.RandomApply([T.CenterCrop((120, 130)), T.Resize((90, 70), "bicubic")], 1),
        ]
    )
    seen = 0
    for transform in ([member], [T.CenterCrop(64), T.ColorJitter(0.1), T.RandomApply([FLIP])]):
        with fastdata.loader(path, batch_size=16, seed=4, transform=transform) as it:
            for batch in it:
                for image, mask, boxes in zip(batch.image, batch.mask, batch.boxes, strict=True):
                    for channel, box in zip(image.numpy(), boxes.tolist(), strict=False):
                        found = visible(channel)
                        sides = np.subtract(box[2:], box[:2])
                        if found is None or (sides < 3).any():
                            continue
                        np.testing.assert_allclose(found, box, atol=1.01)
                        seen += 1
                    shown = visible(image.numpy().max(0)), visible(mask[0].numpy())
                    if None not in shown:
                        np.testing.assert_allclose(*shown, atol=1.01)
    assert seen > 60


FLIP = T.RandomHorizontalFlip(1.0)


def test_random_iou_crop_of_some_images_is_that_of_a_plain_loop(tmp_path: Path) -> None:
    path = boxed_shard(tmp_path / "boxed.lmdb", 32)

    def run(p: float, **options: Any) -> list[Any]:
        crop = T.RandomApply([T.RandomIoUCrop(sampler_options=[0.3, 0.7])], p=p)
        transform = [T.RandomHorizontalFlip(), crop, T.Resize((60, 60))]
        options = {"batch_size": 8, "seed": SEED, "num_workers": 0, **options}
        with fastdata.loader(path, transform=transform, **options) as it:
            batches = list(it)
        return [
            {name: getattr(batch, name)[at] for name in ("image", "mask", "boxes", "first")}
            for batch in batches
            for at in range(len(batch.image))
        ]

    made, applied, left = run(0.5), run(1.0), run(0.0)
    which = uniform(1, "RandomApply", 32)[:, 0] < 0.5
    assert which.any()
    assert not which.all()
    for at in range(32):
        expected = applied[at] if which[at] else left[at]
        for name, value in expected.items():
            assert torch.equal(made[at][name], value), (at, name)
    again = run(0.5, batch_size=32, num_workers=2, worker_method="process")
    for here, there in zip(made, again, strict=True):
        assert torch.equal(here["image"], there["image"])
        assert torch.equal(here["boxes"], there["boxes"])


def test_boxes_beyond_an_image_are_left_where_nothing_is_cut() -> None:
    """A crop cuts boxes off at its edges, but only those of the images that it is for."""
    whole = Geometry.of([50], [60])
    cropped = Geometry.of_parts(
        [(np.array([0]), whole.window(0, 0, 40, 40)), (np.array([1]), whole)]
    )
    moved = transform_boxes(cropped, [[-5, 3, 90, 20], [-5, 3, 90, 20]], [1, 1])
    assert moved.boxes.tolist() == [[0, 3, 40, 20], [-5, 3, 90, 20]]


LABELLED = {"image": ImageField(), "label": ScalarField(classes=tuple(map(str, range(80))))}


def test_random_choice_of_mixup_and_cutmix_mixes_each_with_its_like() -> None:
    data = MemoryData(COUNT, size=(16, 16), fields=LABELLED)  # labels are 3 * index
    transform = T.RandomChoice([T.MixUp(), T.CutMix()])
    with fastdata.loader(data, batch_size=12, seed=SEED, transform=transform) as it:
        made = list(it)
    plain = images(MemoryData(COUNT, size=(16, 16), fields=LABELLED), None)
    labels = torch.cat([batch.label for batch in made])
    assert labels.shape == (COUNT, 80)
    assert labels.dtype == torch.float32
    torch.testing.assert_close(labels.sum(1), torch.ones(COUNT))
    cut = uniform(0, "RandomChoice")[:, 0] >= 0.5
    mixed = 0
    for at, (image, shares) in enumerate(
        zip(torch.cat([b.image for b in made]), labels, strict=True)
    ):
        partners = [int(n) // 3 for n in shares.nonzero()[:, 0] if n != 3 * at]
        share = float(shares[3 * at])
        if not partners:
            continue
        partner = partners[0]
        mixed += 1
        assert cut[partner] == cut[at]
        assert partner // 12 == at // 12
        if cut[at]:
            own, other = (image == plain[at]).all(0), (image == plain[partner]).all(0)
            assert (own | other).all()
            assert float(own.float().mean()) == pytest.approx(share, abs=1e-6)
        else:
            blend = plain[at].float() * share + plain[partner].float() * (1 - share)
            assert (image.float() - blend).abs().max() <= 0.51
    assert mixed > 15


def test_labels_are_shares_also_where_no_image_is_mixed() -> None:
    data = MemoryData(COUNT, size=(16, 16), fields=LABELLED)
    for p in (0.0, 0.1):
        transform = T.RandomApply([T.MixUp()], p=p)
        with fastdata.loader(data, batch_size=1, transform=transform) as it:
            labels = torch.cat([batch.label for batch in it])  # alone, each is its own partner
        assert torch.equal(labels, torch.eye(80)[torch.arange(COUNT) * 3])
    with pytest.raises(OptionError, match="num_classes=9 met the label"):
        list(fastdata.loader(data, transform=T.RandomApply([T.MixUp(num_classes=9)], 0.0)))


# -- other loaders -----------------------------------------------------------------------------

EVERYTHING = [
    T.RandomChoice([T.RandomCrop(16), T.CenterCrop(16)]),
    T.RandomApply([T.RandomHorizontalFlip(1.0), T.ColorJitter(0.4)], p=0.5),
    T.RandomOrder([T.RandomGrayscale(0.5), T.RandomHorizontalFlip()]),
    T.Normalize(MEAN, STD),
    T.RandomChoice([T.MixUp(num_classes=80), T.CutMix(num_classes=80)]),
]


@pytest.mark.parametrize("options", [{"cache": "device"}, {"cache": "ram"}, {"num_workers": 2}])
def test_caches_and_workers_make_the_same_batches(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write_shard(tmp_path / "p.lmdb", pictures(COUNT, size=(40, 50)), PICTURES)
    common: dict[str, Any] = {"batch_size": 7, "seed": 9, "transform": EVERYTHING}
    with fastdata.loader(path, num_workers=0, **common) as it:
        expected = [digest(it), digest(it)]
    with fastdata.loader(path, **common, **options) as it:
        assert [digest(it), digest(it)] == expected


def test_views_choose_for_themselves(stored: Path) -> None:
    views = T.Views(2, [CROP, T.RandomApply([T.RandomHorizontalFlip(1.0)], p=0.5)])
    first, second = zip(
        *(
            batch.image
            for batch in fastdata.loader(stored, batch_size=8, seed=SEED, transform=views)
        ),
        strict=True,
    )
    for view, found in enumerate((first, second)):
        name = f"view {view}/1/RandomApply"
        which = uniform(0, name)[:, 0] < 0.5
        crop = T.Views(2, [CROP])
        plain = torch.cat(
            [
                b.image[view]
                for b in fastdata.loader(stored, batch_size=8, seed=SEED, transform=crop)
            ]
        )
        for at, image in enumerate(torch.cat(found)):
            assert torch.equal(image, plain[at].flip(2) if which[at] else plain[at])


def test_views_refuse_members_as_they_refuse_others(stored: Path) -> None:
    mixing = T.RandomChoice([T.MixUp(num_classes=9), T.CutMix(num_classes=9)])
    with pytest.raises(OptionError, match="MixUp mixes labels, which all views share"):
        images(stored, [T.Views(2, [CROP]), mixing])
    with pytest.raises(OptionError, match="ColorJitter comes before Views"):
        images(stored, [T.RandomApply([T.ColorJitter(0.3)]), T.Views(2, [CROP])])
    with pytest.raises(OptionError, match="Views cannot be in RandomApply"):
        images(stored, T.RandomApply([T.Views(2, [CROP])]))


def test_a_dataset_has_them_as_its_transform(stored: Path) -> None:
    dataset = fastdata.open(stored, transform=[T.CenterCrop(30), T.RandomApply([FLIP, invert])])
    plain = fastdata.open(stored, transform=T.CenterCrop(30))
    torch.manual_seed(1)
    changed = []
    for at in range(COUNT):
        image, before = dataset[at].image, plain[at].image
        changed.append(not torch.equal(image, before))
        assert torch.equal(image, 255 - before.flip(2) if changed[-1] else before)
    assert 0 < sum(changed) < COUNT
    dataset.transform = T.RandomApply([T.ColorJitter(0.4)])
    with pytest.raises(OptionError, match="ColorJitter takes whole batches"):
        dataset[0]


def test_repr_says_what_is_known(stored: Path, tmp_path: Path) -> None:
    def shown(transform: Any, path: Any = stored) -> str:
        return str(fastdata.loader(path, batch_size=8, transform=transform))

    crops = T.RandomChoice([T.CenterCrop(24), CROP])
    assert "uint8 [8, 3, 24, 24]" in shown([crops, T.RandomApply([T.ColorJitter(0.3)])])
    assert "since invert is a callable" in shown([crops, T.RandomApply([FLIP, invert])])
    mixed = T.RandomChoice([T.MixUp(num_classes=60), T.CutMix(num_classes=60)])
    assert "float32 [8, 60]" in shown([crops, mixed])
    same = write_shard(tmp_path / "same.lmdb", pictures(4, size=(40, 50)), PICTURES)
    alone = T.RandomApply([T.CenterCrop(32)], 0.5)
    with fastdata.loader(same, batch_size=1, transform=alone) as it:
        assert "uint8 [1, 3, H, W]" in str(it)
    assert "[4, 3, 40, 50]" in shown(T.RandomApply([T.RandomCrop((40, 50), padding=3)]), same)


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: T.RandomApply(T.ColorJitter(0.3)),
            "RandomApply takes a list of transforms, not C",
        ),  # type: ignore[arg-type]
        (lambda: T.RandomChoice("blur"), "RandomChoice takes a list"),
        (lambda: T.RandomOrder([]), "RandomOrder takes one transform at least"),
        (lambda: T.RandomApply([CROP], p=1.5), "p is a probability from 0 to 1, not 1.5"),
        (lambda: T.RandomChoice([CROP, CROP], p=[1]), r"weight .* for each of 2 .*not \[1\]"),
        (lambda: T.RandomChoice([CROP], p=[-1]), "a weight from 0 up"),
        (lambda: T.RandomChoice([CROP], p=[0]), "and one above 0"),
        (lambda: T.RandomChoice([CROP], p=["x"]), "a weight from 0 up"),  # type: ignore[list-item]
        (lambda: T.RandomChoice([CROP], p=[float("nan")]), "a weight from 0 up"),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], Any], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        make()


@pytest.mark.parametrize(
    ("transform", "match"),
    [
        (T.RandomApply([T.Normalize(MEAN, STD)]), "Normalize cannot be in RandomApply, .* itself"),
        (T.RandomChoice([T.ToDtype(torch.float32)]), "ToDtype cannot be in RandomChoice"),
        (T.RandomOrder([T.DropEmptyBoxes(), CROP]), "DropEmptyBoxes cannot be in RandomOrder"),
        (T.RandomApply([T.RandomApply([T.Views(2, [CROP])])]), "Views cannot be in RandomApply"),
        (
            T.RandomApply([3]),
            "a transform is one of fastdata.transforms or a callable, not the int",
        ),
        (T.RandomApply([T.ColorJitter]), "ColorJitter is the class of a transform"),
        (T.RandomApply, "RandomApply is the class of a transform"),
        ([CROP, T.Normalize(MEAN, STD), T.RandomApply([T.RandAugment()])], "uint8"),
        ([CROP, T.Normalize(MEAN, STD), T.RandomApply([FLIP])], "RandomHorizontalFlip comes after"),
        ([CROP, T.RandomApply([T.MixUp(num_classes=9)]), invert], "MixUp behind all callables"),
        ([CROP, T.RandomOrder([T.CutMix(num_classes=9), invert])], "CutMix behind all callables"),
    ],
)
def test_members_that_cannot_be_are_refused(stored: Path, transform: Any, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        fastdata.loader(stored, batch_size=8, transform=transform)


@pytest.mark.parametrize(
    ("transform", "match"),
    [
        ([T.CenterCrop(60), T.RandomApply([CROP])], r"RandomApply makes several of 'image' \(24"),
        ([T.RandomChoice([CROP, T.Resize((30, 30))])], "RandomChoice makes several .* 30 x 30"),
        ([T.CenterCrop(40), T.RandomOrder([CROP, T.CenterCrop(26)])], "RandomOrder makes several"),
        (
            [T.CenterCrop(40), T.RandomGrayscale(), T.RandomApply([T.CenterCrop(9)])],
            "RandomApply makes several",
        ),
        ([T.RandomApply([T.RandomCrop(999)]), CROP], "RandomCrop takes 999 x 999"),
        ([T.RandomApply([T.CenterCrop(30)])], "a batch needs images of one size"),
    ],
)
def test_sizes_that_differ_are_refused_before_the_first_batch(
    stored: Path, transform: Any, match: str
) -> None:
    with pytest.raises(OptionError, match=match):
        fastdata.loader(stored, batch_size=8, transform=transform)
    if "RandomCrop" not in match:
        assert len(list(fastdata.loader(stored, batch_size=1, transform=transform))) == COUNT


def test_more_outcomes_than_are_looked_at_are_found_in_a_batch(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "p.lmdb", pictures(COUNT, size=(40, 50)), PICTURES)
    many = [T.RandomApply([T.CenterCrop(30 - n)], 0.2) for n in range(8)]
    with fastdata.loader(path, batch_size=8, transform=many) as it:
        assert "uint8 [8, 3, H, W]" in str(it)
        with pytest.raises(OptionError, match="a batch needs images of one size"):
            list(it)
    with fastdata.loader(path, batch_size=8, transform=[*many, T.CenterCrop(12)]) as it:
        assert "uint8 [8, 3, 12, 12]" in str(it)
        assert len(list(it)) == 3


def test_a_member_that_changes_the_dtype_is_refused(stored: Path) -> None:
    class ToFloat(T.BatchTransform):
        def draw(self, draws: Draws, shape: Any) -> T.Parameters:
            return {}

        def apply(self, images: torch.Tensor, parameters: T.Parameters) -> torch.Tensor:
            return images.float()

    with pytest.raises(OptionError, match=r"ToFloat makes torch.float32 .* of torch.uint8"):
        images(stored, [CROP, T.RandomApply([ToFloat()])])


# -- callables after transforms of batches -----------------------------------------------------


def test_callables_after_transforms_of_batches_see_the_same_images(stored: Path) -> None:
    steps = [T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomErasing(0.7, value=9), T.GaussianBlur(3)]
    before = images(stored, [CROP, same, *steps])
    assert torch.equal(images(stored, [CROP, same, *steps, invert]), 255 - before)
    workers = {"num_workers": 2, "batch_size": 5}
    assert torch.equal(images(stored, [CROP, same, *steps, invert], **workers), 255 - before)


def test_what_follows_a_callable_is_of_batches_again(stored: Path) -> None:
    first = [CROP, T.ColorJitter(0.4), invert]
    made = images(stored, [*first, T.RandomErasing(1.0), T.Normalize(MEAN, STD)], num_workers=2)
    plain = images(stored, first)
    draws = Draws(SEED, 0, operation_id(3, "RandomErasing"), np.arange(COUNT))
    erasing = T.RandomErasing(1.0)
    erased = erasing.apply(plain, erasing.draw(draws, tuple(plain.shape)))  # type: ignore[arg-type]
    assert torch.equal(made, T.Normalize(MEAN, STD)(erased))


def test_geometry_and_pixels_between_transforms_of_batches_and_callables(tmp_path: Path) -> None:
    path = boxed_shard(tmp_path / "boxed.lmdb", COUNT, (60, 80))
    between = [
        T.CenterCrop(50),
        T.RandomGrayscale(0.0),
        T.RandomHorizontalFlip(1.0),
        T.RandomCrop(40),
        T.DropEmptyBoxes("boxes", also="classes"),
        T.Normalize(MEAN, STD),
    ]

    def kept(sample: Any) -> Any:
        return sample

    def run(transform: list[Any], **options: Any) -> list[Any]:
        with fastdata.loader(path, batch_size=8, seed=2, transform=transform, **options) as it:
            return list(it)

    expected = run(between)
    for options in ({"num_workers": 0}, {"num_workers": 2}):
        made = run([*between, T.PerSample(kept)], **options)
        assert digest(made) == digest(expected)


def test_a_batch_transform_before_a_callable_does_not_depend_on_threads(tmp_path: Path) -> None:
    """The mean of a large image is a sum, which two threads take in another order than one."""
    path = write_shard(tmp_path / "p.lmdb", pictures(4, "raw", (400, 500)), PICTURES)
    transform = [T.ToDtype(torch.float32), T.ColorJitter(contrast=(0.2, 0.3)), torch.clone]
    before = torch.get_num_threads()
    made = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            made.append(images(path, transform, batch_size=4))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(made[1], made[0])
    assert torch.equal(made[2], made[0])


def test_mixing_before_a_callable_is_refused(stored: Path) -> None:
    for mix in (T.MixUp(num_classes=9), T.CutMix(num_classes=9)):
        name = type(mix).__name__
        with pytest.raises(OptionError, match=f"invert is called .* put {name} behind all callab"):
            images(stored, [CROP, mix, invert])


def test_data_with_masks(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "s.lmdb", scenes(16, ("png",), (50, 60)), SCENES)
    transform = [
        T.RandomApply([T.RandomResizedCrop((50, 60))], p=0.5),
        T.ColorJitter(0.4),
        T.ImageOnly(invert),
    ]
    with fastdata.loader(path, batch_size=16, seed=SEED, transform=transform) as it:
        made = next(iter(it))
    with fastdata.loader(path, batch_size=16, seed=SEED, transform=None) as it:
        plain = next(iter(it))
    which = uniform(0, "RandomApply", 16)[:, 0] < 0.5
    same = (made.mask == plain.mask).flatten(1).all(1).numpy()
    assert (same == ~which).all()
    assert set(FIELDS) == set(made._fields)


# -- what looks at pipelines -------------------------------------------------------------------


def test_dali_takes_choices_on_batches_and_refuses_those_of_geometry(stored: Path) -> None:
    pytest.importorskip("nvidia.dali")
    options: dict[str, Any] = {"batch_size": 8, "backend": "dali", "num_workers": 1}
    with pytest.raises(OptionError, match="RandomOrder of geometric transforms, but DALI"):
        fastdata.loader(stored, transform=[CROP, T.RandomApply([FLIP])], **options)
    with pytest.raises(OptionError, match="transform has invert, a callable"):
        fastdata.loader(stored, transform=[CROP, T.RandomApply([invert])], **options)
    transform = [T.CenterCrop(90), T.RandomChoice([T.RandomGrayscale(1.0), T.ColorJitter(0.4)])]
    made = images(stored, transform, backend="dali", num_workers=1)
    assert (made.int() - images(stored, transform).int()).abs().float().mean() < 2


def test_a_profile_tells_transforms_of_batches_before_callables(stored: Path) -> None:
    transform = [CROP, T.ColorJitter(0.4), T.RandomApply([T.GaussianBlur(3), invert])]
    with fastdata.loader(stored, batch_size=8, transform=transform, num_workers=0) as it:
        report = fastdata.profile(it, seconds=1.0)
    assert "augment" in [stage.name for stage in report.stages]


def test_processes_are_sent_them_and_lists_of_images_have_their_own_sizes(stored: Path) -> None:
    transform = [T.RandomApply([T.CenterCrop(50)]), T.RandomApply([T.RandomGrayscale(1.0)])]
    options: dict[str, Any] = {"batch_size": 8, "seed": SEED, "image_lists": True}
    with fastdata.loader(stored, transform=transform, num_workers=0, **options) as it:
        made = [image for batch in it for image in batch.image]
    which = uniform(0, "RandomApply")[:, 0] < 0.5
    assert [tuple(image.shape[1:]) == (50, 50) for image in made] == which.tolist()
    options |= {"num_workers": 1, "multiprocessing_context": "spawn", "worker_method": "process"}
    with fastdata.loader(stored, transform=transform, **options) as it:
        again = [image for batch in it for image in batch.image]
    assert all(torch.equal(*pair) for pair in zip(made, again, strict=True))
