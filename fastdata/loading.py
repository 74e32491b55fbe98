"""Batches for training: ``fastdata.loader``, the one-line replacement of DataLoader.

`loader` looks at what it is given.  A packed dataset gets a `Loader`, which
works by the batch: order, geometry and memory are planned for a whole batch
at once, and threads decode into it.  Any other torch dataset gets a stock
`torch.utils.data.DataLoader` with the settings that suit this machine.

The module is not called ``loader``: importing it would put a module where the
package has the function.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from multiprocessing.context import BaseContext
from typing import Any, Literal, get_args

import torch
from numpy.typing import ArrayLike
from torch.utils.data import DataLoader

from fastdata.cache.backend import DeviceCacheBackend
from fastdata.cache.ram import RamCacheBackend
from fastdata.codecs.decoders import DecoderName, jpeg_decoder
from fastdata.distributed import rank_and_world_size
from fastdata.engine.cores import default_workers
from fastdata.engine.cpu import CpuBackend
from fastdata.engine.job import Backend, BatchOrder
from fastdata.engine.packed import Loader, LoaderStats
from fastdata.engine.stock import stock_loader
from fastdata.engine.tasks import PackedData, is_packed
from fastdata.engine.work import BatchWork, OnCorrupt
from fastdata.engine.workers import WorkerOptions, choose_method
from fastdata.errors import OptionError
from fastdata.prefetch import CUDAPrefetcher
from fastdata.prefetch.streams import streams_of
from fastdata.sampling import (
    Batches,
    BlockShuffle,
    Order,
    PartOrder,
    SampledBatches,
    SamplerOrder,
    Weighted,
    order_of,
    part_of_rank,
)
from fastdata.transforms.pipeline import Pipeline, Transform
from fastdata.transforms.pixel import ToDtype

__all__ = ["Loader", "LoaderStats", "loader"]


def loader(
    data: Any,
    *,
    batch_size: int = 1,
    shuffle: bool | Literal["block"] | BlockShuffle = False,
    drop_last: bool = False,
    seed: int = 0,
    transform: Transform | Sequence[Transform] | None = None,
    num_workers: int | Literal["auto"] = "auto",
    worker_method: Literal["auto", "thread", "process"] = "auto",
    prefetch_factor: int = 2,
    persistent_workers: bool = True,
    multiprocessing_context: str | BaseContext | None = None,
    pin_memory: bool | Literal["auto"] = "auto",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    backend: Literal["auto", "cpu", "dali"] = "auto",
    cache: Literal["ram", "device"] | None = None,
    cache_scope: Literal["all", "rank"] = "all",
    decoder: DecoderName = "auto",
    on_corrupt: OnCorrupt = "raise",
    sampler: Iterable[int] | None = None,
    batch_sampler: Iterable[Sequence[int]] | None = None,
    weights: ArrayLike | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    even: bool = True,
    **options: Any,
) -> Loader | DataLoader[Any] | CUDAPrefetcher:
    """Return an iterable of batches over `data`.

    Parameters
    ----------
    data : path, list of paths, Dataset or torch Dataset
        What ``fastdata.open`` takes, or what it returned: the result is a
        `Loader`.  Any other dataset with ``__getitem__`` (or an
        `IterableDataset`): the result is a stock `DataLoader`, and what is said
        below to be for packed data is not accepted.
    batch_size : int
        Samples a batch (on this rank).
    shuffle : bool, "block" or BlockShuffle
        True: each epoch is a permutation of its own, drawn from `seed`, in
        constant memory however many samples there are.  "block", for packed
        data: blocks of neighbouring samples are shuffled, and samples within a
        window of some blocks, for disks that are slow at random reads.
    drop_last : bool
        Whether an incomplete last batch is left out.
    seed : int
        Of order and random transforms.
    transform : transform or sequence of transforms, optional
        For packed data.  Of `fastdata.transforms`, or any callable on one
        sample's image, which is slower (see `fastdata.transforms.callables`).
        From the first `BatchTransform` on, transforms run on whole batches where
        they arrive; on the CPU that is in the calling thread.
    num_workers : int or "auto"
        Threads or processes that make batches (worker processes of a stock
        DataLoader); 0 makes them in the calling thread.  "auto": one a core that
        this process may use, divided by ``LOCAL_WORLD_SIZE``, at most 16.
        Batches are the same, bit for bit, whatever the number and method.
    worker_method : {"auto", "thread", "process"}
        For packed data.  Threads share everything and start at once.
        Processes leave the interpreter's lock to the training loop; they write
        into memory that is shared, so no batch is copied or pickled.  "auto":
        threads, where fastdata's compiled library does the work, which needs
        that lock for 5 us an image; else processes, where they are forked or
        callables ask for them, and more than one
        (`fastdata.engine.workers.choose_method`).
    prefetch_factor : int
        Batches made ahead of the one that is waited for (of a stock
        DataLoader: for each worker).
    persistent_workers : bool
        Whether workers outlive an epoch; they then begin the next one while
        the last batches of this one are in use.
    multiprocessing_context : str or multiprocessing context, optional
        How worker processes are started: "fork", "spawn" or "forkserver"; by
        default as `multiprocessing` does.
    pin_memory : bool or "auto"
        Whether images are put into pinned memory, for fast copies to a GPU.
        "auto": where there is CUDA; without it there is none to pin for.
    device : torch.device or str, optional
        Where batches arrive, one ahead of the one in use: a GPU copies it, and
        does what is done there, while it computes with the one before
        (`CUDAPrefetcher`).  Of packed data uint8 images are copied; transforms of
        whole batches and the last pixel transforms (`Normalize`, `ToDtype`) run
        there.
    dtype : torch.dtype, optional
        For packed data.  A floating dtype for images, as by ``ToDtype(dtype)``
        after all transforms: uint8 values become 0 to 1.
    backend : {"auto", "cpu", "dali"}
        What decodes.  "cpu": fastdata's workers.  "dali", for packed data: NVIDIA DALI
        (the extra ``dali``), on a GPU if `device` is one, else on the CPU.  Order, ranks,
        resuming, crops and batches are the same; pixels differ a little
        (``docs/dali.md``).  `num_workers` is then the number of its threads, 1 or more.
        Callables among the transforms, worker processes, `cache` and `decoder` are for
        "cpu".
        "auto" is "cpu", until something measures where DALI is faster.
    cache : {None, "ram", "device"}
        For packed data.  "ram": the packed bytes are copied, in the first epoch, to
        memory of the host that stays, page-locked where there is CUDA; for disks that
        are slow, or whose files others push out of the page cache.  Batches are the
        same, bit for bit.  "device": images stay where batches arrive, decoded, as
        uint8, from the epoch on in which they are first used; batches are then cut,
        resized, flipped and normalised there, and no worker has anything to do.  Draws
        are those of any other loader; pixels that are resized differ in the last bit
        (`fastdata.transforms.ondevice`).  How much memory it takes is logged, and in
        ``stats().cache_bytes``; what does not fit is refused.
    cache_scope : {"all", "rank"}
        What each rank holds with `cache`.  "all": everything, and epochs are as they
        are without.  "rank": a fixed part, the same in every epoch, drawn from `seed`
        (the same on all ranks); each epoch is then shuffled within the parts, not over
        all of them.
    decoder : {"auto", "native", "simplejpeg", "jpeg4py", "opencv", "pil"}
        For packed data.  Which library decodes JPEGs; "auto" is the fastest
        that is installed.
    on_corrupt : {"raise", "skip"}
        For packed data.  What becomes of a sample whose bytes are damaged: an
        error, or another sample, drawn from `seed`, in its place, so that
        batches keep their size.  The first one skipped is logged; all are
        counted in ``stats()``.
    sampler : iterable of int, optional
        Indices of an epoch, in place of `shuffle`, with a length; an
        instance of a torch sampler, say.
    batch_sampler : iterable of sequences of int, optional
        Indices of each batch, in place of `batch_size`, `shuffle`, `sampler`
        and `drop_last`.
    weights : array_like of float, optional
        For packed data.  Relative frequency of each sample: an epoch has as
        many samples as the dataset, drawn with replacement.
    rank, world_size : int, optional
        Which share of each epoch this process takes, of how many; by default
        as `torch.distributed` has it, if it is initialised.  All ranks get the
        same number of batches: with `drop_last`, what does not divide is left
        out, otherwise samples of the last batch are repeated; `Loader.padding` says
        how many.
    even : bool
        For packed data.  False: nothing is left out or repeated, for exact
        evaluation; ranks may differ in their number of batches.
    **options
        Further arguments of a stock `DataLoader`: ``collate_fn``, ``timeout``...

    Returns
    -------
    Loader or torch.utils.data.DataLoader
        A `DataLoader` in a `CUDAPrefetcher`, where `device` asks for it.

    Raises
    ------
    OptionError
        If an option has a value that cannot be used.
    MissingExtraError
        If `decoder` or `backend` is not installed.
    DatasetNotFoundError, FormatError, ShardCorruptError
        If `data` is a path and there is no sound dataset.

    Examples
    --------
    >>> from fastdata import transforms as T
    >>> train = fastdata.loader(                              # doctest: +SKIP
    ...     "train.lmdb", batch_size=256, shuffle=True, drop_last=True,
    ...     transform=[T.RandomResizedCrop(224), T.RandomHorizontalFlip()],
    ... )
    >>> for images, labels in train: ...                      # doctest: +SKIP
    """
    _check_choice("worker_method", worker_method, ("auto", "thread", "process"))
    _check_choice("backend", backend, ("auto", "cpu", "dali"))
    _check_choice("cache", cache, (None, "ram", "device"))
    _check_choice("cache_scope", cache_scope, ("all", "rank"))
    if cache_scope == "rank" and cache is None:
        raise OptionError('cache_scope="rank" says what cache= holds on each rank: give cache too')
    if cache_scope == "rank" and any(v is not None for v in (sampler, batch_sampler, weights)):
        raise OptionError(
            'with cache_scope="rank" each rank has samples of its own, among which shuffle= '
            'decides; leave out sampler, batch_sampler and weights, or give cache_scope="all"'
        )
    _check_choice("on_corrupt", on_corrupt, get_args(OnCorrupt))
    workers = _workers(num_workers)
    _check_int("prefetch_factor", prefetch_factor, 1)
    _check_int("batch_size", batch_size, 1)
    _check_choice("pin_memory", pin_memory, ("auto", True, False))
    pinned = bool(pin_memory) and torch.cuda.is_available()
    target = None if device is None else streams_of(device).device
    decides = sampler is not None or batch_sampler is not None
    if isinstance(data, torch.utils.data.IterableDataset) and rank is None and world_size is None:
        decides = True  # its __iter__ knows its rank, if it is to have one
    if not decides:
        rank, world_size = rank_and_world_size(rank, world_size)
    elif rank or (world_size or 1) > 1:
        raise OptionError(
            "a sampler decides the order: let it yield the samples of its rank, and leave out "
            "rank and world_size"
        )
    else:
        rank, world_size = 0, 1
    _check_order(shuffle, sampler, batch_sampler, weights, batch_size, drop_last)

    if _is_location(data):
        from fastdata.dataset import open as open_dataset

        data = open_dataset(data)
    if is_packed(data):
        if options:
            names = ", ".join(options)
            raise OptionError(f"{names}: not an option of a loader of packed data")
        pipeline = _pipeline(transform, dtype, data)
        batches: BatchOrder
        part = None
        if batch_sampler is not None:
            batches = SampledBatches(batch_sampler, len(data))
        elif cache_scope == "rank":
            part = part_of_rank(len(data), seed, rank, world_size, even=even)
            inner = order_of(shuffle, len(part), seed)
            order = PartOrder(part, inner, len(data), world_size)
            batches = Batches(order, batch_size, drop_last=drop_last, even=even)
        else:
            batches = Batches(
                _order(len(data), shuffle, seed, sampler, weights),
                batch_size=batch_size,
                drop_last=drop_last,
                rank=rank,
                world_size=world_size,
                even=even,
            )
        work = BatchWork(
            data,
            pipeline,
            jpeg_decoder(decoder),
            seed=seed,
            on_corrupt=on_corrupt,
            pixels=target is None or target.type == "cpu",
            part=part,
        )
        if worker_method == "auto":
            worker_method = "thread"
            if backend != "dali":
                worker_method = choose_method(
                    workers,
                    calls_python=not pipeline.direct,
                    releases_lock=work.releases_lock,
                    context=multiprocessing_context,
                )
        by = WorkerOptions(
            workers, worker_method, prefetch_factor, persistent_workers, multiprocessing_context
        )
        made_by: Backend
        if backend == "dali":
            _check_dali(cache, decoder)
            from fastdata.backends.dali import DaliBackend

            made_by = DaliBackend(work, by, device=target, pin_memory=pinned)
        elif cache == "device":
            here = torch.device("cpu") if target is None else target
            made_by = DeviceCacheBackend(work, by, device=here, pin_memory=pinned, part=part)
        elif cache == "ram":
            made_by = RamCacheBackend(work, by, device=target, pin_memory=pinned, part=part)
        else:
            made_by = CpuBackend(work, by, device=target, pin_memory=pinned)
        return Loader(batches, made_by)
    if not (hasattr(data, "__getitem__") or isinstance(data, torch.utils.data.IterableDataset)):
        raise OptionError(
            f"a loader takes a path, a fastdata dataset or a torch Dataset, not "
            f"{type(data).__name__}"
        )
    given = {
        "transform": transform is not None,
        "dtype": dtype is not None,
        "worker_method": worker_method == "thread",
        "backend": backend == "dali",
        "cache": cache is not None,
        "decoder": decoder != "auto",
        "on_corrupt": on_corrupt != "raise",
        "weights": weights is not None,
        "even": not even,
        "shuffle": not isinstance(shuffle, bool),
    }
    for name, refused in given.items():
        if refused:
            raise OptionError(
                f"{name} is for packed data, but {type(data).__name__} is a dataset that makes "
                f"samples itself: let it do this, or pack it first (fastdata.pack)"
            )
    if batch_sampler is not None:
        options["batch_sampler"] = batch_sampler
    if multiprocessing_context is not None:
        options["multiprocessing_context"] = multiprocessing_context
    batches_of_samples = stock_loader(
        data,
        batch_size=batch_size,
        shuffle=bool(shuffle),
        drop_last=drop_last,
        seed=seed,
        num_workers=workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
        pin_memory=pinned,
        sampler=sampler,
        rank=rank,
        world_size=world_size,
        options=options,
    )
    if target is None or target.type == "cpu":
        return batches_of_samples
    return CUDAPrefetcher(batches_of_samples, target)


def _check_dali(cache: str | None, decoder: str) -> None:
    """Raise `OptionError` for options of a loader that are not for DALI."""
    if decoder != "auto":
        raise OptionError(
            f'decoder is {decoder!r}, but with backend="dali" DALI decodes; leave one of them out'
        )
    if cache is not None:
        raise OptionError(
            f'cache is {cache!r}, which is for backend="cpu": DALI reads the packed files; leave '
            "one of them out"
        )


def _is_location(data: Any) -> bool:
    """Return whether `data` is a path or a list of paths."""
    if isinstance(data, (str, os.PathLike)):
        return True
    return (
        isinstance(data, (list, tuple))
        and len(data) > 0
        and all(isinstance(path, (str, os.PathLike)) for path in data)
    )


def _workers(num_workers: Any) -> int:
    if num_workers == "auto":
        return default_workers()
    _check_int("num_workers", num_workers, 0, '"auto" or ')
    return int(num_workers)


def _pipeline(
    transform: Transform | Sequence[Transform] | None,
    dtype: torch.dtype | None,
    dataset: PackedData,
) -> Pipeline:
    """Return the checked transforms, `dtype` being one more at the end."""
    pipeline = Pipeline(transform, dataset.schema)
    if dtype is None:
        return pipeline
    return Pipeline((*pipeline.transforms, ToDtype(dtype)), dataset.schema)


def _order(
    count: int,
    shuffle: bool | Literal["block"] | BlockShuffle,
    seed: int,
    sampler: Iterable[int] | None,
    weights: ArrayLike | None,
) -> Order:
    if sampler is not None:
        return SamplerOrder(sampler, count)
    if weights is not None:
        weighted = Weighted(weights, seed)
        if weighted.count != count:
            raise OptionError(
                f"weights has {weighted.count} numbers, but the dataset has {count} samples"
            )
        return weighted
    return order_of(shuffle, count, seed)


def _check_order(
    shuffle: Any, sampler: Any, batch_sampler: Any, weights: Any, batch_size: int, drop_last: bool
) -> None:
    """Raise `OptionError` unless one thing decides the order."""
    deciding = {
        "shuffle": bool(shuffle),
        "sampler": sampler is not None,
        "batch_sampler": batch_sampler is not None,
        "weights": weights is not None,
    }
    chosen = [name for name, given in deciding.items() if given]
    if len(chosen) > 1:
        raise OptionError(
            f"{' and '.join(chosen)}: one of them decides the order; leave out the rest"
        )
    if batch_sampler is not None and (batch_size != 1 or drop_last):
        raise OptionError("a batch_sampler decides the batches: leave out batch_size and drop_last")


def _check_int(name: str, value: Any, least: int, also: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} is {also}an int from {least} up, not {value!r}")


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if not any(value is choice or value == choice for choice in choices):
        accepted = ", ".join(map(repr, choices))
        raise OptionError(f"{name} is one of {accepted}, not {value!r}")
