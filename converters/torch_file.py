"""Files of ``torch.save``: tensors, tuples, dicts and lists of them.

They are pickles, and a pickle can run anything.  torch reads them with ``weights_only=True``,
which admits tensors, numbers, text and containers; what needs more is refused.  A file of the
format since torch 1.6, a zip archive, is memory-mapped; an older one is read as a whole.
Source: PyTorch's note "Serialization semantics" and ``torch/serialization.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from .base import FieldSpec
from .reading.arrays.array_source import ArrayFile, ArrayOptions, ArraySource
from .reading.arrays.columns import ArrayColumn
from .reading.box_forms import BoxesOption, parse_boxes
from .reading.locations import files_at, first_bytes, printable
from .reading.options import ClassFile, LayoutOption, Option, ScaleOption
from .reading.refusals import no_files

__all__ = ["TorchSource"]

_SUFFIXES = (".pt", ".pth")
_LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The pickled magic number that files before torch 1.6 begin with."""


class TorchSource(ArraySource):
    """Tensors of a file of ``torch.save``; several files are one dataset, in their order."""

    name = "torch"
    summary = "tensors of torch.save (.pt, .pth), without running what they contain"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = files_at(location, _SUFFIXES)
        return bool(files) and bool(_kind(files[0]))

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        arrays: Annotated[
            tuple[str, ...],
            Option(
                "field=path of keys and numbers (train/images, 0), classes=path of a list of names"
            ),
        ] = (),
        layout: LayoutOption = None,
        scale: ScaleOption = None,
        classes: ClassFile = None,
        boxes: BoxesOption = (),
        check: Annotated[
            bool,
            Option("compare the CRC-32 of the archive's members first, which reads all of it"),
        ] = False,
    ) -> None:
        self.notes = []
        self.paths = files_at(location, _SUFFIXES)
        if not self.paths:
            raise no_files(location, "files of torch.save")
        form = parse_boxes(boxes, whole=True)
        options = ArrayOptions(channels, fields or {}, arrays, layout, scale, classes, form)
        self.read_arrays((self._file(path, check) for path in self.paths), options)

    def _file(self, path: Path, check: bool) -> ArrayFile:
        from .reading.arrays.torch_columns import columns_in, load_tensors  # imports torch

        kind = _kind(path)
        columns = dict(columns_in(load_tensors(path, kind, check)))
        if kind == "legacy":
            self.notes.append(
                f"{path}: a file from before torch 1.6, which cannot be memory-mapped: all of it "
                "is in memory. torch.save(torch.load(OLD, weights_only=True), NEW) mends it"
            )
        return ArrayFile(str(path), printable(path.name), columns, _by_place(columns))


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


def _by_place(columns: Mapping[str, ArrayColumn]) -> tuple[str, ...]:
    """Name what a tuple of tensors, or a single one, usually is."""
    if list(columns) == ["tensor"]:  # the only one
        return ("image=tensor",)
    if set(columns) == {"0", "1"} and len(columns["0"].shape) != len(columns["1"].shape):
        return ("image=0", "label=1") if _pictures(columns["0"]) else ("image=1", "label=0")
    if list(columns)[:1] == ["0"] and all(name.isdecimal() for name in columns):
        masks = len(columns.get("1", columns["0"]).shape) > 2
        return ("image=0", "mask=1" if masks else "label=1") if len(columns) > 1 else ("image=0",)
    return ()


def _pictures(column: ArrayColumn) -> bool:
    return column.kind == "bytes" or len(column.shape) > 2
