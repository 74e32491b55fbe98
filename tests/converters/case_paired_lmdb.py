"""Two LMDBs of BasicSR's side by side, as lmdb writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from case_lmdb import data_file, write_lmdb
from cases import Case, Picture
from pack_helpers import pil_file

__all__ = ["CASES", "small", "write_pair"]


def small(picture: Picture) -> bytes:
    """Return a picture at half its size."""
    return pil_file(picture.pixels[::2, ::2], "PNG")


def write_pair(
    folder: Path,
    pictures: Sequence[Picture],
    names: tuple[str, str] = ("DIV2K_train_HR_sub.lmdb", "DIV2K_train_LR_bicubic_X2_sub.lmdb"),
) -> Path:
    good = write_lmdb(folder / names[0], ((p.name.encode(), p.data) for p in pictures))
    bad = write_lmdb(folder / names[1], ((p.name.encode(), small(p)) for p in pictures))
    for path in (good, bad):
        lines = (f"{p.name}.png ({','.join(map(str, p.pixels.shape))}) 1\n" for p in pictures)
        (path / "meta_info.txt").write_text("".join(lines))
    return folder


CASES = [
    Case("lmdb-pair", "paired_lmdb", write_pair, labels=False, damage=data_file, image="gt"),
]
