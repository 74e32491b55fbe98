"""Batches arrive whole, whatever the device's streams are busy with.

On a simulated device that is as late and as disorderly as one may be
(`simulated_device`), and on a real GPU where there is one.  Each rule that keeps it safe is
taken out in turn: the same check must then fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from simulated_device import HostPool, SimulatedStreams, Stream

import fastdata
from fastdata.errors import OptionError
from fastdata.prefetch import prefetcher as prefetcher_module
from fastdata.prefetch.mover import STEPS_AHEAD
from fastdata.prefetch.streams import CudaStreams

BYTES = 96
BATCHES = 1200

Prefetch = Callable[..., fastdata.CUDAPrefetcher]


@pytest.fixture(params=range(3))
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SimulatedStreams:
    """A simulated device, which `CUDAPrefetcher` takes for the real one."""
    streams = SimulatedStreams(request.param)
    monkeypatch.setattr(prefetcher_module, "streams_of", lambda device: streams)
    return streams


def value(number: int) -> int:
    """What every byte of a batch is."""
    return number * 37 % 251


def pinned_batches(pool: HostPool, count: int = BATCHES) -> Iterator[tuple[torch.Tensor, int]]:
    """Batches in memory that is overwritten as soon as the last view of one dies."""
    for number in range(count):
        yield pool.take(BYTES).fill_(value(number)), number


def pageable_batches(count: int = BATCHES) -> Iterator[tuple[torch.Tensor, int]]:
    """Batches in ordinary memory, the same each time, which is overwritten at once."""
    memory = torch.empty(BYTES, dtype=torch.uint8)
    for number in range(count):
        yield memory.fill_(value(number)), number


class Consumer:
    """Submits a kernel a batch, and sees in the end what each of them read."""

    def __init__(self, device: SimulatedStreams) -> None:
        self.device = device
        self.seen: dict[int, int] = {}

    def read(self, images: torch.Tensor, number: int, wanted: int | None = None) -> None:
        wanted = value(number) if wanted is None else wanted

        def kernel(memory: list[Any]) -> None:
            self.seen[number] = int((memory[0] != wanted).sum())

        self.device.launch(kernel, images)

    def wrong(self, count: int = BATCHES) -> int:
        """Return how many batches were not read as they should have been."""
        self.device.finish()
        assert sorted(self.seen) == list(range(count))
        return sum(different > 0 for different in self.seen.values())


def wrong_batches(device: SimulatedStreams, source: Any, **options: Any) -> int:
    """Return how many batches arrive wrong when each is dropped as soon as it was submitted."""
    consumer = Consumer(device)
    for images, number in fastdata.CUDAPrefetcher(source, **options):
        consumer.read(images, number)
        del images
        if number % 5 == 0:
            device.go_on()
    return consumer.wrong()


def test_deeper_batches_arrive_whole(device: SimulatedStreams) -> None:
    assert wrong_batches(device, pinned_batches(device.pinned), depth=5) == 0


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("wait", lambda self, stream, event: None),
        ("use", lambda self, tensor, stream: None),
        ("passed", lambda self, event: True),
    ],
)
def test_without_one_of_the_rules_they_do_not(
    device: SimulatedStreams, monkeypatch: pytest.MonkeyPatch, rule: str, broken: Any
) -> None:
    monkeypatch.setattr(SimulatedStreams, rule, broken)
    assert wrong_batches(device, pinned_batches(device.pinned)) > 0


def test_without_holding_the_block_pageable_batches_do_not(
    device: SimulatedStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedStreams, "passed", lambda self, event: True)
    assert wrong_batches(device, pageable_batches()) > 0


def doubled(device: SimulatedStreams, batch: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    """A transform: a kernel from the batch's memory to new memory."""
    images, number = batch
    out = device.twin(images)

    def kernel(memory: list[Any]) -> None:
        memory[1][:] = memory[0] * np.uint8(2)

    device.launch(kernel, images, out)
    return out, number


def wrong_transformed(device: SimulatedStreams) -> int:
    consumer = Consumer(device)
    batches = pinned_batches(device.pinned)
    for images, number in fastdata.CUDAPrefetcher(batches, transform=lambda b: doubled(device, b)):
        consumer.read(images, number, value(number) * 2 % 256)
        del images
    return consumer.wrong()


def test_transforms_run_on_the_copying_stream(device: SimulatedStreams) -> None:
    assert wrong_transformed(device) == 0


def test_kept_batches_stay_as_they_are(device: SimulatedStreams) -> None:
    consumer = Consumer(device)
    kept = []
    for images, number in fastdata.CUDAPrefetcher(pinned_batches(device.pinned)):
        kept.append((images, number))
        del images
        if len(kept) > 7:
            at = device.random.randrange(len(kept))
            consumer.read(*kept.pop(at))
    for pair in kept:
        consumer.read(*pair)
    del kept, pair
    assert consumer.wrong() == 0


def on_changing_streams(device: SimulatedStreams, **options: Any) -> int:
    """As `wrong_batches`, with another stream current at every step."""
    consumer = Consumer(device)
    others = [device.side(), device.side(), device.default]
    batches = iter(fastdata.CUDAPrefetcher(pinned_batches(device.pinned), **options))
    for step in range(BATCHES):
        with device.on(others[step % 3]):
            images, number = next(batches)
            consumer.read(images, number)
            del images
    assert next(batches, None) is None
    return consumer.wrong()


def test_the_stream_that_is_current_at_each_step_waits(device: SimulatedStreams) -> None:
    assert on_changing_streams(device) == 0


def test_two_passes_at_once(device: SimulatedStreams) -> None:
    data = [(device.pinned.take(BYTES).fill_(value(n)), n) for n in range(200)]
    prefetcher = fastdata.CUDAPrefetcher(data)
    consumers = Consumer(device), Consumer(device)
    for first, second in zip(prefetcher, prefetcher, strict=True):
        consumers[0].read(*first)
        consumers[1].read(*second)
        del first, second
    assert [consumer.wrong(200) for consumer in consumers] == [0, 0]


def test_tensors_that_are_on_the_device_already_are_waited_for(
    device: SimulatedStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What made them was submitted to the stream that is current in the source."""
    from fastdata.prefetch import mover as mover_module

    monkeypatch.setattr(mover_module, "_is_on", lambda leaf, where: leaf.data_ptr() in device._live)
    monkeypatch.setattr(mover_module.Mover, "_move", lambda self, leaf, pinned: leaf)

    def _fill(wanted: int, memory: list[Any]) -> None:
        memory[0].fill(wanted)

    def made_there() -> Iterator[tuple[torch.Tensor, int]]:
        for number in range(BATCHES):
            images = device.twin(torch.empty(BYTES, dtype=torch.uint8))
            device.launch(partial(_fill, value(number)), images)
            yield images, number
            del images

    consumer = Consumer(device)
    transform = lambda batch: doubled(device, batch)  # noqa: E731
    for images, number in fastdata.CUDAPrefetcher(made_there(), transform=transform):
        consumer.read(images, number, value(number) * 2 % 256)
        del images
    assert consumer.wrong() == 0


# -- memory ---------------------------------------------------------------------------


def test_memory_is_bounded(device: SimulatedStreams) -> None:
    assert wrong_batches(device, pinned_batches(device.pinned)) == 0
    # Held by copies, on their way, in the hands of steps that the host is ahead.
    assert device.allocated() <= STEPS_AHEAD + 5
    assert len(device.pinned.blocks) <= STEPS_AHEAD + 5


def test_page_locked_memory_is_not_allocated_a_batch(device: SimulatedStreams) -> None:
    assert wrong_batches(device, pageable_batches()) == 0
    assert len(device.pinned.blocks) <= STEPS_AHEAD + 5


def test_host_memory_is_free_after_a_pass(device: SimulatedStreams) -> None:
    pool = HostPool()
    device.pinned = pool
    prefetcher = fastdata.CUDAPrefetcher(pinned_batches(pool, 10))
    for images, _ in prefetcher:
        del images
    assert len(pool._free) == len(pool.blocks)


# -- static ---------------------------------------------------------------------------


def test_static_batches_are_at_one_address_in_every_pass(device: SimulatedStreams) -> None:
    data = [(device.pinned.take(BYTES).fill_(value(n)), n) for n in range(40)]
    prefetcher = fastdata.CUDAPrefetcher(data, static=True)
    addresses, consumers = set(), [Consumer(device) for _ in range(3)]
    for consumer in consumers:
        for images, number in prefetcher:
            addresses.add(images.data_ptr())
            consumer.read(images, number)
            del images
    assert len(addresses) == 1
    assert [consumer.wrong(40) for consumer in consumers] == [0, 0, 0]


def test_static_batches_wait_for_what_used_them_on_another_stream(
    device: SimulatedStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert on_changing_streams(device, static=True) == 0

    from fastdata.prefetch.prefetcher import FixedBatch

    fill = FixedBatch.fill

    def forgetful(self: FixedBatch, batch: Any) -> Any:
        self._stream = device.current()
        return fill(self, batch)

    monkeypatch.setattr(FixedBatch, "fill", forgetful)
    device.finish()
    assert on_changing_streams(device, static=True) > 0


def test_static_batches_are_all_alike(device: SimulatedStreams) -> None:
    batches = [torch.zeros(4, 3), torch.zeros(4, 3), torch.zeros(2, 3)]
    it = iter(fastdata.CUDAPrefetcher(batches, static=True))
    next(it), next(it)
    with pytest.raises(OptionError, match=r"float32 \[4, 3\]; .* \[2, 3\].*drop_last"):
        next(it)


# -- a real GPU -----------------------------------------------------------------------


def wrong_on_a_gpu(device: torch.device, **options: Any) -> int:
    """The same on a GPU: kernels that take random times on both streams."""
    generator = np.random.default_rng(0)
    sleeps = generator.integers(0, 400_000, (2, BATCHES)).tolist()
    size = 1 << 16

    # Before the first copy: to page-lock memory waits for the device, which hides every race.
    memory = torch.empty((BATCHES, size), dtype=torch.uint8, pin_memory=True)
    for number, row in enumerate(memory):
        row.fill_(value(number))
    batches = zip(memory, range(BATCHES), strict=True)

    def transform(batch: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
        torch.cuda._sleep(sleeps[0][batch[1]])
        return batch[0] + 1, batch[1]

    wrong = torch.zeros(BATCHES, dtype=torch.int64, device=device)
    for images, number in fastdata.CUDAPrefetcher(batches, device, transform, **options):
        torch.cuda._sleep(sleeps[1][number])
        wrong[number] = (images != value(number) + 1).sum()
        del images
    return int((wrong > 0).sum())


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"depth": 3}, {"static": True}])
def test_batches_arrive_whole_on_a_gpu(cuda: torch.device, options: dict[str, Any]) -> None:
    assert wrong_on_a_gpu(cuda, **options) == 0


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rule", "broken"),
    [("wait", lambda *given: None), ("use", lambda *given: None)],
)
def test_without_one_of_the_rules_they_do_not_on_a_gpu(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch, rule: str, broken: Any
) -> None:
    monkeypatch.setattr(CudaStreams, rule, broken)
    assert wrong_on_a_gpu(cuda) > 0


@pytest.mark.gpu
def test_a_captured_graph_reads_every_static_batch(cuda: torch.device) -> None:
    batches = [(torch.full((64, 64), float(n)).pin_memory(), n) for n in range(50)]
    total = torch.zeros((), device=cuda)
    graph: torch.cuda.CUDAGraph | None = None
    found = []
    side = torch.cuda.Stream(cuda)
    prefetcher = fastdata.CUDAPrefetcher(batches, cuda, static=True)
    for images, _number in chain(prefetcher, prefetcher):
        if graph is None:
            side.wait_stream(torch.cuda.current_stream(cuda))
            with torch.cuda.stream(side):
                total.copy_(images.sum())  # warms up what the capture needs
            torch.cuda.current_stream(cuda).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                total.copy_(images.sum())
        graph.replay()
        found.append(total.clone())
    assert [int(t) for t in found] == [n * 64 * 64 for n in range(50)] * 2


@pytest.mark.gpu
def test_every_gpu_gets_its_batches(cuda: torch.device) -> None:
    devices = [torch.device("cuda", n) for n in range(torch.cuda.device_count())]
    data = [torch.full((1000,), n).pin_memory() for n in range(20)]
    passes = [iter(fastdata.CUDAPrefetcher(data, device)) for device in devices]
    for number in range(20):
        for device, batches in zip(devices, passes, strict=True):
            images = next(batches)
            assert images.device == device
            assert int(images.sum()) == 1000 * number


def test_a_stream_is_made_once(device: SimulatedStreams) -> None:
    prefetcher = fastdata.CUDAPrefetcher([torch.zeros(3)] * 4)
    streams: list[Stream] = list(device.streams)
    for _ in range(3):
        list(prefetcher)
    assert device.streams == streams
    assert len(streams) == 2
