"""What is no fault of a sample ends the pack by an error, and the same call continues."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from pack_helpers import QUICK, image_folder, jpegs, start_child, two_broken
from warm_python import WarmPython

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata import waits
from fastdata.cli import main
from fastdata.converters import zarr
from fastdata.converters.packing import chunk, packer
from fastdata.converters.packing import workers as packing_workers
from fastdata.errors import (
    FastdataError,
    ImageError,
    MachineError,
    ResourceLimitError,
    SourceError,
    WorkerError,
    is_of_machine,
)
from fastdata.processes.starting import signals_held
from fastdata.regular_files import too_many_files
from fastdata.unpacked import reading


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers have what a test patches."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda *method: context)
    monkeypatch.setattr(packer, "CHUNK_SAMPLES", 4)


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def of_system(number: int) -> OSError:
    return OSError(number, os.strerror(number), "x.jpg")


OF_MACHINE: list[Exception] = [
    *map(of_system, (errno.EACCES, errno.EPERM, errno.EIO, errno.ENOMEM, errno.EMFILE)),
    *map(of_system, (errno.ESTALE, errno.ENOSPC, errno.EAGAIN, errno.ETIMEDOUT)),
    MemoryError(),
    ConnectionResetError(),
    ImportError("no codec"),
    too_many_files("x.jpg", errno.EMFILE),
    cv2.error("OpenCV: error: (-4:Insufficient memory) Failed to allocate"),
    RuntimeError("can't start new thread"),
    caused_by(SourceError("x.tar: cannot be read"), of_system(errno.EIO)),
    caused_by(ImageError("cannot be decoded"), caused_by(ValueError("x"), MemoryError())),
]

OF_SAMPLE: list[Exception] = [
    *map(of_system, (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)),
    OSError("image file is truncated"),
    ImageError("no image"),
    ValueError("a box ends before it begins"),
    KeyError("label"),
]


@pytest.mark.parametrize("error", OF_MACHINE, ids=repr)
def test_an_error_of_the_machine_is_told_from_one_of_a_sample(error: Exception) -> None:
    assert is_of_machine(error)


@pytest.mark.parametrize("error", OF_SAMPLE, ids=repr)
def test_an_error_of_a_sample_is_told_from_one_of_the_machine(error: Exception) -> None:
    assert not is_of_machine(error)
    error.__cause__ = error  # as by "raise error from error"
    assert not is_of_machine(error)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("error", "kind", "remedy"),
    [
        (of_system(errno.EACCES), MachineError, "Permit reading it"),
        (of_system(errno.EIO), MachineError, "Look at the drive"),
        (MemoryError(), MachineError, "Use fewer workers"),
        (too_many_files("x.jpg", errno.EMFILE), ResourceLimitError, "ulimit -n"),
    ],
    ids=["permission", "input or output", "memory", "descriptors"],
)
@pytest.mark.usefixtures("forked")
def test_a_file_that_the_machine_cannot_read_is_no_reject(
    error: Exception,
    kind: type[FastdataError],
    remedy: str,
    num_workers: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = two_broken(tmp_path / "images")
    options: dict[str, Any] = {**QUICK, "num_workers": num_workers}
    whole = fastdata.pack(folder, tmp_path / "whole.lmdb", **options)
    read, name = chunk.read_regular, jpegs(folder)[33].name

    def refusing(path: Path) -> bytes:
        if path.name == name:
            raise error
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(chunk, "read_regular", refusing)
        with pytest.raises(kind, match=remedy) as found:
            fastdata.pack(folder, tmp_path / "x.lmdb", **options)
    if kind is MachineError:
        assert name in str(found.value)
    assert not (tmp_path / "x.lmdb").exists()
    report = fastdata.pack(folder, tmp_path / "x.lmdb", **options)
    assert report.resumed_at > 0
    assert (report.digest, report.rejects) == (whole.digest, whole.rejects)


def test_a_missing_file_of_a_list_is_a_reject(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images", 4)
    names = [str(path.relative_to(tmp_path)) for path in jpegs(folder)]
    (tmp_path / "list.csv").write_text("\n".join(["image", *names, "images/none.jpg"]))
    report = fastdata.pack(tmp_path / "list.csv", tmp_path / "x.lmdb", **QUICK)
    assert (report.num_samples, report.num_rejected) == (4, 1)
    assert "No such file" in report.rejects[0].reason


class Failing:
    """A dataset of Python's, one sample of which fails."""

    def __init__(self, fail: Callable[[], Any]) -> None:
        self.fail, self.home = fail, os.getpid()

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        if index == 17:
            self.fail()
        return np.full((20, 30, 3), index, np.uint8), index


def test_a_dataset_of_python_may_run_out_of_memory(tmp_path: Path) -> None:
    def fail() -> None:
        raise MemoryError("of 3 TB")

    with pytest.raises(MachineError, match=r"00000017: there is not enough memory"):
        fastdata.pack(Failing(fail), tmp_path / "x.lmdb", num_workers=0)


def test_the_system_error_of_tensorstore_is_found() -> None:
    error = ValueError("PERMISSION_DENIED: Error reading [os_error_code='13']")
    assert isinstance(zarr._of_system(error), PermissionError)
    assert zarr._of_system(ValueError("FAILED_PRECONDITION: Invalid blosc data")) is None


# -- workers that die ----------------------------------------------------------------------------


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("forked")
def test_a_worker_killed_for_memory_is_no_fault_of_the_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.lmdb"
    counts = iter(range(1000))
    with monkeypatch.context() as patch:
        patch.setattr(packing_workers, "_memory_kills", lambda: f"oom_kill {next(counts)}")
        with pytest.raises(MachineError, match=r"00000017: the system killed.*fewer workers"):
            fastdata.pack(Failing(die), path, num_workers=2)
    report = fastdata.pack(Failing(die), path, num_workers=2)  # here the kernel has killed none
    assert (report.num_samples, report.num_rejected) == (19, 1)


def pictures(pool: ProcessPoolExecutor, at_hundred: Callable[[int], None]) -> Iterator[Any]:
    """Yield pictures whose packed form does not fit into a pipe, and do something to a worker."""
    for number in range(240):
        if number == 100:
            at_hundred(next(iter(pool._processes)))
        yield np.random.default_rng(number).integers(0, 256, (120, 160, 3), np.uint8)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(
    "method",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.soak),
        pytest.param("forkserver", marks=pytest.mark.soak),
    ],
)
def test_an_own_pool_whose_worker_is_ended_is_an_error_and_no_hang(
    method: str, sent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer, "CHUNK_SAMPLES", 4)
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        source = pictures(pool, lambda pid: os.kill(pid, sent))
        with pytest.raises((BrokenProcessPool, WorkerError)):
            fastdata.pack(source, tmp_path / "x.lmdb", executor=pool, progress=False)


def test_ctrl_c_ends_a_pack_by_an_own_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer, "CHUNK_SAMPLES", 4)
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        source = pictures(pool, lambda pid: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            fastdata.pack(source, tmp_path / "x.lmdb", executor=pool, progress=False)


def packed_by_pool(path: Path, pictures: Iterator[Any]) -> None:
    """Pack as leader of a group of processes; exit with 7 after a Ctrl-C."""
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            fastdata.pack(pictures, path, executor=pool, progress=False)
    except KeyboardInterrupt:
        os._exit(7)


def test_ctrl_c_in_a_terminal_ends_a_pack_by_an_own_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer, "CHUNK_SAMPLES", 4)
    random = np.random.default_rng(3)
    for number in range(12):
        begun, path = tmp_path / f"begun-{number}", tmp_path / f"{number}.lmdb"
        images = (random.integers(0, 256, (120, 160, 3), np.uint8) for _ in itertools.count())
        endless = (image for at, image in enumerate(images) if at != 60 or begun.touch() is None)
        process = start_child(packed_by_pool, path, endless)
        while not begun.exists() and process.is_alive():
            time.sleep(0.005)
        time.sleep(0.02 * random.random())
        os.killpg(process.pid, signal.SIGINT)
        process.join(20)
        code = process.exitcode
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
        assert code == 7


def test_ctrl_c_does_not_cut_the_messages_of_an_own_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, home = image_folder(tmp_path / "images", 40), os.getpid()
    whole = fastdata.pack(folder, tmp_path / "whole.lmdb", **QUICK)

    def interrupt(self: Any, protocol: Any) -> Any:
        """Press Ctrl-C in a process of the pool while it sends a result."""
        assert os.getpid() != home
        signal.raise_signal(signal.SIGINT)
        return object.__reduce_ex__(self, protocol)

    monkeypatch.setattr(chunk.Record, "__reduce_ex__", interrupt, raising=False)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        report = fastdata.pack(folder, tmp_path / "x.lmdb", size=24, executor=pool)
    assert report.digest == whole.digest


def say_and_sleep(ready: Any) -> None:
    ready.send("here")
    time.sleep(100)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_forked_while_signals_are_held_obeys_them(sent: int) -> None:
    fork = multiprocessing.get_context("fork")
    ready, end = fork.Pipe(duplex=False)
    with signals_held(blocked=False):
        process = fork.Process(target=say_and_sleep, args=(end,))
        process.start()
    ready.recv()
    os.kill(process.pid or 0, sent)
    process.join()
    assert process.exitcode in (1, -signal.SIGTERM)  # by KeyboardInterrupt, or SIGTERM


SERVED = """
import multiprocessing, signal
import numpy as np
import fastdata

def blocked(found):
    found.put(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))

if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")
    pictures = [(np.full((10, 30, 3), k, np.uint8), k) for k in range(9)]
    fastdata.pack(pictures, {path!r}, num_workers=1)
    found = multiprocessing.Queue()
    process = multiprocessing.Process(target=blocked, args=(found,))
    process.start()
    print("blocked", found.get())
    process.join()
"""


@pytest.mark.soak
def test_a_fork_server_that_a_pack_starts_blocks_no_signals(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    done = warm_python.run(SERVED.format(path=str(tmp_path / "x.lmdb")))
    assert "blocked []" in done.stdout, done.stderr


# -- waits ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("forked")
def test_the_command_says_that_workers_do_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waits, "FIRST_SECONDS", 0.05)
    folder = image_folder(tmp_path / "images", 8)
    read = chunk.read_regular

    def slowly(path: Path) -> bytes:
        time.sleep(0.2)
        return read(path)

    monkeypatch.setattr(chunk, "read_regular", slowly)
    arguments = ["pack", str(folder), str(tmp_path / "x.lmdb"), "--size", "24", "--workers", "1"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--quiet"])
    assert not ended.value.code
    assert "waiting for the next samples from the workers" in capfd.readouterr().err


def test_a_lack_of_memory_has_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(fastdata, "pack", fail)
    with pytest.raises(SystemExit):
        main(["pack", str(tmp_path), str(tmp_path / "x.lmdb")])
    assert "error: there is not enough memory\n" in capfd.readouterr().err


# -- loading files without a pack ----------------------------------------------------------------


def test_a_loader_of_files_does_not_skip_what_the_machine_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folder(tmp_path / "images", 8)
    read, name = reading.read_regular, jpegs(folder)[5].name

    def refusing(path: Path) -> bytes:
        if path.name == name:
            raise of_system(errno.EIO)
        return read(path)

    monkeypatch.setattr(reading, "read_regular", refusing)
    transform = [T.CenterCrop(16)]
    with fastdata.loader(
        folder, batch_size=4, transform=transform, num_workers=0, on_corrupt="skip"
    ) as loader:
        with pytest.raises(OSError, match="Input/output error"):
            list(loader)
        assert loader.stats().skipped_samples == 0
