"""Run contenders against each other and report, so that the figures can be trusted.

Each contender is a program in a process of its own, with an interpreter of
its own where a peer needs other packages.  It does the work once, times the
part that counts by itself, after its imports, and prints one line of JSON last:

    {"images": 4000, "seconds": 3.21, "versions": {"ffcv": "1.0.2"}, ...}

What this module promises around that:

- Rounds are interleaved and their order turns, so that a slow minute of a
  shared machine meets every contender.  The first round warms the page cache
  and is recorded, but not counted.
- Medians, with the lowest and highest.
- Peak memory of the contender's whole process tree, sampled while it runs:
  proportional set size, in which pages shared by n processes count once.
- One JSON line a run, with the hardware and the versions, then a table.
- A contender that cannot run is in the table, with the reason.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import psutil

MEMORY_SAMPLE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Contender:
    """A program to measure.

    Parameters
    ----------
    name : str
        How the table names it.
    command : sequence of str
        The program and its arguments; the interpreter comes first.
    modules : sequence of str
        What the interpreter must be able to import; otherwise it is absent.
    missing : str
        Why it cannot be run, where that is known before trying.
    """

    name: str
    command: Sequence[str] = ()
    modules: Sequence[str] = ()
    missing: str = ""

    def why_absent(self) -> str:
        """Return the reason it cannot run, or an empty string."""
        if self.missing:
            return self.missing
        program = shutil.which(self.command[0])
        if program is None:
            return f"{self.command[0]} is not a program"
        code = "; ".join(f"import {module}" for module in self.modules)
        # From an empty folder: with -c, Python would import from the current one.
        with tempfile.TemporaryDirectory() as empty:
            done = subprocess.run(
                [os.path.abspath(program), "-c", code],
                cwd=empty,
                capture_output=True,
                text=True,
                check=False,
            )
        return "" if done.returncode == 0 else last_line(done.stderr)


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of a contender reported, and what was seen from outside."""

    contender: str
    round: int
    report: Mapping[str, Any] = field(repr=False)
    process_seconds: float
    peak_memory_bytes: int

    @property
    def counts(self) -> bool:
        """Whether it is of the counted rounds, after the warm-up."""
        return self.round > 0

    @property
    def images_per_second(self) -> float:
        """Images over the seconds that the contender timed itself."""
        return float(self.report["images"] / self.report["seconds"])


class ContenderFailedError(RuntimeError):
    """A contender that could start did not finish its work."""


class MemoryWatch:
    """Samples the memory of a process and its descendants until it is closed."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(pid,), daemon=True)
        self._thread.start()

    def __enter__(self) -> MemoryWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self, pid: int) -> None:
        try:
            root = psutil.Process(pid)
        except psutil.NoSuchProcess:
            return
        while not self._stop.wait(MEMORY_SAMPLE_SECONDS):
            try:
                family = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            self.peak_bytes = max(self.peak_bytes, sum(map(memory_bytes, family)))


def memory_bytes(process: psutil.Process) -> int:
    """Return a process's share of the memory, or 0 once it has ended."""
    try:
        memory = process.memory_full_info()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0
    # Only Linux has the proportional size.
    return int(getattr(memory, "pss", memory.rss))


def last_line(text: str) -> str:
    """Return the last line that has something in it."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


def run_once(contender: Contender, number: int) -> Run:
    """Run a contender in its own process and take its report.

    Raises
    ------
    ContenderFailedError
        It ended with another exit code than 0, or with no report.
    """
    # Files, not pipes: a pipe that nobody reads while the memory is watched would fill up.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started = time.perf_counter()
        with subprocess.Popen(contender.command, stdout=out, stderr=err) as process:
            try:
                with MemoryWatch(process.pid) as memory:
                    process.wait()
            except BaseException:
                process.terminate()
                raise
        seconds = time.perf_counter() - started
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise ContenderFailedError(
                f"exit code {process.returncode}: {last_line(err.read() or out.read())}"
            )
        try:
            report = json.loads(last_line(out.read()))
        except ValueError as error:
            raise ContenderFailedError(f"its last line is no JSON: {error}") from error
    return Run(contender.name, number, report, seconds, memory.peak_bytes)


def hardware() -> dict[str, Any]:
    """Return what the figures depend on and nobody chose."""
    return {
        "cpu": cpu_name(),
        "cores": available_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def cpu_name() -> str:
    """Return the processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def available_cores() -> int:
    """Return the cores that this process may use, which a container may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compare(
    benchmark: str,
    contenders: Sequence[Contender],
    *,
    rounds: int = 5,
    settings: Mapping[str, Any],
    output: TextIO | None = None,
) -> int:
    """Run every contender `rounds` times after a warm-up, and print the result.

    JSON lines go to `output`, by default to standard output with the table.

    Returns
    -------
    int
        An exit code: 1 where a contender that could start then failed.
    """
    machine = hardware()
    common = {"benchmark": benchmark, "settings": dict(settings), "hardware": machine}

    def write_line(**line: object) -> None:
        print(json.dumps(common | line), file=output or sys.stdout, flush=True)

    absent = {}
    for contender in contenders:
        if why := contender.why_absent():
            absent[contender.name] = f"absent: {why}"
            write_line(contender=contender.name, absent=why)
    present = [contender for contender in contenders if contender.name not in absent]
    runs: list[Run] = []
    failed: dict[str, str] = {}
    for number in range(rounds + 1):
        turn = number % max(1, len(present))
        for contender in present[turn:] + present[:turn]:
            if contender.name in failed:
                continue
            say(f"{'round ' + str(number) if number else 'warm-up'}: {contender.name}")
            try:
                run = run_once(contender, number)
            except ContenderFailedError as error:
                failed[contender.name] = f"failed in round {number}: {error}"
                write_line(contender=contender.name, round=number, failed=str(error))
                say(f"  {failed[contender.name]}")
                continue
            runs.append(run)
            say(f"  {run.images_per_second:,.0f} images/s")
            write_line(
                contender=run.contender,
                round=run.round,
                warm_up=not run.counts,
                images_per_second=round(run.images_per_second, 1),
                process_seconds=round(run.process_seconds, 3),
                peak_memory_bytes=run.peak_memory_bytes,
                **run.report,
            )
    excuses = absent | failed
    print_table(benchmark, [c.name for c in contenders], runs, excuses, machine)
    return 1 if failed else 0


def say(text: str) -> None:
    """Tell on standard error how far it is."""
    print(text, file=sys.stderr, flush=True)


def print_table(
    benchmark: str,
    names: Sequence[str],
    runs: Sequence[Run],
    excuses: Mapping[str, str],
    machine: Mapping[str, Any],
) -> None:
    """Print medians and spreads, and each contender's ratio to the first that ran."""
    kept = {name: [run for run in runs if run.contender == name and run.counts] for name in names}
    speeds = {
        name: [run.images_per_second for run in kept[name]]
        for name in names
        if kept[name] and name not in excuses
    }
    print(f"\n{benchmark}: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB")
    print(f"| {'contender':24} | images/s |   lowest-highest | process s | peak MB | MB out |")
    print(f"|{'-' * 26}|{'-' * 9}:|{'-' * 17}:|{'-' * 10}:|{'-' * 8}:|{'-' * 7}:|")
    for name in names:
        if name not in speeds:
            print(f"| {name:24} | {excuses.get(name, 'no counted round')}")
            continue
        spread = f"{min(speeds[name]):,.0f}-{max(speeds[name]):,.0f}"
        process = statistics.median(run.process_seconds for run in kept[name])
        memory = max(run.peak_memory_bytes for run in kept[name]) / 1e6
        bytes_out = kept[name][-1].report.get("bytes_out")
        written = f"{bytes_out / 1e6:.0f}" if bytes_out else ""
        print(
            f"| {name:24} | {statistics.median(speeds[name]):8,.0f} | {spread:>16} "
            f"| {process:9.1f} | {memory:7,.0f} | {written:>6} |"
        )
    for name in speeds:
        rest = [
            f"{statistics.median(speeds[name]) / statistics.median(speeds[other]):.2f}x {other}"
            for other in speeds
            if other != name
        ]
        if rest:
            print(f"{name}: {', '.join(rest)}")
