"""Where the batches of CIFAR are: in a folder, in the archive as downloaded, or one alone.

An archive is looked through once, from its front; the pixels are passed over.  Names in it
are compared with those that batches have, and nothing is unpacked.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular

from ..compression import compression_of, inflated_start, open_inflated
from ..forward_reader import ForwardReader
from ..locations import first_bytes
from .cifarbatch import Batch, BatchName, batch_name, binary_batch, pickled_batch, read_names

__all__ = ["CifarFiles", "cifar_folder", "is_archive", "is_batch", "look_at"]

FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin", "cifar-100-python", "cifar-100-binary")
_TEXTS = {
    "batches.meta.txt": "label_names",
    "fine_label_names.txt": "fine_label_names",
    "coarse_label_names.txt": "coarse_label_names",
}
_PICKLES = ("batches.meta", "meta")
_LARGEST = 1 << 20
"""Of a file of names."""


class CifarFiles(NamedTuple):
    """What is at a location.

    Attributes
    ----------
    batches : list of (Path, Batch)
        With the file that each is in.
    compressed : bool
        Whether this file can be read only from its front.
    names : dict
        Lists of class names, as CIFAR calls them.
    failure : str
        Why an archive could not be looked at to its end.
    """

    batches: list[tuple[Path, Batch]]
    compressed: bool
    names: dict[str, tuple[str, ...]]
    failure: str


def cifar_folder(location: str | os.PathLike[str]) -> Path | None:
    """Return the folder with the batches: this one, or one of CIFAR's in it; None if neither."""
    path = Path(location)
    for folder in (path, *(path / name for name in FOLDERS)):
        if folder.is_dir() and any(is_batch(folder / name) for name in _candidates(folder)):
            return folder
    return None


def _candidates(folder: Path) -> list[str]:
    names = [
        entry.name for entry in os.scandir(folder) if entry.is_file() and batch_name(entry.name)
    ]
    return sorted(names, key=_order)


def _order(name: str) -> tuple[bool, int, str]:
    kind = batch_name(name)
    assert kind is not None
    return kind.split != "train", kind.number, name


def is_batch(path: Path) -> bool:
    """Tell whether a file is called like a batch and begins like one."""
    kind = batch_name(path.name)
    if kind is None or not path.is_file():
        return False
    if not kind.binary:
        start = first_bytes(path, 12)
        return start[:1] == b"\x80" and start[1:2] in b"\2\3\4\5" and start[2:3] in b"}\x95"
    if kind.hundred:  # train.bin may be anything
        return (path.parent / "fine_label_names.txt").is_file()
    return path.stat().st_size > 0


def is_archive(path: Path) -> bool:
    """Tell whether a file is the archive as downloaded, by what its first member is called."""
    start = first_bytes(path, 1 << 14)
    if compression_of(start):
        start = inflated_start(start, 512)
    name = start[:100].split(b"\0")[0].decode("latin-1")
    return start[257:262] == b"ustar" and name.split("/")[0] in FOLDERS


def look_at(location: str | os.PathLike[str]) -> CifarFiles:
    """Look at all batches at a location.

    Raises
    ------
    SourceError
        If there are none.
    """
    path = Path(location)
    if path.is_file() and batch_name(path.name) is None:
        found = _in_archive(path)
    else:
        found = _in_folder(path)
    if not found.batches:
        reason = f" ({found.failure})" if found.failure else ""
        raise SourceError(
            f"{path}: no batches of CIFAR there{reason}. Expected "
            "data_batch_1 to data_batch_5 and test_batch, or train and test, or these with .bin"
        )
    return found


def _in_folder(path: Path) -> CifarFiles:
    alone = path.is_file()
    folder = path.parent if alone else cifar_folder(path)
    if folder is None:
        return CifarFiles([], False, {}, "")
    batches = []
    for name in [path.name] if alone else _candidates(folder):
        kind = batch_name(name)
        if kind is None or not (alone or kind.binary or is_batch(folder / name)):
            continue
        file = folder / name
        size = file.stat().st_size
        with open(file, "rb", opener=open_regular) as opened:
            batches.append((file, _batch(name, kind, opened, 0, size, file)))
    names: dict[str, tuple[str, ...]] = {}
    for name in (*_PICKLES, *_TEXTS):
        file = folder / name
        if file.is_file() and file.stat().st_size <= _LARGEST:
            with open(file, "rb", opener=open_regular) as opened:
                names |= _names_in(name, opened, file.stat().st_size)
    return CifarFiles(batches, False, names, "")


def _in_archive(path: Path) -> CifarFiles:
    compressed = compression_of(first_bytes(path, 16)) != ""
    batches: list[tuple[Path, Batch]] = []
    names: dict[str, tuple[str, ...]] = {}
    failure = ""
    try:
        with open_inflated(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in _files_of(tar):
                name = member.name.rpartition("/")[2]
                kind, opened = batch_name(name), tar.extractfile(member)
                if opened is None:
                    continue
                if kind is not None:
                    offset, size = member.offset_data, member.size
                    batches.append((path, _batch(name, kind, opened, offset, size, path)))
                elif (name in _PICKLES or name in _TEXTS) and member.size <= _LARGEST:
                    names |= _names_in(name, opened, member.size)
            if _rest_of(stream).strip(b"\0"):
                failure = f"{path}: what comes behind byte {tar.offset:,} is no tar"
    except SourceError as error:
        failure = str(error)
    except (OSError, tarfile.TarError, ValueError) as error:
        failure = f"{path}: {error}"
    if not compressed:
        batches.sort(key=lambda found: _order(found[1].name))
    return CifarFiles(batches, compressed, names, failure)


def _files_of(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in tar:
        tar.members = []  # type: ignore[attr-defined]  # else it remembers each
        if member.isreg():
            yield member


def _rest_of(stream: IO[bytes]) -> bytes:
    """Read a stream to its end; return what in it is not zeros, as far as that matters."""
    found = b""
    while piece := stream.read(1 << 16):
        found = found or piece.strip(b"\0")[:1]
    return found


def _batch(
    name: str, kind: BatchName, file: IO[bytes], offset: int, size: int, path: Path
) -> Batch:
    if kind.binary:
        return binary_batch(name, kind, offset, size)

    def read(at: int, length: int) -> bytes:
        compressed = compression_of(first_bytes(path, 16)) != ""
        with ForwardReader(path, compressed=compressed) as again:
            data, reason = again.read_some(at, length)
        if reason:
            raise SourceError(reason)
        return data

    buffered: Any = file if isinstance(file, io.BufferedReader) else io.BufferedReader(file)
    return pickled_batch(name, kind, buffered, offset, size, read)


def _names_in(name: str, file: IO[bytes], size: int) -> dict[str, tuple[str, ...]]:
    if name in _PICKLES:
        return read_names(file, size)
    lines = file.read(_LARGEST).decode("utf-8", "replace").split("\n")
    texts = tuple(line.strip() for line in lines if line.strip())
    return {_TEXTS[name]: texts} if texts else {}
