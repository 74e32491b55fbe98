"""The list of SVHN's whole pictures, ``digitStruct.mat``: names, boxes and classes.

Apart from `SvhnSource`, since h5py takes a tenth of a second to import and every source is asked
whether it recognises what is packed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5g, h5l, h5o, h5r, h5s

from fastdata.errors import SourceError

from ...base import reason_of

__all__ = ["digits_at", "names_in"]

_SIDES = (b"left", b"top", b"width", b"height")
_LABEL = b"label"
_MOST_IMAGES, _MOST_DIGITS, _LONGEST_NAME = 1 << 24, 1 << 10, 1 << 10
_MOST_INFLATED = 1100
"""Deflate makes at most 1,032 bytes of one."""


def digits_at(path: Path, row: int) -> tuple[Any, Any]:
    """Return boxes, shape [n, 4], and classes, shape [n], of an image; damage may raise anything.

    The list is opened for each image, which takes a sixth of the time: nothing is open at a fork.
    """
    with h5py.File(path, "r", locking=False) as file:
        rows = _references(file, b"bbox")
        at = np.unravel_index(row, rows.shape)
        return _digits(h5r.dereference(h5py.Dataset(rows)[at], file.id))


def names_in(path: Path) -> Iterator[str]:
    """Yield the names of all images, in the order of the rows; a damaged list is a SourceError."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            names, boxes = (_references(file, field) for field in (b"name", b"bbox"))
            if names.shape != boxes.shape:
                raise ValueError(f"{names.shape} names and {boxes.shape} boxes")
            for reference in _array(names, _MOST_IMAGES).ravel():
                text = _array(h5r.dereference(reference, file.id), _LONGEST_NAME)
                if text.dtype != np.dtype("<u2") or not text.size:
                    raise ValueError(f"a name is of {text.dtype}, not of characters of 16 bits")
                yield text.tobytes().decode("utf-16-le")
    except SourceError:
        raise
    except Exception as error:  # what h5py raises on damage
        raise SourceError(f"{path}: cannot be read: {reason_of(error)}") from error


def _references(file: Any, name: bytes) -> Any:
    """Return the array of what a field of the struct array refers to, a reference an image."""
    found = _member(_member(file.id, b"digitStruct"), name)
    _check(found, _MOST_IMAGES)
    if found.dtype.kind != "O":
        raise ValueError(f"expected digitStruct/{name.decode()} to refer to several images")
    return found


def _digits(group: Any) -> tuple[Any, Any]:
    """Return boxes, shape [n, 4], and classes, shape [n], of an image."""
    columns = [_numbers(group, name) for name in (*_SIDES, _LABEL)]
    if len({len(column) for column in columns}) != 1:
        raise ValueError(f"its boxes have {', '.join(str(len(c)) for c in columns)} numbers")
    labels = columns.pop()
    if not np.all((labels >= 1) & (labels <= 10) & (labels == np.rint(labels))):
        raise ValueError(f"its labels are {labels.tolist()[:8]}, not all of 1 to 10")
    return np.stack(columns, 1), labels.astype(np.int64) % 10


def _numbers(group: Any, name: bytes) -> Any:
    """Return a number of each box."""
    found = _array(_member(group, name), _MOST_DIGITS)
    if found.dtype.kind == "O":
        cells = [_array(h5r.dereference(cell, group), 1) for cell in found.ravel()]
        found = np.array([_one(cell) for cell in cells])
    return found.astype(np.float64).ravel()


def _one(cell: Any) -> float:
    if cell.size != 1 or cell.dtype.kind not in "iuf":
        raise ValueError(f"expected a number, found an array {cell.shape} of {cell.dtype}")
    return float(cell.item())


def _member(group: Any, name: bytes) -> Any:
    """Return what is called so in a group; it must lie in the same file."""
    if not isinstance(group, (h5g.GroupID, h5py.h5f.FileID)):
        raise ValueError(f"expected a group with {name.decode()}")
    if not group.links.exists(name):
        raise ValueError(f"there is no {name.decode()}")
    if group.links.get_info(name).type != h5l.TYPE_HARD:
        raise ValueError(f"{name.decode()} is a link, not an array of this file")
    return h5o.open(group, name)


def _array(found: Any, most: int) -> Any:
    """Return an array of at most so many numbers or references."""
    _check(found, most)
    array = np.empty(found.shape, found.dtype)
    found.read(h5s.ALL, h5s.ALL, array)
    return array


def _check(found: Any, most: int) -> None:
    """Refuse what is no array of numbers or references, has more elements, or lies elsewhere."""
    if not isinstance(found, h5d.DatasetID):
        raise ValueError("expected an array, found something else")
    dtype, created = found.dtype, found.get_create_plist()
    layout = created.get_layout()
    if layout == h5d.VIRTUAL or created.get_external_count():
        raise ValueError("an array lies in other files, which are not read")
    if dtype.kind not in "iuf" and h5py.check_ref_dtype(dtype) is not h5py.Reference:
        raise ValueError(f"an array is of {dtype}, neither numbers nor references")
    count, stored = math.prod(found.shape), found.get_storage_size()
    block = math.prod(created.get_chunk()) if layout == h5d.CHUNKED else 0
    if count > most or max(count, block) * dtype.itemsize > _MOST_INFLATED * (stored + 1):
        raise ValueError(f"an array claims {count:,} elements and has {stored:,} bytes")
