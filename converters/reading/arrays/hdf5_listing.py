"""What arrays an HDF5 file has, and which of them are not read: those that lead out of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from fastdata.errors import SourceError

from ...base import reason_of
from ..spans import MAX_RECORD
from .roles import Known

__all__ = ["arrays_in"]

_MOST_ARRAYS = 10_000


def arrays_in(file: Any) -> Iterator[tuple[str, Known]]:
    """Yield the arrays that the file itself has: those that hard links lead to."""
    groups = [("", file)]
    seen = set()
    count = 0
    while groups:
        prefix, group = groups.pop()
        for name in group:
            path = f"{prefix}{name}"
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                yield (
                    path,
                    Known(
                        (),
                        None,
                        "link",
                        "a link, which is not followed; name the array that it leads to",
                    ),
                )
                continue
            found = group[name]
            place = h5py.h5o.get_info(found.id).addr
            if isinstance(found, h5py.Group):
                if place not in seen:  # a link back to a group above would never end
                    groups.append((f"{path}/", found))
                    seen.add(place)
            elif isinstance(found, h5py.Dataset):
                yield path, _known(found)
            count += 1
            if count > _MOST_ARRAYS:
                raise SourceError(
                    f"more than {_MOST_ARRAYS:,} arrays: a dataset an image is not read. Put the "
                    "images in one array, or export them to class folders."
                )


def _known(dataset: Any) -> Known:
    """Describe an array, without reading it."""
    try:
        shape, dtype = dataset.shape, dataset.dtype
    except Exception as error:  # a type that NumPy has not
        return Known((), None, "unknown", f"cannot be read: {reason_of(error)}")
    if shape is None:
        return Known((), None, "empty", "an array without a shape")
    kind, refused = "numbers", _refusal(dataset)
    text = h5py.check_string_dtype(dtype)
    if h5py.check_vlen_dtype(dtype) == np.uint8 or (dtype.kind == "V" and not dtype.names):
        kind = "bytes"
    elif text is not None and dtype.kind == "O":
        kind = "text"
    elif dtype.kind == "S":
        kind = "bytes" if dtype.itemsize > 255 else "text"
    elif dtype.kind not in "biufc":
        refused = refused or f"its type {dtype} is no number, bytes or text"
    return Known(shape, dtype if kind == "numbers" else None, kind, refused)


def _refusal(dataset: Any) -> str:
    """Say why an array is not read, if so."""
    if dataset.external:
        return (
            f"its data is in other files ({dataset.external[0][0]!r}), which are not opened on the "
            "word of this one. Copy it into this file: h5repack -f NONE IN OUT"
        )
    if dataset.is_virtual:
        return (
            "it is virtual, made of arrays that may be in other files, which are not opened on the "
            "word of this one. Copy it: with h5py, new[name] = old[name][...]"
        )
    creation = dataset.id.get_create_plist()
    for number in range(creation.get_nfilters()):
        code, _, _, name = creation.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            return (
                f"it is compressed by filter {code} ({name.decode(errors='replace')}), which this "
                "HDF5 library has not. Repack it: h5repack -f GZIP=4 IN OUT"
            )
    if dataset.chunks and int(np.prod(dataset.chunks, dtype=object)) * dataset.dtype.itemsize > (
        MAX_RECORD
    ):
        return f"blocks of shape {dataset.chunks} are not believed: the file is damaged"
    return ""
