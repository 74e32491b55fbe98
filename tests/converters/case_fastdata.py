"""fastdata's own shards, read to be packed again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cases import Case, Picture

import fastdata

__all__ = ["CASES"]


def packed(path: Path, pictures: Sequence[Picture]) -> Path:
    rows = [{"image": p.data, "label": p.label} for p in pictures]
    fastdata.pack(
        rows,
        path,
        codec="keep",
        num_workers=0,
        progress=False,
        shard_size=None if path.suffix else max(5, len(pictures) // 3),
    )
    return path


CASES = [
    Case("fastdata-lmdb", "fastdata", lambda folder, p: packed(folder / "a.lmdb", p)),
    Case("fastdata-hdf5", "fastdata", lambda folder, p: packed(folder / "a.h5", p)),
    Case("fastdata-shards", "fastdata", lambda folder, p: packed(folder / "a", p)),
]
