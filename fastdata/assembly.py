"""Assembly of a loader from its options.

LoaderOptions --> order of batches    sampling
              --> BatchWork           data, transforms, decoder
              --> Backend             makes batches
              --> Loader              for packed data
              --> a stock DataLoader, perhaps in a CUDAPrefetcher, for other data
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from fastdata.cache.device import DeviceCacheBackend
from fastdata.cache.ram import FileCacheBackend, RamCacheBackend
from fastdata.codecs.decoders import JpegDecoder, jpeg_decoder
from fastdata.dataset import Dataset
from fastdata.distributed import left_to_others
from fastdata.engine.backend import Backend, CpuBackend
from fastdata.engine.column_checks import check_columns
from fastdata.engine.contracts import BatchOrder, PackedData
from fastdata.engine.delivery import has_batch_stage
from fastdata.engine.loader import Loader
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions, choose_method
from fastdata.errors import OptionError, WorkerError
from fastdata.options import LoaderOptions
from fastdata.prefetch import CUDAPrefetcher
from fastdata.records import RecordFormat
from fastdata.sampling import (
    Batches,
    Order,
    PartOrder,
    SampledBatches,
    SamplerOrder,
    Weighted,
    order_of,
    part_of_rank,
)
from fastdata.schema import Schema
from fastdata.transforms.mixing import MixTransform
from fastdata.transforms.pipeline import Pipeline, as_tuple
from fastdata.transforms.pixel import ToDtype
from fastdata.transforms.stages import ChangeStage
from fastdata.tuned_settings.key import resolve_auto_settings

__all__ = ["foreign_loader", "packed_loader"]

_SHARED_FOLDER = Path("/dev/shm")
_PROBE_BYTES = 1 << 16

_OPTIONS_OF_WORKERS = ("multiprocessing_context", "timeout")

TYPICAL_BYTES = 1 << 16
"""Bytes of a sample, if the data do not know its size."""

MOST_CHECKED = 1 << 20
"""Samples whose columns are looked at when a loader is made, which takes 0.2 s; and so the shards
that are opened for that."""

_REFUSED_OPTIONS: dict[str, tuple[tuple[Any, ...], str]] = {
    "collate_fn": (
        (None,),
        "batches are made whole; batch_format=, names= and image_lists= change their form, and a "
        "BatchTransform changes them",
    ),
    "timeout": ((0, None), "a worker that dies is noticed at once; leave it out"),
    "worker_init_fn": ((None,), "workers have nothing to be initialised; leave it out"),
    "generator": ((None,), "give seed=generator.initial_seed(), or seed=None for torch's own"),
    "pin_memory_device": ((None, ""), "device= says where batches arrive"),
    "in_order": ((True, None), "batches come in order, always; leave it out"),
}
"""Options of DataLoader that packed data has no use for: values that ask for nothing, and what to
do instead of others."""


def packed_loader(data: PackedData, options: LoaderOptions) -> Loader:
    """Return the loader of packed data."""
    for name, value in options.dataloader_options.items():
        neutral, instead = _REFUSED_OPTIONS.get(name, ((), "leave it out"))
        if not any(value is one or value == one for one in neutral):
            raise OptionError(f"{name} is not an option of a loader of packed data: {instead}")
    if options.max_pixels is not None:
        if not isinstance(data, Dataset):
            raise OptionError(f"max_pixels is for files of packed data, but {data!r} has none")
        data = data._limited_to(options.max_pixels)
    whole = data.schema
    if options.fields is not None:
        if not isinstance(data, Dataset):
            raise OptionError(f"fields selects among those of packed data, not of {data!r}")
        data = data._with_fields(options.fields)
    transform = getattr(data, "transform", None)
    if transform is not None and options.transform is None:
        options = dataclasses.replace(options, transform=transform)
    elif transform is not None and options.transform is not transform:
        raise OptionError(
            "both the dataset and the loader have a transform, so the choice is not clear: "
            "set dataset.transform = None, or leave out transform="
        )
    own = getattr(data, "record_format", RecordFormat())
    names = options.names
    if names is None and own.names is not None:
        names = {name: new for name, new in own.names.items() if name in data.schema}
    record = RecordFormat(options.batch_format or own.batch_format, names)
    record.check(data.schema)
    pipeline = _pipeline(options, data.schema, whole)
    if options.image_lists:
        _check_not_mixed(pipeline)
    decoder = jpeg_decoder(options.decoder)
    # Who gives samples or batches may leave some out, and give those of one size together.
    if options.sampler is None and options.batch_sampler is None:
        some = np.arange(len(data))
        if options.weights is not None:
            some = _weighted(options, len(data), 0).possible
        one_size = options.batch_size > 1 and not options.image_lists
        check_columns(data, pipeline, decoder, some[:MOST_CHECKED], one_size=one_size)
    assemble = partial(_assemble, data, options, pipeline, decoder)
    return Loader(data, options, assemble, record)


def _assemble(
    data: PackedData,
    options: LoaderOptions,
    pipeline: Pipeline,
    decoder: JpegDecoder,
    rank: int,
    world_size: int,
    seed: int,
) -> tuple[BatchOrder, Backend]:
    """Return the order and the backend of a loader that is this rank of so many."""
    part = None
    if options.cache_scope == "rank":
        part = part_of_rank(len(data), seed, rank, world_size, even=options.even)
    target = options.target
    work = BatchWork(
        data,
        pipeline,
        decoder,
        seed=seed,
        on_corrupt=options.on_corrupt,
        pixels=target is None or target.type == "cpu",
        part=part,
        memory_format=options.memory_format,
        planar=_makes_planes(options, pipeline),
        image_lists=options.image_lists,
    )
    backend = _backend(options, work, part)
    if options.batch_sampler is not None:
        return SampledBatches(options.batch_sampler, len(data)), backend
    order = _order(options, data, seed, options.batch_size * world_size)
    if part is not None:
        own = _shuffled(options, data, len(part), seed, options.batch_size)
        order = PartOrder(part, own, len(data), world_size)
        rank, world_size = 0, 1  # of its own samples all are for this rank
    batches = Batches(
        order,
        batch_size=options.batch_size,
        drop_last=options.drop_last,
        rank=rank,
        world_size=world_size,
        even=options.even,
    )
    return batches, backend


def _makes_planes(options: LoaderOptions, pipeline: Pipeline) -> bool:
    """Return whether images are made as contiguous planes, not converted later.

    Stages on a device take images channels last.
    """
    on_device = options.target is not None and options.target.type != "cpu"
    parts = (pipeline, *pipeline.views)
    return (
        options.memory_format == torch.contiguous_format
        and options.cache != "device"
        and not (on_device and options.backend == "dali")
        and not (on_device and has_batch_stage(pipeline))
        and not (on_device and any(part.pixels is not None for part in parts))
    )


def _backend(options: LoaderOptions, work: BatchWork, part: Any) -> Backend:
    """Return the backend, with tuned settings where they are asked for."""
    options = resolve_auto_settings(work.dataset, options)
    workers, target, pinned = _worker_options(options, work), options.target, options.pinned
    workers.check_sent(work.pipeline.transforms)
    if options.backend == "dali":
        if _reads_files(work):
            raise OptionError(
                'backend="dali" is for packed data: pack the files, with fastdata pack, or use '
                'backend="cpu"'
            )
        from fastdata.dali import DaliBackend

        return DaliBackend(work, workers, device=target, pin_memory=pinned)
    if options.cache == "device":
        here = torch.device("cpu") if target is None else target
        return DeviceCacheBackend(work, workers, device=here, pin_memory=pinned, part=part)
    if getattr(work.dataset, "_supplied", ()) and (options.cache == "ram"):
        raise OptionError(
            'cache="ram" holds files of this machine in memory, and these data come from a '
            "store: leave it out (downloaded data are in the page cache)"
        )
    if options.cache == "ram" and _reads_files(work):
        return FileCacheBackend(work, workers, device=target, pin_memory=pinned, part=part)
    if options.cache == "ram":
        return RamCacheBackend(work, workers, device=target, pin_memory=pinned, part=part)
    return CpuBackend(work, workers, device=target, pin_memory=pinned)


def _reads_files(work: BatchWork) -> bool:
    """Return whether the data are files that are not packed."""
    return getattr(work.dataset, "_samples_per_task", None) is not None


def _worker_options(options: LoaderOptions, work: BatchWork) -> WorkerOptions:
    """Return the number of workers, and whether they are threads or processes."""
    method = options.worker_method
    if method == "auto" and options.backend == "dali":
        method = "thread"
    elif method == "auto":
        method = choose_method(
            options.workers,
            calls_python=not work.pipeline.direct,
            releases_lock=work.releases_lock,
            context=options.multiprocessing_context,
        )
    return WorkerOptions(
        options.workers,
        method,
        options.batches_ahead,
        options.persistent,
        options.multiprocessing_context,
    )


def _pipeline(options: LoaderOptions, schema: Schema, whole: Schema) -> Pipeline:
    """Return the checked transforms, `dtype` being one more at the end.

    `whole` has the fields that the option `fields` leaves out, too, for messages.
    """
    transforms = as_tuple(options.transform)
    if options.dtype is not None:
        transforms = (*transforms, ToDtype(options.dtype))
    try:
        return Pipeline(transforms, schema)
    except OptionError as error:
        left_out = [name for name in whole if name not in schema]
        try:
            Pipeline(transforms, whole)
        except OptionError:
            raise error from None
        raise OptionError(
            f"fields leaves out {', '.join(left_out)}, and without them {error}"
        ) from None


def _check_not_mixed(pipeline: Pipeline) -> None:
    """Raise `OptionError` if images of a batch, which may differ in size, are to be mixed."""
    for step in pipeline.batch.steps if pipeline.batch is not None else ():
        if isinstance(step, ChangeStage) and isinstance(step.transform, MixTransform):
            raise OptionError(
                f"image_lists: {type(step.transform).__name__} mixes the images of a batch, which "
                "must have one size; leave one out"
            )


def _order(options: LoaderOptions, data: PackedData, seed: int, batch: int) -> Order:
    """Return the order of an epoch's samples, over all ranks, whose batches have so many."""
    count = len(data)
    if options.sampler is not None:
        return SamplerOrder(options.sampler, count)
    if options.weights is not None:
        return _weighted(options, count, seed)
    return _shuffled(options, data, count, seed, batch)


def _weighted(options: LoaderOptions, count: int, seed: int) -> Weighted:
    assert options.weights is not None, "there are weights"
    weighted = Weighted(options.weights, seed)
    if len(weighted) != count:
        raise OptionError(
            f"weights has {len(weighted)} numbers, but the dataset has {count} samples"
        )
    return weighted


def _shuffled(options: LoaderOptions, data: PackedData, count: int, seed: int, batch: int) -> Order:
    shuffle = options.shuffle
    if shuffle is True and bool(getattr(data, "_supplied", None)):
        shuffle = "lanes"  # a permutation of all would fetch a block for each sample
    sample_bytes = 0.0  # which only lanes are cut by
    if shuffle == "lanes":
        sample_bytes = getattr(data, "_mean_sample_bytes", TYPICAL_BYTES)
    return order_of(shuffle, count, seed, batch, sample_bytes)


def foreign_loader(data: Any, options: LoaderOptions) -> DataLoader[Any] | CUDAPrefetcher:
    """Return the loader of a dataset that is not packed."""
    for_packed = {
        "transform": options.transform is not None,
        "dtype": options.dtype is not None,
        "worker_method": options.worker_method == "thread",
        "backend": options.backend == "dali",
        "cache": options.cache is not None,
        "decoder": options.decoder != "auto",
        "on_corrupt": options.on_corrupt != "raise",
        "weights": options.weights is not None,
        "even": not options.even,
        "batch_format": options.batch_format == "dict",
        "names": options.names is not None,
        "fields": options.fields is not None,
        "image_lists": options.image_lists,
        "max_pixels": options.max_pixels is not None,
        "memory_format": options.memory_format != torch.contiguous_format,
        "shuffle": not isinstance(options.shuffle, bool),
    }
    for name, given in for_packed.items():
        if given:
            raise OptionError(
                f"{name} is for packed data, but {type(data).__name__} is a dataset that makes "
                f"samples itself: let it do this, or pack it first (fastdata.pack)"
            )
    asked = options.rank is not None or options.world_size is not None
    # The __iter__ of an iterable dataset looks up its rank itself, if it has one.
    decided = not asked and (isinstance(data, IterableDataset) or left_to_others())
    rank, world_size = options.rank_and_world_size(decided=decided)
    others = dict(options.dataloader_options)
    if options.batch_sampler is not None:
        others["batch_sampler"] = options.batch_sampler
    if options.multiprocessing_context is not None:
        others["multiprocessing_context"] = options.multiprocessing_context
    if options.num_workers == "auto":
        options = resolve_auto_settings(data, options)
        if not options.workers:  # as tuned: options of workers are refused then
            others = {k: v for k, v in others.items() if k not in _OPTIONS_OF_WORKERS}
    sampler = options.sampler
    if world_size > 1 and sampler is None and "batch_sampler" not in others:
        if isinstance(data, IterableDataset):
            raise OptionError(
                "rank and world_size cannot cut an IterableDataset: let its __iter__ yield "
                "the samples of its rank"
            )
        sampler = DistributedSampler(
            data,
            num_replicas=world_size,
            rank=rank,
            shuffle=bool(options.shuffle),
            seed=options.seed or 0,
            drop_last=options.drop_last,
        )
    loader = DataLoader(data, **_stock_arguments(options, sampler, others) | others)
    target = options.target
    if target is None or target.type == "cpu":
        return loader
    return CUDAPrefetcher(loader, target)


def _stock_arguments(
    options: LoaderOptions, sampler: Any, others: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a stock `DataLoader`; takes ``worker_init_fn`` out of `others`.

    Workers compute on one thread each, and NumPy's, Python's and torch's generators are seeded in
    them.
    """
    seed = options.seed
    arguments: dict[str, Any] = {
        "num_workers": options.workers,
        "pin_memory": options.pinned,
        "generator": None if seed is None else torch.Generator().manual_seed(seed),
    }
    if "batch_sampler" not in others:
        arguments |= {
            "batch_size": options.batch_size,
            "shuffle": bool(options.shuffle) and sampler is None,
            "sampler": sampler,
            "drop_last": options.drop_last,
        }
    if options.workers > 0:
        _check_shared_folder()
        arguments |= {
            "prefetch_factor": options.batches_ahead,
            "persistent_workers": options.persistent,
            "worker_init_fn": partial(_start_worker, others.pop("worker_init_fn", None)),
        }
    return arguments


def _check_shared_folder() -> None:
    """Raise `WorkerError` if the folder for the batches of stock workers cannot be used.

    Torch's own error does not name it.
    """
    if not os.path.isdir("/proc/self"):
        return  # not Linux: nothing of the kind
    try:
        with tempfile.TemporaryFile(dir=_SHARED_FOLDER) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        fault = "is missing" if missing else f"cannot be written to ({error.strerror})"
        raise WorkerError(
            f"worker processes need {_SHARED_FOLDER}, which {fault}. Mount it or make it larger: "
            f"`mount -t tmpfs tmpfs {_SHARED_FOLDER}`, "
            f"`mount -o remount,rw,size=4G {_SHARED_FOLDER}`, or `docker run --shm-size=4g`. "
            "Or use num_workers=0; loaders of packed data do not need it."
        ) from error


def _start_worker(then: Callable[[int], None] | None, worker: int) -> None:
    """Set up a worker process with one thread.

    torch has already seeded Python's and its own generator, and limited its own threads.
    OpenCV reads its number of threads from the environment at import; later, its threads
    may be the parent's, and a forked process that sets their number would block forever.
    """
    os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")
    torch.set_num_threads(1)
    np.random.seed(torch.initial_seed() % 2**32)
    if then is not None:
        then(worker)
