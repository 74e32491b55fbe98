"""Open forged headers, and run all commands on forged datasets; see that nothing unexpected comes.

    python scripts/fuzzing/headers.py --headers 1000000
    python scripts/fuzzing/headers.py --datasets 20000 --seed 0

All checksums of what is forged are right.  Headers are opened in one process, from a small file in
memory.  Datasets go through every command, in children of a few hundred, so that one that dies or
hangs is found with its number.  It is a mistake if anything but a `FastdataError` is raised, or a
command says "likely a bug".
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
import xxhash

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY / "tests")]

import test_fuzz  # noqa: E402
from samples import EVERY_KIND, FOOTER, LABELLED, header_of, make_records, write_shard  # noqa: E402
from test_fuzz import forge_one, load, mutate, originals, run_commands, run_in_child  # noqa: E402

import fastdata  # noqa: E402
import fastdata.converters.combining.append  # noqa: E402  # before the children are forked
import fastdata.converters.exporting.parquet  # noqa: E402
import fastdata.verifying  # noqa: E402
import fastdata.viewing.page  # noqa: E402
from fastdata.errors import FastdataError  # noqa: E402

AT_ONCE = 100
"""Datasets in one child."""

test_fuzz.CHILD_SECONDS = 1200  # machines may be busy


def open_headers(count: int, seed: int, folder: Path) -> int:
    """Open forged headers; print counts, and return the number of mistakes."""
    bases = []
    for number, schema in enumerate([LABELLED, LABELLED, LABELLED, EVERY_KIND]):
        options = {"codec": "jpeg", "size": [8, 8], "quality": 90, "limit": None, "dct_margin": 3.0}
        path = write_shard(folder / f"{number}.lmdb", make_records(schema, 1, size=(4, 4)), schema)
        document = header_of(path) | {"options": options}
        bases.append((path.read_bytes()[:-64], json.dumps(document)))
    random = np.random.default_rng(seed)
    found: Counter[str] = Counter()
    path = folder / "forged.lmdb"
    for number in range(count):
        body, text = bases[number % len(bases)]
        document = json.loads(text)
        for _ in range(1 + number % 3):
            document = mutate(document, random)
        header = json.dumps(document).encode()
        if number % 7 == 0:  # damage of the text: members that stand twice, other encodings
            at = int(random.integers(len(header)))
            header = header[:at] + header[at : at + 40] + header[at:]
        size = len(body) + len(header) + 64
        digest = xxhash.xxh3_64_intdigest
        end = FOOTER.pack(b"FASTDATA", 1, 0, len(body), len(header), digest(header), size)
        path.unlink(missing_ok=True)
        path.write_bytes(b"".join((body, header, end, struct.pack("<Q", digest(end)))))
        try:
            dataset = fastdata.open(path)
            repr(dataset)
            assert len(dataset.digest) == 32
            assert len(dataset) < 2**62
            found["opened"] += 1
        except FastdataError as error:
            found[type(error).__name__] += 1
        except Exception as error:
            found[f"WRONG {type(error).__name__}"] += 1
            if sum(n for name, n in found.items() if name.startswith("WRONG")) <= 20:
                print(header.decode(errors="replace")[:2000])
                traceback.print_exc()
        if (number + 1) % 50_000 == 0 or number + 1 == count:
            print(f"headers      {number + 1:,} opened: {dict(found)}", flush=True)
    return sum(n for name, n in found.items() if name.startswith("WRONG"))


def use_datasets(count: int, seed: int, folder: Path) -> int:
    """Run all commands on forged datasets; print the wrong ones, and return their number."""
    sources = originals.__wrapped__(_Folders(folder))  # type: ignore[attr-defined]
    wrong, at = 0, seed

    def run(number: int) -> None:
        random = np.random.default_rng(number)
        path = forge_one(sources[number % len(sources)], folder, random)
        run_commands(path, sources[number // 3 % 2], folder / "out" / str(number), number)
        load(path, number, check=number % 2 == 0)

    os.makedirs(folder / "out")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while at < seed + count:
        try:
            run_in_child(range(at, min(at + AT_ONCE, seed + count)), run)
            at += AT_ONCE
        except AssertionError as error:
            wrong += 1
            text = str(error)
            print(text[:6000], flush=True)
            at = int(text.rpartition("in seed ")[2].partition(":")[0]) + 1
        if (at - seed) % 1000 < AT_ONCE:
            print(f"datasets     {at - seed:,} through all commands, {wrong} wrong", flush=True)
    return wrong


class _Folders:
    """What the fixture `originals` takes of pytest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def mktemp(self, name: str) -> Path:
        (self._folder / name).mkdir()
        return self._folder / name


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--headers", type=int, default=0, help="forged headers to open")
    parser.add_argument("--datasets", type=int, default=0, help="forged datasets to use")
    parser.add_argument("--seed", type=int, default=0, help="number of the first one")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="fastdata-fuzz-") as folder:
        if options.headers:
            wrong += open_headers(options.headers, options.seed, Path(folder))
        if options.datasets:
            wrong += use_datasets(options.datasets, options.seed, Path(folder))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
