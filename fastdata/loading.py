"""Batches for training: ``fastdata.loader``, the one-line replacement of DataLoader.

A packed dataset gets a `Loader`, which plans order, geometry and memory for a
whole batch, and decodes into it in threads.  Any other torch dataset gets a
stock `torch.utils.data.DataLoader` with settings for this machine.

The module is not called ``loader``: importing it would hide the function of
that name in the package.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.context import BaseContext
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, cast, overload

import torch
from numpy.typing import ArrayLike
from torch.utils.data import ConcatDataset, DataLoader, Subset

from fastdata.assembly import foreign_loader, packed_loader
from fastdata.codecs.decoders import DecoderName
from fastdata.dataset import Dataset
from fastdata.engine.contracts import PackedData, is_packed
from fastdata.engine.loader import Loader, LoaderStats
from fastdata.engine.work import OnCorrupt
from fastdata.errors import OptionError
from fastdata.opening import open as open_dataset
from fastdata.options import OF_STORES, LoaderOptions
from fastdata.packed_views import packed_view
from fastdata.prefetch import CUDAPrefetcher
from fastdata.sampling import BlockShuffle
from fastdata.shards import Location
from fastdata.transforms.pipeline import Transform

__all__ = ["Loader", "LoaderStats", "is_dataset", "is_location", "loader", "options_of"]

Options = ParamSpec("Options")

BY_POSITION = 3
"""Arguments that may be given by position, as in `DataLoader`: dataset, batch_size, shuffle."""


class _LoaderOf(Protocol[Options]):
    """Types of `loader` for type checkers; `Options` are its options."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self,
        dataset: Location | Sequence[Location] | Dataset | PackedData,
        *args: Options.args,
        **options: Options.kwargs,
    ) -> Loader: ...

    # Whether these are of packed data, their types do not tell.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self,
        dataset: Subset[Any] | ConcatDataset[Any],
        *args: Options.args,
        **options: Options.kwargs,
    ) -> Loader | DataLoader[Any] | CUDAPrefetcher: ...

    # Not by `Options`, which has no place for `device`.
    @overload
    def __call__(
        self,
        dataset: torch.utils.data.Dataset[Any],
        batch_size: int = 1,
        shuffle: bool | None = False,
        *,
        device: None = None,
        **options: Any,
    ) -> DataLoader[Any]: ...

    @overload
    def __call__(
        self, dataset: Any, *args: Options.args, **options: Options.kwargs
    ) -> Loader | DataLoader[Any] | CUDAPrefetcher: ...


def _with_types(function: Callable[Concatenate[Any, Options], Any]) -> _LoaderOf[Options]:
    """Return the function with types, and with an error that names extra positional arguments."""

    @functools.wraps(function)
    def named(*arguments: Any, **options: Any) -> Any:
        further = arguments[BY_POSITION:]
        if further:
            names = list(inspect.signature(DataLoader).parameters)[BY_POSITION:]
            given = [f"{name}={value!r}" for name, value in zip(names, further, strict=False)]
            raise TypeError(
                "fastdata.loader takes dataset, batch_size and shuffle by position, as DataLoader "
                f"does, and any other option by its name: {', '.join(given)}"
            )
        return function(*arguments, **options)

    return cast(_LoaderOf[Options], named)


@_with_types  # type: ignore[arg-type]  # whose first parameter may be named
def loader(
    dataset: Any,
    batch_size: int = 1,
    shuffle: bool | Literal["block", "lanes"] | BlockShuffle | None = False,
    *,
    drop_last: bool = False,
    seed: int | None = 0,
    transform: Transform | Sequence[Transform] | None = None,
    num_workers: int | Literal["auto"] = "auto",
    worker_method: Literal["auto", "thread", "process"] = "auto",
    prefetch_factor: int | Literal["auto"] | None = "auto",
    persistent_workers: bool | Literal["auto"] = "auto",
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
    batch_format: Literal["tuple", "dict"] | None = None,
    names: Mapping[str, str] | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    max_pixels: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    streams: int | None = None,
    **options: Any,
) -> Loader | DataLoader[Any] | CUDAPrefetcher:
    """Return an iterable of batches over `dataset`.

    Parameters
    ----------
    dataset : path, list of paths, Dataset or torch Dataset
        Packed data or files of images, as a location for ``fastdata.open`` or as its result, also
        in a `Subset`, by `random_split` or in a `ConcatDataset`: the result is a `Loader`.  "Packed
        data" below includes such files.  Any other dataset with ``__getitem__``, or an
        `IterableDataset`: the result is a stock `DataLoader`, without the options for packed data.
    batch_size : int
        Samples per batch, on this rank.
    shuffle : bool, "block", "lanes" or BlockShuffle
        True: each epoch has its own permutation, drawn from `seed`, in constant memory; for data in
        a store it is "lanes".
        "block", for packed data: blocks of neighbouring samples are shuffled, and samples within a
        window of some blocks, for disks that are slow at random reads.
        "lanes": blocks of about 8 MB, in 64 such sequences of windows (more for large batches,
        fewer for small datasets), so that a batch has samples from all over the dataset and each
        rank reads its own blocks.
    drop_last : bool
        Whether to drop an incomplete last batch.
    seed : int or None
        Seed of order and random transforms.  The default, 0, makes every run the same, regardless
        of `torch.manual_seed` and Lightning's ``seed_everything``.  None: drawn from torch's
        generator when the loader is made; at the first pass, which all ranks must begin, every rank
        takes the seed of rank 0.
        (A torch Dataset on several ranks then has the seed of torch's `DistributedSampler`, 0.)
    transform : transform or sequence of transforms, optional
        For packed data; by default ``dataset.transform``.  Transforms of `fastdata.transforms`, or
        any callable on one sample's image, which is slower (see `fastdata.transforms.callables`).
        Except in threads, generators for callables are seeded by `seed`, epoch and sample.
        From the first `BatchTransform` on, transforms run on whole batches on their device; on the
        CPU in the calling thread.
    num_workers : int or "auto"
        Threads or processes that make batches (worker processes of a stock DataLoader); 0 makes
        them in the calling thread.  "auto": the result of ``fastdata tune-workers`` for this
        dataset, these transforms and this machine, if there is a current one.  It also decides
        `worker_method`, `prefetch_factor`, `pin_memory` and `persistent_workers` if they are
        "auto", and is logged at INFO (``docs/tuned_settings.md``).  Otherwise one per core that
        this process may use, divided by ``LOCAL_WORLD_SIZE``, at most 16.
        Batches are the same, bit for bit, for any number and method.
    worker_method : {"auto", "thread", "process"}
        For packed data.  Threads share everything and start at once.
        Processes leave the interpreter's lock to the training loop; they write
        into shared memory, so no batch is copied or pickled.  "auto": threads if
        fastdata's compiled library does the work, which needs that lock for 5 us
        per image; else processes, if they are forked or callables need them
        (`fastdata.engine.workers.choose_method`).  Callables in threads, "thread",
        draw from generators of the whole process: not repeatable, and dependent on
        the number of workers.
    prefetch_factor : int or "auto"
        Batches made ahead of the current one (by each worker of a stock DataLoader).
        "auto": 2, unless a tuned result has another number.
    persistent_workers : bool or "auto"
        Whether workers outlive an epoch; they then begin the next one while
        the last batches of this one are in use.  "auto": yes, unless a tuned result of
        a torch Dataset says that restarting them costs nothing.
    multiprocessing_context : str or multiprocessing context, optional
        Start method of worker processes: "fork", "spawn" or "forkserver"; by default
        that of `multiprocessing`.
    pin_memory : bool or "auto"
        Whether images are in pinned memory, for fast copies to a GPU.  "auto": with CUDA, unless a
        tuned result says otherwise.
    device : torch.device or str, optional
        Device of the batches, one ahead of the current one: a GPU copies and transforms
        it during the computation of the batch before (`CUDAPrefetcher`).  Images of
        packed data are copied as uint8; batch transforms and the last pixel transforms
        (`Normalize`, `ToDtype`) run there.
    dtype : torch.dtype, optional
        For packed data.  A floating dtype for images, as by ``ToDtype(dtype)``
        after all transforms: uint8 values become 0 to 1.
    backend : {"auto", "cpu", "dali"}
        The decoder.  "cpu": fastdata's workers.  "dali", for packed data: NVIDIA DALI
        (the extra ``dali``), on a GPU if `device` is one, else on the CPU.  Order, ranks,
        resuming, crops and batches are the same; pixels differ a little
        (``docs/dali.md``).  `num_workers` is then the number of its threads, 1 or more.
        Callables among the transforms, worker processes, `cache` and `decoder` are for
        "cpu".
        "auto" is always "cpu": pixels do not depend on a measurement.
    cache : {None, "ram", "device"}
        For packed data.  "ram": the first epoch copies the packed bytes to memory of the host,
        page-locked with CUDA; for slow disks, or for files that do not stay in the page
        cache.  Batches are the same, bit for bit.  "device": decoded images stay on the
        device of the batches, as uint8, from their first use on; batches are then cut,
        resized, flipped and normalised there, without workers.  Draws are those of any
        other loader; resized pixels differ in the last bit
        (`fastdata.transforms.render_device`).  Its memory is logged, and in
        ``stats().cache_bytes``; a dataset that does not fit is refused.
    cache_scope : {"all", "rank"}
        The samples in each rank's `cache`.  "all": all, and epochs are unchanged.  "rank":
        a fixed part, the same in every epoch, drawn from `seed` (the same on all ranks);
        each epoch is then shuffled within the parts only.
    decoder : {"auto", "native", "simplejpeg", "jpeg4py", "opencv", "pil"}
        For packed data.  The library that decodes JPEGs; "auto" is the fastest
        that is installed.
    on_corrupt : {"raise", "skip"}
        For packed data.  Whether a damaged sample raises an error, or is replaced by another
        sample, drawn from `seed`, so that batches keep their size.  The first one skipped is
        logged; all are counted in ``stats()``.
    sampler : iterable of int, optional
        Indices of an epoch instead of `shuffle`, with a length; e.g. an instance of a torch
        sampler.  The loader sets the epoch of a sampler that has ``set_epoch`` and ``epoch``,
        unless other code sets it: then the loader continues from that epoch.
    batch_sampler : iterable of sequences of int, optional
        Indices of each batch, instead of `batch_size`, `shuffle`, `sampler` and `drop_last`.
    weights : array_like of float, optional
        For packed data.  Relative frequency of each sample: an epoch has as many samples as the
        dataset, drawn with replacement.  If a sample occurs several times in an epoch, here or by
        a sampler, each occurrence has its own random draws.
    rank, world_size : int, optional
        This process's share of each epoch, and the number of shares; by default those of
        `torch.distributed` when a pass begins; without a process group, ``RANK`` and
        ``WORLD_SIZE`` of the environment.  All ranks get the same number of batches: with
        `drop_last` the remainder is dropped, otherwise samples of the last batch are
        repeated; `Loader.padding` is their number.
    even : bool
        For packed data.  False: no sample is dropped or repeated, for exact evaluation; ranks may
        have different numbers of batches.
    batch_format : {"tuple", "dict"}, optional
        For packed data.  Whether a batch is a named tuple of its fields or a dict; by default as
        samples of the dataset, which are named tuples.
    names : mapping of str to str, optional
        For packed data.  New names of fields in batches, e.g. ``{"image": "pixel_values"}``.
    memory_format : torch.contiguous_format or torch.channels_last
        For packed data.  Memory format of images [N, C, H, W]: that of a stock `DataLoader`, or
        channels last, which is faster for convolutions in half precision on a GPU
        (``docs/memory_format.md``).  Images of one channel have contiguous strides.
    max_pixels : int, optional
        For packed data.  Larger images count as corrupt, as in `fastdata.open`; by default as the
        dataset was opened.
    storage_options, cache_dir, cache_bytes, streams : optional
        For URLs, as in `fastdata.open`.
    **options
        Further arguments of a stock `DataLoader`: ``collate_fn``, ``timeout``...  For packed data
        only their defaults are accepted, such as ``collate_fn=None``.

    Returns
    -------
    Loader or torch.utils.data.DataLoader
        A `DataLoader` is in a `CUDAPrefetcher` if `device` is a GPU.

    Raises
    ------
    OptionError
        If an option has a value that cannot be used.
    MissingExtraError
        If `decoder` or `backend` is not installed.
    DatasetNotFoundError, FormatError, ShardCorruptError, SourceError
        If `dataset` is a path without a valid dataset; for data that must be packed, with the
        command to do so.

    Examples
    --------
    >>> from fastdata import transforms as T
    >>> train = fastdata.loader(                              # doctest: +SKIP
    ...     "train.lmdb", batch_size=256, shuffle=True, drop_last=True,
    ...     transform=[T.RandomResizedCrop(224), T.RandomHorizontalFlip()],
    ... )
    >>> for images, labels in train: ...                      # doctest: +SKIP
    """
    given = dict(locals())  # the arguments: nothing else has a name yet
    del given["dataset"], given["options"]
    of_stores = {name: given.pop(name) for name in OF_STORES}
    if is_location(dataset):
        dataset = open_dataset(dataset, **of_stores)
    elif any(value is not None for value in of_stores.values()):
        name = next(name for name, value in of_stores.items() if value is not None)
        raise OptionError(f"{name} is for a URL; give it to fastdata.open, which made the dataset")
    checked = LoaderOptions(**given, dataloader_options=options)
    packed = packed_view(dataset)
    if packed is not None or is_packed(dataset):
        for part in getattr(packed, "_source_datasets", ()):
            part._suggest_packing()
        return packed_loader(dataset if packed is None else packed, checked)
    if hasattr(dataset, "__getitem__") or isinstance(dataset, torch.utils.data.IterableDataset):
        return foreign_loader(dataset, checked)
    raise OptionError(
        "a loader takes a path, a fastdata dataset or a torch Dataset, not "
        f"{type(dataset).__name__}"
    )


def options_of(given: dict[str, Any]) -> LoaderOptions:
    """Return the options that `loader` makes of its arguments, defaults included.

    `OptionError` if one has a value that cannot be used.
    """
    parameters = inspect.signature(loader).parameters.values()
    named = {one.name: one.default for one in parameters if one.default is not one.empty}
    named = {name: value for name, value in named.items() if name not in OF_STORES}
    others = {name: value for name, value in given.items() if name not in named}
    named |= {name: value for name, value in given.items() if name in named}
    return LoaderOptions(**named, dataloader_options=others)


def is_location(data: Any) -> bool:
    """Return whether `data` is a path or a list of paths."""
    if isinstance(data, (str, os.PathLike)):
        return True
    return (
        isinstance(data, (list, tuple))
        and len(data) > 0
        and all(isinstance(path, (str, os.PathLike)) for path in data)
    )


def is_dataset(data: Any) -> bool:
    """Return whether `data` is a dataset for `loader`, not a list of batches.

    A path, packed data, a torch Dataset, or any other data with ``__getitem__`` and a length, such
    as Hugging Face's datasets.  A list may hold batches or samples; only a list of paths is data.
    """
    if isinstance(data, (list, tuple)):
        return is_location(data)
    if isinstance(data, torch.utils.data.Dataset) or is_location(data) or is_packed(data):
        return True
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")
