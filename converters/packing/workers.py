"""Where chunks are encoded: worker processes, the caller's executor, or the calling thread.

Results come in the order of the chunks, with a few chunks in flight, and what kills a worker
process costs at most one image.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import platform
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from fastdata.errors import MachineError, OptionError, WorkerError
from fastdata.processes.pool import ProcessPool, Ticket
from fastdata.processes.resources import available_cores
from fastdata.processes.starting import Role, UnpicklableWorkError, signals_held
from fastdata.processes.worker import have_one_opencv_thread
from fastdata.waits import wait_until

from ..base import Deferred, Reject, Sample, Source
from ..reading.python_samples import own_copy
from .chunk import CHUNK_BYTES, ChunkResult, bytes_of, encode_chunk
from .options import EncodeOptions
from .pools import LostProcesses, interrupt_tasks_only

__all__ = ["ChunkPool", "EncodeAll", "run_in_order", "start_workers"]

EncodeAll: TypeAlias = Callable[[Iterable[Any]], Iterator[ChunkResult]]
"""Turns chunks into results, in their order."""

_Chunk: TypeAlias = "Sequence[Sample | Reject]"
_Encode: TypeAlias = Callable[["_Chunk"], ChunkResult]

_GRACE_SECONDS = 5.0
_SIGNAL_SECONDS = 0.1
"""How long a signal waits at most while there is no result."""
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
    encode = _encoder_of(source, options)
    workers = available_cores() if num_workers is None else num_workers
    setup = source.worker_setup
    if executor is not None and source.mirror and not isinstance(executor, ThreadPoolExecutor):
        raise OptionError(
            "files of a store are downloaded by this process, and an executor's own processes have "
            "none of them: pack to a URL, or by an engine (--executor), whose tasks read the store "
            "themselves, or without executor"
        )
    with contextlib.ExitStack() as stack:
        if executor is None and source.mirror is not None:
            each = _THREADS_THAT_WAIT if source.reads_by_network else 1
            threads = each * max(1, workers)
            executor = stack.enter_context(ThreadPoolExecutor(threads))
        elif executor is None and workers and platform.system() == "Darwin":
            # There are no sockets that keep messages whole, which processes would share.
            executor = stack.enter_context(ThreadPoolExecutor(workers))
        if executor is None and workers:
            yield _in_processes(source, options, workers, stack)
            return
        if setup is not None:
            setup()
        if executor is None:
            yield lambda chunks: map(encode, chunks)
            return
        ahead = 2 * getattr(executor, "_max_workers", workers) + 2
        submit = partial(executor.submit, partial(_encode_in_pool, encode))
        loads_here = setup is not None and not isinstance(executor, ThreadPoolExecutor)
        lost = LostProcesses(executor)
        yield lambda chunks: run_in_order(
            _loaded(chunks) if loads_here else chunks, submit, ahead, lost
        )


def _encoder_of(source: Source, options: EncodeOptions) -> Any:
    forms = dict(source.box_forms)
    return partial(encode_chunk, schema=source.schema, options=options, box_forms=forms)


def _encode_in_pool(encode: _Encode, chunk: _Chunk) -> ChunkResult:
    interrupt_tasks_only()
    return encode(chunk)


def _in_processes(
    source: Source, options: EncodeOptions, workers: int, stack: contextlib.ExitStack
) -> EncodeAll:
    """Start worker processes, which end with `stack`."""
    if options.filter == "bicubic":
        import torch  # noqa: F401 (once here, not in every worker that is forked)

    encode, setup = _encoder_of(source, options), source.worker_setup
    loads_here = False
    try:
        pool = ChunkPool(workers, encode, setup)
    except UnpicklableWorkError as error:
        assert setup is not None
        setup()
        loads_here = True
        source.notes.append(
            f"the dataset cannot be sent to worker processes ({error}), so it was called in "
            "this one, which is slower"
        )
        pool = ChunkPool(workers, encode)
    stack.callback(pool.close)
    return lambda chunks: pool.run(_loaded(chunks) if loads_here else chunks, 2 * workers + 2)


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
) -> Iterator[Any]:
    """Yield the results of `chunks` in their order, with `ahead` of them in flight.

    Fewer where a chunk has a record of up to 1 GB: what is in flight is in memory here.

    Signals are handled only between calls of the executor's: what a handler raises as
    `threading.Condition` is entered leaves that locked, and the executor's thread waits for ever.
    `lost` is of the executor, if there is one: tasks are cancelled where results are left.
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
    """Worker processes that encode chunks; new ones take their place when one of them dies.

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

    def run(self, chunks: Iterable[_Chunk], ahead: int) -> Iterator[ChunkResult]:
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
            # One of these killed a worker: find out which, one sample at a time.
            while pending:
                yield self._one_by_one(pending.popleft())

    def _submit(self, chunk: _Chunk) -> Ticket:
        try:
            return self._pool.submit(chunk)
        except (WorkerError, OSError):
            raise
        except Exception:  # pickling a user's object may raise anything
            return self._pool.submit([_sendable(sample) for sample in chunk])

    def _one_by_one(self, chunk: _Chunk) -> ChunkResult:
        records: list[Any] = []
        total = 0
        for sample in chunk:
            kills = _memory_kills()
            for _ in range(_DEATHS_ALLOWED):
                try:
                    with signals_held():
                        ticket = self._submit([sample])
                    result: ChunkResult = _result(ticket)
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
                result = ChunkResult([Reject(sample.key, reason)], 0)
            records += result.records
            total += result.source_bytes
        return ChunkResult(records, total)

    def close(self) -> None:
        """End the workers, and what they are working on.  Idempotent."""
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

    def __call__(self, chunk: _Chunk | None, memory: object) -> ChunkResult | None:
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

    # One process a core: no threads of these libraries besides.  torch, which takes a second to
    # import and which few packs use, may come later.
    os.environ["OMP_NUM_THREADS"] = "1"
    have_one_opencv_thread()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    # What is there now stays: looking through it for garbage took a tenth of the time of a pack.
    gc.freeze()


def _end_soon(signum: int, frame: object) -> None:
    """Have the kernel end this process, but only in a while.

    Schedulers send SIGTERM to workers too.  If they died of it at once, the packer
    would start new ones while it is being stopped; in a while, it has taken what is
    complete, and ended the workers itself.
    """
    signal.setitimer(signal.ITIMER_REAL, _GRACE_SECONDS)


_ROLE = Role(name="fastdata-packer", set_up=_become_worker, remedy=_REMEDY)
