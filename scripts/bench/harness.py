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
- One JSON line a run, with the hardware, the versions and the notes that tell
  what a contender does differently, then a table (`table.py`).
- A contender that cannot run is in the table, with the reason.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
MEMORY_SAMPLE_SECONDS = 1.0
"""Adding up the pages of a process takes milliseconds.  Five times a second, it made two threads
of fastdata's look 1.91 times as fast as one, and two processes 1.77 times; now 1.98 and 1.86."""


def command_line(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options of all comparisons."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--rounds", type=int, default=rounds, help="after the warm-up round")
    made.add_argument("--work", type=Path, default=REPOSITORY / ".bench", help="kept datasets")
    made.add_argument(
        "--output",
        type=_opened_to_append,
        default=sys.stdout,
        metavar="FILE",
        help="append the JSON lines to this file; default: standard output",
    )
    return made


def _opened_to_append(path: str) -> TextIO:
    return open(path, "a", encoding="utf-8")


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
    notes : mapping of str to str
        What it does differently from the others, for the JSON lines and below
        the table; ``resize filter`` also is a column of the table.
    """

    name: str
    command: Sequence[str] = ()
    modules: Sequence[str] = ()
    missing: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)

    def why_absent(self) -> str:
        """Return the reason it cannot run, or an empty string."""
        if self.missing:
            return self.missing
        program = shutil.which(self.command[0])
        if program is None:
            return f"{self.command[0]} is not a program"
        return why_not_imported(os.path.abspath(program), tuple(self.modules))


@cache
def why_not_imported(python: str, modules: Sequence[str]) -> str:
    """Return why an interpreter cannot import modules, or an empty string."""
    code = "; ".join(f"import {module}" for module in modules)
    # From an empty folder: with -c, Python would import from the current one.
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [python, "-c", code], cwd=empty, capture_output=True, text=True, check=False
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
    def value(self) -> float:
        """What was measured: the report's ``value``, else images a second.

        The seconds are those that the contender timed itself.
        """
        if "value" in self.report:
            return float(self.report["value"])
        return float(self.report["images"] / self.report["seconds"])

    @property
    def unit(self) -> str:
        """What `value` counts."""
        return str(self.report.get("unit", "images/s"))


@dataclass(frozen=True, slots=True)
class Results:
    """All runs, and why there are none of some contenders.

    Attributes
    ----------
    runs : sequence of Run
        The warm-up too.
    excuses : mapping of str to str
        Reason by the name of each contender that is absent or failed.
    """

    runs: Sequence[Run]
    excuses: Mapping[str, str]
    failed: bool

    def counted(self, name: str) -> list[Run]:
        """Return a contender's runs after the warm-up; none where it has an excuse."""
        if name in self.excuses:
            return []
        return [run for run in self.runs if run.contender == name and run.counts]


class ContenderFailedError(RuntimeError):
    """A contender that could start did not finish its work."""


class MemoryWatch:
    """Samples the memory of a process and its descendants until it is closed."""

    def __init__(self, pid: int, every_seconds: float = MEMORY_SAMPLE_SECONDS) -> None:
        self.peak_bytes = 0
        self._every_seconds = every_seconds
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
        while not self._stop.wait(self._every_seconds):
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


def run_once(
    contender: Contender, number: int, memory_sample_seconds: float = MEMORY_SAMPLE_SECONDS
) -> Run:
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
                with MemoryWatch(process.pid, memory_sample_seconds) as memory:
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


def compile_modules() -> None:
    """Compile this checkout's modules, as pip has compiled the peers'.

    Where Python may not write what it compiles (``PYTHONDONTWRITEBYTECODE``), every process would
    compile them anew.
    """
    for folder in ("fastdata", "converters"):
        compileall.compile_dir(REPOSITORY / folder, quiet=1)


def run_rounds(
    benchmark: str,
    contenders: Sequence[Contender],
    *,
    rounds: int,
    settings: Mapping[str, Any],
    output: TextIO,
    memory_sample_seconds: float = MEMORY_SAMPLE_SECONDS,
) -> Results:
    """Run every contender `rounds` times after a warm-up, in turns; JSON lines go to `output`."""
    compile_modules()
    common = {"benchmark": benchmark, "settings": dict(settings), "hardware": hardware()}

    def write_line(contender: Contender, **line: object) -> None:
        notes = {"notes": dict(contender.notes)} if contender.notes else {}
        whole = common | {"contender": contender.name} | line | notes
        print(json.dumps(whole), file=output, flush=True)

    absent = {}
    for contender in contenders:
        if why := contender.why_absent():
            absent[contender.name] = f"absent: {why}"
            write_line(contender, absent=why)
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
                run = run_once(contender, number, memory_sample_seconds)
            except ContenderFailedError as error:
                failed[contender.name] = f"failed in round {number}: {error}"
                write_line(contender, round=number, failed=str(error))
                say(f"  {failed[contender.name]}")
                continue
            runs.append(run)
            say(f"  {readable(run.value)} {run.unit}")
            write_line(
                contender,
                round=run.round,
                warm_up=not run.counts,
                process_seconds=round(run.process_seconds, 3),
                peak_memory_bytes=run.peak_memory_bytes,
                **{**run.report, "value": round(run.value, 4), "unit": run.unit},
            )
    return Results(runs, absent | failed, bool(failed))


def readable(value: float) -> str:
    """Return a number with four digits, or with all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def say(text: str) -> None:
    """Tell on standard error how far it is."""
    print(text, file=sys.stderr, flush=True)
