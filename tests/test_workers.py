"""One contract over all kinds of worker: the same batches, wherever they work."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from memory_data import MemoryData, digest
from worker_helpers import (
    MEAN,
    METHODS,
    PIPELINES,
    RRC,
    STD,
    epochs_of,
    forked,
    unchanged,
)

from fastdata import transforms as T  # noqa: N812
from fastdata.engine import batches as engine_batches
from fastdata.errors import WorkerError
from fastdata.loading import loader
from fastdata.processes.sharing import outcome_of, packet_of_value

# -- the same batches -------------------------------------------------------------------

MADE: dict[str, dict[str, Any]] = {
    "thread 1": {"num_workers": 1, "worker_method": "thread"},
    "thread 3": {"num_workers": 3, "worker_method": "thread"},
    "thread 3 far ahead": {"num_workers": 3, "worker_method": "thread", "prefetch_factor": 4},
    "process 1": {"num_workers": 1, "worker_method": "process", "prefetch_factor": 1},
    "process 3": {"num_workers": 3, "worker_method": "process", "prefetch_factor": 4},
    "not persistent": {
        "num_workers": 2,
        "worker_method": "process",
        "persistent_workers": False,
    },
    "opencv": {"decoder": "opencv"},
    "pil": {"decoder": "pil"},
    "hdf5": {"data": "hdf5", "num_workers": 3, "worker_method": "thread"},
    "three shards": {"data": "lmdb x 3", "num_workers": 2, "worker_method": "process"},
    "three of hdf5": {"data": "hdf5 x 3", "num_workers": 0},
    "every sample a task": {"pieces": 1, "num_workers": 16, "worker_method": "thread"},
    "uncut": {"pieces": 1000, "num_workers": 2, "worker_method": "process"},
}


@pytest.mark.parametrize("pipeline", list(PIPELINES))
def test_batches_are_bit_identical_whatever_makes_them(
    mixed: dict[str, Path], pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform = PIPELINES[pipeline]
    expected = digest(epochs_of(mixed["lmdb"], transform, decoder="simplejpeg"))
    wrong = []
    monkeypatch.setattr(engine_batches, "PIXELS_PER_TASK", 1)
    for name, made in MADE.items():
        options = {"data": "lmdb", "pieces": 5, **made}
        if options.get("worker_method") == "process":
            options["multiprocessing_context"] = "fork"
        monkeypatch.setattr(engine_batches, "SAMPLES_PER_TASK", options.pop("pieces"))
        if digest(epochs_of(mixed[options.pop("data")], transform, **options)) != expected:
            wrong.append(name)
    assert wrong == []


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_started_processes_make_the_batches_of_forked_ones(
    mixed: dict[str, Path], context: str
) -> None:
    transform = PIPELINES["callable of types"]
    made = epochs_of(
        mixed["hdf5 x 3"],
        transform,
        num_workers=2,
        worker_method="process",
        multiprocessing_context=context,
    )
    assert digest(made) == digest(epochs_of(mixed["lmdb"], transform))


TINY: dict[str, Any] = {
    "whole": None,
    "stack": [T.RandomCrop(16, padding=2), T.RandomHorizontalFlip()],
    "stack of floats": [T.RandomCrop(16), T.Normalize(MEAN, STD)],
    "floats": T.ToDtype(torch.bfloat16),
}


@pytest.mark.parametrize("pipeline", list(TINY))
def test_small_raw_images_are_copied_all_at_once_or_one_by_one(
    tiny: dict[str, Path], pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stack is another implementation than that of a list with a callable in it."""
    transforms = TINY[pipeline]
    listed = transforms if isinstance(transforms, list) else [transforms] * bool(transforms)
    one_by_one = epochs_of(tiny["lmdb"], [*listed, T.ImageOnly(unchanged)])
    monkeypatch.setattr(engine_batches, "PIXELS_PER_TASK", 1)
    for name, options in {
        "lmdb": {"num_workers": 0},
        "hdf5": {"num_workers": 3, "worker_method": "thread"},
        "lmdb x 3": {"num_workers": 2, "worker_method": "process"},
        "hdf5 x 3": {"num_workers": 3, "worker_method": "thread"},
    }.items():
        monkeypatch.setattr(engine_batches, "SAMPLES_PER_TASK", 3)
        made = epochs_of(tiny[name], transforms, **options)
        assert digest(made) == digest(one_by_one), name


class CountedFlip(T.RandomHorizontalFlip):
    """A flip that keeps for how many images it was planned, each time."""

    planned: ClassVar[list[int]] = []

    def plan(self, geometry: Any, draws: Any) -> Any:
        self.planned.append(len(geometry))
        return super().plan(geometry, draws)


def test_threads_share_the_plan_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning holds the interpreter's lock: each task for itself, it would be a ceiling."""
    monkeypatch.setattr(engine_batches, "SAMPLES_PER_TASK", 2)
    monkeypatch.setattr(engine_batches, "PIXELS_PER_TASK", 1)
    transform = [T.CenterCrop(16), CountedFlip()]
    made = {}
    for workers in (0, 6):
        CountedFlip.planned.clear()
        options: dict[str, Any] = {"num_workers": workers, "worker_method": "thread"}
        made[workers] = digest(epochs_of(MemoryData(48), transform, batch_size=24, **options))
        # Three made-up images, when the loader is made, show that all get one size.
        assert set(CountedFlip.planned) == {2, 3, 24}
    assert made[0] == made[6]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_every_batch_has_the_memory_format(
    mixed: dict[str, Path], method: str, memory_format: torch.memory_format
) -> None:
    """Also the first one of a callable, for which there was no place yet, and the short last."""
    for transform in (RRC, PIPELINES["callable"], PIPELINES["float"]):
        for batch in epochs_of(
            mixed["lmdb"],
            transform,
            worker_method=method,
            num_workers=2,
            memory_format=memory_format,
        ):
            assert batch.image.is_contiguous(memory_format=memory_format)
            assert batch.image.shape[1:] == (3, 24, 24)
            assert batch.mask.shape[1:] == (1, 24, 24)
            assert batch.mask.stride() == (576, 576, 24, 1)


# -- unusual places ---------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_loader_may_run_in_any_thread_and_change_it(small: Path, method: Any) -> None:
    it = loader(
        small,
        batch_size=4,
        transform=RRC,
        num_workers=2,
        worker_method=method,
        multiprocessing_context="fork" if method == "process" else None,
    )
    found: list[Any] = []
    epochs: list[Any] = []

    def begin() -> None:
        epochs.append(iter(it))
        found.append(next(epochs[0]))

    for step in (begin, lambda: found.append(next(epochs[0])), lambda: found.extend(epochs[0])):
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    assert digest(found) == digest(loader(small, batch_size=4, transform=RRC, num_workers=0))
    it.close()


def test_a_task_may_be_larger_than_a_message() -> None:
    data = MemoryData(9000, size=(2, 2))
    made = forked(data, batch_size=9000, num_workers=1, transform=None)
    assert digest(made) == digest(loader(data, batch_size=9000, num_workers=0))
    made.close()


@pytest.mark.parametrize("method", METHODS)
def test_a_fork_of_the_training_process_has_no_part_in_its_loader(small: Path, method: Any) -> None:
    """It can make one of its own, and what it closes or drops is only its copy."""
    options = {"transform": RRC, "num_workers": 2, "worker_method": method, "batch_size": 10}
    it = loader(small, **options, multiprocessing_context="fork" if method == "process" else None)
    expected = digest(loader(small, batch_size=10, transform=RRC, num_workers=0))
    epoch = iter(it)
    batches = [next(epoch)]
    child = os.fork()
    if child == 0:  # pragma: no cover
        status = 1
        try:
            signal.alarm(30)
            with pytest.raises(WorkerError, match=r"from which this one .* was forked"):
                next(epoch)
            del epoch
            it.close()
            with loader(small, **options) as own:
                status = digest(own) != expected
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert digest([*batches, *epoch]) == expected
    it.close()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.float32).reshape(2, 3).T,
        torch.tensor(3),
        torch.empty(0, 4),
        torch.tensor([True, False]),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, requires_grad=True),
        torch.arange(10**6)[:2],
    ],
    ids=["view", "number", "empty", "bool", "bfloat16", "with gradient", "of a large storage"],
)
def test_tensors_come_from_workers_as_they_are(tensor: torch.Tensor) -> None:
    packet = packet_of_value(1, {"value": [tensor]})
    assert len(packet.content) < 2000
    value, error = outcome_of(packet)
    assert error is None
    (found,) = value["value"]
    assert torch.equal(found, tensor)
    assert (found.dtype, found.requires_grad) == (tensor.dtype, tensor.requires_grad)
    found.detach().add_(1) if found.dtype != torch.bool else found.logical_not_()
