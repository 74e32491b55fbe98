"""``fastdata.open``: from a path to a packed dataset, or to image files as they lie."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fastdata.bounds import check_int
from fastdata.dataset import Dataset
from fastdata.errors import DatasetNotFoundError, FormatError, OptionError
from fastdata.records import BatchFormat, RecordFormat
from fastdata.schema import Field
from fastdata.shards import Location, open_shards
from fastdata.splits import select_split
from fastdata.storage import is_url

if TYPE_CHECKING:
    from fastdata.transforms.pipeline import Transform

__all__ = ["is_location", "is_rows", "open"]


def open(
    path: Location | Iterable[Location] | Sequence[Any],
    *,
    split: str | None = None,
    check: bool = True,
    transform: Transform | Sequence[Transform] | None = None,
    batch_format: BatchFormat = "tuple",
    names: Mapping[str, str] | None = None,
    max_pixels: int | None = None,
    format: str | None = None,
    channels: Literal[3, 1] | None = None,
    fields: Mapping[str, Field | str] | None = None,
    source_options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    streams: int | None = None,
) -> Dataset:
    """Open a packed dataset, or image files as they lie.

    Parameters
    ----------
    path : path-like, iterable of path-like, or list of rows
        A shard, a directory of shards, a glob pattern, or several of these,
        which are shown as one dataset, in the order given.  Or the URL of a packed dataset in a
        store, ``s3://bucket/train``, which is fetched as it is needed.  Or images that are files of
        their own: class folders, a manifest, and other formats of which `fastdata.pack` takes
        files; it is then an `UnpackedDataset`.  So are rows of Python whose images are files:
        ``[{"image": "a/0.jpg", "label": "cat"}, ...]``.
    split : str, optional
        Show only the samples of this split (``"train"``), without the field ``split``.  Splits are
        the classes of a field of that name whose names are words for splits: train, val, test...
        By default, and with ``"all"``, every sample is shown.
    check : bool
        Whether checksums are compared as data is read (about 2% of the time
        of decoding JPEGs).
    transform : transform or sequence of transforms, optional
        What is done to each sample; see `Dataset.transform`.
    batch_format : {"tuple", "dict"}
        Whether samples, and the batches of a loader over this dataset, are named tuples or
        dicts.
    names : mapping of str to str, optional
        What fields are called in them, e.g. ``{"image": "pixel_values", "label": "labels"}``;
        the others keep their names.
    max_pixels : int, optional
        Images of more pixels are not decoded but are a `ShardCorruptError`: a few bytes can claim
        to be an image that takes all memory.  Default: 178,956,970, as for packing, at which
        Pillow refuses too.
    format, channels, fields, source_options : optional
        Of files that are not packed, as `fastdata.pack` takes them.
    storage_options : mapping of str to str, optional
        Of a URL: ``endpoint``, ``region``, ``anonymous``, as `fastdata.pack` takes them.
    cache_dir : path-like, optional
        Of a URL: a folder on a disk of this machine, for what has been fetched.  All processes that
        use it share one downloader.  By default that of ``FASTDATA_CACHE``, or one among the user's
        caches.
    cache_bytes : int or str, optional
        Of a URL: what the folder may take of the disk, also as ``"200GB"``; of several processes
        that disagree, the least.  By default half of what is free, and what it has already.
    streams : int, optional
        Of a URL: how many requests are made at once; 16 by default.

    Returns
    -------
    Dataset

    Raises
    ------
    DatasetNotFoundError
        If nothing is there, or a shard is missing.
    FormatError, ShardCorruptError
        If it is no fastdata dataset, of a newer version, or damaged; or if it is data of a format
        that has to be packed, with the command that does it.
    SourceError
        If what is in files that are not packed is not as their format has it.
    OptionError
        If there is no such `split`; if `transform`, `batch_format` or `names` do not suit the
        dataset, or `max_pixels` is no positive int; if the cache folder cannot be used.
    StorageError
        If a store does not answer as it should.  Where the cache has the dataset, that is read.

    Examples
    --------
    >>> dataset = fastdata.open("train.lmdb")        # doctest: +SKIP
    >>> image, label = dataset[0]                    # doctest: +SKIP
    """
    record_format = RecordFormat(batch_format, names)
    if max_pixels is not None:
        max_pixels = check_int("max_pixels", max_pixels, also="None or ")
    file_options = {
        "format": format,
        "channels": channels,
        "fields": fields,
        "source_options": source_options,
    }
    file_options = {name: value for name, value in file_options.items() if value is not None}
    rows = is_rows(path)
    one = rows or isinstance(path, (str, os.PathLike))
    locations: list[Any] = [path] if one else list(path)  # type: ignore[arg-type]
    of_stores = {
        "storage_options": storage_options,
        "cache_dir": cache_dir,
        "cache_bytes": cache_bytes,
        "streams": streams,
    }
    shards, reason = None, None
    try:
        if not rows:
            shards = open_shards(locations, check, max_pixels, **of_stores)
    except (DatasetNotFoundError, FormatError) as error:
        if any(map(is_url, locations)):
            raise
        reason = error
    if shards is None:
        from fastdata.unpacked.dataset import UnpackedDataset
        from fastdata.unpacked.listing import list_files

        files = list_files(locations, file_options, reason).limited_to(max_pixels)
        dataset: Dataset = UnpackedDataset(files, range(len(files)), record_format=record_format)
    else:
        if file_options:
            raise OptionError(
                f"{next(iter(file_options))} is for files that are not packed; {locations[0]} is "
                "a packed dataset"
            )
        dataset = Dataset(shards, range(len(shards)), record_format=record_format)
    if split is not None:
        dataset = select_split(dataset, split)
    record_format.check(dataset.schema)
    if transform is not None:
        dataset.transform = transform
    return dataset


def is_rows(data: Any, *, of_libraries: bool = True) -> bool:
    """Return whether this is a sequence of samples whose images are files, not of locations.

    of_libraries: whether datasets of torchvision and Hugging Face count too.
    """
    if is_location(data):
        return False
    from fastdata.converters.reading.python_data import is_frame, is_known

    if not of_libraries and not isinstance(data, (list, tuple)):
        return is_frame(data)
    return is_known(data)


def is_location(data: Any) -> bool:
    """Return whether `data` is a path or a list of paths."""
    if isinstance(data, (str, os.PathLike)):
        return True
    return (
        isinstance(data, (list, tuple))
        and len(data) > 0
        and all(isinstance(path, (str, os.PathLike)) for path in data)
    )
