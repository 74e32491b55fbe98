"""The tests that need a GPU: ``pytest -m gpu``, where a missing GPU is a failure."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from bench_parts import REPOSITORY, last_line, say
from budget import Budget
from report import Bar, Report, Row
from settings import Settings

__all__ = ["TESTS_BAR", "Outcome", "pytest_command", "read_outcome", "row_of", "run"]

PART = "tests"
NAME = "pytest -m gpu"
TESTS_BAR = Bar("GPU tests that passed, of those that ran", 1.0)
LEAST_SECONDS = 100.0
SHOWN = 5


class Outcome:
    """What a JUnit report of pytest says.

    Attributes
    ----------
    passed : int
    failed, skipped : list of str
        Name and reason of each.
    """

    def __init__(self) -> None:
        self.passed = 0
        self.failed: list[str] = []
        self.skipped: list[str] = []


def read_outcome(report: Path) -> Outcome:
    """Return what is in a JUnit report."""
    outcome = Outcome()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        for kind, listed in (
            ("failure", outcome.failed),
            ("error", outcome.failed),
            ("skipped", outcome.skipped),
        ):
            found = case.find(kind)
            if found is not None:
                listed.append(f"{name}: {last_line(found.get('message') or '')}")
                break
        else:
            outcome.passed += 1
    return outcome


def pytest_command(report: Path, has_timeout: bool) -> list[str]:
    """Return the command, which also works where pytest-timeout is not installed."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", f"--junitxml={report}"]
    # A module that cannot be collected, for want of hypothesis say, must not hide the others.
    command += ["--continue-on-collection-errors", "-p", "no:cacheprovider"]
    if not has_timeout:
        # Without the plugin its setting is unknown, which --strict-config makes an error.
        command += ["-o", "addopts=", "-W", "ignore::pytest.PytestConfigWarning"]
    return command


def row_of(outcome: Outcome, code: int, said: str) -> Row:
    """Return the row of a finished run of pytest."""
    # A missing GPU is a failure; what is skipped lacks something else, a second GPU perhaps.
    count = outcome.passed + len(outcome.failed)
    details = {
        "passed": outcome.passed,
        "failed": outcome.failed,
        "skipped": outcome.skipped,
        "exit_code": code,
        "output": said[-4000:],
    }
    if not count:
        why = f"exit code {code}, no test ran: {last_line(said)}"
        return Row(PART, NAME, status="failed", why=why, bar=TESTS_BAR, details=details)
    note = f"{outcome.passed} passed, {len(outcome.failed)} failed, {len(outcome.skipped)} skipped"
    share = outcome.passed / count
    return Row(PART, NAME, "passed", (share,), bar=TESTS_BAR, note=note, details=details)


def run_limited(
    command: list[str], environment: dict[str, str], limit_seconds: float
) -> tuple[int | None, str]:
    """Run a program in the repository; return its exit code and what it said.

    The code is None where the time was over.  Then, and on Ctrl-C, it is ended with all that
    it started.
    """
    # A file, not a pipe: who reads a pipe also waits for whatever the program has left behind.
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            code: int | None = None
            try:
                code = process.wait(limit_seconds)
            except subprocess.TimeoutExpired:
                pass
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        return code, output.read()


def run(settings: Settings, report: Report, budget: Budget) -> None:
    """Run the tests, and report how they ended."""
    missing = ""
    if settings.dry:
        missing = "there is no GPU to test on"
    elif importlib.util.find_spec("pytest") is None:
        missing = "pytest is not installed; pip install pytest brings it"
    if missing:
        report.put(Row(PART, NAME, status="not available", why=missing, bar=TESTS_BAR))
        return
    # It cannot be trimmed, as rounds can.
    limit = max(LEAST_SECONDS, budget.remaining)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.xml"
        command = pytest_command(path, importlib.util.find_spec("pytest_timeout") is not None)
        say(f"  {' '.join(command[1:6])}, {limit:.0f} s at most")
        # Else the repository's folder comes first, where the compiled library may not lie.
        environment = {**os.environ, "FASTDATA_REQUIRE_CUDA": "1", "PYTHONSAFEPATH": "1"}
        # The repository's folder is where it starts, but not where it imports from: there
        # fastdata lacks its converters.
        environment["PYTHONSAFEPATH"] = "1"
        if settings.device.index:
            # The tests take the first one there is.
            chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            listed = [name for name in chosen.split(",") if name]
            one = listed[settings.device.index] if listed else str(settings.device.index)
            environment["CUDA_VISIBLE_DEVICES"] = one
        code, said = run_limited(command, environment, limit)
        if code is None:
            why = f"not done after {limit:.0f} s, and ended: {last_line(said)}"
            details = {"output": said[-4000:]}
            row = Row(PART, NAME, status="failed", why=why, bar=TESTS_BAR, details=details)
            report.put(row)
            return
        outcome = read_outcome(path) if path.exists() else Outcome()
    row = row_of(outcome, code, said)
    for line in [*outcome.failed, *(f"skipped: {line}" for line in outcome.skipped)][:SHOWN]:
        say(f"  {line}")
    report.put(row)
