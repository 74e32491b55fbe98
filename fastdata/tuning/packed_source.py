"""Loaders of packed data, like a given one, with other settings."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.assembly import packed_loader
from fastdata.engine.workers import choose_method
from fastdata.formats.layout import CODECS
from fastdata.options import LoaderOptions
from fastdata.tuning.key import Key, key_of
from fastdata.tuning.settings import Settings
from fastdata.unpacked.dataset import UnpackedDataset

__all__ = ["PackedSource"]


class PackedSource:
    """Loaders of packed data.

    Parameters
    ----------
    data : PackedData
    options : LoaderOptions
        What is in `Settings` is replaced.  Caches are left out: once they are full, no worker
        has anything to read.
    """

    def __init__(self, data: Any, options: LoaderOptions) -> None:
        self._data = data
        self._asked = options
        self._cache = options.cache
        self._options = dataclasses.replace(options, cache=None, cache_scope="all")
        self.device = options.target

    @property
    def base(self) -> Settings:
        """What ``"auto"`` means; a method that was asked for stays."""
        options = self._options
        if options.backend == "dali":
            return Settings(1, "thread", 2, options.pinned, options.persistent, "dali")
        method = options.worker_method
        if method == "auto":
            work = self._probe().backend._work
            method = choose_method(
                2,
                calls_python=not work.pipeline.direct,
                releases_lock=work.releases_lock,
                context=options.multiprocessing_context,
            )
        return Settings(1, method, 2, options.pinned, options.persistent, "cpu")

    @property
    def calls_python(self) -> bool:
        """Whether callables make samples."""
        return not self._probe().pipeline.direct

    def _probe(self) -> Any:
        return packed_loader(self._data, self._with(Settings(0)))

    def _with(self, settings: Settings) -> LoaderOptions:
        return dataclasses.replace(
            self._options,
            num_workers=settings.num_workers,
            worker_method=settings.worker_method,
            prefetch_factor=settings.prefetch_factor,
            pin_memory=settings.pin_memory,
            persistent_workers=settings.persistent_workers,
            backend=settings.backend if settings.backend == "dali" else "cpu",
        )

    @property
    def batch_size(self) -> int:
        """Samples a batch; of a batch sampler's the first one's."""
        batches = self._options.batch_sampler
        return self._options.batch_size if batches is None else len(next(iter(batches)))

    @property
    def paths(self) -> list[Path]:
        """The shards."""
        return list(getattr(self._data, "paths", []))

    @property
    def notes(self) -> list[str]:
        """Return what is measured otherwise than asked for."""
        if self._cache is None:
            return []
        return [f"measured without cache={self._cache!r}: these workers fill it in the first epoch"]

    @property
    def key(self) -> Key | None:
        """Of a loader of this data with these options."""
        return key_of(self._data, self._asked)

    @property
    def dali(self) -> bool:
        """Whether DALI could make these batches."""
        options = self._options
        possible = options.decoder == "auto" and options.worker_method != "process"
        return (
            options.backend == "auto"
            and possible
            and self._cache is None  # which DALI does not go with
            and not isinstance(self._data, UnpackedDataset)
            and importlib.util.find_spec("nvidia") is not None
            and importlib.util.find_spec("nvidia.dali") is not None
        )

    def images(self, batch: Any) -> dict[str, Any]:
        """Return what is known of the images, as `fastdata.tuning.subject.Facts` has it."""
        schema = self._data.schema
        name = next(iter(schema.images), None)
        if name is None:
            return {}
        found = _spread(self._data, name)
        if found is None:
            return {}
        codecs, sides, pixels = found
        made = getattr(batch, name, None)
        shape = made.shape[2:] if isinstance(made, torch.Tensor) and made.ndim == 4 else ()
        stored = int(np.median(sides)) if len(sides) else 0
        return {
            "codecs": tuple(sorted(codecs)),
            "image_sides": (stored, min(shape)) if len(shape) == 2 else (stored,),
            "decoded_bytes": pixels * schema.images[name].channels,
        }

    @contextlib.contextmanager
    def opened(self, settings: Settings) -> Iterator[Any]:
        """Make a loader, and close it in the end."""
        with packed_loader(self._data, self._with(settings)) as made:
            yield made


def _spread(data: Any, name: str) -> tuple[set[str], NDArray[np.int64], int] | None:
    """Return codecs of an image field, the shorter sides of its images, and pixels of all.

    Of files that are not packed by the sizes of some of them; None of other data.
    """
    if isinstance(data, UnpackedDataset):
        sizes = data.some_sizes(name)
        pixels = int(sizes.prod(axis=0).mean() * len(data)) if sizes.size else 0
        return {"file"}, sizes.min(axis=0), pixels
    if not hasattr(data, "shards"):
        return None
    codecs: set[str] = set()
    sides, pixels = [np.empty(0, np.int64)], 0
    for shard in data.shards:
        heights, widths, kinds = (
            np.asarray(shard.column(f"{name}.{column}")) for column in ("height", "width", "codec")
        )
        codecs |= {CODECS[code] for code in np.unique(kinds).tolist()}
        sides.append(np.minimum(heights, widths).astype(np.int64))
        pixels += int((heights.astype(np.int64) * widths).sum())
    return codecs, np.concatenate(sides), pixels
