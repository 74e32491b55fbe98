"""Kill packs to an object store, and downloaders of datasets in one, and compare the results.

    python scripts/soak_stores.py --kills 100
    python scripts/soak_stores.py --kills 100 --job downloaders --seed 3

``packs``: a pack in parts to a bucket gets SIGKILL at random moments and is run again until one run
comes to its end.  After every kill the bucket has no dataset or a whole one; in the end it has the
samples of an undisturbed pack, and no other objects.

``downloaders``: a loader reads a dataset by HTTP through a cache that has room for a part of it,
while its downloaders get SIGKILL at random moments.  Every epoch must have the batches of the
files, and if no batch comes for 10 s, a message must say what is waited for.

Needs obstore and moto.  Prints one line a job with what was counted, as JSON; the exit code is 1 if
anything was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch

import fastdata
from fastdata.converters.packing import packer
from fastdata.errors import DestinationExistsError
from fastdata.remote.folder import CacheFolder
from fastdata.remote.verifying import damaged_columns, damaged_samples
from soak import Count, digest_of, images, run_child

TESTS = Path(__file__).resolve().parents[1] / "tests"

SILENT_SECONDS = 12.0
"""Without a batch and without a message: 10 s until the message, and a loaded machine."""

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=testing/x/us-east-1/s3/aws4_request"}

SERVE_S3 = """
import sys
from object_server import s3_server
with s3_server() as server:
    print(server.endpoint, flush=True)
    sys.stdin.read()
"""

SERVE_FILES = """
import sys
from pathlib import Path
from range_server import range_server
with range_server(Path(sys.argv[1])) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="of each job; default 100")
    parser.add_argument("--job", choices=list(JOBS), help="only this one")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)  # OpenMP's threads do not survive fork
    os.environ.update(CREDENTIALS)
    packer.CHUNK_SAMPLES, packer._COMMIT_BYTES = 4, 1
    wrong = 0
    for name, job in JOBS.items():
        if given.job not in (None, name):
            continue
        with tempfile.TemporaryDirectory(prefix="fastdata-soak-") as folder:
            tempfile.tempdir = os.path.join(folder, "temporary")  # of all that runs here
            os.mkdir(tempfile.tempdir)
            count = job(Path(folder), given.kills, random.Random(f"{given.seed} {name}"))
        tempfile.tempdir = None
        wrong += len(count.wrong)
        print(json.dumps({"job": name, **vars(count)}), flush=True)
    return 1 if wrong else 0


@contextlib.contextmanager
def served(code: str, *arguments: str) -> Iterator[str]:
    """Run a server of the tests in a process of its own; give its address."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


# -- packs to a store ----------------------------------------------------------------------------


def kill_packs(folder: Path, kills: int, dice: random.Random) -> Count:
    """Kill packs to a store at least `kills` times."""
    source = images(folder / "images", 60, 1)
    fastdata.pack(source, folder / "whole", size=24, shards=4, num_workers=0, progress=False)
    expected, count = digest_of(folder / "whole"), Count()
    with served(SERVE_S3) as endpoint:

        def pack_to(bucket: str) -> Callable[[Path], None]:
            def run(_: Path) -> None:
                # This process, which has forked that, never uses obstore, whose threads it lacks.
                fastdata.pack(
                    source,
                    f"s3://{bucket}/train",
                    size=24,
                    shards=4,
                    num_workers=0,
                    progress=False,
                    storage_options={"endpoint": endpoint, "region": "us-east-1"},
                )

            return lambda place: _unless_done(run, place)

        seconds = 0.0
        while count.kills < kills:
            bucket = f"bucket-{uuid.UUID(int=dice.getrandbits(128)).hex}"
            _request(f"{endpoint}/{bucket}", "PUT")
            began = time.monotonic()
            for _ in range(dice.randint(1, 6) if seconds else 0):
                code = run_child(pack_to(bucket), folder, dice.uniform(0, seconds))
                if code == 0:
                    break
                if code != -9:
                    count.wrong.append(f"a run after {count.kills} kills ended with {code}")
                    break
                count.kills += 1
                found = _digest_in(endpoint, bucket, folder / f"copy-{count.kills}")
                if found not in (None, expected):
                    count.wrong.append(f"kill {count.kills} left {found}")
            began = began if seconds else time.monotonic()
            code = run_child(pack_to(bucket), folder, None)
            seconds = seconds or time.monotonic() - began
            if code != 0:
                count.wrong.append(f"the last run after {count.kills} kills ended with {code}")
            keys = _keys_in(endpoint, bucket)
            found = _digest_in(endpoint, bucket, folder / f"end-{count.runs_to_the_end}")
            strange = [key for key in keys if not re.fullmatch(_OF_DATASET, key)]
            if found != expected or strange or len(keys) != 6:
                count.wrong.append(f"after {count.kills} kills: {found}, {keys}")
            count.runs_to_the_end += 1
    return count


_OF_DATASET = r"train/(manifest\.json|rejects\.csv|shard-\d{5}-[0-9a-f]{16}\.lmdb)"


def _unless_done(run: Callable[[Path], None], place: Path) -> None:
    """Run; a dataset that exists already is no error: the kill came after its end."""
    with contextlib.suppress(DestinationExistsError):
        run(place)


def _request(url: str, method: str = "GET") -> bytes:
    request = urllib.request.Request(url, method=method, headers=SIGNED)
    with urllib.request.urlopen(request) as answer:
        data: bytes = answer.read()
        return data


def _keys_in(endpoint: str, bucket: str) -> list[str]:
    listing = _request(f"{endpoint}/{bucket}?list-type=2").decode()
    return re.findall("<Key>([^<]*)</Key>", listing)


def _digest_in(endpoint: str, bucket: str, copy: Path) -> str | None:
    """Return the digest of the dataset in a bucket, if it is whole; None where there is none."""
    keys = _keys_in(endpoint, bucket)
    if "train/manifest.json" not in keys:
        return None
    copy.mkdir()
    for key in keys:
        if key.count("/") == 1:
            (copy / Path(key).name).write_bytes(_request(f"{endpoint}/{bucket}/{key}"))
    return digest_of(copy)


# -- downloaders ---------------------------------------------------------------------------------


def kill_downloaders(folder: Path, kills: int, dice: random.Random) -> Count:
    """Kill downloaders `kills` times while a loader reads."""
    source, data = images(folder / "images", 240, 1), folder / "served" / "train"
    usual: dict[str, Any] = {"size": 64, "codec": "raw", "num_workers": 0, "progress": False}
    fastdata.pack(source, data, shards=3, **usual)
    size = sum(path.stat().st_size for path in data.iterdir())
    cache, said = folder / "cache", folder / "said"
    count = Count()
    with served(SERVE_FILES, str(folder / "served")) as url:
        with open(said, "wb") as output:
            reader = subprocess.Popen(
                [sys.executable, __file__, "--read", f"{url}/train", data, cache, str(size)],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            while count.kills < kills and reader.poll() is None:
                time.sleep(dice.uniform(0.05, 2.0))
                for process in _downloaders(cache):
                    with contextlib.suppress(psutil.Error):
                        process.kill()
                        count.kills += 1
                began = said.stat().st_size > 0  # it imports torch first
                if began and time.time() - said.stat().st_mtime > SILENT_SECONDS:
                    count.wrong.append(f"after {count.kills} kills: no batch and no message")
                    break
            (folder / "stop").touch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                reader.wait(60)
            lines = said.read_text(errors="replace").splitlines()
            count.runs_to_the_end = lines.count("an epoch as in the files")
            if reader.poll() != 0:
                count.wrong.append(f"the reader ended with {reader.poll()}: {lines[-5:]}")
        finally:
            reader.kill()
            reader.wait()
            for process in _downloaders(cache):
                with contextlib.suppress(psutil.Error):
                    process.kill()
    for dataset in CacheFolder.open(cache).datasets():
        if damage := damaged_columns(dataset) or damaged_samples(dataset):
            count.wrong.append(f"damaged in the cache: {damage[:10]}")
    return count


def _downloaders(cache: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(cache) in process.cmdline() and "--read" not in process.cmdline():
                found.append(process)
    return found


def read(url: str, data: str, cache: str, size: int) -> int:
    """Be the reader: epoch after epoch, until a file says that it is enough."""
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    order = fastdata.BlockShuffle(block_size=4, window_blocks=1, lanes=2)
    usual: dict[str, Any] = {"batch_size": 8, "shuffle": order, "num_workers": 0}

    def epoch(loader: Any, *, is_remote: bool) -> str:
        found = hashlib.sha256()
        for batch in loader:
            found.update(batch.image.contiguous().numpy().tobytes())
            if is_remote:
                print("a batch", flush=True)
        return found.hexdigest()

    with (
        fastdata.loader(url, cache_dir=cache, cache_bytes=size // 3, **usual) as remote,
        fastdata.loader(data, **usual) as local,
    ):
        while not Path(cache).with_name("stop").exists():
            if epoch(remote, is_remote=True) != epoch(local, is_remote=False):
                print("other batches than in the files")
                return 1
            print("an epoch as in the files", flush=True)
    return 0


JOBS = {"packs": kill_packs, "downloaders": kill_downloaders}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        sys.exit(read(*sys.argv[2:5], int(sys.argv[5])))
    sys.exit(main())
