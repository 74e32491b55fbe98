"""Feed a training loop from an object store with fastdata and with its peers, in turns.

    python scripts/bench/remote.py --images DIR --output remote.jsonl
    python scripts/bench/remote.py --images DIR --only fastdata --rounds 5

The store is nginx on this machine, with 30 ms to the first byte of each answer and 85 MB/s a
stream (`nginx.py`), and takes its part of the processors.  All contenders read the same photographs
class by class, each in its own format, and make what those of `load.py` make: 224 px random resized
crops with a flip, uint8, batches of 256, two workers.  `contenders/stored_epochs.py` tells how
epochs are timed.

Peers have the settings of their documentation: shards of 64 MB, their default shuffle, a cache on
the same disk, workers that stay.  LitData and MosaicML Streaming have no scheme for plain HTTP, and
ask the same server as an S3 endpoint; WebDataset reads by curl.  With a cache of a tenth of the
data they have shards of 2 MB, as one of 64 MB would not fit into it; MosaicML Streaming is not
among them: its default order is that of all shards at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nginx
from bench_data import Datasets, find_images
from figures import line_of, print_rows
from harness import Contender, ContenderFailedError, Results, Run, command_line, run_rounds
from measures import Row, reported, value
from peers import contender

SHARD_MB, SMALL_SHARD_MB = 64, 2
TENTH = ", a tenth"
EPOCHS, PEER_EPOCHS = 3, 1
FILES, WARM, COLD = "fastdata, files", "fastdata, warm cache", "fastdata"
FAULTY = f"fastdata{TENTH}, faults"
PEERS = ("LitData", "MosaicML Streaming", "WebDataset", "WebDataset, no cache")
BOUNDED = tuple(f"{name}{TENTH}" for name in ("LitData", "WebDataset"))
NAMES = (FILES, WARM, COLD, f"fastdata{TENTH}", FAULTY, *PEERS, *BOUNDED)


def memory_mb(run: Run) -> float:
    """Return the highest memory, with that of a downloader that is nobody's child."""
    downloader = float(run.report.get("downloader_peak_bytes", 0.0))
    return (run.peak_memory_bytes + downloader) / 1e6


def disk_mb(run: Run) -> float:
    """Return what the cache took on the disk at most."""
    return float(run.report["peak_disk_bytes"]) / 1e6


FIGURES: dict[str, tuple[str, Callable[[Run], float]]] = {
    "first batch": ("s", reported("first_batch")),
    "first epoch": ("images/s", value),
    "fetched over data": ("x", reported("fetched_over_data")),
    "later epochs": ("images/s", reported("later")),
    "dispersion": ("x", reported("dispersion")),
    "disk": ("MB", disk_mb),
    "memory": ("MB", memory_mb),
}
"""What the table of all contenders shows: unit, and what is taken of a run."""


class Store:
    """What contenders need of a server that runs: how each comes to its data."""

    def __init__(self, data: Datasets, served: nginx.Served, caches: Path, workers: int) -> None:
        self._data = data
        self._served = served
        self._caches = caches
        self._workers = workers

    def make(self, name: str) -> Contender:
        """Return the contender of this name."""
        if name.startswith("fastdata"):
            return self._fastdata(name)
        script, peer, module = {
            "LitData": ("remote_litdata.py", "litdata", "litdata"),
            "MosaicML Streaming": ("remote_mds.py", "mds", "streaming"),
            "WebDataset": ("remote_webdataset.py", "webdataset", "webdataset"),
        }[name.partition(",")[0]]
        modules = [module, "cv2"]
        absent = contender(name, script, {}, peer=peer, modules=modules)
        if absent.why_absent():
            return absent
        megabytes = SMALL_SHARD_MB if name.endswith(TENTH) else SHARD_MB
        try:
            options = self._peer(name, peer, megabytes)
        except ContenderFailedError as error:
            return Contender(name, missing=str(error))
        return contender(name, script, options, peer=peer, modules=modules)

    def _fastdata(self, name: str) -> Contender:
        path = self._data.shards()
        options = self._options(name, path)
        if name == FILES:
            options["data"] = str(path)
            del options["log"]
        else:
            url = self._served.faulty if name == FAULTY else self._served.url
            options["data"] = f"{url}/{path.parent.name}/{path.name}"
        if name == WARM:
            options["kept"] = str(self._caches / "kept")
        return contender(name, "remote_fastdata.py", options, modules=["fastdata", "obstore"])

    def _peer(self, name: str, peer: str, megabytes: int) -> dict[str, Any]:
        if peer == "webdataset":
            path = self._data.sorted_tars(megabytes)
            return {
                **self._options(name, path),
                "data": f"{self._served.url}/{path.parent.name}/{path.name}",
                "shards": sorted(file.name for file in path.iterdir()),
                "cached": "no cache" not in name,
            }
        path = self._data.stored(peer, megabytes)
        url = f"s3://{path.parent.name}/{path.name}"  # the bucket is the first folder of a path
        return {**self._options(name, path), "data": url, "endpoint": self._served.url}

    def _options(self, name: str, path: Path) -> dict[str, Any]:
        nbytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        options = {
            "workers": self._workers,
            "epochs": EPOCHS if name.startswith("fastdata") else PEER_EPOCHS,
            "caches": str(self._caches),
            "log": str(self._served.log),
            "data_bytes": nbytes,
        }
        return {**options, "cache_bytes": nbytes // 10} if TENTH in name else options


def rows_of(chosen: list[str], results: Results) -> list[Row]:
    """Return what is asked, then what each of the chosen contenders reached."""
    rates = {
        name: statistics.median(run.value for run in runs)
        for name in PEERS
        if (runs := results.counted(name))
    }
    best = max(rates, key=rates.__getitem__) if rates else PEERS[0]
    later, tenth = reported("later"), f"fastdata{TENTH}"
    asked = [
        Row("warm cache over files", WARM, FILES, bar=0.97, measure=later),
        Row("first epoch over the best peer's", COLD, best, bar=1.5),
        Row(
            "bytes fetched in the first epoch over those of the data",
            COLD,
            bar=1.02,
            at_most=True,
            measure=reported("fetched_over_data"),
        ),
        Row("first batch", COLD, unit="s", bar=1.0, at_most=True, measure=reported("first_batch")),
        Row(
            "a cache of a tenth over a whole one, later epochs", tenth, COLD, bar=0.9, measure=later
        ),
        Row(
            "a cache of a tenth over a whole one, three epochs from nothing",
            tenth,
            COLD,
            bar=0.9,
            measure=reported("all"),
        ),
        Row(
            "disk over cache_bytes",
            tenth,
            bar=1.0,
            at_most=True,
            measure=reported("peak_over_limit"),
        ),
        Row("errors in 1% of answers over none", FAULTY, tenth, bar=0.9, measure=reported("all")),
    ]
    reached = [
        Row(f"{name}: {what}", name, unit=unit, measure=measure)
        for name in chosen
        for what, (unit, measure) in FIGURES.items()
        if what != "later epochs" or name.startswith("fastdata")  # peers have one epoch
    ]
    return [row for row in asked if {row.contender, row.over} <= {*chosen, ""}] + reached


def main() -> int:
    """Read the command line and compare."""
    parser = command_line(__doc__, rounds=3)
    parser.add_argument("--images", type=Path, help="folder of class folders of JPEG files")
    parser.add_argument("--samples", type=int, default=64000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--only", action="append", help="contenders whose name has this in it; may be repeated"
    )
    given = parser.parse_args()
    if why := nginx.why_absent():
        raise SystemExit(why)
    data = Datasets(find_images(given.images), given.work.resolve() / "remote", given.samples)
    chosen = [name for name in NAMES if not given.only or any(part in name for part in given.only)]
    data.work.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=data.work) as caches,
        nginx.serving(data.work.parent) as served,
    ):
        store = Store(data, served, Path(caches), given.workers)
        results = run_rounds(
            "remote",
            [store.make(name) for name in chosen],
            rounds=given.rounds,
            settings=settings_of(given),
            output=given.output,
        )
    lines = [line_of("remote", row, results) for row in rows_of(chosen, results)]
    for line in lines:
        print(json.dumps(line), file=given.output, flush=True)
    print_rows(lines)
    return 1 if results.failed else 0


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """Return what the JSON lines tell."""
    return {
        "samples": given.samples,
        "workers": given.workers,
        "first_byte_seconds": nginx.FIRST_BYTE_SECONDS,
        "stream_bytes_per_second": nginx.STREAM_BYTES_PER_SECOND,
        "faults": nginx.FAULTS,
        "shard_mb": SHARD_MB,
        "small_shard_mb": SMALL_SHARD_MB,
    }


if __name__ == "__main__":
    sys.exit(main())
