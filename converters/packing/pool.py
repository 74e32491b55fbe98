"""Run chunks on worker processes, in order, a few at a time, and survive what kills a worker.

`run_in_order` also works with any ``concurrent.futures.Executor``.  A `ChunkPool` survives the
death of a worker: a decoder that crashes on one image, twice, costs that image, not the pack.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeAlias

from fastdata.errors import WorkerError
from fastdata.processes.pool import ProcessPool, Ticket
from fastdata.processes.starting import Role, UnpicklableWorkError, signals_held

from ..base import Reject, Sample
from .chunk import ChunkResult

__all__ = ["ChunkPool", "SetupError", "run_in_order"]

Chunk: TypeAlias = "Sequence[Sample | Reject]"
Encode: TypeAlias = "Callable[[Chunk], ChunkResult]"

_GRACE_SECONDS = 5.0
_SIGNAL_SECONDS = 0.1
"""How long a signal waits at most while there is no result."""
_DEATHS_ALLOWED = 2
"""Workers that one sample may cost: the first may have been killed for another reason."""
_REMEDY = (
    "In a script, call fastdata.pack under `if __name__ == '__main__':`; num_workers=0 packs "
    "without worker processes."
)


class SetupError(Exception):
    """What workers need cannot be sent to them; the message says why."""


def run_in_order(
    chunks: Iterable[Any], submit: Callable[[Any], Future[Any] | Ticket], ahead: int
) -> Iterator[Any]:
    """Yield the results of `chunks` in their order, with `ahead` of them in flight.

    Signals that stop the packer arrive between calls of the executor's: what a handler
    raises as `threading.Condition` is entered leaves that locked, and the executor's
    thread waits for it for ever.
    """
    waiting: deque[Future[Any] | Ticket] = deque()
    try:
        for chunk in chunks:
            with signals_held():
                waiting.append(submit(chunk))
            if len(waiting) > ahead:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())
    finally:
        with signals_held():
            for pending in waiting:
                if isinstance(pending, Future):
                    pending.cancel()


def _result(pending: Future[Any] | Ticket) -> Any:
    """Wait for a result, and now and then for a signal; see `run_in_order`."""
    while True:
        with signals_held():
            if isinstance(pending, Future):
                done = bool(wait([pending], timeout=_SIGNAL_SECONDS).done)
            else:
                done = pending.wait(_SIGNAL_SECONDS)
            if done:
                return pending.result()


class ChunkPool:
    """Worker processes that encode chunks; new ones take their place when one of them dies.

    Parameters
    ----------
    workers : int
    encode : callable
        Makes a `ChunkResult` of a chunk; picklable.
    setup : callable, optional
        Picklable; called once in each worker, before its first chunk.

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
        self, workers: int, encode: Encode, setup: Callable[[], None] | None = None
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
        try:
            with signals_held():
                pool = ProcessPool(self._work, self._workers, _ROLE, context=self._context)
        except UnpicklableWorkError as error:
            raise SetupError(str(error)) from error.__cause__
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

    def run(self, chunks: Iterable[Chunk], ahead: int) -> Iterator[ChunkResult]:
        """Yield results in order; a sample that kills its worker becomes a `Reject`."""
        source = iter(chunks)
        pending: deque[Chunk] = deque()  # submitted, result not yet yielded

        def noted() -> Iterator[Chunk]:
            for chunk in source:
                pending.append(chunk)
                yield chunk

        while True:
            try:
                for result in run_in_order(noted(), self._submit, ahead):
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

    def _submit(self, chunk: Chunk) -> Ticket:
        try:
            return self._pool.submit(chunk)
        except (WorkerError, OSError):
            raise
        except Exception:  # what somebody's object cannot be pickled with
            return self._pool.submit([_sendable(sample) for sample in chunk])

    def _one_by_one(self, chunk: Chunk) -> ChunkResult:
        records: list[Any] = []
        total = 0
        for sample in chunk:
            for _ in range(_DEATHS_ALLOWED):
                try:
                    with signals_held():
                        ticket = self._submit([sample])
                    result: ChunkResult = _result(ticket)
                    break
                except WorkerError:
                    if self._pool.death is None:
                        raise
                    self._pool = self._start()
            else:
                reason = "the worker process died on it (a crash of the decoder, or out of memory)"
                result = ChunkResult([Reject(sample.key, reason)], 0)
            records += result.records
            total += result.source_bytes
        return ChunkResult(records, total)

    def close(self) -> None:
        """End the workers, and what they are working on.  Idempotent."""
        with signals_held():
            self._pool.close()


class _Encoder:
    """The work of a worker: set up with the first message, None or a chunk."""

    def __init__(self, encode: Encode, setup: Callable[[], None] | None) -> None:
        self._encode = encode
        self._setup = setup

    def __call__(self, chunk: Chunk | None, memory: object) -> ChunkResult | None:
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

    import cv2
    import torch

    # One process a core: no threads of theirs besides.
    cv2.setNumThreads(1)
    torch.set_num_threads(1)


def _end_soon(signum: int, frame: object) -> None:
    """Have the kernel end this process, but only in a while.

    Schedulers send SIGTERM to workers too.  If they died of it at once, the packer
    would start new ones while it is being stopped; in a while, it has taken what is
    complete, and ended the workers itself.
    """
    signal.setitimer(signal.ITIMER_REAL, _GRACE_SECONDS)


_ROLE = Role(name="fastdata-packer", set_up=_become_worker, remedy=_REMEDY)
