"""Batches for training: ``fastdata.loader``, the one-line replacement of DataLoader.

`loader` looks at what it is given.  A packed dataset gets a `Loader`, which
works by the batch: order, geometry and memory are planned for a whole batch
at once, and threads decode into it.  Any other torch dataset gets a stock
`torch.utils.data.DataLoader` with the settings that suit this machine.

The module is not called ``loader``: importing it would put a module where the
package has the function.
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
    """What `loader` returns for what it is given, for type checkers; `Options` are its options."""

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
    """Return the function, which names arguments too many: its signature is written once."""

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
        What ``fastdata.open`` takes, packed or files as they lie, or what it returned, also as a
        `Subset`, by `random_split` or in a `ConcatDataset`: the result is a
        `Loader`.  All that is said below of packed data is true of such files.
        Any other dataset with ``__getitem__`` (or an `IterableDataset`): the result is a stock
        `DataLoader`, and what is said below to be for packed data is not accepted.
    batch_size : int
        Samples a batch (on this rank).
    shuffle : bool, "block", "lanes" or BlockShuffle
        True: each epoch is a permutation of its own, drawn from `seed`, in
        constant memory however many samples there are; of data in a store it is "lanes".
        "block", for packed data: blocks of neighbouring samples are shuffled, and samples within a
        window of some blocks, for disks that are slow at random reads.
        "lanes": blocks of about 8 MB, in 64 such sequences of windows (of large batches more, of
        small datasets fewer), so that a batch has samples from all over the dataset and each rank
        reads blocks of its own.
    drop_last : bool
        Whether an incomplete last batch is left out.
    seed : int or None
        Of order and random transforms.  The default, 0, makes every run the same, whatever
        `torch.manual_seed` or Lightning's ``seed_everything`` say.  None: drawn from torch's
        generator when the loader is made; of several ranks, each then takes that of rank 0, at
        the first pass, which all of them have to begin.
        (A torch Dataset on several ranks then has the seed of torch's `DistributedSampler`, 0.)
    transform : transform or sequence of transforms, optional
        For packed data; by default the dataset's own, ``dataset.transform``.  Of
        `fastdata.transforms`, or any callable on one sample's image, which is slower
        (see `fastdata.transforms.callables`).
        What callables draw from is seeded by `seed`, epoch and sample, but in threads.
        From the first `BatchTransform` on, transforms run on whole batches where
        they arrive; on the CPU that is in the calling thread.
    num_workers : int or "auto"
        Threads or processes that make batches (worker processes of a stock
        DataLoader); 0 makes them in the calling thread.  "auto": what
        ``fastdata tune-workers`` has found for this dataset, these transforms and this
        machine, if it is kept and nothing of it has changed; it then also decides what
        else is "auto" of `worker_method`, `prefetch_factor`, `pin_memory` and
        `persistent_workers`, and says so at INFO (``docs/tuned_settings.md``).  Otherwise one a
        core that this process may use, divided by ``LOCAL_WORLD_SIZE``, at most 16.
        Batches are the same, bit for bit, whatever the number and method.
    worker_method : {"auto", "thread", "process"}
        For packed data.  Threads share everything and start at once.
        Processes leave the interpreter's lock to the training loop; they write
        into memory that is shared, so no batch is copied or pickled.  "auto":
        threads, where fastdata's compiled library does the work, which needs
        that lock for 5 us an image; else processes, where they are forked or
        callables ask for them (`fastdata.engine.workers.choose_method`).  With callables
        in threads, "thread", random numbers are those of generators that the whole
        process shares: not repeatable, and others for another number of workers.
    prefetch_factor : int or "auto"
        Batches made ahead of the one that is waited for (of a stock
        DataLoader: for each worker).  "auto": 2, unless a tuned result says otherwise.
    persistent_workers : bool or "auto"
        Whether workers outlive an epoch; they then begin the next one while
        the last batches of this one are in use.  "auto": they do, unless a tuned result of
        a torch Dataset says that starting them anew costs nothing.
    multiprocessing_context : str or multiprocessing context, optional
        How worker processes are started: "fork", "spawn" or "forkserver"; by
        default as `multiprocessing` does.
    pin_memory : bool or "auto"
        Whether images are put into pinned memory, for fast copies to a GPU.
        "auto": where there is CUDA, unless a tuned result says otherwise; without CUDA
        there is none to pin for.
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
        "auto" is "cpu", whatever was tuned: pixels do not depend on a measurement.
    cache : {None, "ram", "device"}
        For packed data.  "ram": the packed bytes are copied, in the first epoch, to
        memory of the host that stays, page-locked where there is CUDA; for disks that
        are slow, or whose files others push out of the page cache.  Batches are the
        same, bit for bit.  "device": images stay where batches arrive, decoded, as
        uint8, from the epoch on in which they are first used; batches are then cut,
        resized, flipped and normalised there, and no worker has anything to do.  Draws
        are those of any other loader; pixels that are resized differ in the last bit
        (`fastdata.transforms.render_device`).  How much memory it takes is logged, and in
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
        instance of a torch sampler, say.  Each epoch of the loader becomes the epoch of a sampler
        that has ``set_epoch`` and shows its ``epoch``, unless that is set by others: then the
        sampler keeps it, and the loader goes on from there.
    batch_sampler : iterable of sequences of int, optional
        Indices of each batch, in place of `batch_size`, `shuffle`, `sampler`
        and `drop_last`.
    weights : array_like of float, optional
        For packed data.  Relative frequency of each sample: an epoch has as
        many samples as the dataset, drawn with replacement.  One that comes several times in
        an epoch, here or by a sampler, is drawn anew each time.
    rank, world_size : int, optional
        Which share of each epoch this process takes, of how many; by default
        as `torch.distributed` has it when a pass begins; where no process group is
        initialised then, as ``RANK`` and ``WORLD_SIZE`` of the environment say.  All ranks get the
        same number of batches: with `drop_last`, what does not divide is left
        out, otherwise samples of the last batch are repeated; `Loader.padding` says
        how many.
    even : bool
        For packed data.  False: nothing is left out or repeated, for exact
        evaluation; ranks may differ in their number of batches.
    batch_format : {"tuple", "dict"}, optional
        For packed data.  Whether a batch is a named tuple of its fields or a dict; by default as
        the dataset has it, and that is a named tuple.
    names : mapping of str to str, optional
        For packed data.  New names of fields in batches, e.g. ``{"image": "pixel_values"}``.
    memory_format : torch.contiguous_format or torch.channels_last
        For packed data.  How images [N, C, H, W] lie in memory: as those of a stock `DataLoader`,
        or with the channels of a pixel side by side, which convolutions on a GPU want in half
        precision (``docs/memory_format.md``).  Images of one channel have contiguous strides.
    max_pixels : int, optional
        For packed data.  Images of more pixels count as corrupt, as `fastdata.open` has it; by
        default as the dataset was opened.
    storage_options, cache_dir, cache_bytes, streams : optional
        Where `dataset` is a URL: as `fastdata.open` has them.
    **options
        Further arguments of a stock `DataLoader`: ``collate_fn``, ``timeout``...  For packed data
        only values that ask for nothing are taken, such as ``collate_fn=None``.

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
    DatasetNotFoundError, FormatError, ShardCorruptError, SourceError
        If `dataset` is a path and there is no sound dataset; of data that has to be packed, with
        the command that does it.

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
        for part in getattr(packed, "source_datasets", ()):
            part.suggest_packing()
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
    """Return whether `loader` takes `data`, and it is no list of batches.

    A path, packed data, a torch Dataset, or what is like one: samples by their numbers, and how
    many there are (Hugging Face's datasets, say).  A list may hold batches as well as samples;
    only one of paths is surely data.
    """
    if isinstance(data, (list, tuple)):
        return is_location(data)
    if isinstance(data, torch.utils.data.Dataset) or is_location(data) or is_packed(data):
        return True
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")
