"""What tests of worker kinds share: packed shards, transforms that processes import, who is alive.

Everything here is at the top level of a module, so that spawned processes find it.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import xxhash
from samples import SUFFIXES, encode, mask, photo, pil_encode, write_shard, write_shards
from warm_python import servers

from fastdata import transforms as T  # noqa: N812
from fastdata.engine.workers import THREAD_NAME
from fastdata.formats.reader import ShardReader
from fastdata.formats.writer import EncodedImage, Record
from fastdata.loading import Loader, loader
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, Schema, StringField
from fastdata.transforms.base import GeometricTransform
from fastdata.transforms.geometry import Geometry

FIELDS: dict[str, Field] = {
    "image": ImageField(),
    "mask": ImageField(channels=1, mask=True),
    "label": ScalarField("int64"),
    "caption": StringField(),
    "points": ArrayField("float32", (None, 2)),
}
SCENES = Schema(FIELDS)
PICTURES = Schema({"image": ImageField(), "label": ScalarField("int64")})

RRC = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

METHODS = ["thread", "process"]


# -- shards -----------------------------------------------------------------------------


def scene(index: int, codec: str, size: tuple[int, int]) -> Record:
    """Return a record of `SCENES`."""
    values = (
        encode(photo(*size, seed=index), codec),
        encode(mask(*size, seed=index), "raw" if codec == "raw" else "png"),
        index * 3,
        f"caption {index}",
        np.full((index % 4, 2), index, np.float32),
    )
    return Record(f"scene/{index}", values)


def scenes(
    count: int = 40, codecs: Sequence[str] = ("jpeg",), size: tuple[int, int] | None = None
) -> list[Record]:
    """Return records of `SCENES`; images of up to 170 x 180 pixels unless of one `size`."""
    return [
        scene(index, codecs[index % len(codecs)], size or (130 + index % 41, 180 - index % 37))
        for index in range(count)
    ]


def pictures(count: int, codec: str = "jpeg", size: tuple[int, int] | None = None) -> list[Record]:
    """Return records of `PICTURES`, small and quickly made."""
    return [
        Record(
            f"picture/{index}",
            (encode(photo(*(size or (40 + index % 9, 50 - index % 7)), seed=index), codec), index),
        )
        for index in range(count)
    ]


def kept(pixels: np.ndarray[Any, Any]) -> EncodedImage:
    """Return an image as a JPEG without restart intervals, as ``codec="keep"`` leaves it."""
    data = pil_encode(pixels, "JPEG", quality=90)
    return encode(pixels, "jpeg")._replace(data=data, checksum=xxhash.xxh3_64_intdigest(data))


def layouts(folder: Path, records: Sequence[Record], schema: Schema) -> dict[str, Path]:
    """Write records as one shard and as three, in both containers."""
    found = {}
    third = len(records) // 3
    parts = records[: third + 1], records[third + 1 : 2 * third], records[2 * third :]
    for container, suffix in SUFFIXES.items():
        found[container] = write_shard(folder / f"data{suffix}", records, schema)
        found[f"{container} x 3"] = write_shards(
            folder / f"{container}-shards", parts, schema, container
        )
    return found


def damage_image(path: Path, *indices: int, field: str = "image") -> None:
    """Flip a bit in the middle of the stored bytes of images of a shard."""
    reader = ShardReader(path)
    middles = [
        int(reader.column(f"{field}.offset")[index] + reader.column(f"{field}.length")[index] // 2)
        for index in indices
    ]
    del reader
    with open(path, "r+b") as file:
        for middle in middles:
            file.seek(middle)
            byte = file.read(1)[0]
            file.seek(middle)
            file.write(bytes([byte ^ 0x10]))


# -- transforms -------------------------------------------------------------------------


def invert(image: torch.Tensor) -> torch.Tensor:
    """Return the negative; of one shape whatever comes in."""
    return 255 - image


def unchanged(image: torch.Tensor) -> torch.Tensor:
    """Return the image, of whatever shape it is."""
    return image


def as_values(sample: Any) -> Any:
    """Return a sample whose fields are of other types than the schema's."""
    return sample._replace(
        image=sample.image.float() / 2,
        label=torch.tensor([sample.label, -sample.label]),
        caption={"text": sample.caption, "length": len(sample.caption)},
    )


def float_if_odd(sample: Any) -> Any:
    """Return a sample of another dtype for odd places of `pictures` in blocks of 63."""
    return sample._replace(image=sample.image.float()) if sample.label % 63 % 2 else sample


def fail_at_seven(sample: Any) -> Any:
    """Fail at the sample of label 7 * 3."""
    if sample.label == 21:
        raise ZeroDivisionError("seven is not liked")
    return sample


class TwoArgumentsError(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def fail_unpicklably(image: torch.Tensor) -> torch.Tensor:
    """Raise what can be pickled, but not unpickled."""
    raise TwoArgumentsError("one", "two")


def slow(image: torch.Tensor) -> torch.Tensor:
    """Take a while."""
    time.sleep(0.02)
    return image


class WindowByIndex(GeometricTransform):
    """Cut a rectangle that a function of the sample's index decides, and perhaps resize it.

    Makes pixels comparable with a reference that knows nothing of fastdata's draws.
    """

    def __init__(
        self,
        window_of: Callable[[int, int, int], tuple[int, int, int, int]],
        size: tuple[int, int],
        *,
        resize: bool = True,
        antialias: bool | None = None,
    ) -> None:
        self.window_of, self.size = window_of, size
        self.resize, self.antialias = resize, antialias

    @property
    def output_size(self) -> tuple[int, int]:
        return self.size

    def plan(self, geometry: Geometry, draws: Any) -> Geometry:
        windows = [
            self.window_of(int(index), int(height), int(width))
            for index, height, width in zip(
                draws.indices, geometry.height, geometry.width, strict=True
            )
        ]
        geometry = geometry.window(*np.array(windows).T)
        if not self.resize:
            return geometry
        return geometry.resize(*self.size, "bilinear", self.antialias)


# -- who is alive -----------------------------------------------------------------------


class TurnByIndex(GeometricTransform):
    """Each image in the orientation of its index: quarter turns, then perhaps a flip."""

    keeps_size = True  # where they are square

    def plan(self, geometry: Geometry, draws: Any) -> Geometry:
        return geometry.turn(draws.indices).mirror(draws.indices // 4 % 2 == 1)

    def __repr__(self) -> str:
        return "TurnByIndex()"  # it names a test, whichever process collects it


def worker_threads() -> list[str]:
    """Return the names of fastdata's worker threads."""
    return [t.name for t in threading.enumerate() if t.name.startswith(THREAD_NAME)]


def worker_processes() -> list[psutil.Process]:
    """Return the worker processes of this one, helpers of multiprocessing and tests left out."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            command, parent = " ".join(child.cmdline()), child.ppid()
        except psutil.Error:
            continue
        # What the fork server has forked looks as itself does.
        server = "forkserver import main" in command and parent == os.getpid()
        if "resource_tracker" not in command and not server and child.pid not in servers:
            found.append(child)
    return found


def workers() -> list[Any]:
    """Return whatever works for a loader, of both kinds."""
    return [*worker_threads(), *worker_processes()]


def no_workers_soon() -> bool:
    """Wait until all workers have ended, of which some may be held by a reference cycle.

    As of all waits here, pytest's limit is the only one.
    """
    while workers():
        gc.collect()
        time.sleep(0.01)
    return True


EPOCHS = 2

PIPELINES: dict[str, Any] = {
    "crop": RRC,
    "antialias": [T.RandomResizedCrop(24, antialias=True)],
    "float": [*RRC, T.Normalize(MEAN, STD), T.ToDtype(torch.float16)],
    "padding": [T.RandomCrop(100, padding=8), T.RandomHorizontalFlip()],
    "callable": [*RRC, T.ImageOnly(invert)],
    "callable between": [T.CenterCrop(120), T.ImageOnly(invert), *RRC, T.Normalize(MEAN, STD)],
    "callable of types": [*RRC, T.PerSample(as_values)],
}


def epochs_of(path: Path, transform: Any, count: int = EPOCHS, **options: Any) -> list[Any]:
    """Return all batches of the first epochs."""
    defaults = {"batch_size": 16, "shuffle": True, "seed": 5, "num_workers": 0}
    with loader(path, transform=transform, **{**defaults, **options}) as it:
        return [batch for _ in range(count) for batch in it]


def forked(data: Any, **options: Any) -> Loader:
    """Return a loader with two forked workers."""
    defaults = {"transform": RRC, "num_workers": 2, "worker_method": "process"}
    return loader(data, **{**defaults, "multiprocessing_context": "fork", **options})


def pids() -> list[int]:
    """Return the process IDs of all workers."""
    return sorted(process.pid for process in worker_processes())


def has_ended(pid: int) -> bool:
    """Wait until a process has ended; one that only waits to be asked about has."""
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)


def in_use_soon(it: Loader, count: int) -> bool:
    """Wait until so few buffers are in use: the workers have let go of theirs."""
    while it.stats().buffers_in_use > count:
        time.sleep(0.01)
    return True
