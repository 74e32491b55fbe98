"""Run chunks on worker processes, in order, a few at a time, come what may.

`run_in_order` works with any ``concurrent.futures.Executor``.  With its own
process pool it also survives what kills a worker: a decoder that crashes on
one image, twice, costs that image, not the pack.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from fastdata.engine.shared_folder import shared_folder_fault
from fastdata.engine.signals import STOPPING, signals_held
from fastdata.errors import WorkerError

from ..base import Reject, Sample
from .chunk import ChunkResult

__all__ = ["ProcessPool", "SetupError", "run_in_order"]

Chunk: TypeAlias = "Sequence[Sample | Reject]"
Work: TypeAlias = "Callable[[Chunk], ChunkResult]"


_GRACE_SECONDS = 5.0
_SIGNAL_SECONDS = 0.1
"""How long a signal waits at most while there is no result."""
_DEATHS_ALLOWED = 2
"""Workers that one sample may cost: the first may have been killed for another reason."""


class SetupError(Exception):
    """What workers need cannot be sent to them; the message says why."""


def run_in_order(
    chunks: Iterable[Chunk], work: Work, submit: Callable[..., Future[Any]], ahead: int
) -> Iterator[Any]:
    """Yield the results of `chunks` in their order, with `ahead` of them in flight.

    Signals that stop the packer arrive between calls of the executor's: what a handler
    raises as `threading.Condition` is entered leaves that locked, and the executor's
    thread waits for it for ever.
    """
    waiting: deque[Future[Any]] = deque()
    try:
        for chunk in chunks:
            with signals_held():
                waiting.append(submit(work, chunk))
            if len(waiting) > ahead:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())
    finally:
        with signals_held():
            for future in waiting:
                future.cancel()


def _result(future: Future[Any]) -> Any:
    """Wait for a result, and now and then for a signal; see `run_in_order`."""
    while True:
        with signals_held():
            if wait([future], timeout=_SIGNAL_SECONDS).done:
                return future.result()


class ProcessPool:
    """A process pool that is made anew when a worker dies.

    Chunks go there and results come back as files, of which only the names are
    sent.  A worker that is killed halfway through sending a result would leave the
    executor waiting for the rest for ever, while a name goes through a pipe whole or
    not at all (POSIX: writes of up to ``PIPE_BUF`` bytes).  And a chunk of pixels, 10 MB,
    takes half as long so, as it is copied twice rather than four times.

    Parameters
    ----------
    workers : int
    scratch : Path
        Directory for these files; emptied now, removed at the end.
    setup : callable, optional
        Picklable; called once in each worker.

    Notes
    -----
    Workers come from ``multiprocessing``'s default start method.  They ignore
    Ctrl-C, which is the packer's to handle, and end by themselves within
    moments of the packer's death.

    Raises
    ------
    SetupError
        If `setup` cannot be pickled and the start method needs it to be.
    WorkerError
        If the workers die as they start, or this process may not start any.
    """

    def __init__(
        self, workers: int, scratch: Path, setup: Callable[[], None] | None = None
    ) -> None:
        if multiprocessing.current_process().daemon:
            raise WorkerError(
                "this is a daemonic process (a worker of multiprocessing.Pool or of a DataLoader), "
                "which may not start worker processes: num_workers=0 packs without"
            )
        self._workers = workers
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True, exist_ok=True)  # workers of a killed packer may still write
        self._scratch = scratch
        self._file: Any = None
        self._context = multiprocessing.get_context()
        if setup is not None and self._context.get_start_method() != "fork":
            # By way of a file: multiprocessing would write it into a pipe, and
            # wait for ever where the worker dies before it has read all of it.
            self._file = tempfile.NamedTemporaryFile(prefix="fastdata-")  # noqa: SIM115
            try:
                pickle.dump(setup, self._file, pickle.HIGHEST_PROTOCOL)
                self._file.flush()
            except Exception as error:  # a user's object may raise anything
                self._file.close()
                raise SetupError(f"{type(error).__name__}: {error}") from error
            setup = partial(_run_pickled, self._file.name)
        self._setup = setup
        try:
            self._executor = self._start()
        except BaseException:
            self._close_file()
            raise

    def _start(self) -> ProcessPoolExecutor:
        try:
            executor = ProcessPoolExecutor(
                self._workers,
                mp_context=self._context,
                initializer=_start_worker,
                initargs=(self._setup,),
            )
        except OSError as error:  # of the locks that its processes share
            fault = shared_folder_fault() or f"worker processes cannot be started ({error})"
            raise WorkerError(f"{fault}. num_workers=0 packs without worker processes.") from error
        try:
            # All workers are started by the first task: before anything else
            # here opens files or starts threads.
            with signals_held(), _opencv_threads_stopped():
                first = executor.submit(os.getpid)
            _result(first)
        except (BrokenProcessPool, EOFError, OSError) as error:
            # The last two come from a fork server that died.
            executor.shutdown(wait=False)
            raise WorkerError(
                f"the worker processes died as they started ({type(error).__name__}: {error}). In "
                "a script, call fastdata.pack under `if __name__ == '__main__':`; num_workers=0 "
                "packs without worker processes."
            ) from error
        except BaseException:
            # Stopped as it starts: left to itself, it would be in the way of Python's end.
            with signals_held():
                executor.shutdown(wait=True, cancel_futures=True)
            raise
        # Private, but in every Python to 3.14, where kill_workers() takes its place.
        self._processes = list((executor._processes or {}).values())
        return executor

    def run(self, chunks: Iterable[Chunk], work: Work, ahead: int) -> Iterator[ChunkResult]:
        """Yield results in order; a sample that kills its worker becomes a `Reject`."""
        source = iter(chunks)
        pending: deque[Chunk] = deque()  # submitted, result not yet yielded

        def noted() -> Iterator[Chunk]:
            for chunk in source:
                pending.append(chunk)
                yield chunk

        while True:
            try:
                for path in run_in_order(noted(), work, self._submit, ahead):
                    pending.popleft()
                    result: ChunkResult = _taken(path)
                    yield result
                return
            except BrokenProcessPool:
                self._restart()
            # One of these killed a worker: find out which, one sample at a time.
            while pending:
                yield self._one_by_one(pending.popleft(), work)

    def _submit(self, work: Work, chunk: Chunk) -> Future[Any]:
        try:
            path = _put(chunk, str(self._scratch))
        except OSError:
            raise
        except Exception:  # what somebody's object cannot be pickled with
            path = _put([_sendable(sample) for sample in chunk], str(self._scratch))
        return self._executor.submit(_work_on_file, work, path, str(self._scratch))

    def _one_by_one(self, chunk: Chunk, work: Work) -> ChunkResult:
        records: list[Any] = []
        total = 0
        for sample in chunk:
            for _ in range(_DEATHS_ALLOWED):
                try:
                    with signals_held():
                        future = self._submit(work, [sample])
                    result: ChunkResult = _taken(_result(future))
                    break
                except BrokenProcessPool:
                    self._restart()
            else:
                reason = "the worker process died on it (a crash of the decoder, or out of memory)"
                result = ChunkResult([Reject(sample.key, reason)], 0)
            records += result.records
            total += result.source_bytes
        return ChunkResult(records, total)

    def _restart(self) -> None:
        # The executor asks them to end, which they put off; here nothing is lost.
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(_GRACE_SECONDS)
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = self._start()

    def close(self) -> None:
        """Stop the workers; what they are at is finished and thrown away."""
        with signals_held():
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._close_file()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()


def _work_on_file(work: Work, chunk: str, scratch: str) -> str:
    """Do the work in a worker, from a file to a file; return the name of that."""
    return _put(work(_taken(chunk)), scratch)


def _put(content: Chunk | ChunkResult, scratch: str) -> str:
    """Write a file for another process; return its name."""
    descriptor, path = tempfile.mkstemp(dir=scratch)
    try:
        with open(descriptor, "wb") as file:
            pickle.dump(content, file, pickle.HIGHEST_PROTOCOL)
    except Exception:
        os.unlink(path)
        raise
    return path


def _sendable(sample: Sample | Reject) -> Sample | Reject:
    """Return a sample that can be sent to a worker, or why it cannot."""
    try:
        pickle.dumps(sample, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        reason = f"cannot be sent to a worker process ({error}); num_workers=0 packs it"
        return Reject(sample.key, reason)
    return sample


def _taken(path: str) -> Any:
    """Read what another process has written, and remove the file."""
    with open(path, "rb") as file:
        content = pickle.load(file)
    os.unlink(path)
    return content


def _run_pickled(path: str) -> None:
    with open(path, "rb") as file:
        pickle.load(file)()


@contextlib.contextmanager
def _opencv_threads_stopped() -> Iterator[None]:
    """End OpenCV's threads here while workers are forked.

    A forked worker has none of them, and waits for them for ever as soon as it
    sets their number.
    """
    import cv2

    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def _start_worker(setup: Callable[[], None] | None) -> None:
    """Make a fresh process a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _end_soon)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()

    import cv2
    import torch

    # One process a core: no threads of theirs besides.
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    if setup is not None:
        setup()


def _end_soon(signum: int, frame: object) -> None:
    """Have the kernel end this process, but only in a while.

    Schedulers send SIGTERM to workers too.  If they died of it at once, the packer
    would start new ones while it is being stopped; in a while, it has taken what is
    complete, and ended the workers itself.
    """
    signal.setitimer(signal.ITIMER_REAL, _GRACE_SECONDS)


def _end_with(sentinel: Any) -> None:
    """End this process when the packer has ended.

    The sentinel alone is not enough: it is a pipe that is closed once the
    packer *and all it has forked since* are gone.
    """
    from multiprocessing.connection import wait

    parent = os.getppid()
    with contextlib.suppress(OSError):
        while not wait([sentinel], timeout=1.0) and os.getppid() == parent:
            pass
    os._exit(1)
