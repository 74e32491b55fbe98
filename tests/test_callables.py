"""Callables among the transforms: what they draw, what they are given, what is refused."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from boxed import boxed_shard
from memory_data import ALL_FIELDS, MemoryData, digest
from PIL import Image
from samples import write_shard
from worker_helpers import PICTURES, pictures

from fastdata import transforms as T  # noqa: N812
from fastdata.errors import MissingExtraError, OptionError
from fastdata.loading import loader
from fastdata.prefetch import CUDAPrefetcher
from fastdata.random import SampleKeys
from fastdata.schema import ImageField, ScalarField, Schema
from fastdata.transforms.generators import albumentations_in, seeding, seeding_allowed
from fastdata.transforms.pipeline import Pipeline

COUNT = 40

WORKERS: dict[str, dict[str, Any]] = {
    "caller": {"num_workers": 0},
    "one process": {"num_workers": 1},
    "two processes": {"num_workers": 2},
    "spawned": {"num_workers": 1, "multiprocessing_context": "spawn"},
}


def draw(image: torch.Tensor) -> torch.Tensor:
    """Return numbers from every generator, as an image [1, 1, 9]."""
    numbers = [random.random() for _ in range(3)]
    numbers += np.random.rand(3).tolist()
    numbers += torch.rand(3).tolist()
    return torch.tensor(numbers, dtype=torch.float64)[None, None]


def draw_from_numpy(image: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.random.rand(1, 1, 2))


def draw_more(image: torch.Tensor) -> torch.Tensor:
    """Return numbers behind those that are there."""
    return torch.cat([image, draw(image)], 2)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "pictures.lmdb"
    return write_shard(path, pictures(COUNT), PICTURES)


def epochs(path: Any, transform: Any, count: int = 2, **options: Any) -> list[dict[int, list[Any]]]:
    """Return what was drawn for each sample, by its label, in each epoch."""
    options = {"batch_size": 8, "shuffle": True, "seed": 3, **options}
    found = []
    with loader(path, transform=transform, **options) as it:
        for _ in range(count):
            rows = {}
            for batch in it:
                for label, numbers in zip(batch.label.tolist(), batch.image, strict=True):
                    rows[label] = numbers.flatten().tolist()
            found.append(rows)
    return found


# -- random numbers -------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected(stored: Path) -> list[dict[int, list[Any]]]:
    return epochs(stored, draw, num_workers=0)


@pytest.mark.parametrize("workers", list(WORKERS))
def test_callables_draw_the_same_however_batches_are_made(
    stored: Path, expected: Any, workers: str
) -> None:
    assert epochs(stored, draw, **WORKERS[workers]) == expected
    if workers == "two processes":  # nor does it matter which samples meet in a batch
        assert epochs(stored, draw, batch_size=13, shuffle=False, num_workers=2) == expected


def test_no_two_samples_or_epochs_draw_the_same(expected: Any) -> None:
    numbers = [tuple(drawn) for epoch in expected for drawn in epoch.values()]
    assert len(numbers) == 2 * COUNT
    for place in range(9):
        assert len({drawn[place] for drawn in numbers}) == 2 * COUNT, f"generator {place // 3}"
    # Nor do two generators.
    assert len({number for drawn in numbers for number in drawn}) == 2 * COUNT * 9


def test_another_seed_draws_others(stored: Path, expected: Any) -> None:
    other = epochs(stored, draw, seed=4, num_workers=0)
    assert all(other[0][label] != expected[0][label] for label in expected[0])


def test_draws_are_uniform(stored: Path) -> None:
    """Seeding by hashed words must leave no pattern from sample to sample."""
    made = epochs(stored, draw, 30, num_workers=0)
    numbers = np.array([drawn for epoch in made for drawn in epoch.values()])
    error = 4 / np.sqrt(12 * len(numbers))
    np.testing.assert_allclose(numbers.mean(0), 0.5, atol=error)
    correlation = np.corrcoef(numbers.T) - np.eye(9)
    assert np.abs(correlation).max() < 4 / np.sqrt(len(numbers))


def test_callables_in_a_row_draw_one_behind_the_other(stored: Path, expected: Any) -> None:
    made = epochs(stored, [draw, draw_more], num_workers=2)
    for both, first in zip(made, expected, strict=True):
        for label, numbers in both.items():
            assert numbers[:9] == first[label]
            assert len(set(numbers)) == 18


def test_callables_apart_draw_others(stored: Path) -> None:
    """Each row of callables has seeds of its own."""
    found: list[tuple[int, ...]] = []

    def note(sample: Any) -> Any:
        found.append((random.getrandbits(60), *np.random.randint(1 << 30, size=2).tolist()))
        return sample

    transform = [T.PerSample(note), T.CenterCrop(8), T.PerSample(note)]
    list(loader(stored, batch_size=COUNT, transform=transform, num_workers=0))
    assert len({number for drawn in found for number in drawn}) == 2 * COUNT * 3


def test_resuming_draws_the_same(stored: Path) -> None:
    options = {"batch_size": 8, "shuffle": True, "transform": draw, "seed": 3}
    with loader(stored, num_workers=2, **options) as it:
        batches = list(it)
    with loader(stored, num_workers=1, **options) as it:
        epoch = iter(it)
        next(epoch)
        next(epoch)
        state = it.state_dict()
    with loader(stored, num_workers=0, **options) as it:
        it.load_state_dict(state)
        rest = list(it)
    assert digest(rest) == digest(batches[2:])


def states() -> tuple[Any, ...]:
    numpy = np.random.get_state()
    return random.getstate(), numpy[1].tolist(), numpy[2:], torch.get_rng_state().tolist()


def test_the_calling_threads_generators_are_left_as_they_were(stored: Path) -> None:
    np.random.normal()  # one more number is kept from this
    before = states()
    list(loader(stored, batch_size=8, transform=draw, num_workers=0))
    assert states() == before


def test_generators_are_as_they_were_after_an_error(stored: Path) -> None:
    def fail(image: torch.Tensor) -> torch.Tensor:
        raise KeyError(random.random())

    before = states()
    with pytest.raises(KeyError):
        next(iter(loader(stored, transform=fail, num_workers=0)))
    assert states() == before


def test_worker_threads_seed_nothing(stored: Path) -> None:
    """Others draw at the same time, and would be made to draw numbers again."""
    torch.manual_seed(1)
    first = states()
    made = epochs(stored, draw_from_numpy, num_workers=2, worker_method="thread")
    assert states()[0] == first[0], "Python's generator, which was not drawn from"
    assert states()[3] == first[3]
    drawn = {tuple(one) for epoch in made for one in epoch.values()}
    assert len(drawn) == 2 * COUNT, "they go on drawing from what everyone draws from"


def test_a_prefetchers_thread_seeds_nothing(stored: Path) -> None:
    """It takes batches while the training loop draws."""
    before = states()
    seen = []

    def note(image: torch.Tensor) -> torch.Tensor:
        seen.append(threading.current_thread().name)
        return image[:, :8, :8]

    with loader(stored, batch_size=8, transform=note, num_workers=0) as it:
        list(CUDAPrefetcher(it, "cpu"))
    assert {name.startswith("fastdata") for name in seen} == {True}
    with seeding_allowed():
        threads = [threading.Thread(target=lent_in, args=(found := [],), name="fastdata prefetch")]
        threads[0].start()
        threads[0].join()
    assert found == [None]
    assert states() == before


def lent_in(found: list[Any]) -> None:
    with seeding_allowed(), seeding(()) as seeds:
        found.append(seeds)


def test_a_thread_of_the_users_is_left_alone() -> None:
    pipeline = Pipeline(draw, Schema({"image": ImageField()}))
    sample = pipeline.schema.sample_type(torch.zeros(3, 4, 4, dtype=torch.uint8))
    random.seed(5)
    torch.manual_seed(5)
    expected = random.random()
    random.seed(5)
    made = pipeline.run([sample], 0, SampleKeys(0, np.array([3])))[0]
    assert made.image[0, 0, 0] == expected


def test_a_direct_pipeline_saves_no_states(monkeypatch: pytest.MonkeyPatch, stored: Path) -> None:
    monkeypatch.setattr(random, "getstate", lambda: pytest.fail("time that is for nothing"))
    list(loader(stored, batch_size=8, transform=T.CenterCrop(9), num_workers=0))


def test_a_corrupt_samples_stand_in_draws_its_own() -> None:
    data = MemoryData(12, corrupt=frozenset({4}))
    options = {"batch_size": 12, "transform": draw, "num_workers": 0, "on_corrupt": "skip"}
    (batch,) = loader(data, **options)
    rows = {}
    for label, numbers in zip(batch.label.tolist(), batch.image.flatten(1).tolist(), strict=True):
        assert rows.setdefault(label, numbers) == numbers
    assert len(rows) == 11


class albumentations_like:  # noqa: N801
    """Has generators as the transforms of albumentations 2 do."""

    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)
        self.random_generator = np.random.default_rng()
        self.py_random = random.Random()


albumentations_like.__module__ = "albumentations.core"


class Derived(albumentations_like):
    def __call__(self, **arguments: Any) -> dict[str, Any]:
        numbers = [self.random_generator.random(), self.py_random.random()]
        numbers.append(self.random_generator.random(dtype=np.float32))
        numbers += [one.random_generator.random() for one in self.transforms]
        return {"image": np.array(numbers)[None]}


def test_generators_of_albumentations_are_seeded_and_put_back(stored: Path) -> None:
    transform = Derived(Derived(), Derived())
    generator, inner = transform.random_generator, transform.transforms[0].py_random
    made = [epochs(stored, transform, num_workers=n) for n in (0, 2)]
    assert made[0] == made[1]
    assert len({number for epoch in made[0] for one in epoch.values() for number in one}) > 395
    assert transform.random_generator is generator
    assert transform.transforms[0].py_random is inner


HELD = Derived(Derived())


def call_held(image: Any) -> Any:
    return HELD(image=image)


def test_albumentations_are_found_where_callables_hold_them() -> None:
    both = [HELD, HELD.transforms[0]]
    held = HELD
    listed = [lambda image: held(image=image)]

    class Calls:
        def __init__(self) -> None:
            self.inner = {"a": (listed,)}

        def __call__(self, image: Any) -> Any:
            return image

    for callable_ in (HELD, T.PerSample(call_held), listed[0], Calls(), Calls().__call__):
        found = albumentations_in(callable_)
        assert sorted(map(id, found)) == sorted(map(id, both))
    assert albumentations_in(draw, torch.nn.Linear(2, 2), len) == []


# -- what would not follow ------------------------------------------------------------

MASKED = Schema({"image": ImageField(), "mask": ImageField(1, mask=True), "n": ScalarField()})


def shift(image: torch.Tensor) -> torch.Tensor:
    return image.roll(3, 2)


@pytest.mark.parametrize("transform", [shift, [T.CenterCrop(9), shift], T.OnPIL(shift)])
def test_a_callable_that_leaves_masks_behind_is_refused(transform: Any) -> None:
    with pytest.raises(OptionError, match=r"shift is given images alone, .* the mask 'mask'.*T\."):
        Pipeline(transform, MASKED)


def test_a_callable_that_leaves_boxes_behind_is_refused(tmp_path: Path) -> None:
    path = boxed_shard(tmp_path / "boxed.lmdb", 8, (60, 70))
    without = Schema({k: v for k, v in loader(path).dataset.schema.items() if k != "mask"})
    with pytest.raises(OptionError, match=r"shift is given .* the boxes 'boxes'.*T\.V2\(.*T\.Alb"):
        Pipeline(shift, without)
    for transform in (T.ImageOnly(shift), T.PerSample(lambda sample: sample)):
        (batch,) = loader(path, batch_size=8, transform=transform, num_workers=0)
        assert len(batch.boxes) == 8


def test_image_only_changes_the_image_only() -> None:
    data = MemoryData(4, size=(9, 11), fields=ALL_FIELDS)
    (plain,) = loader(data, batch_size=4, num_workers=0)
    (batch,) = loader(data, batch_size=4, transform=T.ImageOnly(lambda x: 255 - x), num_workers=0)
    assert torch.equal(batch.image, 255 - plain.image)
    assert torch.equal(batch.mask, plain.mask)


def test_image_only_refuses_what_changes_sizes() -> None:
    data = MemoryData(4, size=(9, 11), fields=ALL_FIELDS)
    it = loader(data, transform=T.ImageOnly(lambda image: image[:, 2:]), num_workers=0)
    with pytest.raises(OptionError, match=r"lambda> made 'image' \(7, 11\) of \(9, 11\)"):
        next(iter(it))


@pytest.mark.parametrize("given", [3, T.PerSample(lambda sample: sample)])
def test_image_only_takes_callables_on_images(given: Any) -> None:
    with pytest.raises(OptionError, match="ImageOnly takes a callable on an image, not"):
        T.ImageOnly(given)


def test_a_class_derived_from_albumentations_is_one() -> None:
    assert Derived.__module__ == __name__
    called: list[set[str]] = []

    class Notes(Derived):
        def __call__(self, **arguments: Any) -> dict[str, Any]:
            called.append(set(arguments))
            return arguments

    data = MemoryData(2, size=(9, 11), fields=ALL_FIELDS)
    list(loader(data, transform=Notes(), num_workers=0))
    assert called == [{"image", "masks"}] * 2


def test_bare_albumentations_are_refused_with_boxes(tmp_path: Path) -> None:
    path = boxed_shard(tmp_path / "boxed.lmdb", 4, (60, 70))
    with pytest.raises(OptionError, match=r"Derived .*'boxes'.*T\.Albumentations\(transform, bbo"):
        loader(path, transform=Derived())


@pytest.mark.parametrize(
    ("make", "name"),
    [(lambda: T.V2(shift), "torchvision"), (lambda: T.Albumentations(HELD), "alb")],
)
def test_a_missing_library_is_said_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], name: str
) -> None:
    for module in ("torchvision", "albumentations"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingExtraError, match=f"pip install {name}"):
        make()


# -- PIL images -----------------------------------------------------------------------


def on_pil(function: Any, channels: int = 3) -> torch.Tensor:
    """Return what becomes of the image whose values count up, 4 x 6 pixels."""
    pipeline = Pipeline(T.OnPIL(function), Schema({"image": ImageField(channels)}))
    image = torch.arange(channels * 24, dtype=torch.uint8).view(channels, 4, 6)
    made = pipeline.run([pipeline.schema.sample_type(image)], 0, SampleKeys(0, np.array([0])))[0]
    assert torch.equal(image, torch.arange(channels * 24, dtype=torch.uint8).view(channels, 4, 6))
    tensor: torch.Tensor = made.image
    return tensor


GREY, COLOUR = (torch.arange(c * 24, dtype=torch.uint8).view(c, 4, 6) for c in (1, 3))


def to_tensor(image: Image.Image) -> torch.Tensor:
    """As torchvision's ``to_tensor``, but for the scale."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


@pytest.mark.parametrize(
    ("function", "channels", "expected"),
    [
        (lambda image: image, 3, COLOUR),
        (lambda image: image, 1, GREY),
        (lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 3, COLOUR.flip(2)),
        (lambda image: image.crop((1, 0, 4, 3)), 3, COLOUR[:, :3, 1:4]),
        (lambda image: image.split()[1], 3, COLOUR[1:2]),
        (to_tensor, 3, COLOUR),
        (np.asarray, 3, COLOUR),
        (np.asarray, 1, GREY),
        (lambda image: np.asarray(image).transpose(2, 0, 1), 3, COLOUR),
        (lambda image: np.asarray(image)[None], 1, GREY),
    ],
)
def test_what_a_function_of_pil_images_returns_is_an_image(
    function: Any, channels: int, expected: torch.Tensor
) -> None:
    made = on_pil(function, channels)
    assert made.dtype == torch.uint8
    assert torch.equal(made, expected)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda image: image.convert("RGBA"), r'mode \'RGBA\'; expected is "RGB" or "L"'),
        (lambda image: np.zeros((3, 5, 3)), r"ndarray of shape \(3, 5, 3\), of which it cannot be"),
        (lambda image: np.zeros((4, 5, 6)), r"ndarray of shape \(4, 5, 6\), of which it cannot be"),
        (lambda image: torch.zeros(4, 6, 3), r"Tensor of shape \(4, 6, 3\), of which it cannot be"),
        (lambda image: torch.zeros(2, 3, 4, 6), "expected is a torch tensor of shape"),
        (lambda image: None, "returned NoneType"),
    ],
)
def test_what_may_be_misunderstood_is_refused(function: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        on_pil(function)


def test_pil_images_are_made_of_bytes() -> None:
    transform = [T.ToDtype(torch.float32), T.OnPIL(to_tensor)]
    it = loader(MemoryData(2), transform=transform, num_workers=0)
    with pytest.raises(OptionError, match=r"made of uint8 pixels .*float32; put to_tensor before"):
        next(iter(it))


class ToTensor:
    """As the one of torchvision."""

    def __call__(self, image: Any) -> torch.Tensor:
        assert isinstance(image, Image.Image), "given bare it would be a tensor"
        return to_tensor(image)


ToTensor.__module__ = "torchvision.transforms.transforms"


class Compose:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


@pytest.mark.parametrize("wrap", [lambda one: one, Compose, lambda one: Compose(Compose(one))])
def test_what_is_made_for_pil_images_is_given_them(wrap: Any) -> None:
    (batch,) = loader(
        MemoryData(3, size=(4, 6)), batch_size=3, transform=wrap(ToTensor()), num_workers=0
    )
    (plain,) = loader(MemoryData(3, size=(4, 6)), batch_size=3, num_workers=0)
    assert torch.equal(batch.image, plain.image)


class ToPILImage:
    """As the one of torchvision."""

    def __call__(self, image: Any) -> Image.Image:
        assert isinstance(image, torch.Tensor), "it makes the PIL image itself"
        return Image.fromarray(image.permute(1, 2, 0).numpy())


ToPILImage.__module__ = "torchvision.transforms.transforms"


@pytest.mark.parametrize(
    "transform",
    [Compose(ToPILImage(), ToTensor()), Compose(Compose(ToPILImage()), Compose(ToTensor()))],
)
def test_what_makes_pil_images_itself_is_given_tensors(transform: Any) -> None:
    (batch,) = loader(MemoryData(3, size=(4, 6)), 3, transform=transform, num_workers=0)
    (plain,) = loader(MemoryData(3, size=(4, 6)), 3, num_workers=0)
    assert torch.equal(batch.image, plain.image)


class ToNumpy:
    """As the one of timm: [C, H, W], which of small images no shape tells."""

    def __call__(self, image: Image.Image) -> np.ndarray[Any, Any]:
        return np.rollaxis(np.array(image), 2)


ToNumpy.__module__ = "timm.data.transforms"


def test_what_timm_makes_is_known() -> None:
    crop = Compose(lambda image: image.crop((0, 0, 3, 3)), ToNumpy())
    assert torch.equal(on_pil(crop), COLOUR[:, :3, :3])
