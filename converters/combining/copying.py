"""`merge` joins datasets, and `subset` copies a part of one.

Both pack the samples of an open dataset; images keep their bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from fastdata.dataset import Dataset
from fastdata.errors import OptionError, did_you_mean
from fastdata.schema import ArrayField, ScalarField, StringField
from fastdata.splits import select_split

from ..opening import open_packed
from ..packing.driver import pack
from ..packing.options import Container
from ..packing.report import PackReport
from ..reading.class_names import numbered
from .dividing import divide as divided

__all__ = ["merge", "subset"]

Indices: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Values: TypeAlias = "str | int | float | bool | Sequence[str | int | float | bool]"


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
        Copy in random order, across the datasets.
    on_error : {"stop", "report"}
        Stop at a damaged sample, or leave such samples out and list them.

    Returns
    -------
    PackReport

    Raises
    ------
    FormatError
        If the schemas differ, including class names and their order.
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
    return _copy(
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


def subset(
    dataset: Dataset | str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    destination: str | os.PathLike[str],
    *,
    split: str | None = None,
    classes: str | int | Sequence[str | int] | None = None,
    where: Mapping[str, Values] | None = None,
    indices: Sequence[int] | np.ndarray[Any, Any] | None = None,
    invert: bool = False,
    divide: Mapping[str, float] | None = None,
    stratify: str | None = None,
    group: str | None = None,
    seed: int = 0,
    container: Container | None = None,
    shards: int = 1,
    shard_size: int | str | None = None,
    shuffle: bool = False,
    on_error: Literal["report", "stop"] = "stop",
    overwrite: bool = False,
    progress: bool | None = None,
) -> PackReport:
    """Copy a part of a dataset into a new one.

    Images keep their bytes, and classes their numbers.  A sample must meet all conditions.

    Parameters
    ----------
    dataset : Dataset or path-like
    destination : path-like
    split : str, optional
        Take samples of this split only, e.g. ``"train"``.  Then `indices` and `invert` ignore the
        other splits, and the copy has no field ``split``.
    classes : str, int or sequence of str or int, optional
        Take samples of these classes, by name or number.  If each box has a class, one box is
        enough.
    where : mapping of str to value or values, optional
        Take samples with these values (numbers, class names or text) of a field:
        ``where={"colour": ["red", "green"]}``.  In an array with class names, one entry is enough.
    indices : sequence of int, optional
        Take samples by position, in this order.
    invert : bool
        Take all other samples instead.
    divide : mapping of str to float or int, optional
        Divide the samples at random into parts: ``{"train": 0.8, "val": 0.1, "test": 0.1}``.  Each
        part becomes a dataset of its own in the folder `destination`: ``train.lmdb``, ``val.lmdb``
        and ``test.lmdb``; with several shards, the folders ``train``, ``val`` and ``test``.  Shares
        add up to 1; whole numbers count samples.  A single part, ``{"small": 0.1}``, is written
        without the rest.  The order of the samples stays.
    stratify : str, optional
        With `divide`: a field of class numbers or text.  Each part gets its share of each class,
        rounded up or down.
    group : str, optional
        With `divide`: a field of numbers or text, such as the patient.  All samples of one value
        come into one part.  The largest groups are placed first, each where sizes and classes fit
        best (greedy, as scikit-learn's ``StratifiedGroupKFold``), so shares are met roughly.
    seed : int
        Seed for `divide` (NumPy's PCG64) and `shuffle`.
    container, shards, shard_size, shuffle, overwrite, progress
        As in `fastdata.pack`.
    on_error : {"stop", "report"}
        Stop at a damaged sample, or leave such samples out and list them.

    Returns
    -------
    PackReport
        With `divide`, its `parts` are the reports of the parts.

    Raises
    ------
    OptionError
        If a class, field or sample does not exist, no sample meets the conditions, shares do not
        add up to 1, or a part would be empty.
    DatasetNotFoundError, ShardCorruptError, DestinationExistsError, DiskFullError, RejectedError
        As in `fastdata.pack` and `fastdata.open`.

    Notes
    -----
    Without a copy: ``fastdata.open(path)[indices]`` shows a part of a dataset, to a loader
    too.  The parts of `divide` appear when all are complete.

    Examples
    --------
    >>> fastdata.subset("all.lmdb", "train.lmdb", split="train")         # doctest: +SKIP
    >>> fastdata.subset("train.lmdb", "cats.lmdb", classes=["cat"])      # doctest: +SKIP
    >>> fastdata.subset("all.lmdb", "parts", divide={"small": 0.1})      # doctest: +SKIP
    >>> fastdata.subset("all.lmdb", "parts", divide={"train": 0.9, "val": 0.1})  # doctest: +SKIP
    """
    opened = dataset if isinstance(dataset, Dataset) else open_packed(dataset)
    if split is not None:
        opened = select_split(opened, split)
    elif classes is None and not where and indices is None and divide is None:
        raise OptionError("choose samples: give split=, classes=, where=, indices= or divide=")
    if divide is None and (stratify is not None or group is not None):
        raise OptionError("stratify= and group= say how divide= divides: give divide=, too")
    conditions = dict(where or {})
    if classes is not None:
        label = _label_of(opened)
        if label in conditions:
            raise OptionError(f"classes= and where= select by the same field {label!r}: give one")
        conditions[label] = (classes,) if isinstance(classes, (str, int)) else tuple(classes)
    taken = np.arange(len(opened)) if indices is None else _checked(opened, indices)
    for name, values in conditions.items():
        taken = taken[_meets(opened, name, values, taken)]
    if invert:
        taken = np.setdiff1d(np.arange(len(opened)), taken)
    if len(taken) == 0:
        raise OptionError(f"none of the {len(opened):,} samples meets the conditions")
    copy: Callable[..., PackReport] = _copy
    if divide is not None:
        if len(np.unique(taken)) < len(taken):
            raise OptionError("indices: with divide= give each sample once: parts share none")
        copy = partial(divided, copy=_copy, shares=divide, stratify=stratify, group=group)
    return copy(
        opened[taken],
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


def _copy(dataset: Dataset, destination: str | os.PathLike[str], **options: Any) -> PackReport:
    """Pack the samples of an open dataset; images keep their bytes.

    No image is encoded, so this needs no workers.  `options` are those of `pack`.
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


def _label_of(dataset: Dataset) -> str:
    """Return the field whose values are the classes: `label`, or the first with class names.

    Arrays come last: they are the classes of boxes.
    """
    fields = dataset.schema.items()
    arrays = (n for n, f in fields if isinstance(f, ArrayField) and f.classes is not None)
    name = dataset.schema.label or next(arrays, None)
    if name is not None:
        return name
    raise OptionError(
        f"classes: the dataset has no field with classes, only {', '.join(dataset.schema)}. Select "
        "by another field: where={NAME: VALUE} (--where NAME=VALUE)"
    )


def _checked(dataset: Dataset, indices: Sequence[int] | np.ndarray[Any, Any]) -> Indices:
    try:
        places: Indices = np.arange(len(dataset))[np.asarray(indices)]
    except IndexError as error:
        raise OptionError(f"indices: {error}") from error
    return places


def _meets(
    dataset: Dataset, name: str, values: Values, places: Indices
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return whether these samples have one of the values in a field."""
    field = dataset.schema.get(name)
    if field is None:
        raise OptionError(
            f"where: the dataset has no field {name!r}; it has {', '.join(dataset.schema)}."
            f"{did_you_mean(name, dataset.schema)}"
        )
    given = values if isinstance(values, (list, tuple, set)) else [values]
    if isinstance(field, StringField):
        return np.isin(np.asarray(dataset._gather(name, places)), [str(value) for value in given])
    if isinstance(field, ArrayField) and field.classes is not None:
        chosen = {*_numbers(name, field, given)}
        # One by one: the classes of a dataset's boxes need not be in memory together.
        rows = (dataset._gather(name, [place])[0].ravel().tolist() for place in places)
        return np.fromiter((not chosen.isdisjoint(row) for row in rows), bool, len(places))
    if not isinstance(field, ScalarField):
        raise OptionError(f"where: field {name!r} holds neither numbers nor text")
    # Compare in the type of the column: 0.1 is not equal to its float32.
    numbers = _numbers(name, field, given)
    wanted = np.array(numbers, field.dtype if "float" in field.dtype else None)
    return np.isin(np.asarray(dataset._gather(name, places)), wanted)


def _numbers(name: str, field: ScalarField | ArrayField, values: Iterable[Any]) -> list[Any]:
    by_name = numbered(field.classes or ())
    return [by_name[value] if value in by_name else _number(name, field, value) for value in values]


def _number(name: str, field: ScalarField | ArrayField, value: Any) -> Any:
    if field.dtype == "bool" and isinstance(value, str):
        value = {"false": 0, "true": 1}.get(value.lower(), value)
    try:
        number = float(value) if "float" in field.dtype else int(value)
        if isinstance(value, (float, np.floating)) and number != value:
            raise ValueError(value)  # 1.7 is not class 1
    except (TypeError, ValueError) as error:
        classes = field.classes or ()
        known = f"; its classes are {', '.join(classes[:20])}" if classes else ""
        raise OptionError(
            f"field {name!r} has no value {value!r}{known}.{did_you_mean(str(value), classes)}"
        ) from error
    if field.classes is not None and not 0 <= number < len(field.classes):
        raise OptionError(
            f"field {name!r} has no class {value!r}: its classes are 0 to {len(field.classes) - 1}"
        )
    return number
