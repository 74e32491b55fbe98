"""WebDataset shards by Python's tarfile, which the reader does not use."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from cases import Case, Picture

__all__ = ["CASES", "write_tar"]


def write_tar(
    path: Path,
    members: Iterable[tuple[str, bytes]],
    mode: str = "w",
    format: int = tarfile.USTAR_FORMAT,
) -> Path:
    """Write an archive of members (name, content)."""
    with tarfile.open(path, mode, format=format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def members_of(pictures: Sequence[Picture], folder: str = "") -> list[tuple[str, bytes]]:
    return [
        member
        for p in pictures
        for member in (
            (f"{folder}{p.name}.jpg", p.data),
            (f"{folder}{p.name}.cls", str(p.label).encode()),
        )
    ]


def shards(folder: Path, pictures: Sequence[Picture]) -> str:
    half = len(pictures) // 2
    for number, part in enumerate((pictures[:half], pictures[half:])):
        write_tar(folder / f"train-{number:06}.tar", members_of(part))
    return str(folder / "train-{000000..000001}.tar")


def pax(folder: Path, pictures: Sequence[Picture]) -> Path:
    long = "ä" * 60 + "/" + "long" * 30 + "/"
    write_tar(folder / "a.tar", members_of(pictures, long), format=tarfile.PAX_FORMAT)
    return folder


def gnu(folder: Path, pictures: Sequence[Picture]) -> Path:
    return write_tar(
        folder / "a.tar", members_of(pictures, "./" + "long" * 60 + "/"), format=tarfile.GNU_FORMAT
    )


def gzipped(folder: Path, pictures: Sequence[Picture]) -> Path:
    return write_tar(folder / "a.tar.gz", members_of(pictures), "w:gz")


CASES = [
    Case("webdataset", "webdataset", shards),
    Case("webdataset-pax", "webdataset", pax),
    Case("webdataset-gnu", "webdataset", gnu),
    Case("webdataset-gzip", "webdataset", gzipped, shuffles=False),
]
