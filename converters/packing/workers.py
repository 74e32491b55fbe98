"""Where chunks are encoded: worker processes, the caller's executor, or the calling thread.

Results come in the order of the chunks, with a few chunks in flight, and what kills a worker
process costs at most one image.
"""

from __future__ import annotations

import concurrent.futures.process
import contextlib
import gc
import multiprocessing
import multiprocessing.queues
import os
import pickle
import platform
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

from fastdata.errors import MachineError, OptionError, WorkerError
from fastdata.formats.writer import Record
from fastdata.processes.pool import ProcessPool, Ticket
from fastdata.processes.resources import available_cores
from fastdata.processes.starting import Role, UnpicklableWorkError, signals_held
from fastdata.processes.worker import have_one_opencv_thread
from fastdata.waits import wait_until

from ..base import Deferred, Reject, Sample, Source
from ..reading.python_samples import own_copy
from .chunk import CHUNK_BYTES, bytes_of, encode_chunk
from .options import EncodeOptions

__all__ = [
    "ChunkPool",
    "EncodeAll",
    "LostProcesses",
    "interrupt_tasks_only",
    "run_in_order",
    "start_workers",
]

_Records: TypeAlias = "list[Record | Reject]"
EncodeAll: TypeAlias = Callable[[Iterable[Any]], Generator[_Records, None, None]]
"""Turns chunks into results, in their order."""

_Chunk: TypeAlias = "Sequence[Sample | Reject]"
_Encode: TypeAlias = Callable[["_Chunk"], _Records]

_GRACE_SECONDS = 5.0
_SIGNAL_SECONDS = 0.1
"""A signal waits at most this long for the next result."""
_THREADS_THAT_WAIT = 8
"""Threads a core where images come by a network: a request takes longer than decoding."""
_DEATHS_ALLOWED = 2
"""Workers that one sample may cost: the first may have been killed for another reason."""
_REMEDY = (
    "In a script, call fastdata.pack under `if __name__ == '__main__':`; num_workers=0 packs "
    "without worker processes."
)


@contextlib.contextmanager
def start_workers(
    source: Source, options: EncodeOptions, num_workers: int | None, executor: Executor | None
) -> Iterator[EncodeAll]:
    """Start the workers; give the function that turns chunks into results."""
    encode = partial(
        encode_chunk, schema=source.schema, options=options, box_forms=dict(source.box_forms)
    )
    workers = available_cores() if num_workers is None else num_workers
    setup = source.worker_setup
    if executor is not None and source.mirror and not isinstance(executor, ThreadPoolExecutor):
        raise OptionError(
            "files of a store are downloaded by this process, and an executor's processes cannot "
            "read them: pack to a URL, or by an engine (--executor), whose tasks read the store "
            "themselves, or without executor"
        )
    with contextlib.ExitStack() as stack:
        threads = 0
        if source.mirror is not None:
            threads = max(1, workers) * (_THREADS_THAT_WAIT if source.reads_by_network else 1)
        elif platform.system() == "Darwin":
            # Its sockets do not keep messages whole, as processes that share one need.
            threads = workers
        if executor is None and threads:
            executor = stack.enter_context(ThreadPoolExecutor(threads))
        if executor is None and workers:
            if options.filter == "bicubic":
                import torch  # noqa: F401 (once here, not in every worker that is forked)
            try:
                pool = stack.enter_context(contextlib.closing(ChunkPool(workers, encode, setup)))
            except UnpicklableWorkError as error:
                source.notes.append(
                    f"the dataset cannot be sent to worker processes ({error}), so this one packed "
                    "it alone, which is slower"
                )
            else:
                yield lambda chunks: pool.run(chunks, 2 * workers + 2)
                return
        if setup is not None:
            setup()
        if executor is None:
            yield lambda chunks: (encode(chunk) for chunk in chunks)
            return
        ahead = 2 * getattr(executor, "_max_workers", workers) + 2
        submit = partial(executor.submit, partial(_encode_in_pool, encode))
        loads_here = setup is not None and not isinstance(executor, ThreadPoolExecutor)
        lost = LostProcesses(executor)
        yield lambda chunks: run_in_order(
            _loaded(chunks) if loads_here else chunks, submit, ahead, lost
        )


def _encode_in_pool(encode: _Encode, chunk: _Chunk) -> _Records:
    interrupt_tasks_only()
    return encode(chunk)


def _loaded(chunks: Iterable[_Chunk]) -> Iterator[_Chunk]:
    """Ask a dataset for its samples here, for workers that cannot."""
    return ([_load(sample) for sample in chunk] for chunk in chunks)


def _load(sample: Sample | Reject) -> Sample | Reject:
    if isinstance(sample, Reject) or not isinstance(sample.values, Deferred):
        return sample
    try:
        return Sample(sample.key, own_copy(sample.values.load()))
    except Exception as error:  # a user's Dataset may raise anything
        return Reject.of(sample.key, error)


def run_in_order(
    chunks: Iterable[Any],
    submit: Callable[[Any], Future[Any] | Ticket],
    ahead: int,
    lost: LostProcesses | None = None,
) -> Generator[Any, None, None]:
    """Yield the results of `chunks` in their order, with up to `ahead` chunks in flight.

    Large chunks are fewer, since all chunks in flight are in memory here.

    Signals are handled only between calls of the executor: an exception that a handler raises
    inside of `threading.Condition` leaves it locked, and the executor's thread never ends.
    `lost` belongs to the executor: it cancels the tasks that remain if the caller stops early.
    """
    waiting: deque[Future[Any] | Ticket] = deque()
    sizes: deque[int] = deque()
    try:
        for chunk in chunks:
            sizes.append(sum(map(bytes_of, chunk)))
            # An executor may start processes, and they inherit which signals are blocked.
            with signals_held(blocked=False):
                waiting.append(submit(chunk))
            while len(waiting) > ahead or (waiting and sum(sizes) > ahead * CHUNK_BYTES):
                sizes.popleft()
                yield _result(waiting.popleft(), lost)
        while waiting:
            yield _result(waiting.popleft(), lost)
    finally:
        with signals_held():
            futures = [pending for pending in waiting if isinstance(pending, Future)]
            if lost is not None:
                lost.cancel(futures)


def _result(pending: Future[Any] | Ticket, lost: LostProcesses | None = None) -> Any:
    """Wait for a result, and now and then for a signal; see `run_in_order`."""

    def is_done(seconds: float) -> bool:
        seconds = min(seconds, _SIGNAL_SECONDS)
        with signals_held():
            if isinstance(pending, Future):
                done = bool(wait([pending], timeout=seconds).done)
            else:
                done = pending.wait(seconds)
        if not done and lost is not None:
            lost.check()
        return done

    wait_until(is_done, "the next samples from the workers")
    with signals_held():
        return pending.result()


class ChunkPool:
    """Worker processes that encode chunks; they are replaced when a worker dies.

    A decoder that crashes on one image, twice, costs that image, not the pack.  Workers ignore
    Ctrl-C, which the packer handles, and end within moments of the packer's death.

    `encode` can be pickled; so can `setup`, which is called once in each worker before its first
    chunk, or an `UnpicklableWorkError` is raised where the start method needs it.  `WorkerError`
    if the workers die as they start, or this process may not start any.
    """

    def __init__(
        self, workers: int, encode: _Encode, setup: Callable[[], None] | None = None
    ) -> None:
        if multiprocessing.current_process().daemon:
            raise WorkerError(
                "this is a daemonic process (a worker of multiprocessing.Pool or of a DataLoader), "
                "which may not start worker processes: num_workers=0 packs without"
            )
        self._workers = workers
        self._work = _Encoder(encode, setup)
        self._context = multiprocessing.get_context()
        self._pool = self._start()

    def _start(self) -> ProcessPool:
        # Not blocked: a fork server that starts here would pass that on to every process.
        with signals_held(blocked=False):
            pool = ProcessPool(self._work, self._workers, _ROLE, context=self._context)
        try:
            with signals_held():
                first = pool.submit(None)
            _result(first)
        except BaseException as error:
            with signals_held():
                pool.close()
            if pool.death is None:
                raise
            raise WorkerError(
                f"the worker processes died as they started ({pool.death}). {_REMEDY}"
                + (f"\n{pool.death.start_error}" if pool.death.start_error else "")
            ) from error
        return pool

    def run(self, chunks: Iterable[_Chunk], ahead: int) -> Generator[_Records, None, None]:
        """Yield results in order; a sample that kills its worker becomes a `Reject`."""
        source = iter(chunks)
        pending: deque[_Chunk] = deque()  # submitted, result not yet yielded

        def submitted() -> Iterator[_Chunk]:
            for chunk in source:
                pending.append(chunk)
                yield chunk

        while True:
            try:
                for result in run_in_order(submitted(), self._submit, ahead):
                    pending.popleft()
                    yield result
                return
            except WorkerError:
                if self._pool.death is None:  # an error of the work: the workers are well
                    raise
                self._pool = self._start()
            # A sample here killed a worker: find out which, one sample at a time.
            while pending:
                yield self._one_by_one(pending.popleft())

    def _submit(self, chunk: _Chunk) -> Ticket:
        try:
            return self._pool.submit(chunk)
        except (WorkerError, OSError):
            raise
        except Exception:  # pickling a user's object may raise anything
            return self._pool.submit([_sendable(sample) for sample in chunk])

    def _one_by_one(self, chunk: _Chunk) -> _Records:
        records: _Records = []
        for sample in chunk:
            kills = _memory_kills()
            for _ in range(_DEATHS_ALLOWED):
                try:
                    with signals_held():
                        ticket = self._submit([sample])
                    result: _Records = _result(ticket)
                    break
                except WorkerError:
                    if self._pool.death is None:
                        raise
                    killed = self._pool.death.signal == signal.SIGKILL
                    self._pool = self._start()
            else:
                if killed and _memory_kills() != kills:
                    raise MachineError(
                        f"{sample.key}: the system killed the worker process as memory ran out. "
                        "This sample is not rejected, as it may be good. Use fewer workers "
                        "(num_workers, --workers), a smaller max_pixels, or a machine with more "
                        "memory; then run the same command again: it continues"
                    )
                reason = "the worker process died on it (a crash of the decoder, or out of memory)"
                result = [Reject(sample.key, reason)]
            records += result
        return records

    def close(self) -> None:
        """End the workers and their tasks.  Idempotent."""
        with signals_held():
            self._pool.close()


def _memory_kills() -> str:
    """Return how many processes the kernel has killed for memory, as text; "" if it does not tell.

    It counts those of all cgroups, so another one's may come in between: then a bad sample ends
    the pack by an error, and is not a reject.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return line
    return ""


class _Encoder:
    """The work of a worker: set up with the first message, None or a chunk."""

    def __init__(self, encode: _Encode, setup: Callable[[], None] | None) -> None:
        self._encode, self._setup = encode, setup

    def __call__(self, chunk: _Chunk | None, memory: object) -> _Records | None:
        if self._setup is not None:
            setup, self._setup = self._setup, None
            setup()
        return None if chunk is None else self._encode(chunk)


def _sendable(sample: Sample | Reject) -> Sample | Reject:
    """Return a sample that can be sent to a worker, or why it cannot."""
    try:
        pickle.dumps(sample, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        reason = f"cannot be sent to a worker process ({error}); num_workers=0 packs it"
        return Reject(sample.key, reason)
    return sample


def _become_worker() -> None:
    """Leave Ctrl-C to the packer, put SIGTERM off, and compute on one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _end_soon)

    # Each core has a process, so these libraries need no threads.  torch, which takes a second to
    # import and which few packs use, may come later.
    os.environ["OMP_NUM_THREADS"] = "1"
    have_one_opencv_thread()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    # The objects of now stay: looking through them for garbage took a tenth of a pack's time.
    gc.freeze()


def _end_soon(signum: int, frame: object) -> None:
    """Have the kernel end this process, but only in a while.

    Schedulers send SIGTERM to workers too.  If workers died at once, the packer would start
    others while it is being stopped.  Until the delay is over, it has committed the complete
    samples and ended the workers itself.
    """
    signal.setitimer(signal.ITIMER_REAL, _GRACE_SECONDS)


_ROLE = Role(name="fastdata-packer", set_up=_become_worker, remedy=_REMEDY)


# -- executors of the caller ---------------------------------------------------------------------
#
# The messages of a `ProcessPoolExecutor` go through pipes that all of its processes share.  A
# process that is interrupted halfway through a message spoils the pipe, and Python's thread waits
# for the rest without end, as other processes can still write to it (seen in Python 3.11).

_NOTICE_SECONDS = 0.5
"""Within which an executor notices the death of one of its processes."""
_LEAVE_SECONDS = 2.0
"""For a pool that has lost a process to fail its tasks."""
_TICK_SECONDS = 0.1

_process: Any = concurrent.futures.process
_WORKER: CodeType = _process._process_worker.__code__
"""The loop of a process of the pool, which takes tasks, calls them and sends results."""
_MESSAGES: tuple[CodeType, ...] = (
    _process._sendback_result.__code__,
    multiprocessing.queues.Queue.get.__code__,
    multiprocessing.queues.SimpleQueue.put.__code__,
)
"""What it calls to take and to send."""


def interrupt_tasks_only() -> None:
    """Have Ctrl-C interrupt tasks of this process of a pool, and never its messages.

    It does nothing in other processes and threads, and if Ctrl-C is ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    if (
        multiprocessing.parent_process() is not None
        and threading.current_thread() is threading.main_thread()
        and callable(before)
        and getattr(before, "func", None) is not _interrupt_task
    ):
        signal.signal(signal.SIGINT, partial(_interrupt_task, before))


def _interrupt_task(before: Any, number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C as before, unless the loop of the pool is at a message."""
    called: FrameType | None = None
    while frame is not None and frame.f_code is not _WORKER:
        called, frame = frame, frame.f_back
    if frame is None or (called is not None and called.f_code not in _MESSAGES):
        before(number, called)


class LostProcesses:
    """Ends a pool after one of its processes died while it sent a result."""

    def __init__(self, executor: Executor) -> None:
        self._executor: Any = executor
        self._since: float | None = None

    def check(self) -> None:
        """Raise `WorkerError` if there is such a process, which the pool has had time to notice."""
        if self._is_unnoticed():
            self._end()
            raise WorkerError(
                "a process of the executor died while it sent a result. Run the same command "
                "again, with a new executor: it continues"
            )

    def cancel(self, pending: Collection[Future[Any]]) -> None:
        """Cancel tasks that are not wanted any more, unless the pool is about to fail them.

        A Ctrl-C may have ended its processes, too.  Cancelled tasks would then fail in Python's
        thread, which would never end.
        """
        began = time.monotonic()
        while pending and self._processes():
            if not wait(pending, _TICK_SECONDS).not_done:
                return
            if self._is_unnoticed():
                self._end()
            if time.monotonic() > began + (_LEAVE_SECONDS if self._has_lost() else _NOTICE_SECONDS):
                break
        if not self._has_lost():
            for future in pending:
                future.cancel()

    def _processes(self) -> list[Any]:
        return list((getattr(self._executor, "_processes", None) or {}).values())

    def _has_lost(self) -> bool:
        return any(process.exitcode for process in self._processes())

    def _is_unnoticed(self) -> bool:
        """Return whether a process has died, and the pool has had time to notice."""
        if not self._has_lost():
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now > self._since + _NOTICE_SECONDS

    def _end(self) -> None:
        for process in self._processes():
            process.kill()
        with contextlib.suppress(AttributeError, OSError):
            self._executor._result_queue._writer.close()  # now the thread reads the end of the file
