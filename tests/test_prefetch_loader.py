"""A loader's batches on a device: the same ones, in the same places, by any workers."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from memory_data import MemoryData
from numpy.typing import NDArray
from simulated_device import SimulatedStreams

import fastdata
from fastdata import options as loader_options
from fastdata import transforms as T  # noqa: N812
from fastdata.engine import delivery
from fastdata.engine.buffers import BufferPool
from fastdata.errors import ShardCorruptError

WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2, "worker_method": "thread"},
    {"num_workers": 2, "worker_method": "process"},
]
RRC = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SimulatedStreams:
    """A simulated GPU, which the loader takes for a real one."""
    streams = SimulatedStreams(0)
    monkeypatch.setattr(delivery, "streams_of", lambda device: streams)
    monkeypatch.setattr(loader_options, "streams_of", lambda device: streams)
    return streams


Seen = list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]


def read_all(device: SimulatedStreams, loader: Any, epochs: int) -> Seen:
    """Return images and labels of every batch, as a kernel reads them."""
    seen: dict[int, tuple[NDArray[np.uint8], NDArray[np.uint8]]] = {}
    number = 0
    for _ in range(epochs):
        for batch in loader:

            def kernel(memory: list[NDArray[np.uint8]], number: int = number) -> None:
                seen[number] = memory[0].copy(), memory[1].copy()

            device.launch(kernel, batch.image, batch.label)
            del batch
            number += 1
    device.finish()
    return [seen[number] for number in range(len(seen))]


def expected(loader: Any, epochs: int) -> Seen:
    return [
        (
            batch.image.numpy().reshape(-1).copy(),
            batch.label.numpy().view(np.uint8).copy(),
        )
        for _ in range(epochs)
        for batch in loader
    ]


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_batches_on_a_device_are_those_of_the_cpu(
    device: SimulatedStreams, small: Path, workers: dict[str, Any]
) -> None:
    options = {"batch_size": 8, "shuffle": True, "transform": RRC}
    wanted = expected(fastdata.loader(small, **options, num_workers=0), 3)
    with fastdata.loader(small, **options, **workers, device="cuda") as loader:
        found = read_all(device, loader, 3)
        assert loader.stats().batches == len(wanted)
        assert loader.stats().samples == 300
    assert len(found) == len(wanted)
    for there, here in zip(found, wanted, strict=True):
        assert (there[0] == here[0]).all()
        assert (there[1] == here[1]).all()


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_the_state_counts_batches_handed_out(
    device: SimulatedStreams, small: Path, workers: dict[str, Any]
) -> None:
    options = {"batch_size": 8, "shuffle": True, "transform": RRC, **workers}
    wanted = expected(fastdata.loader(small, **options), 2)
    for stop in (1, 5, 13, 14):
        with fastdata.loader(small, **options, device="cuda") as loader:
            it = iter(loader)
            for number in range(stop):
                next(it if number < 13 else (it := iter(loader)))
            state = loader.state_dict()
        assert (state["epoch"], state["batch"]) == divmod(stop, 13)
        with fastdata.loader(small, **options, device="cuda") as again:
            again.load_state_dict(state)
            found = read_all(device, again, 2 - stop // 13)
        assert len(found) == len(wanted) - stop
        assert all((a[1] == b[1]).all() for a, b in zip(found, wanted[stop:], strict=True))


def test_an_error_comes_after_the_good_batches(device: SimulatedStreams) -> None:
    data = MemoryData(40, corrupt=frozenset({17}))
    with fastdata.loader(data, batch_size=5, device="cuda", transform=RRC, num_workers=2) as loader:
        it = iter(loader)
        for _ in range(3):
            next(it)
        with pytest.raises(ShardCorruptError, match="sample 17 of 'image' is corrupt"):
            next(it)
        assert list(it) == []


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_leaving_early_and_going_on(
    device: SimulatedStreams, small: Path, workers: dict[str, Any]
) -> None:
    options = {"batch_size": 8, "shuffle": True, "transform": RRC, **workers}
    wanted = expected(fastdata.loader(small, **options), 2)[13:]
    with fastdata.loader(small, **options, device="cuda") as loader:
        for _ in loader:
            break
        found = read_all(device, loader, 1)
    assert all((a[1] == b[1]).all() for a, b in zip(found, wanted, strict=True))


def test_host_memory_does_not_grow(device: SimulatedStreams, small: Path) -> None:
    options = {"batch_size": 8, "transform": RRC, "num_workers": 2}
    with fastdata.loader(small, **options, device="cuda") as loader:
        read_all(device, loader, 4)
        gc.collect()
        # Those made ahead, on their way, and held by a copy that nobody has looked at since.
        assert loader.stats().buffers_in_use <= 2 + 1 + 2


# -- page-locking shared memory --------------------------------------------------------


class Runtime:
    """CUDA's runtime, as far as page-locking goes."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.locked: dict[int, int] = {}
        self.calls = 0

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802
        self.calls += 1
        if not self.status:
            assert address not in self.locked
            self.locked[address] = nbytes
        return self.status

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.locked[address]
        return 0


def test_a_shared_block_is_page_locked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    pool = BufferPool(2, kind="shared", register=torch.device("cuda", 0))
    for _ in range(10):
        slot = pool.take(5000)
        assert slot.tensor.data_ptr() in runtime.locked
        del slot
    assert runtime.calls == 1
    kept = pool.take(4000).tensor
    pool.close()
    assert list(runtime.locked) == [kept.data_ptr()]
    del kept
    gc.collect()
    assert runtime.locked == {}


def test_memory_that_cannot_be_page_locked_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Runtime(status=2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    pool = BufferPool(2, kind="shared", register=torch.device("cuda", 0))
    slots = [pool.take(5000) for _ in range(3)]
    assert runtime.calls == 1, "it is not asked again"
    (said,) = caplog.messages
    assert "cudaHostRegister: error 2" in said
    assert "copied once more" in said
    for slot in slots:
        slot.memory[:] = 1


@pytest.mark.gpu
def test_page_locked_shared_memory_is_pinned_for_torch(cuda: torch.device) -> None:
    pool = BufferPool(2, kind="shared", register=torch.device("cuda", 0))
    slot = pool.take(1 << 20)
    assert slot.tensor.is_pinned()
    there = slot.tensor.fill_(3).to(cuda, non_blocking=True)
    torch.cuda.synchronize()
    assert int(there.sum()) == 3 << 20


@pytest.mark.gpu
@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_batches_on_a_gpu_are_those_of_the_cpu(
    cuda: torch.device, small: Path, workers: dict[str, Any]
) -> None:
    options = {"batch_size": 8, "shuffle": True, "transform": RRC}
    wanted = expected(fastdata.loader(small, **options, num_workers=0), 3)
    found = []
    with fastdata.loader(small, **options, **workers, device=cuda) as loader:
        for _ in range(3):
            for batch in loader:
                torch.cuda._sleep(500_000)
                found.append((batch.image.clone(), batch.label.clone()))
                del batch
    for there, here in zip(found, wanted, strict=True):
        assert (there[0].cpu().reshape(-1).numpy() == here[0]).all()
        assert (there[1].cpu().numpy().view(np.uint8) == here[1]).all()
