"""Where chunks are encoded: own processes, the caller's executor, or right here."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

from fastdata.processes.resources import available_cores

from ..base import Deferred, Reject, Sample, Source, reason_of
from ..reading.python_samples import own_copy
from .chunk import ChunkResult, encode_chunk
from .options import EncodeOptions
from .pool import ChunkPool, SetupError, run_in_order

__all__ = ["Encode", "start_workers"]

Encode: TypeAlias = Callable[[Iterable[Any]], Iterator[ChunkResult]]
"""Turns chunks into results, in their order."""


@contextlib.contextmanager
def start_workers(
    source: Source, options: EncodeOptions, num_workers: int | None, executor: Executor | None
) -> Iterator[Encode]:
    """Start the workers; give the function that turns chunks into results."""
    encode = partial(encode_chunk, schema=source.schema, options=options)
    workers = available_cores() if num_workers is None else num_workers
    setup = source.worker_setup
    with contextlib.ExitStack() as stack:
        if executor is None and workers and platform.system() == "Darwin":
            # There are no sockets that keep messages whole, which processes would share.
            executor = stack.enter_context(ThreadPoolExecutor(workers))
        if executor is None and workers:
            yield _in_processes(source, encode, workers, stack)
            return
        if setup is not None:
            setup()
        if executor is None:
            yield lambda chunks: map(encode, chunks)
            return
        ahead = 2 * getattr(executor, "_max_workers", workers) + 2
        submit = partial(executor.submit, encode)
        loads_here = setup is not None and not isinstance(executor, ThreadPoolExecutor)
        yield lambda chunks: run_in_order(_loaded(chunks) if loads_here else chunks, submit, ahead)


def _in_processes(source: Source, encode: Any, workers: int, stack: contextlib.ExitStack) -> Encode:
    """Start worker processes, which end with `stack`."""
    setup = source.worker_setup
    loads_here = False
    try:
        pool = ChunkPool(workers, encode, setup)
    except SetupError as error:
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


def _loaded(chunks: Iterable[Sequence[Sample | Reject]]) -> Iterator[list[Sample | Reject]]:
    """Ask a dataset for its samples here, for workers that cannot."""
    return ([_load(sample) for sample in chunk] for chunk in chunks)


def _load(sample: Sample | Reject) -> Sample | Reject:
    if isinstance(sample, Reject) or not isinstance(sample.values, Deferred):
        return sample
    try:
        return Sample(sample.key, own_copy(sample.values.load()))
    except Exception as error:  # a user's Dataset may raise anything
        return Reject(sample.key, reason_of(error))
