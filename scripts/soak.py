"""Kill packs, appends, merges, exports and the filling of caches, and see what is left.

Each job runs in a process of its own that gets SIGKILL at a random moment, and is run again, and
again killed, until one run comes to its end.  After every kill no process may be left and what has
the dataset's name must be whole; in the end there must be the same samples and the same files as
of a run that nobody disturbed, and nothing beside them.

    python scripts/soak.py --kills 1000
    python scripts/soak.py --kills 200 --job append --seed 3

The data are small and commits are frequent, so that kills fall between any two of them.  Prints one
line a job with what was counted, as JSON; the exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image
from tqdm import tqdm

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.converters.packing import packer
from fastdata.errors import DatasetNotFoundError, DestinationExistsError
from fastdata.formats.reader import find_damage

HANGS_SECONDS = 120.0
"""A run takes a few seconds."""

GONE_SECONDS = 10.0
"""A worker ends by itself within a moment once its parent has gone; a loaded machine is slow."""


@dataclass(frozen=True)
class Job:
    """What is killed.

    Attributes
    ----------
    run : callable
        ``run(folder)`` does it; in a process of its own.
    state : callable
        ``state(folder)`` describes what is there, after a kill and in the end.
    begin : callable
        ``begin(folder)`` lays out what a run begins with.
    may_be : callable
        ``may_be(state, first, last)``: whether a kill may leave this between those two.
    """

    run: Callable[[Path], None]
    state: Callable[[Path], Any]
    begin: Callable[[Path], None] = lambda folder: None
    may_be: Callable[[Any, Any, Any], bool] = lambda state, first, last: state in (first, last)


@dataclass
class Count:
    """What came of a job."""

    kills: int = 0
    runs_to_the_end: int = 0
    longest_seconds: float = 0.0
    """Of a run to the end: below 10, none can have hung for that long."""
    wrong: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="over all jobs; default 100")
    parser.add_argument("--job", help="only jobs whose names begin so")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)  # OpenMP's threads do not survive fork
    packer.CHUNK_SAMPLES, packer._COMMIT_BYTES = 4, 1
    with tempfile.TemporaryDirectory(prefix="fastdata-soak-") as name:
        tempfile.tempdir = os.path.join(name, "temporary")  # of all that runs here
        os.mkdir(tempfile.tempdir)
        jobs = jobs_over(Path(name) / "data")
        chosen = {name: job for name, job in jobs.items() if name.startswith(given.job or "")}
        if not chosen:
            parser.error(f"--job is one of {', '.join(jobs)}, or how some of them begin")
        each = -(-given.kills // len(chosen))
        wrong = 0
        for number, (label, job) in enumerate(chosen.items()):
            dice = random.Random(f"{given.seed} {label}")
            count = soak(job, Path(name) / f"job{number}", each, dice)
            wrong += len(count.wrong)
            print(json.dumps({"job": label, **vars(count)}), flush=True)
    return 1 if wrong else 0


def soak(job: Job, place: Path, kills: int, dice: random.Random) -> Count:
    """Kill a job so many times, over as many runs to its end as that makes."""
    place.mkdir()
    job.begin(place)
    first = job.state(place)
    began = time.monotonic()
    assert run_child(job.run, place, None) == 0, "undisturbed"
    seconds = time.monotonic() - began
    last, files = job.state(place), names_in(place)
    shutil.rmtree(place)
    count = Count()
    while count.kills < kills:
        place.mkdir()
        job.begin(place)
        # Kills in a row, so that one meets what another has left; then to the end.
        for _ in range(dice.randint(1, 5)):
            code = run_child(job.run, place, dice.uniform(0, seconds))
            if code == 0:
                break
            if code != -signal.SIGKILL:
                count.wrong.append(f"a run after {count.kills} kills ended with {code}")
                break
            count.kills += 1
            state = job.state(place)
            if not job.may_be(state, first, last):
                count.wrong.append(f"kill {count.kills} left {state}")
        began = time.monotonic()
        code = run_child(job.run, place, None)
        took = round(time.monotonic() - began, 1)
        count.longest_seconds = max(count.longest_seconds, took)
        if code != 0:
            count.wrong.append(f"the last run after {count.kills} kills ended with {code}")
        if (job.state(place), names_in(place)) != (last, files):
            count.wrong.append(f"after {count.kills} kills: {job.state(place)}, {names_in(place)}")
        count.runs_to_the_end += 1
        shutil.rmtree(place)
    return count


def run_child(run: Callable[[Path], None], place: Path, seconds: float | None) -> int:
    """Run something in a process, which is killed after so long; return its exit code.

    A process that it leaves behind counts as exit code 98, one that hangs as 99.
    """
    process = multiprocessing.get_context("fork").Process(target=quietly, args=(run, place))
    process.start()
    process.join(HANGS_SECONDS if seconds is None else seconds)
    hangs = seconds is None and process.is_alive()
    children = psutil.Process(process.pid).children(recursive=True) if process.is_alive() else []
    process.kill()
    process.join()
    code = process.exitcode
    process.close()
    _, alive = psutil.wait_procs(children, GONE_SECONDS)
    return 99 if hangs else 98 if alive else int(code or 0)


def quietly(run: Callable[[Path], None], place: Path) -> None:
    """Be the process: what is there already, because a kill came after the end, is no error."""
    # tqdm's own is shared with processes that are forked, and a killed one may hold it.
    tqdm.set_lock(threading.RLock())
    with suppress(DestinationExistsError):
        run(place)


# -- what is there --------------------------------------------------------------------------


def names_in(folder: Path) -> list[str]:
    """Return the names directly in a folder, and of temporary files."""
    return sorted(os.listdir(folder)) + os.listdir(tempfile.gettempdir())


def digest_of(path: Path) -> str | None:
    """Return the digest of a dataset that is whole; None where there is none."""
    try:
        dataset = fastdata.open(path)
    except DatasetNotFoundError:
        return None if not os.path.lexists(path) else "no dataset"
    damage = [found for shard in dataset.shards for found in find_damage(shard)]
    return f"damaged: {damage[0]}" if damage else dataset.digest


def tree_of(path: Path) -> str | None:
    """Return the hash of a folder's files and names; None where there is none."""
    if not path.exists():
        return None
    found = hashlib.sha256()
    for each in sorted(path.rglob("*")):
        found.update(str(each.relative_to(path)).encode() + b"\0")
        found.update(each.read_bytes() if each.is_file() else b"")
    return found.hexdigest()


def rejects_of(path: Path) -> str:
    """Return the list of rejects beside a dataset."""
    file = path.with_name(path.name + ".rejects.csv")
    return file.read_text() if file.exists() else ""


def packed_state(name: str) -> Callable[[Path], Any]:
    return lambda folder: digest_of(folder / name)


# -- jobs -----------------------------------------------------------------------------------


def images(root: Path, count: int, seed: int) -> Path:
    """Write small JPEGs in two class folders, some of them broken."""
    made = np.random.default_rng(seed)
    for number in range(count):
        folder = root / ("ant", "bee")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        pixels = made.integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(file, "JPEG", quality=80)
        bad = number % 17 == 3
        (folder / f"{number:03}.jpg").write_bytes(b"not an image" if bad else file.getvalue())
    return root


def jobs_over(data: Path) -> dict[str, Job]:
    """Return the jobs, by their names."""
    one, other = images(data / "one", 60, 1), images(data / "other", 40, 2)
    small: dict[str, Any] = {"size": 24, "num_workers": 0, "progress": False}
    for name, source in (("one", one), ("other", other)):
        fastdata.pack(source, data / f"{name}.lmdb", **small)
    fastdata.pack(one, data / "shards", shards=3, **small)
    jobs: dict[str, Job] = {}

    def pack_of(path: str, **options: Any) -> Job:
        return Job(
            lambda folder: void(fastdata.pack(one, folder / path, **{**small, **options})),
            lambda folder: (digest_of(folder / path), rejects_of(folder / path)),
            # The list of rejects comes just before the dataset gets its name.
            may_be=lambda state, first, last: state[0] in (first[0], last[0]),
        )

    jobs["pack lmdb"] = pack_of("x.lmdb")
    jobs["pack hdf5"] = pack_of("x.h5")
    jobs["pack shards"] = pack_of("x", shards=3)
    jobs["pack with workers"] = pack_of("x.lmdb", num_workers=2)

    def append_to(begun: str) -> Job:
        def begin(folder: Path) -> None:
            copy = shutil.copytree if (data / begun).is_dir() else shutil.copy
            copy(data / begun, folder / begun)

        def run(folder: Path) -> None:
            # A kill may have come after the end: a second run would add the samples again.
            left = any((folder / f"{begun}.append{end}").exists() for end in ("", ".json"))
            if len(fastdata.open(folder / begun)) < 90 or left:
                fastdata.append(folder / begun, other, num_workers=0, progress=False)

        return Job(run, packed_state(begun), begin)

    jobs["append to a file"] = append_to("one.lmdb")
    jobs["append to shards"] = append_to("shards")

    def merge(folder: Path) -> None:
        parts = [data / "one.lmdb", data / "other.lmdb"]
        fastdata.merge(parts, folder / "x.lmdb", progress=False)

    jobs["merge"] = Job(merge, packed_state("x.lmdb"))

    def export_as(format: str) -> Job:
        return Job(
            lambda folder: void(
                fastdata.export(data / "one.lmdb", folder / "x", format=format, progress=False)
            ),
            lambda folder: tree_of(folder / "x"),
        )

    jobs["export folder"] = export_as("folder")
    jobs["export webdataset"] = export_as("webdataset")

    def fill(folder: Path) -> None:
        found = hashlib.sha256()
        with fastdata.loader(
            data / "shards",
            batch_size=8,
            transform=[T.CenterCrop(16)],
            num_workers=2,
            worker_method="process",
            multiprocessing_context="fork",
            cache="ram",
        ) as loader:
            for _ in range(2):
                for batch in loader:
                    found.update(batch.image.contiguous().numpy().tobytes())
        part = folder / f"{os.getpid()}.new"
        part.write_text(found.hexdigest())
        os.replace(part, folder / "seen")

    def seen(folder: Path) -> Any:
        for left in folder.glob("*.new"):
            left.unlink()  # this script's own
        file = folder / "seen"
        return digest_of(data / "shards"), file.read_text() if file.exists() else None

    jobs["fill a cache in memory"] = Job(fill, seen)
    return jobs


def void(value: object) -> None:
    """Take no notice of what a job returns."""


if __name__ == "__main__":
    sys.exit(main())
