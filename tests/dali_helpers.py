"""What tests of the DALI backend share: they compare it with the CPU backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memory_data import digest

from fastdata.loading import Loader, loader


@contextmanager
def by_dali(data: Any, **options: Any) -> Iterator[Loader]:
    """Make a loader with the DALI backend, closed at the end."""
    defaults = {"batch_size": 16, "seed": 4, "num_workers": 2}
    with loader(data, backend="dali", **{**defaults, **options}) as it:
        yield it


@contextmanager
def by_cpu(data: Any, **options: Any) -> Iterator[Loader]:
    """Make the same loader with the CPU backend."""
    defaults = {"batch_size": 16, "seed": 4, "num_workers": 0}
    with loader(data, **{**defaults, **options}) as it:
        yield it


def without_pixels(batch: Any) -> str:
    """Return a fingerprint of all of a batch that is no image, and of the images' kind."""
    kinds = [
        (name, value.shape, value.dtype, value.stride())
        for name, value in batch._asdict().items()
        if name in ("image", "mask")
    ]
    rest = [value for name, value in batch._asdict().items() if name not in ("image", "mask")]
    return f"{kinds} {digest([rest])}"
