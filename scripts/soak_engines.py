"""Kill the parts of Dask and Ray while they pack, run the command again, and see what is lost.

For each kill a new engine runs on this machine, and `fastdata pack --executor` packs a folder with
it.  At a random moment one process of the engine, or the command itself, gets SIGKILL.  The command
must end, with an error or without, and say after 10 seconds without a result what it waits for.
Then the engine is started again, and the same command must come to the same dataset as a pack
without an engine: no sample is rejected, and no file is left beside it.

    python scripts/soak_engines.py --kills 20
    python scripts/soak_engines.py --kills 3 --part raylet --part scheduler

Needs ``pip install distributed ray``.  Prints a line for each part with what was counted, as JSON;
the exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

import fastdata
from soak import digest_of

IMAGES, SHARD_SIZE = 400, 10
SILENT_SECONDS = 10.0
HANGS_SECONDS = 300.0
START_SECONDS = 120.0
KILLED = -9

PARTS = {
    "raylet": ("ray", "raylet"),
    "gcs": ("ray", "gcs_server"),
    "ray worker": ("ray", "ray::_run"),
    "ray driver": ("ray", ""),
    "scheduler": ("dask", "dask_scheduler"),
    "dask worker": ("dask", "spawn_main"),
    "dask driver": ("dask", ""),
}
"""The engine of each part, and what the command line of its process has; "" is our command."""


@dataclass
class Count:
    """What came of the kills of a part."""

    kills: int = 0
    missed: int = 0
    """Kills that came too late, or found no such process."""
    exit_codes: Counter[int] = field(default_factory=Counter)
    """Of the command whose engine was hit."""
    longest_silence: float = 0.0
    wrong: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="of each part; default 20")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="default: all of them")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="fastdata-soak-") as name:
        place = Path(name)
        source = photos(place / "images")
        local = fastdata.pack(source, place / "local.lmdb", size=64, num_workers=0, progress=False)
        for part in given.part or PARTS:
            engine, process = PARTS[part]
            if importlib.util.find_spec("distributed" if engine == "dask" else "ray") is None:
                parser.error(f"{part}: {engine} is not installed")
            dice = random.Random(f"{given.seed} {part}")
            count = soak(engine, process, place, given.kills, dice, local.digest)
            wrong += len(count.wrong)
            print(json.dumps({"part": part, **vars(count)}), flush=True)
    return 1 if wrong else 0


def soak(
    engine: str, process: str, place: Path, kills: int, dice: random.Random, digest: str
) -> Count:
    """Kill a process of an engine, or the command, so many times."""
    count = Count()
    with running(engine, place) as address:
        whole = Command(place, f"{engine}:{address}")
        whole.wait_for_plan()
        began = time.monotonic()
        assert whole.wait() == 0, whole.said
        seconds = time.monotonic() - began
    check(place, digest, count, "undisturbed")
    while count.kills < kills and count.missed < 5 + 2 * kills:
        with running(engine, place) as address:
            command = Command(place, f"{engine}:{address}")
            command.wait_for_plan()
            time.sleep(dice.uniform(0, seconds))
            if not command.is_running or not kill(engine, process, place, command, dice):
                count.missed += 1
                command.wait()
                shutil.rmtree(place / "train")
                continue
            count.kills += 1
            code = command.wait()
            count.exit_codes[code] += 1
            count.longest_silence = max(count.longest_silence, round(command.silence, 1))
            what = f"kill {count.kills}"
            if code not in (0, 1) and (code != KILLED or process):
                count.wrong.append(f"{what}: ended with {code}: {command.said[-500:]}")
            if command.silence > SILENT_SECONDS + seconds:
                count.wrong.append(f"{what}: {command.silence:.0f} s without a message")
            if not process:  # tasks of the command that was killed may still run
                finish(place, f"{engine}:{address}", count, what)
        if process:
            with running(engine, place) as address:
                finish(place, f"{engine}:{address}", count, what)
        check(place, digest, count, what)
    return count


def finish(place: Path, executor: str, count: Count, what: str) -> None:
    """Run the same command again; it must succeed, or have been complete."""
    again = Command(place, executor)
    if (code := again.wait()) != 0 and "has a dataset already" not in again.said:
        count.wrong.append(f"{what}: the same command again ended with {code}: {again.said[-500:]}")


def check(place: Path, digest: str, count: Count, what: str) -> None:
    """See that nothing is lost, and nothing left; then remove the dataset."""
    train = place / "train"
    subprocess.run([*pack(place), "--commit"], capture_output=True)  # of tasks that came late
    found = digest_of(train)
    if found != digest:
        count.wrong.append(f"{what}: the dataset is {found}, not {digest}")
    listed = {
        shard["file"] for shard in json.loads((train / "manifest.json").read_text())["shards"]
    }
    left = {path.name for path in train.iterdir()} - listed - {"manifest.json"}
    if left:
        count.wrong.append(f"{what}: left {sorted(left)}")
    shutil.rmtree(train)
    for path in place.glob("temporary/*"):
        shutil.rmtree(path, ignore_errors=True)


def kill(engine: str, process: str, place: Path, command: Command, dice: random.Random) -> bool:
    """Kill the command, or a process below the engine; return whether there was one."""
    if not process:
        command.process.kill()
        return True
    found = [one for one in members(place) if process in " ".join(command_line(one))]
    if found:
        dice.choice(found).kill()
    return bool(found)


def command_line(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return [process.name(), *process.cmdline()]
    return []


def members(place: Path) -> list[psutil.Process]:
    """Return the processes that were started with our folder for temporary files."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environment = process.environ()
            if environment.get("TMPDIR") == str(place / "temporary") and ENGINE in environment:
                found.append(process)
    return found


# -- the command ----------------------------------------------------------------------------


def pack(place: Path) -> list[str]:
    source, train = str(place / "images"), str(place / "train")
    options = ["--size", "64", "--shard-size", str(SHARD_SIZE)]
    return [sys.executable, "-m", "fastdata", "pack", source, train, *options]


class Command:
    """A pack by an engine, and when it says something."""

    def __init__(self, place: Path, executor: str) -> None:
        self._place, self._started = place, time.monotonic()
        self.said = ""
        self._silences: list[tuple[float, bool]] = []
        """Seconds, and whether the command had said that it waits."""
        self._last = self._started
        self.process = subprocess.Popen(
            [*pack(place), "--executor", executor],
            env=environment(place),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 1 << 16):
            self._note()
            self.said += data.decode("utf-8", "replace")

    def _note(self) -> None:
        now, line = time.monotonic(), self.said.rstrip().rpartition("\n")[2]
        self._silences.append((now - self._last, "has been waiting for" in line))
        self._last = now

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def wait_for_plan(self) -> None:
        """Wait until it packs, or has ended."""
        while self.is_running and not (self._place / "train/unfinished/plan.json").exists():
            time.sleep(0.02)

    def wait(self) -> int:
        """Return its exit code; 99 if it hangs."""
        try:
            code = self.process.wait(HANGS_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = 99
        self._reader.join(5.0)
        self._note()
        return code

    @property
    def silence(self) -> float:
        """The longest time in seconds without a message, except after one that it waits."""
        return max((seconds for seconds, said in self._silences if not said), default=0.0)


# -- engines --------------------------------------------------------------------------------

ENGINE = "FASTDATA_SOAK_ENGINE"
"""A variable in the environment of an engine's processes, not of the command."""


def environment(place: Path, **more: str) -> dict[str, str]:
    temporary = place / "temporary"
    temporary.mkdir(exist_ok=True)
    return {**os.environ, "TMPDIR": str(temporary), "RAY_AUTH_MODE": "disabled", **more}


@contextlib.contextmanager
def running(engine: str, place: Path) -> Iterator[str]:
    """Run an engine with two workers; give its address.  Its processes end by SIGKILL."""
    port = free_port()
    try:
        if engine == "ray":
            address = f"127.0.0.1:{port}"
            start(ray_head(port), place)
        else:
            address = f"tcp://127.0.0.1:{port}"
            dask = [sys.executable, "-m", "distributed.cli."]
            on = ["--no-dashboard", "--host", "127.0.0.1"]
            start([*dask[:2], dask[2] + "dask_scheduler", "--port", str(port), *on], place)
            workers = ["--nworkers", "2", "--nthreads", "1", *on]
            start([*dask[:2], dask[2] + "dask_worker", address, *workers], place)
        wait_for(port)
        yield address
    finally:
        while left := members(place):
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, 5.0)


def ray_head(port: int) -> list[str]:
    script = "import sys; from ray.scripts.scripts import main; sys.exit(main())"
    options = ["--head", "--block", f"--port={port}", "--num-cpus=2", "--include-dashboard=false"]
    memory = ["--object-store-memory=100000000", "--node-ip-address=127.0.0.1"]
    return [sys.executable, "-c", script, "start", *options, *memory]


def start(command: Sequence[str], place: Path) -> None:
    with (place / "engine.log").open("ab") as log:
        subprocess.Popen(command, env=environment(place, **{ENGINE: "1"}), stdout=log, stderr=log)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(port: int) -> None:
    """Wait until somebody listens."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.1)
    raise RuntimeError("the engine does not start; see engine.log")


def photos(root: Path) -> Path:
    """Write JPEGs of noise in two class folders."""
    made = np.random.default_rng(0)
    for number in range(IMAGES):
        folder = root / ("ant", "bee")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels: Any = made.integers(0, 256, (240, 320, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:04}.jpg", quality=80)
    return root


if __name__ == "__main__":
    sys.exit(main())
