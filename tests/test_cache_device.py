"""``cache="device"``: any other loader's batches, after one epoch without files or workers.

On the CPU here: where batches arrive is the one device there always is.  Batches are made
there as other batches are; what makes them on a GPU is tested on the CPU too (`there`).
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from memory_data import MemoryData
from worker_helpers import TurnByIndex, damage_image, no_workers_soon, workers

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.cache import device as device_module
from fastdata.cache.store import ImageStore
from fastdata.errors import OptionError, ShardCorruptError
from fastdata.kernels import pixels as pixels_module
from fastdata.schema import ArrayField, ImageField, ScalarField, StringField

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)

EXACT: dict[str, list[Any]] = {
    "crop": [T.CenterCrop(16)],
    "padding": [T.RandomCrop(24, padding=4), T.RandomHorizontalFlip()],
    "upside down": [T.RandomCrop(24, padding=4), T.RandomVerticalFlip(), T.Normalize(MEAN, STD)],
    "filled": [T.RandomCrop(24, 4, fill=(7, 8, 9)), T.Pad(2, padding_mode="reflect")],
    "turned": [T.RandomCrop(20), TurnByIndex(), T.RandomHorizontalFlip()],
    "normalised": [T.RandomCrop(15), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)],
    "half": [T.RandomCrop(15), T.ToDtype(torch.bfloat16)],
    "batch": [
        T.RandomCrop(16),
        T.ColorJitter(0.3),
        T.Normalize(MEAN, STD),
        T.MixUp(num_classes=999),
    ],
    "geometry on batches": [T.RandomCrop(18), T.RandomGrayscale(0.5), T.RandomCrop(9)],
}
RESIZED: dict[str, list[Any]] = {
    "random": [T.RandomResizedCrop(14), T.RandomHorizontalFlip()],
    "evaluation": [T.Resize(18), T.CenterCrop(16)],
    "enlarged": [T.Resize((40, 50)), T.RandomHorizontalFlip(1.0)],
}


@pytest.fixture(params=["here", "there", "there, by kernels"])
def there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Each way to make batches: the CPU's, a GPU's, and that with kernels, interpreted."""
    if request.param != "here":
        monkeypatch.setattr(ImageStore, "_render_on_cpu", ImageStore._render_on_device)
    if "kernels" in request.param:
        pytest.importorskip("triton")
        monkeypatch.setattr(pixels_module, "KERNEL_DEVICES", {"cpu"})
    return bool(request.param != "here")


def ways(by_kernels: Iterable[str], names: Iterable[str]) -> pytest.MarkDecorator:
    """Go each way with all names; by kernels, which take seconds to interpret, with some."""
    pairs = [(way, name) for way in ("here", "there") for name in names]
    pairs += [("there, by kernels", name) for name in by_kernels]
    return pytest.mark.parametrize(("there", "name"), pairs, indirect=["there"])


@pytest.fixture
def few(there: bool) -> int:
    """A number of samples that is no multiple of three: few where kernels are interpreted."""
    return 5 if "cpu" in pixels_module.KERNEL_DEVICES else 20


@pytest.fixture(params=["thread", "process", "none"])
def by(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each way to fill the cache."""
    if request.param == "none":
        return {"num_workers": 0}
    return {"num_workers": 2, "worker_method": request.param}


def pairs(data: Any, epochs: int = 3, **options: Any) -> Any:
    """Yield batches of a loader and of one with a cache, over some epochs."""
    options = {"batch_size": 8, "shuffle": True, **options}
    with (
        fastdata.loader(data, **{**options, "num_workers": 0}) as plain,
        fastdata.loader(data, **options, cache="device") as cached,
    ):
        for _ in range(epochs):
            yield from zip(plain, cached, strict=True)


@ways(["padding", "normalised"], EXACT)
def test_what_is_not_resized_is_equal(name: str, few: int) -> None:
    for wanted, found in pairs(MemoryData(few), 2, batch_size=3, transform=EXACT[name]):
        assert found.image.dtype == wanted.image.dtype
        assert torch.equal(found.image, wanted.image)
        assert found.image.is_contiguous()
        assert torch.equal(found.label, wanted.label)


@ways(["random"], RESIZED)
def test_what_is_resized_differs_by_one_at_most(name: str, there: bool, few: int) -> None:
    for wanted, found in pairs(MemoryData(few), 2, batch_size=3, transform=RESIZED[name]):
        assert found.image.shape == wanted.image.shape
        assert (found.image.int() - wanted.image.int()).abs().max() <= (1 if there else 0)


@pytest.mark.parametrize("there", ["here", "there"], indirect=True)
def test_images_of_one_size_need_no_transforms(few: int) -> None:
    for wanted, found in pairs(MemoryData(few, size=(20, 22)), 2, batch_size=3):
        assert torch.equal(found.image, wanted.image)


def test_every_codec_and_every_way_to_fill(mixed: dict[str, Path], by: dict[str, Any]) -> None:
    for path in mixed.values():
        for wanted, found in pairs(path, 2, transform=[T.RandomCrop(16)], **by):
            for one, other in zip(wanted, found, strict=True):
                if isinstance(one, torch.Tensor):
                    assert torch.equal(one, other)
                else:
                    assert str(one) == str(other)
    assert no_workers_soon()


def test_every_field_arrives(few: int) -> None:
    fields = {
        "image": ImageField(),
        "mask": ImageField(channels=1, mask=True),
        "label": ScalarField(),
        "name": StringField(),
        "fixed": ArrayField("float32", (2, 3)),
        "boxes": ArrayField("float32", (None,)),
    }
    data = MemoryData(few, fields=fields)
    transform = [T.RandomCrop(12), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)]
    for wanted, found in pairs(data, 2, batch_size=3, transform=transform):
        assert torch.equal(found.mask, wanted.mask)
        assert found.mask.dtype == torch.uint8
        assert torch.equal(found.fixed, wanted.fixed)
        assert found.name == wanted.name
        assert all(map(torch.equal, found.boxes, wanted.boxes))
        assert found.image.dtype == torch.float32


def test_each_sample_is_decoded_once_and_then_nothing_is_read(by: dict[str, Any]) -> None:
    data = MemoryData(60)
    options = {"batch_size": 7, "shuffle": True, "transform": T.RandomCrop(12)}
    with fastdata.loader(data, **options, **by, cache="device") as loader:
        list(loader)
        assert no_workers_soon(), "workers end when everything is there"
        read = loader.stats().bytes_read
        assert read == 60 * 10
        if by.get("worker_method") != "process":
            assert sorted(data.reads) == list(range(60))
            data.reads.clear()
        for _ in range(3):
            list(loader)
        assert loader.stats().bytes_read == read
        assert data.reads == []
        assert workers() == []


def test_batches_are_the_users_own(small: Path) -> None:
    with fastdata.loader(small, batch_size=10, transform=T.CenterCrop(20), cache="device") as it:
        first = [batch.image.clone() for batch in it]
        for batch in it:
            batch.image.fill_(0)
            batch.label.fill_(0)
        for kept, batch in zip(first, it, strict=True):
            assert torch.equal(kept, batch.image)
            assert batch.label.any() or batch.label.numel() == 1


@pytest.mark.parametrize(
    "options",
    [
        {"drop_last": True},
        {"weights": np.arange(50.0)},
        {"rank": 1, "world_size": 3},
        {"shuffle": "block"},
    ],
    ids=str,
)
def test_samples_that_come_later_are_filled_in_later(options: dict[str, Any]) -> None:
    if "weights" in options:
        options = {**options, "shuffle": False}
    data = MemoryData(50)
    for wanted, found in pairs(data, 4, transform=T.RandomCrop(12), **options):
        assert torch.equal(found.image, wanted.image)
        assert torch.equal(found.label, wanted.label)


def test_leaving_and_resuming(by: dict[str, Any]) -> None:
    data = MemoryData(50)
    options = {"batch_size": 8, "shuffle": True, "transform": T.RandomCrop(12)}
    plain = fastdata.loader(data, **options, num_workers=0)
    wanted = [[batch.image for batch in plain] for _ in range(3)]
    with fastdata.loader(data, **options, **by, cache="device") as loader:
        for number, batch in enumerate(loader):
            assert torch.equal(batch.image, wanted[0][number])
            if number == 2:
                break
        state = loader.state_dict()
        assert (state["epoch"], state["batch"]) == (0, 3)
        found = [batch.image for batch in loader]
        assert all(map(torch.equal, found, wanted[1]))
        loader.load_state_dict(state)
        assert all(map(torch.equal, [batch.image for batch in loader], wanted[0][3:]))
        loader.set_epoch(2)
        assert all(map(torch.equal, [batch.image for batch in loader], wanted[2]))
    with fastdata.loader(data, **options, **by, cache="device") as again:
        again.load_state_dict(state)
        assert all(map(torch.equal, [batch.image for batch in again], wanted[0][3:]))


def test_two_iterators_at_once() -> None:
    data = MemoryData(50)
    options = {"batch_size": 8, "shuffle": True, "transform": T.RandomCrop(12)}
    plain = fastdata.loader(data, **options, num_workers=0)
    wanted = [[batch.image for batch in plain] for _ in range(2)]
    with fastdata.loader(data, **options, num_workers=2, cache="device") as loader:
        found = list(zip(loader, loader, strict=True))
    for number, (first, second) in enumerate(found):
        assert torch.equal(first.image, wanted[0][number])
        assert torch.equal(second.image, wanted[1][number])


def test_ctrl_c_while_it_fills_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"image": ImageField(), "second": ImageField(), "label": ScalarField()}
    options: dict[str, Any] = {"batch_size": 8, "transform": T.RandomCrop(12), "num_workers": 0}
    data = MemoryData(50, fields=fields)
    put, calls = ImageStore.put, []

    def interrupted(store: ImageStore, *given: Any) -> None:
        calls.append(store)
        if len(calls) in (2, 5, 9):  # between two fields of a batch, and after the last
            if len(calls) == 9:
                put(store, *given)
            raise KeyboardInterrupt
        put(store, *given)

    with fastdata.loader(data, **options, cache="device") as loader:
        monkeypatch.setattr(ImageStore, "put", interrupted)
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                list(loader)
        loader.set_epoch(0)
        for wanted, found in zip(fastdata.loader(data, **options), loader, strict=True):
            assert torch.equal(found.image, wanted.image)
            assert torch.equal(found.second, wanted.second)


# -- corrupt samples --------------------------------------------------------------------


def test_a_corrupt_sample_is_an_error_in_its_place(by: dict[str, Any]) -> None:
    data = MemoryData(40, corrupt=frozenset({17}))
    options = {"batch_size": 5, "transform": T.RandomCrop(12)}
    with fastdata.loader(data, **options, **by, cache="device") as loader:
        for _ in range(2):
            it = iter(loader)
            for _ in range(3):
                next(it)
            with pytest.raises(ShardCorruptError, match="sample 17 of 'image' is corrupt"):
                next(it)
            assert list(it) == []


def test_a_corrupt_sample_is_replaced_as_without_a_cache(
    by: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    data = MemoryData(40, corrupt=frozenset({3, 17, 18, 30}))
    options = {"transform": [T.RandomResizedCrop(12)], "on_corrupt": "skip", **by}
    for wanted, found in pairs(data, 3, **options):
        assert torch.equal(found.label, wanted.label)
        assert torch.equal(found.image, wanted.image)
    said = [message for message in caplog.messages if "skipped a corrupt sample" in message]
    assert len(said) == 2, "one for each loader"
    options |= {"batch_size": 8, "cache": "device"}
    with fastdata.loader(data, **options) as loader:
        for _ in range(3):
            list(loader)
        assert loader.stats().skipped_samples == 12


def test_where_all_are_corrupt_there_is_an_error(small: Path) -> None:
    damage_image(small, *range(100))
    try:
        options: dict[str, Any] = {"transform": T.CenterCrop(20), "on_corrupt": "skip"}
        with (
            fastdata.loader(small, **options, cache="device") as loader,
            pytest.raises(ShardCorruptError, match=r"checksum|cannot be decoded|corrupt"),
        ):
            next(iter(loader))
    finally:
        damage_image(small, *range(100))  # it inverts bytes: twice is not at all


# -- memory -----------------------------------------------------------------------------


def test_the_memory_it_takes_is_said_before_it_is_taken(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    empty = torch.empty
    monkeypatch.setattr(
        torch,
        "empty",
        lambda *a, **k: taken.append(a[0]) or empty(*a, **k),  # type: ignore[func-returns-value]
    )
    caplog.set_level(logging.INFO, "fastdata")
    data = MemoryData(50, size=(30, 40))
    nbytes = 50 * 30 * 40 * 3
    with fastdata.loader(data, cache="device", num_workers=0) as loader:
        assert loader.stats().cache_bytes == nbytes
        assert any("(50 samples) takes 180kB of cpu" in said for said in caplog.messages)
        assert nbytes not in taken
        list(loader)
        assert taken.count(nbytes) == 1


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "available_on", lambda device: 179_000)
    data = MemoryData(50, size=(30, 40))
    with pytest.raises(
        OptionError, match=r"takes 180kB of cpu, which has 179kB left.*cache_scope=\"rank\""
    ):
        fastdata.loader(data, cache="device")
    fastdata.loader(data, cache="device", cache_scope="rank", rank=0, world_size=2).close()


def test_closing_frees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, empty = [], torch.empty

    def watched(*given: Any, **options: Any) -> torch.Tensor:
        tensor = empty(*given, **options)
        if given[0] == loader.stats().cache_bytes:
            taken.append(weakref.ref(tensor))
        return tensor

    loader = fastdata.loader(
        MemoryData(50), cache="device", num_workers=0, transform=T.CenterCrop(9)
    )
    monkeypatch.setattr(torch, "empty", watched)
    list(loader)
    (cache,) = taken
    assert cache() is not None
    loader.close()
    assert cache() is None
    loader.close()


def test_options_that_do_not_go_together_are_refused(small: Path) -> None:
    with pytest.raises(OptionError, match=r"callable among the transforms.*cache=\"ram\""):
        fastdata.loader(small, cache="device", transform=lambda image: image)
    with pytest.raises(OptionError, match="cache is one of None, 'ram', 'device'"):
        fastdata.loader(small, cache="disk")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="give cache too"):
        fastdata.loader(small, cache_scope="rank")
    with pytest.raises(OptionError, match="leave out sampler, batch_sampler and weights"):
        fastdata.loader(small, cache="device", cache_scope="rank", weights=[1.0] * 100)
    with pytest.raises(OptionError, match="cache is for packed data"):
        fastdata.loader([1, 2, 3], cache="device")


# -- ranks ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world_size", "options"),
    [(1, {}), (3, {}), (2, {"drop_last": True}), (3, {"even": False})],
    ids=str,
)
def test_each_rank_holds_a_part(world_size: int, options: dict[str, Any]) -> None:
    data = MemoryData(50)
    parts, lengths = [], []
    for rank in range(world_size):
        share = {"rank": rank, "world_size": world_size, "cache_scope": "rank"}
        with fastdata.loader(
            data,
            batch_size=4,
            shuffle=True,
            transform=T.RandomCrop(12),
            cache="device",
            **share,
            **options,
        ) as loader:
            epochs = [
                np.concatenate([batch.label.numpy() // 3 for batch in loader]) for _ in range(3)
            ]
            assert loader.stats().cache_bytes < 50 * 26 * 24 * 3 / world_size
            lengths.append(len(loader))
        seen = [set(epoch.tolist()) for epoch in epochs]
        assert all(len(epoch) == len(one) for epoch, one in zip(epochs, seen, strict=True))
        if not options.get("drop_last"):
            assert seen[0] == seen[1] == seen[2], "the same part in every epoch"
        assert not (epochs[0] == epochs[1]).all(), "in another order"
        parts.append(set().union(*seen))
    if options.get("even", True):
        assert len(set(lengths)) == 1, "as many batches on every rank"
    padded = -(-50 // world_size) * world_size - 50 if options.get("even", True) else 0
    assert sum(map(len, parts)) <= 50 + padded
    if not options.get("drop_last"):
        assert set().union(*parts) == set(range(50))


def test_a_part_without_shuffling_is_in_the_order_of_the_dataset() -> None:
    data = MemoryData(50)
    options: dict[str, Any] = {"transform": T.CenterCrop(12), "cache": "device"}
    with fastdata.loader(
        data, batch_size=100, rank=1, world_size=2, cache_scope="rank", **options
    ) as loader:
        (batch,) = loader
        labels = batch.label.tolist()
        assert labels == sorted(labels)
        assert loader.padding == 0
        state = loader.state_dict()
    with (
        fastdata.loader(data, batch_size=100, **options) as other,
        pytest.raises(OptionError, match="Sequential in parts"),
    ):
        other.load_state_dict(state)
    with fastdata.loader(
        data, batch_size=100, rank=0, world_size=2, cache_scope="rank", **options
    ) as same:
        same.load_state_dict(state)
    with fastdata.loader(
        data, batch_size=100, rank=0, world_size=3, cache_scope="rank", **options
    ) as three:
        assert three.padding == 1


@pytest.mark.gpu
def test_batches_of_a_gpu_are_those_of_the_cpu(cuda: torch.device, small: Path) -> None:
    transform = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)]
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "transform": transform}
    with (
        fastdata.loader(small, **options) as plain,
        fastdata.loader(small, **options, cache="device", device=cuda) as cached,
    ):
        for _ in range(2):
            for wanted, found in zip(plain, cached, strict=True):
                assert found.image.is_cuda
                assert found.label.is_cuda
                step = 1.01 / 255 / min(STD)
                assert (found.image.cpu() - wanted.image).abs().max() <= step
                assert torch.equal(found.label.cpu(), wanted.label)


@pytest.mark.gpu
@pytest.mark.parametrize("name", EXACT)
def test_what_is_not_resized_is_equal_on_a_gpu(cuda: torch.device, name: str) -> None:
    data = MemoryData(50)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "transform": EXACT[name]}
    with (
        fastdata.loader(data, **options) as plain,
        fastdata.loader(data, **options, cache="device", device=cuda) as cached,
    ):
        for wanted, found in zip(plain, cached, strict=True):
            torch.testing.assert_close(found.image.cpu(), wanted.image, rtol=0.02, atol=1 / 128)
    assert math.isfinite(cached.stats().cache_bytes)
