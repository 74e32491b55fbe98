"""Files of ``torch.save``: tensors, tuples and dicts.

They are pickles, and a pickle can run anything.  torch reads them with ``weights_only=True``,
which admits tensors, numbers, text and containers; what needs more is refused.  The files, zip
archives since torch 1.6, are memory-mapped.
Source: PyTorch's note "Serialization semantics" and ``torch/serialization.py``.
"""

from __future__ import annotations

import itertools
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import SCALAR_DTYPES

from .base import reason_of
from .reading.arrays.array_source import ArrayFile, ArraySource
from .reading.arrays.columns import ArrayColumn, ListColumn
from .reading.locations import files_at, first_bytes, printable
from .reading.refusals import no_files

__all__ = ["TorchSource"]

_SUFFIXES = (".pt", ".pth")
_LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The pickled magic number that files before torch 1.6 begin with."""
_WHOLE = "tensor"
"""The name of a tensor that is all that a file has."""
_DEPTH = 2
_MOST_PARTS = 100
_MOST_TOGETHER = 4
"""Tensors in one tuple: image, label, mask, boxes."""
_GLOBAL = re.compile(r"(?:Unsupported (?:global|class|operand)|GLOBAL)[^\n]{0,200}")


class TorchSource(ArraySource):
    """Tensors of a file of ``torch.save``; several files are one dataset, in their order."""

    name = "torch"
    summary = "tensors of torch.save (.pt, .pth); their code is not run"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = files_at(location, _SUFFIXES)
        return bool(files) and (_is_legacy(files[0]) or _is_archive(files[0]))

    def files(self, location: Any) -> Iterator[ArrayFile]:
        self.paths = files_at(location, _SUFFIXES)
        if not self.paths:
            raise no_files(location, "files of torch.save")
        return map(_file, self.paths)


def _file(path: Path) -> ArrayFile:
    columns = dict(_columns_in(_load(path), path.stat().st_size))
    return ArrayFile(str(path), printable(path.name), columns, _by_place(columns))


def _is_legacy(path: Path) -> bool:
    start = first_bytes(path, 16)
    return start[:1] == b"\x80" and start[2:].startswith(_LEGACY)


def _is_archive(path: Path) -> bool:
    # The first member is the pickle, or in the newest files what its format is.
    names = (b"/data.pkl", b"/.format_version", b"/byteorder", b"/version", b"/.data/")
    start = first_bytes(path, 512)
    return start.startswith(b"PK\x03\x04") and any(name in start for name in names)


def _load(path: Path) -> Any:
    """Load a file; nothing in it is executed.

    Raises SourceError if it is damaged, or has more than tensors, numbers, text and containers.
    """
    import torch  # takes a second, and every source is asked whether it recognises something

    if _is_legacy(path):
        raise SourceError(
            f"{path}: a file from before torch 1.6, which cannot be memory-mapped. Save it anew: "
            "torch.save(torch.load(OLD, weights_only=True), NEW)"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2.15 warns that it checks sparse tensors
            if not any(n.split("/", 1)[-1].startswith(("code/", "constants.pkl")) for n in names):
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        found = _GLOBAL.search(str(error))
        raise SourceError(
            f"{path}: cannot be read without running code: "
            f"{found[0].strip() if found else str(error)[:200]}. Only tensors, numbers, text, "
            "tuples, dicts and lists are read. If you trust the file, load it in Python "
            "and pack that: fastdata.pack(dataset, ...), or torch.save its tensors"
        ) from error
    except Exception as error:  # on damage, torch and its unpickler raise anything
        raise SourceError(
            f"{path}: cannot be read: {reason_of(error).splitlines()[0][:300]}"
        ) from error
    raise SourceError(
        f"{path}: a TorchScript archive, which is a program. Load it in Python and torch.save its "
        "tensors"
    )


def _columns_in(
    value: Any, file_bytes: int, path: str = "", depth: int = _DEPTH
) -> Iterator[tuple[str, ArrayColumn]]:
    """Yield the tensors and lists in nested containers, by their paths there."""
    if _is_tensor(value):
        yield path or _WHOLE, _TensorColumn(path or _WHOLE, value, file_bytes)
    elif isinstance(value, Mapping) or _is_container(value):
        # A pickle of some kB can nest one list a thousand times, and that again.
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in itertools.islice(parts, _MOST_PARTS if depth else 0):
            yield from _columns_in(part, file_bytes, f"{path}/{key}".strip("/"), depth - 1)
    elif isinstance(value, (list, tuple)) and value:
        yield path or _WHOLE, _listed(path or _WHOLE, value)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_container(values: Any) -> bool:
    """Tell whether this is a tuple or list of values for all samples, and not of samples."""
    if not isinstance(values, (list, tuple)) or len(values) > _MOST_TOGETHER:
        return False
    if isinstance(values, tuple):
        return True
    dims = [part.dim() for part in values if _is_tensor(part)]
    return bool(dims) and len(dims) == len(values) and (max(dims) > 3 or len(set(dims)) > 1)


def _listed(path: str, values: Any) -> ArrayColumn:
    """Return the column of a list of text or numbers; a refused one of anything else."""
    kinds = set(map(type, values))
    column = ListColumn(printable(path), values)
    column.kind, column.shape = "text", (len(values),)
    if kinds <= {bool, int, float}:
        column.kind, column.dtype = "numbers", np.dtype("float64" if float in kinds else "int64")
    elif kinds != {str}:
        column.kind, column.shape = "unknown", ()
        column.refused = (
            "a list of samples. Save a tensor of all (torch.stack), or load the file in Python and "
            "pack that: fastdata.pack(torch.load(FILE, weights_only=True), ...)"
        )
    return column


class _TensorColumn(ArrayColumn):
    """The rows of a tensor."""

    block = 32

    def __init__(self, path: str, tensor: Any, file_bytes: int) -> None:
        import torch

        self.label, self.shape, self._tensor = printable(path), tuple(tensor.shape), tensor
        name, claimed = str(tensor.dtype)[6:], tensor.numel() * tensor.element_size()
        plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
        if not plain or tensor.is_quantized or name not in SCALAR_DTYPES:
            self.kind, self.refused = "unknown", f"{tensor.layout} {tensor.dtype} is not read"
        elif claimed > file_bytes:
            self.refused = (
                f"it claims {claimed:,} bytes, more than the {file_bytes:,} of the file: it is "
                "damaged, or expanded; then save its .contiguous()"
            )
        else:
            self.dtype = np.dtype(name)

    def read(self, start: int, stop: int) -> Any:
        return self._tensor[start:stop].detach().numpy()


def _by_place(columns: Mapping[str, ArrayColumn]) -> tuple[str, ...]:
    """Return the usual fields of a tuple of tensors, or of a single one."""
    if list(columns) == [_WHOLE]:
        return (f"image={_WHOLE}",)
    if set(columns) == {"0", "1"} and len(columns["0"].shape) != len(columns["1"].shape):
        pictures = len(columns["0"].shape) > 2
        return ("image=0", "label=1") if pictures else ("image=1", "label=0")
    if list(columns)[:1] == ["0"] and all(name.isdecimal() for name in columns):
        masks = len(columns.get("1", columns["0"]).shape) > 2
        return ("image=0", "mask=1" if masks else "label=1") if len(columns) > 1 else ("image=0",)
    return ()
