"""What a loaded file of torch's has: tensors, and lists with an entry a sample, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fastdata.schema import SCALAR_DTYPES

from ..image_files import is_image_bytes
from ..locations import printable
from .columns import Column
from .roles import Known

__all__ = ["by_place", "columns_in", "tensors_in"]

_DEPTH = 4
_LOOKED_AT = 16
_WHOLE = "tensor"
"""What a tensor is called that is all that a file has."""


def tensors_in(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, (Mapping, list, tuple)):
        inner = value.values() if isinstance(value, Mapping) else value
        for part in inner:
            yield from tensors_in(part, depth - 1)


def by_place(known: Mapping[str, Known]) -> tuple[str, ...]:
    """Name what a tuple of tensors, or a single one, usually is."""
    if list(known) == [_WHOLE]:
        return (f"image={_WHOLE}",)
    if set(known) == {"0", "1"} and len(known["0"].shape) != len(known["1"].shape):
        return ("image=0", "label=1") if _pictures(known["0"]) else ("image=1", "label=0")
    if list(known)[:1] == ["0"] and all(name.isdecimal() for name in known):
        masks = len(known.get("1", known["0"]).shape) > 2
        return ("image=0", "mask=1" if masks else "label=1") if len(known) > 1 else ("image=0",)
    return ()


def _pictures(known: Known) -> bool:
    return known.kind == "bytes" or len(known.shape) > 2


def columns_in(value: Any, path: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Yield what can be a column, by its path in nested containers."""
    if isinstance(value, torch.Tensor):
        yield path or _WHOLE, _TensorColumn(path or _WHOLE, value)
        return
    if isinstance(value, Mapping):
        inner: list[tuple[str, Any]] = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, (list, tuple)):
        if isinstance(value, list) or len(value) > _DEPTH:
            columns = list(_listed(path, value))
            if columns:
                yield from columns
                return
        inner = [(str(number), part) for number, part in enumerate(value)]
    else:
        return
    for key, part in inner[:1000] if depth else ():
        yield from columns_in(part, f"{path}/{key}".strip("/"), depth - 1)


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
        yield path or _WHOLE, _ListColumn(path or _WHOLE, values, None)


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


class _TensorColumn(Column):
    """The rows of a tensor."""

    def __init__(self, path: str, tensor: torch.Tensor) -> None:
        self.label, self.shape, self._tensor = printable(path), tuple(tensor.shape), tensor
        self.dtype = _dtype(tensor)
        self.block = 32

    @property
    def known(self) -> Known:
        """What it is."""
        tensor = self._tensor
        if self.dtype is None:
            return Known(self.shape, None, "unknown", f"{tensor.layout} {tensor.dtype} is not read")
        return Known(self.shape, self.dtype, refused="" if self.shape else "one number only")

    def read(self, start: int, stop: int) -> Any:
        return _array(self._tensor[start:stop])


class _ListColumn(Column):
    """A list with an entry a sample, or one part of each entry."""

    def __init__(self, path: str, values: Sequence[Any], part: Any) -> None:
        self._values, self._part = values, part
        self.label = printable(path if part is None else f"{path}/{part}".strip("/"))
        self.shape = (len(values),)
        first = self._at(0)
        self.dtype, self._kind = None, "bytes"
        if isinstance(first, str):
            self._kind = "text"
        elif isinstance(first, (bool, int, float)):
            self._kind = "numbers"
            self.dtype = np.dtype("int64" if isinstance(first, int) else "float64")
        elif isinstance(first, torch.Tensor) and first.dim() == 0:
            self._kind, self.dtype = "numbers", _dtype(first)

    def _at(self, index: int) -> Any:
        value = self._values[index]
        return value if self._part is None else value[self._part]

    @property
    def known(self) -> Known:
        """What it is."""
        return Known(self.shape, self.dtype, self._kind)

    def read(self, start: int, stop: int) -> Any:
        return [self._row(index) for index in range(start, stop)]

    def _row(self, index: int) -> Any:
        try:
            value = self._at(index)
            if not isinstance(value, torch.Tensor):
                return value
            if _dtype(value) is None:
                return ValueError(f"{value.layout} {value.dtype} is not read")
            array = _array(value)
            return array.tobytes() if value.dim() == 1 and _is_picture(value) else array
        except Exception as error:  # entries of other kinds than the first
            return error
