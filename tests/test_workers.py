"""One contract over all kinds of worker: the same batches, the same errors, the same end."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from memory_data import MemoryData, MemoryImages, digest
from PIL import Image
from samples import decoded, psnr, write_shard
from worker_helpers import (
    MEAN,
    METHODS,
    PICTURES,
    RRC,
    SCENES,
    STD,
    WindowByIndex,
    as_values,
    damage_image,
    fail_at_seven,
    fail_unpicklably,
    float_if_odd,
    invert,
    kept,
    layouts,
    no_workers_soon,
    pictures,
    scenes,
    slow,
    unchanged,
    worker_processes,
    workers,
)

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.engine import batches as engine_batches
from fastdata.engine import work as engine_work
from fastdata.engine.job import Request
from fastdata.engine.processes import WorkerTraceback
from fastdata.engine.stream import Stream
from fastdata.errors import OptionError, ShardCorruptError, WorkerError
from fastdata.formats.reader import ShardReader
from fastdata.formats.writer import Record
from fastdata.loading import Loader, loader

EPOCHS = 2

PIPELINES: dict[str, Any] = {
    "crop": RRC,
    "antialias": [T.RandomResizedCrop(24, antialias=True)],
    "float": [*RRC, T.Normalize(MEAN, STD), T.ToDtype(torch.float16)],
    "padding": [T.RandomCrop(100, padding=8), T.RandomHorizontalFlip()],
    "callable": [*RRC, invert],
    "callable between": [T.CenterCrop(120), invert, *RRC, T.Normalize(MEAN, STD)],
    "callable of types": [*RRC, T.PerSample(as_values)],
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same scenes in every container, whole and in three shards, of every codec."""
    records = scenes(40, ("jpeg", "png", "raw", "file"))
    for index in range(4, 40, 8):
        # A JPEG without restart intervals, as `codec="keep"` leaves it.
        pixels = decoded(records[index].values[0], 3)
        records[index] = records[index]._replace(values=(kept(pixels), *records[index].values[1:]))
    return layouts(tmp_path_factory.mktemp("mixed"), records, SCENES)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Raw images of one small size."""
    return layouts(tmp_path_factory.mktemp("tiny"), scenes(60, ("raw",), (20, 22)), SCENES)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred small labelled JPEGs in one shard."""
    return write_shard(tmp_path_factory.mktemp("small") / "s.lmdb", pictures(100), PICTURES)


def epochs_of(path: Path, transform: Any, count: int = EPOCHS, **options: Any) -> list[Any]:
    """Return all batches of the first epochs."""
    defaults = {"batch_size": 16, "shuffle": True, "seed": 5, "num_workers": 0}
    with loader(path, transform=transform, **{**defaults, **options}) as it:
        return [batch for _ in range(count) for batch in it]


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
    one_by_one = epochs_of(tiny["lmdb"], [*listed, unchanged])
    for name, options in {
        "lmdb": {"num_workers": 0},
        "hdf5": {"num_workers": 3, "worker_method": "thread"},
        "lmdb x 3": {"num_workers": 2, "worker_method": "process"},
        "hdf5 x 3": {"num_workers": 3, "worker_method": "thread"},
    }.items():
        monkeypatch.setattr(engine_batches, "SAMPLES_PER_TASK", 3)
        made = epochs_of(tiny[name], transforms, **options)
        assert digest(made) == digest(one_by_one), name


@pytest.mark.parametrize("method", METHODS)
def test_every_batch_lies_in_channels_last_memory(mixed: dict[str, Path], method: str) -> None:
    """Also the first one of a callable, for which there was no place yet, and the short last."""
    for transform in (RRC, PIPELINES["callable"], PIPELINES["float"]):
        for batch in epochs_of(mixed["lmdb"], transform, worker_method=method, num_workers=2):
            assert batch.image.is_contiguous(memory_format=torch.channels_last)
            assert batch.image.shape[1:] == (3, 24, 24)
            assert batch.mask.shape[1:] == (1, 24, 24)


# -- pixels against an independent reference ----------------------------------------------


def _odd_window(index: int, height: int, width: int) -> tuple[int, int, int, int]:
    """Return another rectangle for each sample: at each edge in turn, and with none of them."""
    rows, columns = 17 + 5 * (index % 13), 23 + 7 * (index % 9)
    top = [0, height - rows, (height - rows) // 3, 1][index % 4]
    left = [0, (width - columns) // 2, width - columns, 3][index // 4 % 4]
    return top, left, rows, columns


def _fixed_window(index: int, height: int, width: int) -> tuple[int, int, int, int]:
    top, left, _, _ = _odd_window(index, height, width)
    return min(top, height - 40), min(left, width - 56), 40, 56


def _large_window(index: int, height: int, width: int) -> tuple[int, int, int, int]:
    return index % 5, 3 * (index % 7), height - 9 - index % 3, width - 21


@pytest.mark.parametrize("decoder", ["simplejpeg", "opencv", "pil"])
@pytest.mark.parametrize("codec", ["jpeg", "kept", "png", "raw", "file"])
def test_a_crop_is_that_of_the_whole_image(tmp_path: Path, decoder: Any, codec: str) -> None:
    records = scenes(16, ("jpeg" if codec == "kept" else codec,))
    if codec == "kept":
        records = [Record(r.key, (kept(decoded(r.values[0], 3)), *r.values[1:])) for r in records]
    path = write_shard(tmp_path / "shard.lmdb", records, SCENES)
    transform = WindowByIndex(_fixed_window, (40, 56), resize=False)
    [batch] = loader(path, batch_size=16, transform=transform, decoder=decoder, num_workers=2)
    for index, record in enumerate(records):
        for images, field, channels in ((batch.image, 0, 3), (batch.mask, 1, 1)):
            whole = decoded(record.values[field], channels)
            top, left, height, width = _fixed_window(index, *whole.shape[:2])
            expected = whole[top : top + height, left : left + width]
            np.testing.assert_array_equal(images[index].permute(1, 2, 0).numpy(), expected)


def pil_crop(whole: np.ndarray[Any, Any], window: tuple[int, ...], size: tuple[int, int]) -> Any:
    """Crop and resize as torchvision does to PIL images."""
    top, left, height, width = window
    image = Image.fromarray(whole).crop((left, top, left + width, top + height))
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR))


def _pictures_and_reference(
    folder: Path, records: list[Record], transform: WindowByIndex, size: tuple[int, int]
) -> Iterator[tuple[Any, Any]]:
    path = write_shard(folder / "shard.lmdb", records, PICTURES)
    [batch] = loader(path, batch_size=len(records), transform=transform, num_workers=0)
    for index, record in enumerate(records):
        whole = decoded(record.values[0], 3)
        window = transform.window_of(index, *whole.shape[:2])
        yield batch.image[index].permute(1, 2, 0).numpy(), pil_crop(whole, window, size)


@pytest.mark.parametrize("codec", ["jpeg", "raw"])
def test_antialias_gives_torchvisions_pixels(tmp_path: Path, codec: str) -> None:
    """To one step of 255: both round to 8 bits between their two passes, not quite alike."""
    records = pictures(16, codec, (150, 170))
    transform = WindowByIndex(_odd_window, (31, 29), antialias=True)
    for made, expected in _pictures_and_reference(tmp_path, records, transform, (31, 29)):
        difference = np.abs(made.astype(int) - expected)
        assert difference.max() <= 1
        assert psnr(made, expected) > 54


@pytest.mark.parametrize(
    ("size", "least_db"), [((100, 120), 50), ((50, 60), 49), ((28, 33), 46)], ids=str
)
def test_a_reduced_decode_is_close_to_the_whole_one(
    tmp_path: Path, size: tuple[int, int], least_db: float
) -> None:
    """Crops two, four and eight times their target: decoded at 1/2, 1/4 and 1/8."""
    records = pictures(4, "jpeg", (250, 300))
    transform = WindowByIndex(_large_window, size)
    found = _pictures_and_reference(tmp_path, records, transform, size)
    assert min(psnr(made, expected) for made, expected in found) > least_db


# -- every end --------------------------------------------------------------------------


def _break(it: Loader) -> None:
    for _ in it:
        break


def _fresh_iterators(it: Loader) -> None:
    first = iter(it)
    next(first)
    second = iter(it)  # and `first` is still alive
    next(second)
    del first
    third = iter(it)
    next(third)


def _an_exception(it: Loader) -> None:
    def train() -> None:
        for _ in it:
            raise RuntimeError("loss is nan")

    with pytest.raises(RuntimeError, match="loss is nan"):
        train()


def _ctrl_c(it: Loader) -> None:
    def train() -> None:
        for _ in it:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train()


def _close_in_the_middle(it: Loader) -> None:
    iterator = iter(it)
    next(iterator)
    it.close()
    it.close()
    assert workers() == []
    assert list(iterator) == []


def _whole_epochs(it: Loader) -> None:
    assert [len(list(it)) for _ in range(2)] == [25, 25]


def _never_iterated(it: Loader) -> None:
    iter(it)


def _never_even_begun(it: Loader) -> None:
    it.stats()


def _another_epoch(it: Loader) -> None:
    list(it)
    it.set_epoch(5)
    next(iter(it))
    it.load_state_dict(it.state_dict())
    next(iter(it))


def _a_generator_left_alone(it: Loader) -> None:
    def labels() -> Iterator[Any]:
        for batch in it:
            yield batch.label

    next(labels())


def _a_cycle(it: Loader) -> None:
    iterator = iter(it)
    next(iterator)
    cycle: list[Any] = [iterator]
    cycle.append(cycle)
    it.myself = it  # type: ignore[attr-defined]


def _a_cycle_that_a_thread_collects(it: Loader) -> None:
    gc.disable()
    try:
        _a_cycle(it)
        it.myself = None  # type: ignore[attr-defined]
        collector = threading.Thread(target=gc.collect)
        collector.start()
        collector.join()
    finally:
        gc.enable()
    next(iter(it))


def _the_last_reference_in_a_thread(it: Loader) -> None:
    held = [iter(it)]
    next(held[0])
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert len(list(it)) == 25


ENDS = [
    _break,
    _fresh_iterators,
    _an_exception,
    _ctrl_c,
    _close_in_the_middle,
    _whole_epochs,
    _never_iterated,
    _never_even_begun,
    _another_epoch,
    _a_generator_left_alone,
    _a_cycle,
    _a_cycle_that_a_thread_collects,
    _the_last_reference_in_a_thread,
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "not persistent"])
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__[1:])
def test_nothing_is_left_at_the_end(
    small: Path, end: Callable[[Loader], None], method: Any, persistent: bool
) -> None:
    """Descriptors too, which the fixture `no_leaks` looks for."""
    end(
        loader(
            small,
            batch_size=4,
            shuffle=True,
            transform=RRC,
            num_workers=2,
            worker_method=method,
            persistent_workers=persistent,
            multiprocessing_context="fork" if method == "process" else None,
        )
    )
    assert no_workers_soon()


def forked(data: Any, **options: Any) -> Loader:
    """Return a loader with two forked workers."""
    defaults = {"transform": RRC, "num_workers": 2, "worker_method": "process"}
    return loader(data, **{**defaults, "multiprocessing_context": "fork", **options})


def pids() -> list[int]:
    """Return the process IDs of all workers."""
    return sorted(process.pid for process in worker_processes())


def test_processes_stay_for_the_next_epoch_and_after_a_break(small: Path) -> None:
    it = forked(small, batch_size=20)
    list(it)
    first = pids()
    assert len(first) == 2
    _break(it)
    list(it)
    it.set_epoch(9)
    list(it)
    assert pids() == first
    it.close()
    assert pids() == []


def test_processes_that_shall_not_persist_are_new_in_each_epoch(small: Path) -> None:
    it = forked(small, batch_size=20, persistent_workers=False)
    seen = []
    for _ in range(2):
        for _ in it:
            seen.append(tuple(pids()))
        assert pids() == []
    assert len(set(seen)) == 2


@pytest.mark.parametrize("method", METHODS)
def test_epochs_join(method: Any) -> None:
    """The first batch of an epoch is made while the last one of the epoch before is in use."""
    it = loader(
        MemoryData(40),
        batch_size=10,
        transform=RRC,
        num_workers=2,
        worker_method=method,
        multiprocessing_context="fork" if method == "process" else None,
    )
    epoch = iter(it)
    for _ in range(4):
        next(epoch)
    stream: Stream = epoch._stream  # type: ignore[attr-defined]
    deadline = time.monotonic() + 30
    while stream.ready < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert stream.ready == 2, "two batches of the next epoch"
    assert list(epoch) == []
    following = iter(it)
    assert following._stream is stream  # type: ignore[attr-defined]
    assert stream.ready == 2
    it.close()


@pytest.mark.parametrize("method", METHODS)
def test_an_interpreter_that_just_ends_leaves_nothing(small: Path, method: str) -> None:
    context = "fork" if method == "process" else None
    script = f"""
import fastdata, sys
from worker_helpers import RRC, worker_processes
if __name__ == "__main__":
    it = fastdata.loader({str(small)!r}, batch_size=4, transform=RRC, num_workers=2,
                         worker_method={method!r}, multiprocessing_context={context!r})
    epoch = iter(it)
    batch = next(epoch)
    print(*[process.pid for process in worker_processes()])
    sys.exit(3)
"""
    done = run_script(script)
    assert (done.returncode, done.stderr) == (3, "")
    assert all(has_ended(int(pid)) for pid in done.stdout.split())


def run_script(script: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python code that may import what tests import."""
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=script_environment(),
        **options,
    )


def script_environment() -> dict[str, str]:
    here = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": here}


def has_ended(pid: int, seconds: float = 10.0) -> bool:
    """Return whether a process ends soon; one that only waits to be asked about has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_killed_parent_vanish(small: Path, context: str) -> None:
    script = f"""
import fastdata, os, signal
from worker_helpers import RRC, worker_processes, slow
if __name__ == "__main__":
    it = fastdata.loader({str(small)!r}, batch_size=4, transform=[slow, *RRC], num_workers=2,
                         worker_method="process", multiprocessing_context={context!r})
    other = fastdata.loader({str(small)!r}, batch_size=4, transform=RRC, num_workers=1,
                         worker_method="process", multiprocessing_context="fork")
    epochs = [iter(it), iter(other)]
    batches = [next(epoch) for epoch in epochs]
    workers = [process.pid for process in worker_processes()]
    bystander = os.fork()  # holds copies of all sockets
    if not bystander:
        for descriptor in 0, 1, 2:
            os.close(descriptor)
        signal.pause()
    print(bystander, *workers, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    # Not to its end: the bystander keeps multiprocessing's own helper alive, which has our pipe.
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=script_environment()
    ) as process:
        assert process.stdout is not None
        bystander, *workers_of_it = map(int, process.stdout.readline().split())
        try:
            assert process.wait() == -signal.SIGKILL
            assert [has_ended(pid) for pid in workers_of_it] == [True] * 3
        finally:
            os.kill(bystander, signal.SIGKILL)


# -- errors -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("transform", [RRC, [*RRC, invert]], ids=["direct", "callable"])
def test_a_corrupt_sample_is_an_error_in_its_place(
    tmp_path: Path, method: Any, transform: Any
) -> None:
    path = write_shard(tmp_path / "s.h5", pictures(60), PICTURES)
    damage_image(path, 33, 50)
    it = loader(
        path,
        batch_size=5,
        transform=transform,
        num_workers=3,
        worker_method=method,
        prefetch_factor=4,
        multiprocessing_context="fork" if method == "process" else None,
    )
    epoch = iter(it)
    assert [next(epoch).label[0].item() for _ in range(6)] == [0, 5, 10, 15, 20, 25]
    where = r"s\.h5: .*'image' of sample 33 \(key 'picture/33'\)"
    with pytest.raises(ShardCorruptError, match=where) as caught:
        next(epoch)
    trace = "".join(traceback.format_exception(caught.value))
    assert "work.py" in trace, "where it happened in the worker"
    assert list(epoch) == []
    assert it.state_dict()["batch"] == 6
    del caught
    assert no_workers_soon()
    assert len(next(iter(it)).label) == 5


@pytest.mark.parametrize("method", METHODS)
def test_an_error_of_a_callable_is_itself_and_says_of_which_sample(
    small: Path, method: Any
) -> None:
    transform = [*RRC, T.PerSample(fail_at_seven)]
    it = loader(small, batch_size=3, transform=transform, num_workers=2, worker_method=method)
    labels: list[int] = []
    with pytest.raises(ZeroDivisionError, match="seven is not liked") as caught:
        labels.extend(label for batch in it for label in batch.label.tolist())
    assert labels == list(range(21))
    trace = "".join(traceback.format_exception(caught.value))
    assert "in fail_at_seven" in trace
    said = f"fastdata: in a transform of sample 21 ({small}, key 'picture/21')"
    assert said in trace
    # Python 3.10 has no notes: there, the message has it.
    notes = getattr(caught.value, "__notes__", caught.value.args)
    assert any(said in note for note in notes)
    assert (type(caught.value.__cause__) is WorkerTraceback) == (method == "process")


def test_an_error_that_cannot_be_sent_is_told_with_its_traceback(small: Path) -> None:
    it = forked(small, batch_size=4, transform=fail_unpicklably)
    with pytest.raises(WorkerError, match=r"cannot be sent: .*TwoArgumentsError: one and two") as c:
        next(iter(it))
    assert "in fail_unpicklably" in str(c.value.__cause__)


@pytest.mark.parametrize("method", METHODS)
def test_shapes_that_callables_leave_unequal_are_explained(small: Path, method: Any) -> None:
    it = loader(small, batch_size=6, transform=unchanged, num_workers=2, worker_method=method)
    with pytest.raises(OptionError, match=r"\(3, 40, 50\) uint8 and \(3, 41, 49\) uint8"):
        next(iter(it))


def test_shapes_that_change_from_batch_to_batch_are_taken(small: Path) -> None:
    """Each batch is of one shape, and not of the shape that was expected after the last."""
    order = [[n, n + 63] for n in (0, 1, 1, 5, 0)]  # sizes repeat every 63 samples
    found = {}
    for method in METHODS:
        it = loader(
            small, batch_sampler=order, transform=unchanged, num_workers=2, worker_method=method
        )
        batches = list(it)
        assert [tuple(batch.image.shape[2:]) for batch in batches] == [
            (40, 50), (41, 49), (41, 49), (45, 45), (40, 50),
        ]  # fmt: skip
        found[method] = digest(batches)
    assert len(set(found.values())) == 1


@pytest.mark.parametrize("method", METHODS)
def test_dtypes_that_change_from_batch_to_batch_are_taken(small: Path, method: Any) -> None:
    # All of one size after the crop; what a batch is expected to be was learned some before.
    order = [[0, 63], [1, 64], [1, 64], [2, 65]] * 3
    transform = [T.CenterCrop(30), T.PerSample(float_if_odd)]
    it = loader(
        small, batch_sampler=order, transform=transform, num_workers=2, worker_method=method
    )
    dtypes = [torch.uint8, torch.float32, torch.float32, torch.uint8] * 3
    [whole] = loader(small, batch_size=100, transform=T.CenterCrop(30), num_workers=0)
    for batch, dtype, indices in zip(it, dtypes, order, strict=True):
        assert batch.image.dtype == dtype
        assert torch.equal(batch.image, whole.image[indices].to(dtype))


def test_a_lambda_cannot_be_sent_to_processes_that_are_started(small: Path) -> None:
    it = loader(
        small,
        transform=lambda image: image,
        num_workers=1,
        worker_method="process",
        multiprocessing_context="spawn",
    )
    with pytest.raises(OptionError, match="Define transforms at the top level of a module"):
        iter(it)


class SlowData(MemoryData):
    """Images that take a while."""

    def images(self, *arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread() or os.getpid() != MAIN:
            time.sleep(0.3)
        return super().images(*arguments)


MAIN = os.getpid()


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_while_a_batch_is_waited_for(method: Any) -> None:
    it = loader(
        SlowData(400),
        batch_size=2,
        transform=RRC,
        num_workers=2,
        worker_method=method,
        multiprocessing_context="fork" if method == "process" else None,
    )
    epoch = iter(it)
    interrupt = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        for _ in epoch:
            pass
    interrupt.join()
    assert workers() == []
    assert list(epoch) == []


def interrupted_at(line: int, run: Callable[[], None]) -> bool:
    """Run with a Ctrl-C at the `line`-th line of the engine; return whether there were so many."""
    left = line

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(("engine/packed.py", "engine/stream.py")):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return left <= 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("method", "lines"), [("thread", range(1, 2000, 5)), ("process", range(2, 2000, 41))]
)
def test_ctrl_c_at_any_line_leads_to_no_wrong_batch(method: Any, lines: range) -> None:
    """At most the batch that was on its way is lost: none twice, none of another epoch."""
    data = MemoryData(12)
    options = {"batch_size": 4, "shuffle": True, "transform": RRC}
    plain = loader(data, num_workers=0, **options)
    expected = [[digest([batch]) for batch in plain] for _ in range(3)]
    for line in lines:
        it = loader(
            data,
            num_workers=2,
            worker_method=method,
            multiprocessing_context="fork" if method == "process" else None,
            **options,
        )
        epochs: list[Any] = []
        seen: list[list[str]] = []

        def two_epochs(it: Loader = it, epochs: Any = epochs, seen: Any = seen) -> None:
            for _ in range(2):
                epochs.append(iter(it))
                seen.append([])
                for batch in epochs[-1]:
                    seen[-1].append(digest([batch]))

        struck = interrupted_at(line, two_epochs)
        if epochs:
            seen[-1] += [digest([batch]) for batch in epochs[-1]]  # the interrupted one goes on
        for made, whole in zip(seen, expected, strict=False):
            rest = iter(whole)
            assert all(one in rest for one in made), f"in order, after line {line}"
        it.set_epoch(2)
        assert [digest([batch]) for batch in it] == expected[2], f"after line {line}"
        it.close()
        del epochs
        assert no_workers_soon()
        if not struck:
            break
    assert not struck, "all lines were reached"


def test_ctrl_c_is_not_for_the_workers(small: Path) -> None:
    """A terminal sends it to all processes; the parent decides what becomes of its workers."""
    options = {"batch_size": 4, "sampler": range(24), "transform": [slow, *RRC]}
    it = forked(small, **options)
    epoch = iter(it)
    batches = [next(epoch)]
    for pid in pids():
        os.kill(pid, signal.SIGINT)
    batches += epoch
    assert digest(batches) == digest(loader(small, num_workers=0, **options))
    it.close()


@pytest.mark.parametrize("when", ["busy", "between epochs", "before the first batch"])
def test_a_killed_worker_is_an_error_and_the_loader_lives_on(small: Path, when: str) -> None:
    it = forked(small, batch_size=4, transform=[slow, *RRC] if when == "busy" else RRC)
    if when == "between epochs":
        expected = digest(epochs_of(small, RRC, 2, batch_size=4, shuffle=False, seed=0)[25:])
        assert len(list(it)) == 25
    epoch = iter(it)
    if when != "before the first batch":
        next(epoch)
    victim = pids()[1]
    os.kill(victim, signal.SIGKILL)
    killed = rf"fastdata-worker-\d \(pid {victim}\) was killed by SIGKILL.*out of memory"
    with pytest.raises(WorkerError, match=killed):
        for _ in epoch:
            pass
    assert workers() == []
    assert list(epoch) == []
    if when == "between epochs":
        it.set_epoch(1)
        assert digest(it) == expected
    else:
        assert len(list(it)) == 25
    it.close()


class BadAtFirst:
    """A sampler that yields what is no index when it is asked for the first time."""

    asked = 0

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        self.asked += 1
        return iter(range(1000, 1020) if self.asked == 1 else range(20))


@pytest.mark.parametrize("method", METHODS)
def test_an_epoch_that_could_not_begin_is_still_to_come(small: Path, method: Any) -> None:
    options = {"batch_size": 4, "transform": RRC, "num_workers": 2, "worker_method": method}
    it = loader(small, sampler=BadAtFirst(), **options)
    with pytest.raises(OptionError, match="the sampler yielded 1000") as caught:
        iter(it)
    assert workers() == [], "although the error holds all frames"
    del caught
    assert digest(it) == digest(loader(small, sampler=range(20), **options))


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
            if method == "process":
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


# -- memory of batches ------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("transform", [RRC, [*RRC, invert]], ids=["direct", "callable"])
def test_a_hundred_batches_that_are_kept_are_never_overwritten(
    small: Path, method: Any, transform: Any
) -> None:
    it = loader(
        small, batch_size=1, transform=transform, num_workers=2, worker_method=method, seed=2
    )
    batches = list(it)
    first = digest(batches)
    assert len({batch.image.data_ptr() for batch in batches}) == 100
    in_use = it.stats().buffers_in_use
    assert 100 <= in_use + (transform is not RRC) <= 103, "and two of the next epoch"
    list(it)
    list(it)
    assert digest(batches) == first
    it.close()
    assert digest(batches) == first
    assert first == digest(loader(small, batch_size=1, transform=transform, num_workers=0, seed=2))


VIEWS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda image: image[1:, :, 3:7],
    "array": lambda image: image.numpy()[0],
    "stack": lambda image: torch.stack([image[0], image[-1]]),
    "storage": lambda image: torch.empty(0, dtype=torch.uint8).set_(image.untyped_storage()),
    "pickle": lambda image: pickle.loads(pickle.dumps(image)),
    "permuted": lambda image: image.permute(0, 2, 3, 1).numpy().reshape(-1)[::5],
    "from_numpy": lambda image: torch.from_numpy(image.numpy()),
    "dlpack": lambda image: np.from_dlpack(image),
}


def copied(view: Any) -> np.ndarray[Any, Any]:
    """Return what a view shows now."""
    return view.copy() if isinstance(view, np.ndarray) else view.numpy().copy()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("view", list(VIEWS))
def test_one_view_keeps_the_whole_batch(small: Path, method: Any, view: str) -> None:
    it = loader(
        small, batch_size=10, transform=RRC, num_workers=2, worker_method=method, shuffle=True
    )
    views = [VIEWS[view](batch.image) for batch in it]
    values = [copied(view) for view in views]
    for _ in range(3):
        list(it)
    it.close()
    assert no_workers_soon()
    for view_now, value in zip(views, values, strict=True):
        np.testing.assert_array_equal(copied(view_now), value)
    assert len({value.tobytes() for value in values}) == len(values)


@pytest.mark.parametrize("method", METHODS)
def test_batches_outlive_loader_and_workers_and_can_be_written_to(small: Path, method: Any) -> None:
    def made() -> list[Any]:
        it = loader(small, batch_size=16, transform=RRC, num_workers=2, worker_method=method)
        return [next(epoch) for epoch in [iter(it)] for _ in range(5)]

    batches, others = made(), made()
    assert no_workers_soon()
    assert digest(batches) == digest(others)
    for batch in batches:
        batch.image.fill_(7)
    assert digest(others) == digest(made())


@pytest.mark.parametrize("method", METHODS)
def test_memory_goes_round(small: Path, method: Any) -> None:
    it = loader(small, batch_size=8, transform=RRC, num_workers=2, worker_method=method)
    addresses = {batch.image.data_ptr() for _ in range(4) for batch in it}
    # Two ahead, one being made, one in the loop, and one just let go.
    assert len(addresses) <= 5
    kept_now = list(it)
    assert it.stats().buffers_in_use >= len(kept_now) == 13
    del kept_now
    assert in_use_soon(it, 2), "those of the next epoch"
    it.close()
    assert in_use_soon(it, 0)


def in_use_soon(it: Loader, count: int) -> bool:
    """Return whether so few buffers are in use once the workers have let go of theirs."""
    deadline = time.monotonic() + 5
    while it.stats().buffers_in_use > count and time.monotonic() < deadline:
        time.sleep(0.01)
    return it.stats().buffers_in_use <= count


# -- statistics -------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_stats_tell_what_was_read_and_waited_for(mixed: dict[str, Path], method: Any) -> None:
    it = loader(
        mixed["lmdb"],
        batch_size=8,
        transform=RRC,
        num_workers=2,
        worker_method=method,
        prefetch_factor=3,
        drop_last=True,
    )
    began = time.perf_counter()
    before = it.stats()
    assert before == type(before)(), "nothing is counted before the first iterator"
    epoch = iter(it)
    for number in range(1, 6):
        deadline = time.monotonic() + 30
        while epoch._stream.ready < 3 and time.monotonic() < deadline:  # type: ignore[attr-defined]
            time.sleep(0.001)
        next(epoch)
        stats = it.stats()
        assert (stats.batches, stats.samples) == (number, 8 * number)
        assert stats.ready_batches == 3, "the loop asked when all were ready"
        lengths = [
            it.dataset.images(name, range(8 * number)).lengths.sum() for name in ("image", "mask")
        ]
        assert stats.bytes_read == sum(lengths)
        assert 0 < stats.wait_seconds < stats.seconds < time.perf_counter() - began
    time.sleep(0.2)
    later = it.stats()
    assert later.seconds == stats.seconds, "up to the last batch"
    assert later.skipped_samples == 0
    assert list(epoch) == []
    time.sleep(0.2)
    next(iter(it))
    assert it.stats().batches == 6
    between = time.perf_counter() - began - it.stats().seconds
    assert between >= 0.4, "the time between epochs is nobody's"
    it.close()


class _Held:
    """Workers that do what they are told to have done."""

    def __init__(self) -> None:
        self.finished: set[int] = set()

    def submit(self, task: int, slot: Any) -> Any:
        return SimpleNamespace(done=lambda: task in self.finished, result=lambda: task)

    def close(self) -> None:
        pass


def test_a_batch_is_ready_when_all_its_parts_are() -> None:
    held = _Held()

    def prepare(request: Any) -> Any:
        first = 2 * request.number
        return SimpleNamespace(tasks=lambda: [first, first + 1], slot=None, finish=list)

    stream = Stream(prepare, held, ahead=3)
    stream.begin(Request(0, number, np.arange(2)) for number in range(5))
    counts = []
    for finished in ({2}, {1}, {3}, {0}, {4, 5}):
        held.finished |= finished
        counts.append(stream.ready)
    assert counts == [0, 0, 1, 2, 3]
    assert list(stream) == [[2 * number, 2 * number + 1] for number in range(5)]
    stream.close()


def test_waiting_is_what_the_loop_does_not_do_itself(small: Path) -> None:
    it = loader(small, batch_size=20, transform=RRC, num_workers=0)
    for _ in it:
        time.sleep(0.02)
    stats = it.stats()
    assert stats.seconds - stats.wait_seconds >= 0.08, "four pauses between five batches"
    assert stats.ready_batches == 0, "nothing is made ahead"
    assert stats.images_per_second == 100 / stats.seconds


# -- read ahead -------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["lmdb", "hdf5", "lmdb x 3", "hdf5 x 3"])
def test_every_stored_byte_is_asked_for_before_it_is_needed(
    mixed: dict[str, Path], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[tuple[int, int]]] = {}
    will_need = ShardReader.will_need

    def record(reader: ShardReader, starts: Any, ends: Any) -> None:
        ranges = zip(starts.tolist(), ends.tolist(), strict=True)
        asked.setdefault(os.fspath(reader.path), []).extend(ranges)
        will_need(reader, starts, ends)

    monkeypatch.setattr(ShardReader, "will_need", record)
    monkeypatch.setattr(engine_work, "IN_MEMORY_SECONDS", (0.0, 0.0))  # never leave any out
    made = epochs_of(mixed[layout], RRC, 1, num_workers=1, worker_method="thread")
    assert digest(made) == digest(epochs_of(mixed["lmdb"], RRC, 1))
    missing = []
    for reader in fastdata.open(mixed[layout]).shards:
        ranges = asked[os.fspath(reader.path)]
        assert all(end <= reader.path.stat().st_size for _, end in ranges)
        for name in ("image", "mask"):
            for offset, length in zip(
                reader.column(f"{name}.offset").tolist(),
                reader.column(f"{name}.length").tolist(),
                strict=True,
            ):
                if not any(start <= offset and offset + length <= end for start, end in ranges):
                    missing.append((reader.path.name, offset))
    assert missing == []


class Journal(list[Any]):
    """A list whose additions are written down in another, under a name."""

    def __init__(self, name: str, journal: list[tuple[str, int]]) -> None:
        super().__init__()
        self.name, self.journal = name, journal

    def append(self, value: int) -> None:
        self.journal.append((self.name, value))

    def __iadd__(self, values: Any) -> Any:
        self.journal += [(self.name, value) for value in values]
        return self


def journal_of(num_workers: int) -> list[tuple[str, int]]:
    """Return what was asked for and read in two epochs, in order."""
    data, journal = MemoryData(48), []
    data.reads, data.read_ahead = Journal("read", journal), Journal("ask", journal)
    it = loader(data, batch_size=4, shuffle=True, transform=RRC, num_workers=num_workers)
    for _ in range(2):
        list(it)
    it.close()
    return journal


def test_batches_are_asked_for_once_and_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_work, "IN_MEMORY_SECONDS", (0.0, 0.0))
    journal = journal_of(1)
    asked = [index for name, index in journal if name == "ask"]
    read = [index for name, index in journal if name == "read"]
    assert len(read) >= 96
    assert asked[: len(read)] == read, "in the order of the batches"
    positions = {name: [n for n, (kind, _) in enumerate(journal) if kind == name] for name in
                 ("ask", "read")}  # fmt: skip
    leads = zip(positions["ask"], positions["read"], strict=False)
    assert all(ask < read for ask, read in leads)
    assert journal_of(0)[0][0] == "read", "the caller does not wait for what comes later"


def test_what_is_in_memory_is_asked_for_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_work, "IN_MEMORY_SECONDS", (60.0, 60.0))
    asked = [index for name, index in journal_of(1) if name == "ask"]
    assert 4 <= len(asked) <= 24, "batches 0, 2, 6, 14 and 30 at most"


def test_a_failed_read_ahead_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong is said when the sample is read, in its place."""

    def fail(images: Any) -> None:
        raise ShardCorruptError("no such range")

    monkeypatch.setattr(MemoryImages, "read_ahead", fail)
    for method in METHODS:
        it = loader(MemoryData(20), transform=RRC, num_workers=2, worker_method=method)
        assert len(list(it)) == 20
        it.close()


@pytest.mark.parametrize("method", METHODS)
def test_files_that_are_not_in_the_page_cache_load_right(
    mixed: dict[str, Path], method: Any
) -> None:
    expected = digest(epochs_of(mixed["hdf5 x 3"], RRC))
    for path in sorted(mixed["hdf5 x 3"].glob("*.h5")):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    made = epochs_of(mixed["hdf5 x 3"], RRC, num_workers=2, worker_method=method)
    assert digest(made) == expected
