"""Files of ``torch.save``: tensors, tuples, dicts and lists of them.

They are pickles, and a pickle can run anything.  torch reads them with ``weights_only=True``,
which admits tensors, numbers, text and containers; what needs more is refused.  A file of the
format since torch 1.6, a zip archive, is memory-mapped; an older one is read as a whole.
Source: PyTorch's note "Serialization semantics" and ``torch/serialization.py``.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from fastdata.errors import FastdataError, SourceError
from fastdata.schema import Schema

from .base import FieldSpec, reason_of
from .reading.arrays.array_fields import ArrayFile, ArrayOptions, parts_of
from .reading.arrays.array_source import ArraySource
from .reading.arrays.torch_columns import by_place, columns_in, tensors_in
from .reading.locations import files_at, first_bytes, printable
from .reading.refusals import no_files
from .reading.splits import has_folders_of_images

__all__ = ["TorchSource"]

_SUFFIXES = (".pt", ".pth")
_LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The pickled magic number that files before torch 1.6 begin with."""
_GLOBAL = re.compile(r"(?:Unsupported (?:global|class|operand)|GLOBAL)[^\n]{0,200}")


class TorchSource(ArraySource):
    """Tensors of a file of ``torch.save``; several files are one dataset, in their order.

    Parameters
    ----------
    arrays : tuple of str
        What is taken: ``field=path``, where a path is made of keys of dicts and numbers in
        tuples and lists: ``train/images``, ``0``.  ``classes=path`` is a list of names.
        Default: what is called as images, labels and masks usually are; of a tuple the
        first is the images and the second the labels.
    layout : str, optional
        Of pixels: nhw, nhwc or nchw, where the shape fits more than one.
    scale : float, optional
        What pixels that are not uint8 are multiplied by to be 0 to 255.
    classes : str, optional
        A text file with the names of classes 0, 1, ..., one a line.
    check : bool
        Whether the CRC-32 of the archive's members are compared first, which reads it all;
        torch itself does not.
    """

    name = "torch"
    summary = "tensors of torch.save (.pt, .pth), without running what they contain"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = files_at(location, _SUFFIXES)
        return bool(files) and bool(_kind(files[0])) and not has_folders_of_images(location)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        arrays: tuple[str, ...] = (),
        layout: str | None = None,
        scale: float | None = None,
        classes: str | None = None,
        check: bool = False,
    ) -> None:
        self.notes = []
        self.paths = files_at(location, _SUFFIXES)
        if not self.paths:
            raise no_files(location, "files of torch.save")
        options = ArrayOptions(channels, fields or {}, arrays, layout, scale, classes)
        settled, parts, left = parts_of((self._look_at(p, check) for p in self.paths), options)
        self.notes += left
        self._settle(Schema(settled), parts)

    def _look_at(self, path: Path, check: bool) -> ArrayFile:
        columns = dict(columns_in(_load(path, check)))
        known = {name: column.known for name, column in columns.items()}
        if _kind(path) == "legacy":
            self.notes.append(
                f"{path}: a file from before torch 1.6, which cannot be memory-mapped: all of it "
                "is in memory. torch.save(torch.load(OLD, weights_only=True), NEW) mends it"
            )
        name = printable(path.name)
        return ArrayFile(str(path), name, known, columns.__getitem__, by_place(known))


def _kind(path: Path) -> str:
    """Return which kind of file of torch's this is, "zip" or "legacy"; empty if none."""
    start = first_bytes(path, 64)
    if start[2:].startswith(_LEGACY) and start[0] == 0x80:
        return "legacy"
    # The first member is the pickle, or in the newest files what its format is.
    names = (b"/data.pkl", b"/.format_version", b"/byteorder", b"/version", b"/.data/")
    if start.startswith(b"PK\x03\x04") and any(name in first_bytes(path, 512) for name in names):
        return "zip"
    return ""


def _load(path: Path, check: bool) -> Any:
    """Load a file; nothing in it is executed.

    Raises
    ------
    SourceError
        If it is damaged, or has more than tensors, numbers, text and containers.
    """
    kind = _kind(path)
    try:
        if kind == "zip":
            _check_archive(path, check)
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
    for tensor in tensors_in(loaded):
        claimed = tensor.numel() * tensor.element_size()
        if tensor.layout is torch.strided and claimed > size:
            raise SourceError(
                f"{path}: a tensor of shape {tuple(tensor.shape)} claims {claimed:,} bytes, more "
                f"than the {size:,} of the file: it is damaged, or expanded; then save its "
                ".contiguous()"
            )
    return loaded


def _check_archive(path: Path, check: bool) -> None:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if any(name.split("/", 1)[-1].startswith(("code/", "constants.pkl")) for name in names):
            raise SourceError(
                f"{path}: a TorchScript archive, which is a program. Load it in Python and "
                "torch.save its tensors"
            )
        bad = archive.testzip() if check else None
        if bad is not None:
            raise SourceError(f"{path}: the checksum of {bad!r} is wrong: the file is damaged")
