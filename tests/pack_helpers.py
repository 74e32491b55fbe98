"""What the tests of packing share: sources, digests, and packers in processes of their own."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from samples import photo
from tqdm import tqdm

import fastdata
from fastdata.converters.packing import packer
from fastdata.errors import DatasetNotFoundError, DestinationExistsError

__all__ = [
    "FORMS",
    "ORIENTED",
    "QUICK",
    "SMALL",
    "Pictures",
    "digest_of",
    "finish",
    "held_pack",
    "image_folder",
    "jpegs",
    "like_image_folder",
    "open_if_there",
    "pil_file",
    "pixels",
    "png",
    "quick_commits",
    "rejects_of",
    "run_child",
    "slow_pack",
    "start_child",
    "start_pack_apart",
    "two_broken",
    "unfinished_pack",
    "with_bad_images",
    "with_orientation",
]

FORMS: dict[str, dict[str, Any]] = {
    "lmdb": {"container": "lmdb"},
    "hdf5": {"container": "hdf5"},
    "lmdb shards": {"container": "lmdb", "shards": 3},
    "hdf5 shards": {"container": "hdf5", "shard_size": 5},
}
"""Options of `pack` for every form that a dataset has."""

QUICK: dict[str, Any] = {"size": 24, "num_workers": 0}
"""Options of a pack without processes."""

SMALL = {"size": 24, "resize": "short", "num_workers": 0}
"""Options of a pack that takes little time."""

ORIENTED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: a.transpose(1, 0, 2)[:, ::-1],
    7: lambda a: a.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda a: a.transpose(1, 0, 2)[::-1],
}
"""What each Exif orientation does to stored rows and columns (Exif 2.3, table 6)."""


def pil_file(picture: Any, kind: str, **options: Any) -> bytes:
    """Return a file, as PIL writes it, of an array or a PIL image."""
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def with_orientation(picture: Any, orientation: int, kind: str, **options: Any) -> bytes:
    """Return a file whose Exif tag says how to turn it."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return pil_file(picture, kind, exif=exif, **options)


def pixels(value: Any) -> np.ndarray[Any, Any]:
    """Return an image of a sample as H x W x C."""
    array: np.ndarray[Any, Any] = value.permute(1, 2, 0).numpy()
    return array


def image_folder(
    root: Path, count: int = 12, *, classes: Iterable[str] = ("ant", "bee"), side: int = 40
) -> Path:
    """Make class folders with `count` different JPEGs in all, which take little time to make."""
    names = list(classes)
    base = photo(side, side + 20, seed=5)
    for index in range(count):
        folder = root / names[index % len(names)]
        folder.mkdir(parents=True, exist_ok=True)
        rolled = np.roll(base, 3 * index + 1, axis=1)
        (folder / f"{index:05}.jpg").write_bytes(pil_file(rolled, "JPEG", quality=80))
    return root


def with_bad_images(root: Path, numbers: tuple[int, ...]) -> Path:
    """Break some of a folder's images."""
    files = sorted(root.rglob("*.jpg"))
    for number in numbers:
        files[number].write_bytes(b"not an image")
    return root


def png(value: int = 0) -> bytes:
    """Return a small PNG of one colour."""
    return pil_file(Image.new("RGB", (70, 70), (value % 256, value // 256, 9)), "PNG")


def digest_of(path: Path) -> str:
    """Return the digest of a dataset, every byte of which has been looked at."""
    from fastdata.formats.reader import find_damage

    dataset = fastdata.open(path)
    for shard in dataset.shards:
        assert next(find_damage(shard), None) is None
    return dataset.digest


def open_if_there(path: Path) -> str | None:
    """Return the digest of what is taken for a dataset at `path`; None where nothing is."""
    try:
        return digest_of(path)
    except DatasetNotFoundError:
        assert not os.path.lexists(path)
        return None


def rejects_of(path: Path) -> str:
    """Return the list of rejects beside a dataset."""
    file = path.with_name(path.name + ".rejects.csv")
    return file.read_text() if file.exists() else ""


def finish(source: Any, path: Path, **options: Any) -> str:
    """Run a pack again until it is done, as somebody would at a shell; return the digest."""
    try:
        report = fastdata.pack(source, path, **options)
    except DestinationExistsError:
        pass  # it was complete, and only the tidying up was left
    else:
        assert report.digest == fastdata.open(path).digest
    assert not path.with_name(path.name + ".partial").exists()
    return digest_of(path)


def quick_commits(chunk_samples: int = 4) -> None:
    """Commit after every chunk, and make chunks small."""
    packer.CHUNK_SAMPLES = chunk_samples
    packer._COMMIT_BYTES = 1


def slow_pack(
    source: Any, path: Path, options: dict[str, Any], chunk_seconds: float = 0.012
) -> None:
    """Pack in a process of its own, at leisure."""
    take = packer.Packer._take

    def slowly(self: Any, result: Any) -> None:
        time.sleep(chunk_seconds)
        take(self, result)

    packer.Packer._take = slowly  # type: ignore[method-assign]
    fastdata.pack(source, path, **options)


def held_pack(source: Any, path: Path, options: dict[str, Any], until: Path) -> None:
    """Pack in a process of its own; once some of it is committed, go on when a file is there."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which is pytest's
    signal.alarm(150)  # where a test that failed has not ended it
    take, state = packer.Packer._take, Path(f"{path}.partial", "state.json")

    def held(self: Any, result: Any) -> None:
        take(self, result)
        while state.exists() and not until.exists():
            time.sleep(0.002)

    packer.Packer._take = held  # type: ignore[method-assign]
    fastdata.pack(source, path, **options)


def _child(action: Callable[..., None], args: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    torch.set_num_threads(1)  # OpenMP's threads do not survive fork
    # tqdm's own is shared with processes that are forked, and a killed one may hold it.
    tqdm.set_lock(threading.RLock())
    quick_commits()
    action(*args)


def start_child(action: Callable[..., None], *args: Any) -> Any:
    """Run `action` in a forked process: it has everything imported already."""
    process = multiprocessing.get_context("fork").Process(target=_child, args=(action, args))
    process.start()
    return process


def run_child(action: Callable[..., None], *args: Any) -> int:
    """Run `action` in a forked process; return its exit code."""
    process = start_child(action, *args)
    process.join()
    code = process.exitcode
    process.close()
    assert isinstance(code, int)
    return code


def _pack_apart(source: Path, place: str, options: dict[str, Any], temporary: Path) -> None:
    tempfile.tempdir = str(temporary)  # where a killed one leaves a folder
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    fastdata.pack(source, place, **options)


def start_pack_apart(
    source: Path, place: str, options: dict[str, Any], temporary: Path
) -> ForkServerProcess:
    """Pack in a process that has used nothing, whose temporary files are in a folder.

    In one that is forked from a process that has used it, obstore does not work.
    """
    process = multiprocessing.get_context("forkserver").Process(
        target=_pack_apart, args=(source, place, options, temporary)
    )
    process.start()
    return process


class Pictures(torch.utils.data.Dataset[Any]):
    """A map-style Dataset, and where it has been called."""

    def __init__(self, count: int = 20) -> None:
        self.count = count
        self.home = os.getpid()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return {
            "image": np.full((70, 71, 3), index, np.uint8),
            "label": index % 3,
            "elsewhere": os.getpid() != self.home,
        }


def jpegs(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jpg"))


def like_image_folder(folder: Path) -> Any:
    """Return what has the attributes of a ``torchvision.datasets.ImageFolder``."""
    image_folder(folder, 7)
    return SimpleNamespace(
        root=str(folder),
        classes=["ant", "bee"],
        samples=[(str(p), ["ant", "bee"].index(p.parent.name)) for p in jpegs(folder)],
        transform=None,
        target_transform=None,
    )


def two_broken(root: Path) -> Path:
    """Write forty images of two classes, two of them broken."""
    image_folder(root, 40)
    files = jpegs(root)
    files[4].write_bytes(b"")
    files[30].write_bytes(b"<html>")
    return root


class Stopped(BaseException):
    """Like KeyboardInterrupt, but not pytest's."""


def unfinished_pack(source: Any, path: Path, options: dict[str, Any], chunks: int = 2) -> None:
    """Leave an unfinished pack, as one that was stopped after some chunks."""
    take = packer.Packer._take
    left = [chunks]

    def taking(self: Any, result: Any) -> None:
        take(self, result)
        left[0] -= 1
        if left[0] == 0:
            raise Stopped

    packer.Packer._take = taking  # type: ignore[method-assign]
    try:
        fastdata.pack(source, path, **options)
    except Stopped:
        return
    finally:
        packer.Packer._take = take  # type: ignore[method-assign]
    raise AssertionError("the pack was done before that")
