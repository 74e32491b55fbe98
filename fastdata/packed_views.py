"""Torch's parts and sums of packed datasets, as one packed dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from fastdata.dataset import Dataset, join_datasets, part_of
from fastdata.errors import OptionError

__all__ = ["packed_view"]


def packed_view(data: Any) -> Dataset | None:
    """Return torch's parts and sums of packed datasets as one packed dataset.

    That is a `Dataset`, or a ``Subset`` (such as those of ``random_split``) or ``ConcatDataset`` of
    such, however they are nested.  None where `data` is anything else, or has a part that is not
    packed.  A class derived from torch's may read samples in its own way, so it is something else.

    Raises
    ------
    FormatError
        If the schemas of parts differ.
    OptionError
        If a class derived from `Dataset` reads samples in its own way, if
        transforms or record formats of parts differ, or if one has been given to a
        ``Subset`` or ``ConcatDataset``, which torch would not apply.
    IndexError, TypeError
        If a ``Subset`` has indices that its dataset has not.
    """
    if isinstance(data, Dataset):
        for name in ("__getitem__", "__getitems__"):
            if getattr(type(data), name) is not getattr(Dataset, name):
                raise OptionError(
                    f"{type(data).__name__} has a {name} of its own, which is not called where "
                    "packed data is read by the batch: give what it does as a transform, "
                    "T.PerSample(fn), or write a torch Dataset that has the packed one"
                )
        return data
    if type(data) is Subset:
        whole = packed_view(data.dataset)
        if whole is None:
            return None
        _refuse_transform(data)
        indices = np.asarray(data.indices)
        if indices.dtype == bool:
            raise TypeError(
                "a torch Subset has a mask for its indices, which it takes for the numbers 0 and "
                "1; use dataset[mask], or Subset(dataset, numpy.flatnonzero(mask))"
            )
        return part_of(whole, indices)
    if type(data) is ConcatDataset:
        parts = [packed_view(part) for part in data.datasets]
        packed = [part for part in parts if part is not None]
        if len(packed) < len(parts):
            return None
        _refuse_transform(data)
        return join_datasets(packed)
    return None


def _refuse_transform(data: Any) -> None:
    for name in ("transform", "transforms", "target_transform"):
        if getattr(data, name, None) is not None:
            raise OptionError(
                f"{name!r} has been set on a torch {type(data).__name__}, which does not apply it; "
                "set dataset.transform of the packed dataset inside it, or pass transform= to the "
                "loader"
            )
