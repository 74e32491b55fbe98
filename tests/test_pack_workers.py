"""The workers of a pack: how they die, and the memory they take."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import pytest
import torch
from pack_helpers import QUICK, digest_of, image_folder, pixels, png, two_broken
from torch.utils.data import TensorDataset
from warm_python import WarmPython

import fastdata
from fastdata import assembly
from fastdata.converters.base import IndexedSource, Reject, Sample
from fastdata.converters.packing import driver, packer
from fastdata.converters.packing import workers as packing_workers
from fastdata.converters.packing.workers import ChunkPool, LostProcesses, run_in_order
from fastdata.errors import (
    WorkerError,
)
from fastdata.formats import lmdb as lmdb_format
from fastdata.processes.starting import signals_held
from fastdata.schema import ImageField, Schema, StringField


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return two_broken(tmp_path / "images")


class Deadly:
    """Ends its process at some samples."""

    def __init__(self, *deadly: int, count: int = 60) -> None:
        self.deadly = deadly
        self.count = count
        self.home = os.getpid()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index in self.deadly and os.getpid() != self.home:
            os._exit(3)
        return np.full((20, 30, 3), index, np.uint8), index


@pytest.mark.parametrize("deadly", [(20,), (59,), (17, 18, 40)])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_sample_that_kills_its_worker_costs_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadly: tuple[int, ...], num_workers: int
) -> None:
    monkeypatch.setattr(packer, "CHUNK_SAMPLES", 4)
    report = fastdata.pack(Deadly(*deadly), tmp_path / "x.lmdb", num_workers=num_workers)
    assert report.rejects == [
        Reject(
            f"{k:08}", "the worker process died on it (a crash of the decoder, or out of memory)"
        )
        for k in deadly
    ]
    labels = [sample.label for sample in fastdata.open(tmp_path / "x.lmdb")]
    assert labels == [k for k in range(60) if k not in deadly]


def test_workers_killed_from_outside_cost_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer, "CHUNK_SAMPLES", 2)
    get_context = multiprocessing.get_context
    monkeypatch.setattr(multiprocessing, "get_context", lambda *method: get_context("fork"))
    whole = fastdata.pack(folder, tmp_path / "whole.lmdb", **QUICK)
    take = packer.Packer._take
    others = set(psutil.Process().children())
    killed = []

    def take_and_kill(self: Any, result: Any) -> None:
        take(self, result)
        if self.state.position in (6, 20):
            workers = set(psutil.Process().children()) - others
            worker = next(w for w in workers if w.status() != psutil.STATUS_ZOMBIE)
            worker.kill()
            killed.append(worker.pid)

    monkeypatch.setattr(packer.Packer, "_take", take_and_kill)
    report = fastdata.pack(folder, tmp_path / "x.lmdb", size=24, num_workers=2)
    assert len(killed) == 2
    assert report.digest == whole.digest
    assert report.rejects == whole.rejects


def test_a_broken_executor_of_the_users_is_an_error_and_the_pack_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer, "CHUNK_SAMPLES", 4)

    class Killer(IndexedSource):
        name = "killer"
        schema = Schema({"image": ImageField(), "text": StringField()})
        num_samples = 40
        notes = ()  # type: ignore[assignment]
        deadly = True

        def __init__(self, location: Any = None, **options: Any) -> None:
            pass

        @classmethod
        def recognises(cls, location: Any) -> bool:
            return False

        def __getitem__(self, index: int) -> Sample:
            if index == 33 and self.deadly:
                return Sample("33", (Suicide(), "x"))
            return Sample(str(index), (png(index), "x"))

    monkeypatch.setattr(driver, "find_source", lambda source, **options: source)
    context = multiprocessing.get_context("fork")
    path = tmp_path / "x.lmdb"
    with ProcessPoolExecutor(1, mp_context=context) as executor, pytest.raises(BrokenProcessPool):
        fastdata.pack(Killer(), path, **QUICK, executor=executor)
    Killer.deadly = False
    report = fastdata.pack(Killer(), path, **QUICK)
    assert report.num_samples == 40
    assert report.resumed_at >= 4


class Suicide:
    """Ends the process in which it is unpickled."""

    def __reduce__(self) -> Any:
        return (os._exit, (9,))


SCRIPT = """
import sys, multiprocessing
multiprocessing.set_start_method({method!r}, force=True)
import numpy as np
import fastdata
fastdata.pack([(np.full((100, 300, 3), k, np.uint8), k) for k in range(9)], {path!r}, num_workers=1)
"""


# To the fork server a script is what it is to spawned processes.
@pytest.mark.parametrize(("method", "works"), [("fork", True), ("spawn", False)])
def test_a_script_without_main_guard_works_or_is_told(
    tmp_path: Path, method: str, works: bool, warm_python: WarmPython
) -> None:
    """It must not hang, although workers are to get more than fits into a pipe."""
    path = tmp_path / "x.lmdb"
    done = warm_python.run(SCRIPT.format(method=method, path=str(path)))
    assert (done.returncode == 0) == works
    assert path.exists() == works
    if not works:
        assert "WorkerError: the worker processes died as they started" in done.stderr
        assert "`if __name__ == '__main__':`" in done.stderr


def test_workers_that_cannot_start_are_an_error_not_a_loop(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        packing_workers, "_ROLE", replace(packing_workers._ROLE, set_up=partial(os._exit, 1))
    )
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda: context)
    with pytest.raises(WorkerError, match="died as they started"):
        fastdata.pack(folder, tmp_path / "x.lmdb", num_workers=2)


def _packed_in_a_worker(folder: Path, destination: Path, num_workers: int) -> str:
    try:
        return fastdata.pack(
            folder, destination, size=24, num_workers=num_workers, progress=False
        ).digest
    except WorkerError as error:
        return str(error)


def test_a_process_that_may_not_have_workers_is_told(folder: Path, tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        told = workers.apply(_packed_in_a_worker, (folder, tmp_path / "a.lmdb", 1))
        assert "daemonic process" in told
        assert "num_workers=0" in told
        packed = workers.apply(_packed_in_a_worker, (folder, tmp_path / "a.lmdb", 0))
    assert packed == digest_of(tmp_path / "a.lmdb")


def test_a_process_with_busy_threads_may_fork_workers(folder: Path, tmp_path: Path) -> None:
    """OpenCV's and torch's own threads do not survive fork; workers must not wait for them."""
    big = torch.rand(400, 400)
    for _ in range(3):
        big = big @ big / 100
        cv2.GaussianBlur(np.zeros((1500, 1500, 3), np.float32), (31, 31), 5)
    before = cv2.getNumThreads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        report = fastdata.pack(folder, tmp_path / "x.lmdb", size=24, num_workers=2)
    assert report.num_samples == 38
    assert cv2.getNumThreads() == before  # this process keeps its own settings


def test_a_signal_leaves_no_lock_of_the_executors_behind() -> None:
    """Each call of the executor's ends before what the signal's handler raises."""
    calls: list[str] = []

    class Stopped(ThreadPoolExecutor):
        def submit(self, *args: Any) -> Any:
            calls.append("entered")
            if len(calls) == 3:
                signal.raise_signal(signal.SIGINT)
                time.sleep(0.01)
            future = super().submit(*args)
            calls.append("left")
            return future

    with Stopped(1) as executor:
        run = run_in_order(([] for _ in range(9)), partial(executor.submit, len), ahead=1)
        with pytest.raises(KeyboardInterrupt):
            list(run)
        assert calls == ["entered", "left"] * 2


def test_a_signal_that_another_thread_takes_waits_for_the_fork() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()  # it does not block what the main thread does
    inside = []

    def fork_slowly() -> None:
        with signals_held():
            assert other.ident is not None
            signal.pthread_kill(other.ident, signal.SIGINT)
            for number in range(100):
                time.sleep(0.001)
                inside.append(number)

    try:
        with pytest.raises(KeyboardInterrupt):
            fork_slowly()
        assert len(inside) == 100
    finally:
        done.set()
        other.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# -- memory ----------------------------------------------------------------------


@pytest.mark.parametrize("executor", [None, "threads"])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_no_more_samples_are_in_memory_than_chunks_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int, executor: str | None
) -> None:
    monkeypatch.setattr(packer, "CHUNK_SAMPLES", 4)
    drawn = itertools.count()
    ahead = []
    take = packer.Packer._take

    def measured(self: Any, result: Any) -> None:
        take(self, result)
        drawn_now = int(repr(drawn)[6:-1])
        ahead.append(drawn_now - self.state.position)

    def source() -> Iterator[Any]:
        for _ in range(400):
            yield np.full((8, 8, 3), next(drawn) % 256, np.uint8)

    monkeypatch.setattr(packer.Packer, "_take", measured)
    pool = ThreadPoolExecutor(2) if executor else None
    fastdata.pack(source(), tmp_path / "x.lmdb", num_workers=num_workers, executor=pool)
    if pool:
        pool.shutdown()
    workers = 2 if executor else num_workers
    chunks = 1 if workers == 0 else 2 * workers + 3
    # A source's first 16 samples are looked at beforehand.
    assert max(ahead) <= max(16, 4 * chunks)
    assert len(ahead) == 100


def test_run_in_order_keeps_order_whatever_finishes_first() -> None:
    def work(chunk: Any) -> Any:
        time.sleep(0.01 * ((int(chunk[0].key) * 7) % 4))
        return chunk

    chunks = [[Reject(str(number), "")] for number in range(40)]
    with ThreadPoolExecutor(4) as threads:
        assert list(run_in_order(chunks, partial(threads.submit, work), 6)) == chunks


def test_run_in_order_holds_few_chunks_that_are_large() -> None:
    large = np.broadcast_to(np.zeros((), np.uint8), (150 << 20,))  # which takes no memory
    held, most = 0, 0

    def chunks() -> Iterator[list[Sample]]:
        nonlocal held, most
        for number in range(9):
            held += 1
            most = max(most, held)
            yield [Sample(str(number), (large,))]

    with ThreadPoolExecutor(1) as threads:
        for _ in run_in_order(chunks(), partial(threads.submit, len), 6):
            held -= 1
    assert most == 3  # of 150 MB each, where six chunks of 64 MB may be


def test_run_in_order_leaves_nothing_running_when_it_is_left() -> None:
    started = []

    def work(chunk: Any) -> Any:
        started.append(chunk)
        time.sleep(0.01)
        return chunk

    with ThreadPoolExecutor(1) as threads:
        chunks = ([Reject(str(number), "")] for number in itertools.count())
        submit = partial(threads.submit, work)
        results = run_in_order(chunks, submit, 8, LostProcesses(threads))
        assert next(results)[0].key == "0"
        results.close()
    assert len(started) <= 4


def test_threads_take_the_place_of_processes_where_there_are_no_such_sockets(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fastdata.pack(folder, tmp_path / "whole.lmdb", **QUICK)
    monkeypatch.setattr(packing_workers.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(packing_workers, "ChunkPool", lambda *_: pytest.fail("a process"))
    report = fastdata.pack(folder, tmp_path / "x.lmdb", size=24, num_workers=2)
    assert (report.digest, report.rejects) == (whole.digest, whole.rejects)


def test_a_pool_may_be_closed_twice() -> None:
    workers = ChunkPool(1, list)
    workers.close()
    workers.close()


@pytest.mark.parametrize("codec", ["raw", "png"])
def test_a_map_that_grows_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Any
) -> None:
    monkeypatch.setattr(packer, "CHUNK_SAMPLES", 8)
    images = [np.random.default_rng(k).integers(0, 256, (40, 50, 3), np.uint8) for k in range(60)]
    whole = fastdata.pack(images, tmp_path / "whole.lmdb", codec=codec, num_workers=0)
    monkeypatch.setattr(lmdb_format, "_FIRST_MAP_BYTES", 64 << 10)
    monkeypatch.setattr(lmdb_format, "_PENDING_BYTES", 30 << 10)
    monkeypatch.setattr(packer, "_COMMIT_BYTES", 100 << 10)
    report = fastdata.pack(images, tmp_path / "x.lmdb", codec=codec, num_workers=0)
    assert report.digest == whole.digest == digest_of(tmp_path / "x.lmdb")
    for sample, image in zip(fastdata.open(tmp_path / "x.lmdb"), images, strict=True):
        np.testing.assert_array_equal(pixels(sample.image), image)


@pytest.mark.parametrize("fault", ["is missing", "cannot be written to .Read-only file system."])
def test_a_shared_folder_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Stock workers need it, of which their errors say nothing; packing does not."""
    number = errno.ENOENT if fault == "is missing" else errno.EROFS

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(assembly.tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr("_multiprocessing.SemLock", refuse)
    source = image_folder(tmp_path / "images", 4)
    assert fastdata.pack(source, tmp_path / "x.lmdb", num_workers=2).num_samples == 4
    with pytest.raises(WorkerError, match=rf"/dev/shm, which {fault}.*shm-size.*num_workers=0"):
        fastdata.loader(TensorDataset(torch.zeros(8, 2)), num_workers=2, batch_size=2)
    fastdata.loader(TensorDataset(torch.zeros(8, 2)), num_workers=0, batch_size=2)
