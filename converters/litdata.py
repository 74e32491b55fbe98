"""LitData: the chunks that ``litdata.optimize`` writes for its ``StreamingDataset``.

A folder has ``index.json``, which says how samples are made of columns and how these are
serialised, and chunks (``reading/packed.py`` has their layout).  Zstandard is around whole
chunks, around each sample, or around frames of samples (``reading/frames.py``).

Sources: ``litdata/streaming/`` of ``Lightning-AI/litData``, 0.2.76: writer, item_loader,
serializers, framed_zstd; ``utilities/_pytree.py`` for the tree of columns.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import Field, ImageField, ScalarField, StringField

from .base import FieldSpec, Reject, Sample
from .reading.chunks.chunk_source import PackedSource
from .reading.chunks.column_choice import guessed
from .reading.chunks.frames import inflate_frame, read_frame, read_frames_head
from .reading.chunks.index_json import count_of, index_path, inside, list_of, read_index
from .reading.chunks.raw_values import array_of, raw_image
from .reading.chunks.sample_layout import Plan
from .reading.compression import check_codec
from .reading.locations import first_bytes

__all__ = ["LitDataSource"]

_NUMBERS = {"int": "<i8", "float": "<f8", "bool": "?"}
_NUMPY = ("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
_NUMPY_BOOL = 13
# The same type stands under two names there, e.g. torch.float32 and torch.float.
_TORCH = {0: "<f4", 1: "<f4", 2: "<f8", 3: "<f8", 8: "<f2", 9: "<f2", 11: "u1", 12: "i1"}
_TORCH |= {13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 19: "?", 20: "<u2"}
_TABLE = b"LDARW01\0"


class LitDataSource(PackedSource):
    """A folder of LitData's chunks.

    Parameters
    ----------
    columns : tuple of str
        What is taken: ``field=column``, or a column that is called like its field.  Columns of
        tuples and lists are called 0, 1, ...; those inside others ``outer.inner``.
        Default: all; the first image becomes ``image``, the class number ``label``.
    classes : str, optional
        A text file with the names of classes 0, 1, ..., one a line.
    """

    name = "litdata"
    summary = "chunks of LitData (litdata.optimize), plain or zstd"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        index = index_path(location)
        return index is not None and b'"chunk_bytes"' in first_bytes(index)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        columns: tuple[str, ...] = (),
        classes: str | None = None,
    ) -> None:
        index = index_path(location)
        if index is None:
            raise SourceError(f"{location}: no index.json there, which LitData has beside chunks")
        self.index, self.root, self.notes = index, index.parent, []
        self._channels = channels
        content = read_index(index)
        config = content.get("config")
        encodings = tuple(list_of(config, "data_format", str, index))
        assert isinstance(config, dict)
        _check_kind(config, index)
        level = config.get("compression_level") or "chunk"
        codec = config.get("compression")
        if codec is not None and check_codec(str(codec), str(index)) != "zstd":
            raise SourceError(f"{index}: chunks compressed by {codec!r}; LitData knows zstd alone")
        if codec is not None and level not in ("chunk", "batch", "sample"):
            raise SourceError(f"{index}: compression_level {level!r} is not known")
        self._framed = codec is not None and level == "batch"
        chunks = list_of(content, "chunks", dict, index)
        if not chunks or not encodings:
            raise SourceError(f"{index}: lists no chunks, or no columns")
        self.paths = [inside(self.root, chunk.get("filename"), index) for chunk in chunks]
        self.counts = [count_of(chunk, "chunk_size", index) for chunk in chunks]
        self.codecs = ["zstd" if codec is not None and level != "sample" else ""] * len(chunks)
        plan = Plan(
            encodings,
            (None,) * len(encodings),
            decode,
            inflate=codec is not None and level == "sample",
        )
        names = _names_of(config.get("data_spec"), len(encodings), index)
        self.settle(names, plan, columns, fields or {}, channels, classes)

    def column(self, encoding: str, values: Sequence[Any]) -> Field | str:
        kind = encoding.partition(":")[0]
        if kind in ("jpeg", "pil", "image", "tifffile", "tiff"):
            return ImageField(channels=self._channels)
        if kind in _NUMBERS:
            return ScalarField(np.dtype(_NUMBERS[kind]).name)
        if kind in ("str", "text"):
            return StringField()
        if kind == "pickle":
            return "is pickled, and reading it would run code from the file"
        arrays = ("numpy", "tensor", "no_header_numpy", "no_header_tensor")
        if kind not in ("bytes", "file", *arrays):
            return f"is serialised as {encoding!r}, of which no field can be made"
        if not values:
            raise LookupError(encoding)
        return guessed(values, self._channels)

    def verify(self, file: int) -> None:
        path = self.paths[file]
        with open(path, "rb", buffering=0) as raw:
            raw.seek(max(0, os.fstat(raw.fileno()).st_size - len(_TABLE)))
            if raw.read(len(_TABLE)) == _TABLE:
                raise SourceError(
                    f"{path}: its samples are a table of Arrow, as LitData writes rows of plain "
                    "values (text, numbers, bytes). That is not read: write them again with the "
                    "image as a litdata Jpeg or a PIL image, or pack from what they were made of"
                )

    def stream(self, file: int) -> Iterator[Sample | Reject]:
        if not self._framed:
            yield from super().stream(file)
            return
        self.verify(file)
        with open(self.paths[file], "rb", buffering=0) as raw:
            yield from self._framed_samples(file, raw)

    def _framed_samples(self, file: int, raw: IO[bytes]) -> Iterator[Sample | Reject]:
        path = str(self.paths[file])
        head = read_frames_head(raw, path)
        self._count(file, head.samples)
        done = 0
        for number in range(head.frames):
            frame = read_frame(raw, path, head, number)
            if frame.first != done or not 0 < frame.samples <= head.samples - done:
                break
            done += frame.samples
            starts = head.starts[frame.first : done + 1].tolist()
            key = self.key(file, starts[0])
            try:
                data = inflate_frame(raw, path, frame)
            except SourceError as error:
                yield Reject(key, f"{error}; the {frame.samples:,} samples of a frame are lost")
                continue
            for begin, end in itertools.pairwise(starts):
                if starts[0] <= begin <= end <= starts[0] + len(data):
                    yield self.inflated(file, begin, data[begin - starts[0] : end - starts[0]])
                else:
                    reason = f"the sample is at bytes {begin:,} to {end:,}, outside its frame"
                    yield Reject(self.key(file, begin), f"{reason}: it is damaged")
        if done < head.samples:
            reason = f"{path}: damaged frames; {head.samples - done:,} samples are lost"
            yield Reject(self.key(file, 0), reason)


def decode(encoding: str, data: bytes) -> Any:
    """Return the value that a column holds.

    Raises
    ------
    ValueError
        If the bytes are none of that serialiser.
    """
    kind, _, about = encoding.partition(":")
    if kind in _NUMBERS:
        return array_of(data, _NUMBERS[kind], (1,))[0]
    if kind == "pil":
        return raw_image(data)
    if kind in ("str", "text"):
        return data.decode()
    if kind == "numpy":
        return _array(data, "<", _numpy_type)
    if kind == "tensor":
        # Big-endian; older versions wrote it like numpy's.
        order = "<" if len(data) >= 8 and int.from_bytes(data[4:8], "big") > 64 else ">"
        return _array(data, order, _torch_type)
    if kind in ("no_header_numpy", "no_header_tensor"):
        number = int(about) if about.isdecimal() else -1
        dtype = (_numpy_type if kind == "no_header_numpy" else _torch_type)(number)
        return array_of(data, dtype, (len(data) // np.dtype(dtype).itemsize,))
    return data


def _array(data: bytes, order: str, type_of: Any) -> np.ndarray[Any, Any]:
    """Return an array before which its type, its dimensions and its shape stand."""
    if len(data) < 8:
        raise SourceError(f"an array of {len(data)} bytes has no head")
    number, rank = struct.unpack_from(f"{order}2I", data)
    if rank > 64 or len(data) < 8 + 4 * rank:
        raise SourceError(f"an array of {len(data)} bytes claims {rank} dimensions")
    shape = struct.unpack_from(f"{order}{rank}I", data, 8)
    return array_of(data[8 + 4 * rank :], type_of(number), shape)


def _numpy_type(number: int) -> str:
    if number == _NUMPY_BOOL:
        return "?"
    if not 0 <= number < len(_NUMPY):
        raise SourceError(f"an array of LitData's dtype number {number} cannot be read")
    return _NUMPY[number]


def _torch_type(number: int) -> str:
    if number not in _TORCH:
        raise SourceError(f"a tensor of LitData's dtype number {number} cannot be read")
    return _TORCH[number]


# -- the index -----------------------------------------------------------------------


def _check_kind(config: dict[str, Any], index: Path) -> None:
    if config.get("encryption"):
        raise SourceError(f"{index}: the chunks are encrypted. Decrypt them with LitData first.")
    loader = config.get("item_loader") or "PyTreeLoader"
    if loader != "PyTreeLoader":
        raise SourceError(
            f"{index}: written for {loader}; chunks for PyTreeLoader, LitData's default, are read"
        )


def _names_of(spec: Any, count: int, index: Path) -> list[str]:
    """Return the names of columns from the tree that samples are."""
    if spec is None:
        return [""] * count
    try:
        found = list(_leaves(json.loads(spec)[1], ()))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise SourceError(f"{index}: data_spec cannot be read: {error!r}") from error
    if len(found) != count:
        raise SourceError(f"{index}: data_spec has {len(found)} columns and data_format {count}")
    return found


def _leaves(node: dict[str, Any], above: tuple[str, ...]) -> Iterator[str]:
    children = node["children_spec"]
    if node["type"] is None:
        # Positions alone are no names: columns of a tuple are named by what they are.
        yield ".".join(above) if any(not part.isdecimal() for part in above) else ""
        return
    named = json.loads(node["context"]) if "dict" in node["type"].lower() else None
    keys = [str(key) for key in named] if isinstance(named, list) else map(str, range(10**6))
    for key, child in zip(keys, children, strict=False):
        yield from _leaves(child, (*above, key))
