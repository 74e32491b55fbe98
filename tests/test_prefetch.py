"""What `CUDAPrefetcher` promises on any device: order, types, ends, errors, state."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import threading
import time
import weakref
from collections import OrderedDict, UserDict
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from process_helpers import wait_until
from simulated_device import SimulatedStreams
from torch.utils.data import DataLoader, TensorDataset
from warm_python import WarmPython

import fastdata
from fastdata import waits
from fastdata.errors import OptionError, WorkerError
from fastdata.prefetch import prefetcher as prefetcher_module


@pytest.fixture(params=["cpu", "meta", "simulated"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The CPU, where a thread prefetches; a device without streams; one with them."""
    if request.param == "simulated":
        streams = SimulatedStreams(0)
        monkeypatch.setattr(prefetcher_module, "streams_of", lambda device: streams)
    return str(request.param)


class Pair(NamedTuple):
    image: Any
    label: Any


@dataclass(frozen=True)
class Record:
    image: Any
    name: str
    parts: list[Any] = field(default_factory=list)
    total: int = field(init=False, default=3)


def shapes(batch: Any) -> Any:
    """Return a batch with (shape, dtype, strides) in place of tensors."""
    if isinstance(batch, torch.Tensor):
        return tuple(batch.shape), batch.dtype, batch.stride()
    if isinstance(batch, dict):
        return {key: shapes(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [shapes(value) for value in batch]
    return batch


# -- what a batch may be --------------------------------------------------------------


def test_every_kind_of_batch_arrives_as_it_was(device: str) -> None:
    image = torch.zeros(2, 3, 5, 4).contiguous(memory_format=torch.channels_last)
    batch = {
        "pair": Pair(image, np.arange(2)),
        "record": Record(torch.ones(3), "a", [np.ones((2, 2), np.float32), None]),
        "tuple": (torch.zeros(0, 3), 1.5, "text", b"bytes", None),
        "ordered": OrderedDict(b=torch.arange(3), a=2),
        "user": UserDict(x=torch.arange(3)),
        "fixed": MappingProxyType({"x": torch.arange(3)}),
        "texts": np.array(["x", "y"]),
        "scalar": np.float32(2),
        "turned": torch.zeros(4, 6)[:, ::2].t(),
        "nothing": [],
    }
    (made,) = fastdata.CUDAPrefetcher([batch], device)
    assert shapes(made["pair"]) == [
        ((2, 3, 5, 4), torch.float32, image.stride()),
        ((2,), torch.int64, (1,)),
    ]
    assert type(made["pair"]) is Pair
    assert type(made["record"]) is Record
    assert made["record"].name == "a"
    assert made["record"].total == 3
    assert shapes(made["record"].parts) == [((2, 2), torch.float32, (2, 1)), None]
    assert shapes(made["tuple"]) == [((0, 3), torch.float32, (3, 1)), 1.5, "text", b"bytes", None]
    assert type(made["ordered"]) is OrderedDict
    assert list(made["ordered"]) == ["b", "a"]
    assert type(made["user"]) is UserDict
    assert isinstance(made["user"]["x"], torch.Tensor)
    assert isinstance(made["fixed"]["x"], torch.Tensor)
    assert made["texts"] is batch["texts"]
    assert made["scalar"] is batch["scalar"]
    assert made["turned"].shape == (3, 4)
    assert made["nothing"] == []
    assert isinstance(batch["pair"].label, np.ndarray), "the batch given is not changed"
    if device == "meta":
        assert made["pair"].label.device.type == "meta"


ARRAYS = [
    np.arange(6, dtype=">i4").reshape(2, 3),
    np.arange(6, dtype=np.float16)[::-1],
    np.arange(24).reshape(2, 3, 4)[:, ::2].transpose(2, 0, 1),
    np.array(7.5),
    np.array([True, False]),
    np.arange(3, dtype=np.complex64),
    np.frombuffer(b"read-only", np.uint8),
    np.zeros((0, 4)),
]


@pytest.mark.parametrize("simulated", [False, True])
def test_arrays_become_tensors_of_their_values(
    simulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = SimulatedStreams(1)
    if simulated:
        monkeypatch.setattr(prefetcher_module, "streams_of", lambda device: streams)
    (made,) = fastdata.CUDAPrefetcher([ARRAYS], "cpu")
    streams.finish()
    assert all(isinstance(tensor, torch.Tensor) for tensor in made)
    assert [tensor.tolist() for tensor in made] == [array.tolist() for array in ARRAYS]


TENSORS = [
    torch.arange(24).reshape(2, 3, 4).transpose(0, 2),
    torch.arange(10)[2:7],
    torch.arange(10)[::3],
    torch.arange(3).expand(4, 3),
    torch.arange(3) * 1j,
    (torch.arange(3) * 1j).conj(),
    torch.ones(2, 3, dtype=torch.bfloat16),
    torch.tensor(5),
    torch.nn.Parameter(torch.ones(3)),
    torch.randn(700, 500, generator=torch.Generator().manual_seed(0)),
]


@pytest.mark.parametrize("pinned", [False, True])
def test_tensors_keep_their_values(pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = SimulatedStreams(2)
    monkeypatch.setattr(prefetcher_module, "streams_of", lambda device: streams)
    batch = list(TENSORS)
    if pinned:
        memory = streams.pin(1 << 16)
        batch = [
            memory[at * 4096 :][: t.numel() * t.element_size()].view(t.dtype).view(t.shape).copy_(t)
            for at, t in enumerate(t.detach() for t in TENSORS[:-1])
        ]
    made = next(iter(fastdata.CUDAPrefetcher([batch])))
    streams.finish()
    for given, arrived in zip(batch, made, strict=True):
        assert torch.equal(arrived, given)
        assert arrived.dtype == given.dtype
        assert not arrived.requires_grad


def test_sparse_tensors_and_subclasses_are_moved_their_own_way() -> None:
    class Named(torch.Tensor):
        pass

    sparse = torch.eye(3).to_sparse()
    batch = [sparse, torch.zeros(3).as_subclass(Named)]
    (made,) = fastdata.CUDAPrefetcher([batch], "meta")
    assert made[0].layout == torch.sparse_coo
    assert type(made[1]) is Named
    assert made[1].device.type == "meta"


class Kept(MutableMapping[str, Any]):
    """Keeps its values in an attribute, which a shallow copy shares."""

    def __init__(self, values: Any) -> None:
        self.values_ = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self.values_[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.values_[key] = value

    def __delitem__(self, key: str) -> None:
        del self.values_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


class Two(tuple[Any, ...]):
    """A tuple that is not made of one iterable."""

    def __new__(cls, first: Any, second: Any) -> Two:
        return super().__new__(cls, (first, second))


def test_odd_containers_are_not_changed() -> None:
    class Rows(list[Any]):
        pass

    lengths = torch.tensor([3, 1])
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2), lengths)
    masked = np.ma.masked_array([1, 2], [True, False])
    kept = Kept({"x": torch.zeros(3)})
    batch = [kept, Two(torch.zeros(2), "b"), Rows([torch.zeros(1)]), packed, masked]
    ((mapping, pair, rows, sequence, array),) = fastdata.CUDAPrefetcher([batch], "meta")
    assert kept["x"].device.type == "cpu"
    assert type(mapping) is Kept
    assert mapping["x"].device.type == "meta"
    assert pair[0].device.type == "meta"
    assert pair[1] == "b"
    assert type(rows) is Rows
    assert rows[0].device.type == "meta"
    assert sequence.data.device.type == "meta"
    assert torch.equal(sequence.batch_sizes, packed.batch_sizes)
    assert array is masked


def test_pageable_memory_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    streams = SimulatedStreams(0)
    monkeypatch.setattr(prefetcher_module, "streams_of", lambda device: streams)
    prefetcher = fastdata.CUDAPrefetcher([torch.zeros(1 << 20)] * 5)
    for _ in range(2):
        list(prefetcher)
    (said,) = caplog.messages
    assert "pageable memory (4.2 MB of this one)" in said
    assert "pin_memory=True" in said
    caplog.clear()
    list(fastdata.CUDAPrefetcher([torch.zeros(10)] * 5))
    assert caplog.messages == [], "a few labels are no matter"


# -- passes ---------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "depth"), [(0, 2), (1, 1), (2, 7), (20, 1), (20, 7)])
def test_all_batches_come_in_order(device: str, count: int, depth: int) -> None:
    source = [(torch.zeros(3), n) for n in range(count)]
    prefetcher = fastdata.CUDAPrefetcher(source, device, depth=depth)
    assert len(prefetcher) == count
    for _ in range(2):
        it = iter(prefetcher)
        assert [n for _, n in it] == list(range(count))
        assert next(it, "the end") == "the end"


def test_a_generator_is_one_pass(device: str) -> None:
    prefetcher = fastdata.CUDAPrefetcher((n for n in range(4)), device)
    assert list(prefetcher) == [0, 1, 2, 3]
    assert list(prefetcher) == []
    with pytest.raises(TypeError, match="len"):
        len(prefetcher)


def test_no_more_is_pulled_than_depth_says(device: str) -> None:
    pulled: list[int] = []

    def source() -> Iterator[int]:
        for number in range(20):
            pulled.append(number)
            yield number

    it = iter(fastdata.CUDAPrefetcher(source(), device, depth=3))
    for number in range(5):
        assert next(it) == number
        time.sleep(0.02)
        assert len(pulled) <= number + 1 + 3
    wait_until(lambda: len(pulled) >= 5 + 3)
    assert len(pulled) == 5 + 3


def broken_after(count: int, error: Exception) -> Iterator[int]:
    yield from range(count)
    raise error


@pytest.mark.parametrize(("count", "depth"), [(0, 1), (1, 3), (5, 1), (5, 3)])
def test_good_batches_come_before_an_error(device: str, count: int, depth: int) -> None:
    it = iter(
        fastdata.CUDAPrefetcher(broken_after(count, ZeroDivisionError("mine")), device, depth=depth)
    )
    assert [next(it) for _ in range(count)] == list(range(count))
    with pytest.raises(ZeroDivisionError, match="mine"):
        next(it)
    assert list(it) == []


def test_after_an_error_nothing_is_kept(device: str) -> None:
    def failed_pass() -> weakref.ref[fastdata.CUDAPrefetcher]:
        prefetcher = fastdata.CUDAPrefetcher(broken_after(1, ZeroDivisionError("mine")), device)
        with pytest.raises(ZeroDivisionError):
            list(prefetcher)
        return weakref.ref(prefetcher)

    kept = failed_pass()
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("error", [ValueError("of mine"), StopIteration("of mine")])
def test_an_error_of_the_transform_comes_in_its_place(device: str, error: Exception) -> None:
    def transform(number: int) -> int:
        if number == 3:
            raise error
        return number * 2

    it = iter(fastdata.CUDAPrefetcher(range(9), device, transform))
    assert [next(it) for _ in range(3)] == [0, 2, 4]
    with pytest.raises((ValueError, RuntimeError), match=r"of mine|raised StopIteration"):
        next(it)
    assert list(it) == []


def test_leaving_early_ends_everything(device: str) -> None:
    """That no thread is left is seen by the fixture that all tests have."""
    closed = []

    def source() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            closed.append(True)

    for number in fastdata.CUDAPrefetcher(source(), device, depth=2):
        if number == 5:
            break
    wait_until(lambda: bool(closed))


def test_a_closed_pass_is_over(device: str) -> None:
    it: Any = iter(fastdata.CUDAPrefetcher(range(100), device, depth=2))
    next(it)
    it.close()
    it.close()
    assert list(it) == []
    assert not [t for t in threading.enumerate() if "fastdata prefetch" in t.name]


def test_ctrl_c_loses_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetcher_module, "streams_of", lambda device: SimulatedStreams(0))

    class Source:
        def __init__(self) -> None:
            self.number = 0

        def __iter__(self) -> Source:
            return self

        def __next__(self) -> int:
            self.number += 1
            if self.number == 4:
                raise KeyboardInterrupt
            return self.number

    it = iter(fastdata.CUDAPrefetcher(Source()))
    assert [next(it), next(it)] == [1, 2]
    with pytest.raises(KeyboardInterrupt):
        next(it)
    assert [next(it), next(it)] == [3, 5]


def test_transform_sees_whole_batches_on_the_device(device: str) -> None:
    def transform(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if device != "simulated":
            assert batch["x"].device.type == device
        return {"y": batch["x"].reshape(2, 2)}

    (made,) = fastdata.CUDAPrefetcher([{"x": torch.zeros(4)}], device, transform)
    assert made["y"].shape == (2, 2)


@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_ctrl_c_at_any_moment_neither_loses_a_batch_nor_hangs(kind: str) -> None:
    """Interrupts come by a timer, at many places of the code; then all goes on."""
    found: list[int] = []
    caught = 0
    armed = [False]  # so that none strikes the test itself

    def interrupt(*given: Any) -> None:
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    it = iter(fastdata.CUDAPrefetcher(range(3000), kind))
    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    while caught < 40 and len(found) < 3000:
        try:
            armed[0] = True
            batch = next(it)
            armed[0] = False
            found.append(batch)
        except KeyboardInterrupt:
            caught += 1
        except StopIteration:
            armed[0] = False
            break
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)
    found += list(it)
    assert found == sorted(found)
    # Between taking a batch and handing it over there is always a moment.
    assert len(found) >= 3000 - caught - 1


def test_a_loader_whose_workers_stay_may_be_left_and_begun_again() -> None:
    data = TensorDataset(torch.arange(400))
    loader: Any = DataLoader(data, batch_size=2, num_workers=2, persistent_workers=True)
    prefetcher = fastdata.CUDAPrefetcher(loader, "cpu", depth=3)
    for _ in range(8):
        for number, (batch,) in enumerate(prefetcher):
            assert batch.tolist() == [2 * number, 2 * number + 1]
            if number == 3:
                break
    assert sum(len(batch) for (batch,) in prefetcher) == 400


def test_what_was_left_is_gone_before_the_prefetcher_is() -> None:
    prefetcher = fastdata.CUDAPrefetcher(range(1000), "cpu", depth=2)
    for number in prefetcher:
        if number == 5:
            break
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "fastdata prefetch"])


# -- the CPU --------------------------------------------------------------------------


def test_on_the_cpu_batches_are_made_in_the_background() -> None:
    made = threading.Event()

    def source() -> Iterator[str]:
        yield "first"
        made.set()
        yield threading.current_thread().name

    it = iter(fastdata.CUDAPrefetcher(source(), "cpu"))
    assert next(it) == "first"
    assert made.wait(10), "the second batch is made without being asked for"
    assert next(it) == "fastdata prefetch"
    assert list(it) == []


def test_a_forked_process_does_not_wait_for_ever() -> None:
    it = iter(fastdata.CUDAPrefetcher(iter([1, 2, 3]), "cpu"))
    assert next(it) == 1
    end, other = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"nothing"
        try:
            for _ in range(5):
                next(it)
        except WorkerError as error:
            said = str(error).encode()
        except BaseException as error:
            said = repr(error).encode()
        finally:
            os.write(other, said)
            os._exit(0)
    os.close(other)
    with os.fdopen(end, "rb") as file:
        said = file.read()
    os.waitpid(child, 0)
    assert b"forked" in said
    assert list(it) == [2, 3]


EXITING = """
import sys, time, torch, fastdata

def source():
    while True:
        yield torch.randn(200_000).exp().sort().values  # some time in torch's own code

it = iter(fastdata.CUDAPrefetcher(source(), "cpu", depth=1000))
next(it)
print("done")
"""


ENDING_A_PASS = """
import time, torch, fastdata

ended = []

class Batches:
    def __next__(self):
        return torch.zeros(3)

    def __del__(self):
        ended.append(True)
        until = time.monotonic() + 1
        while time.monotonic() < until:
            torch.randn(200_000).exp().sort()

class Loader:
    def __iter__(self):
        return Batches()

it = iter(fastdata.CUDAPrefetcher(Loader(), "cpu"))
next(it)
del it
while not ended:
    time.sleep(0.01)
print("done")
"""


@pytest.mark.parametrize("script", [EXITING, ENDING_A_PASS], ids=["in a pass", "ending a pass"])
def test_a_program_may_end_while_a_thread_is_in_torchs_code(
    script: str, warm_python: WarmPython
) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    programs = [warm_python.start(script, **pipes) for _ in range(3)]
    for program in programs:
        assert program.communicate() == ("done\n", "")
        assert program.returncode == 0


# -- options, and what is the iterable's -----------------------------------------------


def test_a_machine_without_a_gpu_is_said() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(OptionError, match=r"no CUDA device.*device=\"cpu\""):
        fastdata.CUDAPrefetcher([1])
    with pytest.raises(OptionError, match=r"no CUDA device"):
        fastdata.loader(TensorDataset(torch.zeros(3)), device="cuda")


@pytest.mark.gpu
def test_a_gpu_that_is_not_there_is_said(cuda: torch.device) -> None:
    with pytest.raises(OptionError, match="numbered from 0"):
        fastdata.CUDAPrefetcher([1], "cuda:64")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"iterable": 3}, "takes an iterable of batches, not int"),
        ({"depth": 0}, "depth=0 is not an integer from 1"),
        ({"depth": True}, "depth=True is not an integer"),
        ({"transform": 5}, "is no callable"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        fastdata.CUDAPrefetcher(**{"iterable": [1], "device": "cpu", **given})


def test_length_and_attributes_are_the_iterables(device: str) -> None:
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2)
    prefetcher = fastdata.CUDAPrefetcher(loader, device)
    assert prefetcher.sampler is loader.sampler
    assert prefetcher.batch_size == 2
    assert prefetcher.iterable is loader
    assert not hasattr(prefetcher, "state_dict")
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = prefetcher.missing


class Stateful:
    """An iterable of numbers that can be resumed, in the manner of torchdata's loader."""

    def __init__(self) -> None:
        self.at = 0
        self.epoch = 0
        self.state: dict[str, int] = {}

    def __iter__(self) -> Iterator[int]:
        while self.at < 6:
            self.at += 1
            yield self.epoch * 100 + self.at - 1
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        self.state.update(at=self.at, epoch=self.epoch)
        return self.state  # the same one each time, as some do

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]

    def set_epoch(self, epoch: int) -> None:
        self.at, self.epoch = 0, epoch


def test_state_counts_batches_that_were_handed_out(device: str) -> None:
    prefetcher: Any = fastdata.CUDAPrefetcher(Stateful(), device, depth=3)
    assert prefetcher.state_dict() == {"at": 0, "epoch": 0}
    it = iter(prefetcher)
    for number in range(4):
        assert next(it) == number
        assert prefetcher.state_dict() == {"at": number + 1, "epoch": 0}
    again: Any = fastdata.CUDAPrefetcher(Stateful(), device, depth=3)
    again.load_state_dict(prefetcher.state_dict())
    assert list(again) == [4, 5] == list(it)
    assert prefetcher.state_dict() == again.state_dict() == {"at": 0, "epoch": 1}
    prefetcher.set_epoch(7)
    assert prefetcher.state_dict() == {"at": 0, "epoch": 7}
    assert next(iter(prefetcher)) == 700


def test_a_stock_loader_with_workers(device: str) -> None:
    data = TensorDataset(torch.arange(20).reshape(10, 2))
    loader: Any = fastdata.loader(data, batch_size=4, num_workers=2, persistent_workers=False)
    for _ in range(2):
        batches = list(fastdata.CUDAPrefetcher(loader, device))
        assert [len(batch[0]) for batch in batches] == [4, 4, 2]


def test_a_torch_dataset_with_a_device_gets_a_prefetcher() -> None:
    data = TensorDataset(torch.arange(10))
    made = fastdata.loader(data, batch_size=4, num_workers=0, device="meta")
    assert isinstance(made, fastdata.CUDAPrefetcher)
    assert [batch[0].device.type for batch in made] == ["meta"] * 3
    assert isinstance(fastdata.loader(data, num_workers=0, device="cpu"), DataLoader)
    with pytest.raises(OptionError, match=r"device is a torch\.device or its name"):
        fastdata.loader(data, device="gpu")


def test_an_iterable_that_does_not_go_on_is_named_after_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "FIRST_SECONDS", 0.05)
    goes_on = threading.Event()

    def batches() -> Iterator[int]:
        yield 0
        goes_on.wait()
        yield 1

    opening = threading.Timer(0.3, goes_on.set)
    opening.start()
    assert list(fastdata.CUDAPrefetcher(batches(), "cpu")) == [0, 1]
    opening.join()
    assert "waiting for the thread that makes the next batch" in caplog.text
