"""What it costs to open a shard, and to get the bytes of one image out of it.

    python scripts/bench/read_blobs.py --output read.jsonl

The same shards are read by fastdata (by file offset), by py-lmdb and by h5py.
Both shards have `--samples` images of `--bytes` random bytes, warm in the page
cache; every reader copies each image's bytes once.  Opening is timed in fresh
processes, on shards of `--many` tiny images.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import pages
from fastdata.formats.hdf5 import Hdf5ShardWriter
from fastdata.formats.layout import checksum
from fastdata.formats.lmdb import LmdbShardWriter
from fastdata.formats.reader import ShardReader
from fastdata.formats.writer import EncodedImage, Record, ShardWriter
from fastdata.installing import DISTRIBUTION
from fastdata.schema import ImageField, ScalarField, Schema
from harness import Contender, command_line, hardware
from results import Measured
from table import compare

WRITERS: dict[str, type[ShardWriter]] = {".lmdb": LmdbShardWriter, ".h5": Hdf5ShardWriter}
FILE, RAW = 3, 0


def write_shard(path: Path, samples: int, nbytes: int, codec: int) -> None:
    """Write a shard of images of random bytes."""
    schema = Schema({"image": ImageField(channels=1), "label": ScalarField()})
    writer = WRITERS[path.suffix](path.with_name(path.name + ".work"), schema)
    generator = np.random.default_rng(0)
    for start in range(0, samples, 1000):
        records = []
        for index in range(start, min(start + 1000, samples)):
            data = generator.bytes(nbytes)
            image = EncodedImage(data, codec, 1, nbytes, checksum(data))
            records.append(Record(f"class/{index:08}.jpg", (image, index % 1000)))
        writer.append(records)
    writer.seal(path, {})
    writer.close()
    shutil.rmtree(writer.directory)


def read_fastdata(path: str, order: np.ndarray[Any, Any], check: bool) -> float:
    """Read by file offset."""
    shard = ShardReader(path, check=check)
    shard.blob("image", 0)
    started = time.perf_counter()
    for index in order:
        bytes(shard.blob("image", index))
    return time.perf_counter() - started


def read_lmdb(path: str, order: np.ndarray[Any, Any], check: bool) -> float:
    """Read with py-lmdb, all in one transaction, without its copy."""
    import lmdb

    environment = lmdb.open(
        path, subdir=False, readonly=True, lock=False, readahead=False, lib_version=0
    )
    with environment.begin(buffers=True) as transaction:
        started = time.perf_counter()
        for index in order:
            bytes(transaction.get(b"image/%010d" % index, b""))
        return time.perf_counter() - started


def read_h5py(path: str, order: np.ndarray[Any, Any], check: bool) -> float:
    """Read slices of the flat dataset; the bounds are in memory."""
    import h5py

    with h5py.File(path) as file:
        blobs = file["blobs/image"]
        ends = np.cumsum(file["columns/image.length"][:]).tolist()
        bounds = [0, *ends]
        started = time.perf_counter()
        for index in order:
            blobs[bounds[index] : bounds[index + 1]].tobytes()
        return time.perf_counter() - started


READERS = {
    "fastdata lmdb": (read_fastdata, ".lmdb", True),
    "fastdata hdf5": (read_fastdata, ".h5", True),
    "fastdata lmdb, no check": (read_fastdata, ".lmdb", False),
    "fastdata hdf5, no check": (read_fastdata, ".h5", False),
    "py-lmdb": (read_lmdb, ".lmdb", False),
    "h5py": (read_h5py, ".h5", False),
}

OPENING = """
import json, sys, time
import numpy
import fastdata.opening
started = time.perf_counter()
dataset = fastdata.opening.open(sys.argv[1], check=sys.argv[2] == "check")
opened = time.perf_counter()
reader = next(dataset.shards)
bytes(reader.blob("image", len(reader) // 2))
print(json.dumps([opened - started, time.perf_counter() - opened]))
"""


def contend(name: str, options: dict[str, Any]) -> None:
    """Be one contender: read, and print the report."""
    read, suffix, check = READERS[name]
    order = np.random.default_rng(1).integers(0, options["samples"], options["reads"])
    path = options["work"] + "/blobs" + suffix
    read(path, order[:2000].tolist(), check)
    seconds = read(path, order.tolist(), check)
    versions = {name: version(name) for name in (DISTRIBUTION, "lmdb", "h5py", "numpy")}
    print(json.dumps({"images": len(order), "seconds": seconds, "versions": versions}))


def time_opening(work: Path, samples: int, rounds: int) -> list[dict[str, Any]]:
    """Open each large shard in fresh processes; return medians in milliseconds."""
    lines = []
    for suffix in WRITERS:
        path = work / f"many{suffix}"
        for check in ("check", "no check"):
            times = []
            for _ in range(rounds):
                command = [sys.executable, "-c", OPENING, str(path), check]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                times.append(json.loads(done.stdout))
            opening, first = (
                statistics.median(column) * 1e3 for column in zip(*times, strict=True)
            )
            values = {"open_ms": round(opening, 2), "first_image_ms": round(first, 2)}
            name = f"opening {suffix}, {check}"
            line = {"benchmark": "open_shard", "row": name, "samples": samples, "values": values}
            lines.append(line | {"hardware": hardware()})
    return lines


def main() -> int:
    """Make the shards and compare."""
    if sys.argv[1:2] == ["--contender"]:
        contend(sys.argv[2], json.loads(sys.argv[3]))
        return 0
    parser = command_line(__doc__, rounds=5)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=30_000)
    parser.add_argument("--reads", type=int, default=100_000)
    parser.add_argument("--many", type=int, default=1_000_000)
    options = parser.parse_args()
    work = options.work.resolve() / "read_blobs"
    work.mkdir(parents=True, exist_ok=True)
    output = options.output
    try:
        for suffix in WRITERS:
            write_shard(work / f"blobs{suffix}", options.samples, options.bytes, FILE)
            write_shard(work / f"many{suffix}", options.many, 4, RAW)
        opening = time_opening(work, options.many, options.rounds)
        for line in opening:
            print(json.dumps(line), file=output, flush=True)
        settings = {name: getattr(options, name) for name in ("samples", "bytes", "reads")}
        argument = json.dumps({**settings, "work": str(work)})
        contenders = [
            Contender(name, [sys.executable, __file__, "--contender", name, argument])
            for name in READERS
        ]
        code = compare(
            "read_blobs", contenders, rounds=options.rounds, settings=settings, output=output
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"\nA shard of {options.many:,} samples\n")
    print("\n".join(pages.open_shard(Measured.of(opening))))
    return code


if __name__ == "__main__":
    sys.exit(main())
