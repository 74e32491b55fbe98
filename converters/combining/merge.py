"""`merge`: one dataset of several."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Literal

from fastdata.dataset import Dataset
from fastdata.errors import OptionError

from ..opening import open_packed
from ..packing.driver import pack
from ..packing.options import Container
from ..packing.report import PackReport

__all__ = ["copy_dataset", "merge"]


def merge(
    datasets: Iterable[str | os.PathLike[str]],
    destination: str | os.PathLike[str],
    *,
    container: Container | None = None,
    shards: int = 1,
    shard_size: int | str | None = None,
    shuffle: bool = False,
    seed: int = 0,
    on_error: Literal["report", "stop"] = "stop",
    overwrite: bool = False,
    progress: bool | None = None,
) -> PackReport:
    """Copy the samples of several datasets, in this order, into a new one.

    Images keep their bytes.

    Parameters
    ----------
    datasets : iterable of path-like
        Shards, folders of shards or patterns, all of the same schema; LMDB and HDF5 mix.
    destination : path-like
        A file, ``.lmdb`` or ``.h5``; with several shards, a directory.
    container, shards, shard_size, overwrite, progress
        As in `fastdata.pack`.
    shuffle, seed : bool, int
        Mix the samples of all of them.
    on_error : {"stop", "report"}
        What a sample that is damaged does: end the merge, or be left out and listed.

    Returns
    -------
    PackReport

    Raises
    ------
    FormatError
        If the schemas differ; class names and their order are part of them.
    RejectedError
        At a damaged sample, with ``on_error="stop"``.
    OptionError, DatasetNotFoundError, ShardCorruptError, DestinationExistsError, DiskFullError
        As in `fastdata.pack` and `fastdata.open`.

    Notes
    -----
    Interrupted in any way, the same call continues where it was.  To train on several
    datasets without copying them: ``fastdata.open([a, b])``.

    Examples
    --------
    >>> fastdata.merge(["a.lmdb", "b.h5"], "all.lmdb")        # doctest: +SKIP
    """
    given = [datasets] if isinstance(datasets, (str, os.PathLike)) else list(datasets)
    if not given:
        raise OptionError("merge needs at least one dataset; the list is empty")
    return copy_dataset(
        open_packed(given),
        destination,
        container=container,
        shards=shards,
        shard_size=shard_size,
        shuffle=shuffle,
        seed=seed,
        on_error=on_error,
        overwrite=overwrite,
        progress=progress,
    )


def copy_dataset(
    dataset: Dataset, destination: str | os.PathLike[str], **options: Any
) -> PackReport:
    """Pack what a dataset shows, every image with the bytes that it has.

    Nothing is encoded, so this process does it.  `options` are those of `pack`.
    """
    channels = [field.channels for field in dataset.schema.images.values() if not field.mask]
    return pack(
        dataset,
        destination,
        format="fastdata",
        codec="keep",
        channels=channels[0] if channels else 3,
        num_workers=0,
        **options,
    )
