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
from fastdata.opening import is_location, is_rows
from fastdata.opening import open as open_dataset
from fastdata.options import OF_OPENING, OF_STORES, LoaderOptions
from fastdata.packed_views import packed_view
from fastdata.prefetch import CUDAPrefetcher
from fastdata.sampling import BlockShuffle
from fastdata.shards import Location
from fastdata.splits import check_one_split, select_split
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
    split: str | None = None,
    fields: Sequence[str] | None = None,
    batch_format: Literal["tuple", "dict"] | None = None,
    names: Mapping[str, str] | None = None,
    on_corrupt: OnCorrupt = "raise",
    max_pixels: int | None = None,
    drop_last: bool = False,
    seed: int | None = 0,
    weights: ArrayLike | None = None,
    sampler: Iterable[int] | None = None,
    batch_sampler: Iterable[Sequence[int]] | None = None,
    transform: Transform | Sequence[Transform] | None = None,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    image_lists: bool = False,
    decoder: DecoderName = "auto",
    backend: Literal["auto", "cpu", "dali"] = "auto",
    num_workers: int | Literal["auto"] = "auto",
    worker_method: Literal["auto", "thread", "process"] = "auto",
    prefetch_factor: int | Literal["auto"] | None = "auto",
    persistent_workers: bool | Literal["auto"] = "auto",
    multiprocessing_context: str | BaseContext | None = None,
    device: torch.device | str | None = None,
    pin_memory: bool | Literal["auto"] = "auto",
    cache: Literal["ram", "device"] | None = None,
    cache_scope: Literal["all", "rank"] = "all",
    rank: int | None = None,
    world_size: int | None = None,
    even: bool = True,
    storage_options: Mapping[str, str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    streams: int | None = None,
    **options: Any,
) -> Loader | DataLoader[Any] | CUDAPrefetcher:
    """Return an iterable of batches, in the place of torch's `DataLoader`.

        import fastdata
        from fastdata import transforms as T

        loader = fastdata.loader(
            "train.lmdb", batch_size=256, shuffle=True, device="cuda",
            transform=[T.RandomResizedCrop(224), T.RandomHorizontalFlip()],
        )
        for images, labels in loader:  # uint8 [256, 3, 224, 224], int64 [256]
            ...

    The options stand in groups: data (from `dataset`), order (from `shuffle`), transforms (from
    `transform`), workers (from `num_workers`), GPU and memory (from `device`), ranks (from `rank`),
    object stores (from `storage_options`).  ``docs/guide/loading.md`` says more about each.

    Parameters
    ----------
    dataset : path, list of paths or rows, Dataset or torch Dataset
        A packed dataset or image files, as `fastdata.open` takes or returns them, or torch's
        ``Subset`` or ``ConcatDataset`` of such: gives a `Loader`.  Else gives a stock `DataLoader`.
    batch_size : int
        Samples in a batch, on this rank.
    split : str, optional
        The split to load, ``"train"``; ``"all"`` takes all of them, with the field ``split``.
        Needed where a dataset has several splits.
    fields : sequence of str, optional
        The fields of a batch, in this order: ``("image", "mask")``.  Others are not read.  Default:
        all fields.
    batch_format : {"tuple", "dict"}, optional
        Whether a batch is a named tuple of its fields or a dict.  Default: as `dataset` gives.
    names : mapping of str to str, optional
        New names of fields in batches: ``{"image": "pixel_values"}``.
    on_corrupt : {"raise", "skip"}
        Whether a damaged sample raises an error, or another sample takes its place, which is
        logged once and counted in ``stats()``.
    max_pixels : int, optional
        Larger images count as corrupt.  Default: as `fastdata.open` has it.
    shuffle : bool, "block", "lanes" or BlockShuffle
        True: a new permutation in each epoch.  "block", "lanes": blocks of neighbours stay
        together, for slow disks and object stores (where True is "lanes").
    drop_last : bool
        Leave out an incomplete last batch.
    seed : int or None
        Seed of order and random transforms; by default the same in every run.  None: drawn from
        torch's generator.
    weights : array_like of float [n], optional
        How often each sample is drawn, relative to the others; with replacement.
    sampler, batch_sampler : iterable, optional
        As in `DataLoader`: indices of an epoch, or of each batch.  They decide the order.
    transform : transform or sequence of transforms, optional
        From `fastdata.transforms`, or callables on the image of one sample, which are slower.
        Default: ``dataset.transform``.
    dtype : torch.dtype, optional
        A floating dtype for images: uint8 values become 0 to 1, after all transforms.
    memory_format : torch.contiguous_format or torch.channels_last
        Memory format of images [N, C, H, W].
    image_lists : bool
        Whether images of a batch are a list of N tensors [C, H, W], which may differ in size, as
        torchvision's detection models take them.
    decoder : {"auto", "native", "simplejpeg", "jpeg4py", "opencv", "pil"}
        What decodes JPEGs.  "auto": the fastest that is installed.
    backend : {"auto", "cpu", "dali"}
        "dali": NVIDIA DALI decodes, on a GPU if `device` is one; pixels then differ a little.
        "auto" is "cpu".
    num_workers : int or "auto"
        Threads or processes that make batches; 0: the calling thread.  "auto": as ``fastdata
        tune-workers`` has found for this machine, else one for each core.  Never changes a batch.
    worker_method : {"auto", "thread", "process"}
        "auto": threads; processes if callables are among the transforms, or without compiled code.
        Callables in threads are not repeatable.
    prefetch_factor : int or "auto"
        Batches made ahead (by each worker of a stock `DataLoader`).  "auto": tuned, else 2.
    persistent_workers : bool or "auto"
        Whether workers outlive an epoch.  "auto": they do, unless tuning says otherwise.
    multiprocessing_context : str or multiprocessing context, optional
        How worker processes start: "fork", "spawn" or "forkserver".
    device : torch.device or str, optional
        Where batches arrive.  Copies to a GPU overlap with the step before, and `Normalize`,
        `ToDtype` and batch transforms run there.
    pin_memory : bool or "auto"
        Whether images are in pinned memory.  "auto": with CUDA.
    cache : {None, "ram", "device"}
        "ram": keep the packed bytes in memory; "device": keep decoded images on `device`, and
        transform them there.  Data that does not fit is refused.
    cache_scope : {"all", "rank"}
        Whether the `cache` of a rank holds all samples, or a fixed part that only it trains on.
    rank, world_size : int, optional
        This process's share of each epoch, and how many there are.  Default: those of
        `torch.distributed`, else ``RANK`` and ``WORLD_SIZE``.
    even : bool
        Whether all ranks get the same number of batches, samples being repeated or dropped for
        that.  False: each sample once, for exact evaluation.
    storage_options, cache_dir, cache_bytes, streams : optional
        For URLs, as in `fastdata.open`.
    **options
        Further arguments of a stock `DataLoader`; packed data takes only their defaults.

    Returns
    -------
    Loader or torch.utils.data.DataLoader
        A `DataLoader` is in a `CUDAPrefetcher` if `device` is a GPU.

    Raises
    ------
    OptionError, MissingExtraError
        If an option cannot be used, or if several splits are there and none is named.
    DatasetNotFoundError, FormatError, ShardCorruptError, SourceError
        If `dataset` is a path without a valid dataset; the message has the command to make one.

    Notes
    -----
    A loader is for one thread at a time.  It can be pickled; in a forked process it has its own
    workers.
    """
    given = dict(locals())  # the arguments: nothing else has a name yet
    del given["dataset"], given["options"]
    of_stores = {name: given.pop(name) for name in OF_STORES}
    del given["split"]
    if is_location(dataset) or is_rows(dataset, of_libraries=False):
        dataset = open_dataset(dataset, **of_stores)
    elif any(value is not None for value in of_stores.values()):
        name = next(name for name, value in of_stores.items() if value is not None)
        raise OptionError(f"{name} is for a URL; give it to fastdata.open, which made the dataset")
    checked = LoaderOptions(**given, dataloader_options=options)
    packed = packed_view(dataset)
    if packed is not None:
        for part in packed._source_datasets:
            part._suggest_packing()
        if split is not None:
            packed = select_split(packed, split)
        else:
            check_one_split(packed, 'split="{split}"')
        return packed_loader(packed, checked)
    if split is not None:
        raise OptionError(
            f"split is for packed data and files of images, not for {type(dataset).__name__}: "
            "give the loader the part that it is to load"
        )
    if is_packed(dataset):
        return packed_loader(dataset, checked)
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
    named = {name: value for name, value in named.items() if name not in OF_OPENING}
    others = {name: value for name, value in given.items() if name not in named}
    named |= {name: value for name, value in given.items() if name in named}
    return LoaderOptions(**named, dataloader_options=others)


def is_dataset(data: Any) -> bool:
    """Return whether `data` is a dataset for `loader`, not a list of batches.

    A path, packed data, a torch Dataset, or any other data with ``__getitem__`` and a length, such
    as Hugging Face's datasets.  A list may hold batches or samples; only a list of paths is data.
    """
    if isinstance(data, (list, tuple)):
        return is_location(data) or is_rows(data, of_libraries=False)
    if isinstance(data, torch.utils.data.Dataset) or is_location(data) or is_packed(data):
        return True
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")
