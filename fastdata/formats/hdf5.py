"""Shards in an HDF5 file.

HDF5 does not survive being killed while it writes, so images are spooled like
columns, and the HDF5 file is made at sealing: contiguous datasets, into whose
place in the file the spools are then copied.

``/blobs/<field>`` has the images: N x H x W x C where all are raw and of one
shape, else all bytes end to end.  ``/columns/<name>`` has the columns and
``/header`` and ``/footer`` those.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fastdata.formats.layout import CODECS, FOOTER_BYTES
from fastdata.formats.writer import Array, EncodedImage, Layout, ShardWriter
from fastdata.own_files import create_own, open_own, open_own_file
from fastdata.schema import Schema

__all__ = ["Hdf5ShardWriter"]

_ALIGNMENT_BYTES = 64


class Hdf5ShardWriter(ShardWriter):
    """Writes one HDF5 file; needs its size twice on the disk while sealing."""

    container = "hdf5"
    suffix = ".h5"

    def __init__(
        self, directory: Path, schema: Schema, state: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(directory, schema, state)
        self.path = directory / "shard.h5"
        for field in schema.images:
            name = self._blobs(field)
            # Each image has a checksum, which sealing compares.
            self._open_spool(name, directory / name, checked=False)

    @staticmethod
    def _blobs(field: str) -> str:
        """Return the name of a spool that no column has: no column ends in ``.blobs``."""
        return f"{field}.blobs"

    def _append_blobs(self, field: str, images: Sequence[EncodedImage]) -> None:
        self.spools[self._blobs(field)].append(b"".join([image.data for image in images]))

    def _commit_blobs(self) -> None:
        """Do nothing: the spools, images included, are synced together."""

    def _build(self, arrays: Mapping[str, Array], header_bytes: int) -> Layout:
        offsets: dict[str, int] = {}
        options = {
            "locking": False,
            "alignment_threshold": 1,
            "alignment_interval": _ALIGNMENT_BYTES,
        }
        os.close(create_own(self.path))
        with h5py.File(self.path, "w", **options) as file:
            file.attrs["format"] = "fastdata"
            file.attrs["version"] = 1
            for field in self.schema.images:
                shape = self._blob_shape(field, arrays)
                offsets[self._blobs(field)] = _allocate(
                    file, f"blobs/{field}", np.dtype("uint8"), shape
                )
            for name, array in arrays.items():
                offsets[name] = _allocate(file, f"columns/{name}", array.dtype, array.shape)
            header = _allocate(file, "header", np.dtype("uint8"), (header_bytes,))
        # The footer is a dataset: HDF5 cuts off unknown bytes if a tool opens the file for
        # writing.  Allocated alone, it ends the file.
        with h5py.File(self.path, "r+", **options) as file:
            footer = _allocate(file, "footer", np.dtype("uint8"), (FOOTER_BYTES,))
        descriptor = open_own(self.path, os.O_RDWR)
        try:
            for name, spool in self.spools.items():
                _copy_into(spool.path, spool.length, descriptor, offsets[name])
        finally:
            os.close(descriptor)
        blobs = {}
        for field in self.schema.images:
            lengths = arrays[f"{field}.length"].values()
            ends = np.cumsum(lengths, dtype=np.uint64)
            blobs[field] = ends - lengths + np.uint64(offsets[self._blobs(field)])
        columns = {name: offsets[name] for name in arrays}
        return Layout(self.path, footer, header, columns, blobs)

    def _blob_shape(self, field: str, arrays: Mapping[str, Array]) -> tuple[int, ...]:
        codecs = arrays[f"{field}.codec"].values()
        heights, widths = arrays[f"{field}.height"].values(), arrays[f"{field}.width"].values()
        same = all(np.all(values == values[:1]) for values in (codecs, heights, widths))
        if self.num_samples and same and CODECS[codecs[0]] == "raw":
            channels = self.schema.images[field].channels
            return (self.num_samples, int(heights[0]), int(widths[0]), channels)
        return (self.spools[self._blobs(field)].length,)


def _allocate(file: Any, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Make a contiguous dataset with room but no content; return its file offset."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    dataset = h5py.h5d.create(
        file.id,
        name.encode(),
        h5py.h5t.py_create(dtype, logical=True),
        h5py.h5s.create_simple(shape),
        creation,
        links,
    )
    return int(dataset.get_offset() or 0)


def _copy_into(source: Path, length: int, descriptor: int, offset: int) -> None:
    """Copy `length` bytes of a file into an open one, in the kernel where it can."""
    with open_own_file(source) as file:
        done = 0
        while done < length:
            try:
                count = os.copy_file_range(
                    file.fileno(), descriptor, length - done, done, offset + done
                )
            except OSError:
                # Not supported between these file systems: by hand.
                block = os.pread(file.fileno(), min(length - done, 1 << 22), done)
                count = os.pwrite(descriptor, block, offset + done)
            if count == 0:
                raise OSError(f"{source}: only {done} of {length} bytes could be read")
            done += count
