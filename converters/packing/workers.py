"""Where chunks are encoded: own processes, the caller's executor, or right here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from fastdata.engine.cores import available_cores

from ..base import Deferred, Reject, Sample, Source, reason_of
from ..reading.python_samples import kept
from .chunk import ChunkResult, encode_chunk
from .options import EncodeOptions
from .pool import ProcessPool, SetupError, run_in_order

__all__ = ["Encode", "start_workers"]

Encode: TypeAlias = Callable[[Iterable[Any]], Iterator[ChunkResult]]
"""Turns chunks into results, in their order."""


@contextlib.contextmanager
def start_workers(
    source: Source,
    options: EncodeOptions,
    num_workers: int | None,
    executor: Executor | None,
    scratch: Path,
) -> Iterator[Encode]:
    """Start the workers; give the function that turns chunks into results."""
    work = partial(encode_chunk, schema=source.schema, options=options)
    workers = available_cores() if num_workers is None else num_workers
    setup = source.worker_setup
    if executor is None and workers == 0:
        if setup is not None:
            setup()
        yield lambda chunks: map(work, chunks)
    elif executor is not None:
        ahead = 2 * getattr(executor, "_max_workers", workers) + 2
        if setup is not None:
            setup()
        loads_here = setup is not None and not isinstance(executor, ThreadPoolExecutor)
        yield lambda chunks: run_in_order(
            _loaded(chunks) if loads_here else chunks, work, executor.submit, ahead
        )
    else:
        loads_here = False
        try:
            pool = ProcessPool(workers, scratch, setup)
        except SetupError as error:
            assert setup is not None
            setup()
            loads_here = True
            source.notes.append(
                f"the dataset cannot be sent to worker processes ({error}), so it was called in "
                "this one, which is slower"
            )
            pool = ProcessPool(workers, scratch)
        try:
            yield lambda chunks: pool.run(
                _loaded(chunks) if loads_here else chunks, work, ahead=2 * workers + 2
            )
        finally:
            pool.close()


def _loaded(chunks: Iterable[Sequence[Sample | Reject]]) -> Iterator[list[Sample | Reject]]:
    """Ask a dataset for its samples here, for workers that cannot."""
    return ([_load(sample) for sample in chunk] for chunk in chunks)


def _load(sample: Sample | Reject) -> Sample | Reject:
    if isinstance(sample, Reject) or not isinstance(sample.values, Deferred):
        return sample
    try:
        return Sample(sample.key, kept(sample.values.load()))
    except Exception as error:  # a user's Dataset may raise anything
        return Reject(sample.key, reason_of(error))
