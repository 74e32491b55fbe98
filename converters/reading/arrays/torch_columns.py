"""The tensors of a file of ``torch.save`` as columns.

Apart from `TorchSource`, since torch takes a second to import and every source is asked whether it
recognises what is packed.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastdata.errors import FastdataError, SourceError
from fastdata.schema import SCALAR_DTYPES

from ...base import reason_of
from ..image_files import is_image_bytes
from ..locations import printable
from .columns import ArrayColumn

__all__ = ["WHOLE", "columns_in", "load_tensors"]

WHOLE = "tensor"
"""What a tensor is called that is all that a file has."""
_DEPTH = 4
_LOOKED_AT = 16
_MOST_NESTED = 1 << 20
_GLOBAL = re.compile(r"(?:Unsupported (?:global|class|operand)|GLOBAL)[^\n]{0,200}")


def load_tensors(path: Path, kind: str) -> Any:
    """Load a file of the kind "zip" or "legacy"; nothing in it is executed.

    Raises SourceError if it is damaged, or has more than tensors, numbers, text and containers.
    """
    try:
        if kind == "zip":
            _check_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2.15 warns that it checks sparse tensors
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=kind == "zip")
    except FastdataError:
        raise
    except pickle.UnpicklingError as error:
        found = _GLOBAL.search(str(error))
        raise SourceError(
            f"{path}: cannot be read without running what it names: "
            f"{found[0].strip() if found else str(error)[:200]}. Only tensors, numbers, text, and "
            "tuples, dicts and lists of them are read. If you trust the file, load it in Python "
            "and pack that: fastdata.pack(dataset, ...), or torch.save its tensors"
        ) from error
    except Exception as error:  # on damage, torch and its unpickler raise anything
        raise SourceError(
            f"{path}: cannot be read: {reason_of(error).splitlines()[0][:300]}"
        ) from error
    size = path.stat().st_size
    for tensor in _tensors_in(loaded):
        claimed = tensor.numel() * tensor.element_size()
        if tensor.layout is torch.strided and claimed > size:
            raise SourceError(
                f"{path}: a tensor of shape {tuple(tensor.shape)} claims {claimed:,} bytes, more "
                f"than the {size:,} of the file: it is damaged, or expanded; then save its "
                ".contiguous()"
            )
    return loaded


def _check_archive(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if any(name.split("/", 1)[-1].startswith(("code/", "constants.pkl")) for name in names):
            raise SourceError(
                f"{path}: a TorchScript archive, which is a program. Load it in Python and "
                "torch.save its tensors"
            )


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested containers, each of which is looked into once."""
    level: list[Any] = [value]
    seen: set[int] = set()
    for _ in range(_DEPTH + 1):
        inner: list[Any] = []
        for part in level:
            if isinstance(part, torch.Tensor):
                yield part
            elif isinstance(part, (Mapping, list, tuple)) and id(part) not in seen:
                seen.add(id(part))
                inner += part.values() if isinstance(part, Mapping) else part
        level = inner


def columns_in(
    value: Any, path: str = "", depth: int = _DEPTH, seen: set[int] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield what can be a column, by its path in nested containers.

    A container that stands in several places has its columns in the first of them: a pickle of
    some kB can nest one list a thousand times, and that again.
    """
    if isinstance(value, torch.Tensor):
        yield path or WHOLE, _TensorColumn(path or WHOLE, value)
        return
    seen = set() if seen is None else seen
    if not isinstance(value, (Mapping, list, tuple)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        inner: list[tuple[str, Any]] = [(str(key), part) for key, part in value.items()]
    else:
        if isinstance(value, list) or len(value) > _DEPTH:
            columns = list(_listed(path, value))
            if columns:
                yield from columns
                return
        inner = [(str(number), part) for number, part in enumerate(value)]
    for key, part in inner[:1000] if depth else ():
        yield from columns_in(part, f"{path}/{key}".strip("/"), depth - 1, seen)


def _listed(path: str, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a list with one entry a sample; none if it is no such list."""
    if not values:
        return
    first = values[0]
    peek = values[:_LOOKED_AT]
    if isinstance(first, (tuple, list)) and all(
        isinstance(v, (tuple, list)) and len(v) == len(first) for v in peek
    ):
        for number in range(len(first)):
            yield f"{path}/{number}".strip("/"), _ListColumn(path, values, number)
    elif isinstance(first, Mapping) and all(isinstance(v, Mapping) for v in peek):
        for key in first:
            yield f"{path}/{key}".strip("/"), _ListColumn(path, values, key)
    elif isinstance(first, (str, bytes, int, float)) or all(
        isinstance(v, torch.Tensor) and (_is_picture(v) or v.dim() == 0) for v in peek
    ):
        yield path or WHOLE, _ListColumn(path or WHOLE, values, None)


def _check_nested(value: Any) -> None:
    """Refuse lists in lists that would become a huge array: one list may stand in many places."""
    inner, left = [value], _MOST_NESTED
    while inner:
        part = inner.pop()
        if isinstance(part, (list, tuple)):
            inner += part
            left -= len(part)
        elif isinstance(part, torch.Tensor):
            left -= part.numel()
        if left < 0:
            raise ValueError(
                f"lists in lists of more than {_MOST_NESTED:,} numbers; torch.save a tensor of them"
            )


def _is_picture(tensor: torch.Tensor) -> bool:
    if tensor.dim() == 1:
        return tensor.dtype == torch.uint8 and is_image_bytes(_array(tensor[:16]).tobytes())
    if tensor.dim() == 3:
        return tensor.shape[0] in (1, 3) or tensor.shape[2] in (1, 3)
    return tensor.dim() == 2


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().numpy()


def _dtype(tensor: torch.Tensor) -> np.dtype[Any] | None:
    name = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.layout is torch.strided and not tensor.is_quantized
    whole = plain and tensor.device.type == "cpu" and name in SCALAR_DTYPES
    return np.dtype(name) if whole else None


class _TensorColumn(ArrayColumn):
    """The rows of a tensor."""

    def __init__(self, path: str, tensor: torch.Tensor) -> None:
        self.label, self.shape, self._tensor = printable(path), tuple(tensor.shape), tensor
        self.dtype, self.block = _dtype(tensor), 32
        if self.dtype is None:
            self.kind, self.refused = "unknown", f"{tensor.layout} {tensor.dtype} is not read"
        elif not self.shape:
            self.refused = "one number only"

    def read(self, start: int, stop: int) -> Any:
        return _array(self._tensor[start:stop])


class _ListColumn(ArrayColumn):
    """A list with an entry a sample, or one part of each entry."""

    def __init__(self, path: str, values: Sequence[Any], part: Any) -> None:
        self._values, self._part = values, part
        self.label = printable(path if part is None else f"{path}/{part}".strip("/"))
        self.shape = (len(values),)
        first = self._at(0)
        self.kind = "bytes"
        if isinstance(first, str):
            self.kind = "text"
        elif isinstance(first, (bool, int, float)):
            self.kind = "numbers"
            self.dtype = np.dtype("int64" if isinstance(first, int) else "float64")
        elif isinstance(first, torch.Tensor) and first.dim() == 0:
            self.kind, self.dtype = "numbers", _dtype(first)

    def _at(self, index: int) -> Any:
        value = self._values[index]
        return value if self._part is None else value[self._part]

    def read(self, start: int, stop: int) -> Any:
        return [self._row(index) for index in range(start, stop)]

    def _row(self, index: int) -> Any:
        try:
            value = self._at(index)
            if not isinstance(value, torch.Tensor):
                _check_nested(value)
                return value
            if _dtype(value) is None:
                return ValueError(f"{value.layout} {value.dtype} is not read")
            array = _array(value)
            return array.tobytes() if value.dim() == 1 and _is_picture(value) else array
        except Exception as error:  # entries of other kinds than the first
            return error
