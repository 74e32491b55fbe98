"""Are the gains that ``fastdata doctor`` reports true, and does it see gains where there are none?

    python scripts/bench/doctor_check.py                     # about 40 minutes
    python scripts/bench/doctor_check.py --only D07 --only D09
    python scripts/bench/doctor_check.py --nothing 20        # with nothing to gain, 20 times

**Truth.**  Each case is a training script, and the same script with a piece of advice followed by
hand.  In each start both are fresh processes that run in turns.  A start yields one number: the
median, over rounds, of the logarithm of the time before over the time after.  Steps are judged by
wall time and by processor time.  Between the starts, doctor examines the first script: gains change
with the machine's other load.  The two agree if the 95% interval of their ratio, by doctor's own
clock, contains 1.

Scripts have one thread and, as under doctor, a malloc that keeps its memory.  The script before
the advice on the allocator has the default malloc.

**Nothing to gain.**  All advice of doctor is replaced by pieces that do nothing.  Counted are runs
in which any of them is called a gain, or slower.

Prints a JSON line for each case, or each run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from doctor_cases import CASES, NOTHING, Case, make_up_advice
from fastdata.doctor import DoctorReport, Script, examine
from fastdata.doctor.advice.processor import KEPT
from fastdata.doctor.processes import ScriptFailedError
from fastdata.doctor.rows import ALLOCATOR
from fastdata.measuring.noise import Clock
from fastdata.measuring.statistics import Estimate, joint, judge
from harness import say

TURN_SECONDS = 0.1
"""Processor time of a turn of the slower script."""

CLOCKS: tuple[Clock, ...] = "wall", "cpu"


class CaseFailedError(Exception):
    """A case cannot be judged."""


class Timed:
    """A timed script in a process of its own; `took` has its last turn by each clock."""

    def __init__(self, path: Path, environment: dict[str, str]) -> None:
        self._path = path
        self._process = subprocess.Popen(
            [sys.executable, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **environment},
        )
        self.took: dict[Clock, float] = {}

    def wait(self) -> None:
        """Wait for the end of a turn; the first one warms up."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise CaseFailedError(f"{self._path.name} ended by hand with exit code {code}")
        self.took = json.loads(line)

    def run(self, steps: int) -> None:
        """Run a turn of `steps` steps."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self.wait()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def by_hand(
    case: Case, folder: Path, starts: int, rounds: int, order: random.Random
) -> dict[Clock, list[float]]:
    """Return the logarithm of the gain by hand for each start, by each clock."""
    paths = {name: folder / f"{case.id}_{name}.py" for name in ("before", "after")}
    for name, path in paths.items():
        path.write_text(case.script(is_followed=name == "after", is_timed=True))
    kept = {"before": {} if case.id == ALLOCATOR else dict(KEPT), "after": dict(KEPT)}
    numbers: dict[Clock, list[float]] = {clock: [] for clock in CLOCKS}
    steps = 0
    for _ in range(starts):
        names = list(paths)
        order.shuffle(names)
        ratios: dict[Clock, list[float]] = {clock: [] for clock in CLOCKS}
        running: dict[str, Timed] = {}
        try:
            for name in names:
                running[name] = Timed(paths[name], kept[name])
            for one in running.values():
                one.wait()
            slowest = max(one.took["cpu"] for one in running.values())
            steps = steps or max(1, math.ceil(TURN_SECONDS / slowest))
            for _ in range(rounds):
                for name in names:
                    running[name].run(steps)
                names.reverse()
                for clock in CLOCKS:
                    before, after = (running[name].took[clock] for name in paths)
                    ratios[clock].append(math.log(before / after))
        finally:
            for one in running.values():
                one.close()
        for clock in CLOCKS:
            numbers[clock].append(statistics.median(ratios[clock]))
    return numbers


def examined(path: Path, seconds: float, only: tuple[str, ...] = ()) -> DoctorReport:
    """Return doctor's report on a script."""
    report = examine(Script("file", str(path)), seconds=seconds, only=only)
    if report.ended_by == "interruption":
        raise KeyboardInterrupt
    return report


def check(case: Case, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the gain by hand, that of doctor, and whether they agree."""
    order = random.Random(case.id)
    before = by_hand(case, folder, given.starts - given.starts // 2, given.rounds, order)
    path = folder / f"{case.id}.py"
    path.write_text(case.script())
    report = examined(path, given.seconds, (case.id,))
    after = by_hand(case, folder, given.starts // 2, given.rounds, order)
    hand = {one: judge({}, {"": before[one] + after[one]})[""].gain for one in CLOCKS}
    row = next((row for row in report.rows if row.id == case.id), None)
    if row is None:
        raise CaseFailedError("doctor does not find it")
    if row.trial is None or row.trial.gain is None:
        why = row.trial.why if row.trial is not None else row.why_not
        raise CaseFailedError(f"doctor has no gain: {why or report.ended}")
    gain, real = row.trial.gain, hand[report.clock]
    if not math.isfinite(gain.high):
        raise CaseFailedError(f"doctor has no interval: {report.ended or 'a single process'}")
    ratio = joint(gain, real)
    return {
        "gain": _interval(gain),
        "verdict": row.trial.verdict,
        "clock": report.clock,
        **{clock: _interval(hand[clock]) for clock in CLOCKS},
        "ratio": _interval(ratio),
        "agrees": ratio.low <= 1 <= ratio.high,
        "half_width_percent": 100 * (gain.high / gain.value - 1),
        "starts": [gain.starts, real.starts],
        "ended": report.ended,
    }


def _interval(found: Estimate) -> list[float]:
    return [found.value, found.low, found.high]


def nothing(path: Path, seconds: float) -> dict[str, Any]:
    """Examine the script with nothing to gain once; return the gains and verdicts."""
    report = examined(path, seconds)
    trials = {row.id: row.trial for row in report.rows if row.trial is not None}
    return {
        "gains": {id: _interval(one.gain) for id, one in trials.items() if one.gain is not None},
        "verdicts": {id: one.verdict for id, one in trials.items()},
        "itself": report.noise.value if report.noise is not None else None,
        "smallest_gain": report.smallest_gain,
        "clock": report.clock,
        "seconds": round(report.seconds, 1),
        "ended": report.ended,
    }


def check_nothing(folder: Path, count: int, seconds: float) -> bool:
    """Examine it `count` times and print the totals; return whether a run had a trial."""
    make_up_advice()
    path = folder / "nothing.py"
    path.write_text(NOTHING)
    runs = []
    for number in range(count):
        runs.append(nothing(path, seconds))
        print(json.dumps({"benchmark": "doctor-nothing", "run": number} | runs[-1]), flush=True)
    judged = [run for run in runs if run["gains"]]
    if not judged:
        say(f"no run could be judged: {runs[-1]['ended']}")
        return False
    itself, smallest = (
        sorted(run[key] for run in judged if run[key] is not None)
        for key in ("itself", "smallest_gain")
    )
    _print_row(
        "doctor-nothing",
        "nothing",
        {
            "runs": len(judged),
            "not_judged": count - len(judged),
            "pieces": sum(len(run["gains"]) for run in judged),
            "with_a_gain": sum("gain" in run["verdicts"].values() for run in judged),
            "with_a_slower": sum("slower" in run["verdicts"].values() for run in judged),
            "itself": [*itself[:1], *itself[-1:]],
            "smallest_gain": [*smallest[:1], *smallest[-1:]],
        },
    )
    return True


def _print_row(benchmark: str, name: str, values: dict[str, Any]) -> None:
    row = {"benchmark": benchmark, "row": name, "values": values}
    print(json.dumps(row | {"versions": {"torch": torch.__version__}}), flush=True)


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number


def main() -> int:
    """Read the command line, and check; return 1 if a case could not be judged."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=[case.id for case in CASES])
    parser.add_argument("--starts", type=_at_least(2), default=5, help="by hand")
    parser.add_argument("--rounds", type=_at_least(1), default=20, help="in each start by hand")
    parser.add_argument(
        "--seconds", type=float, help="of doctor; default: 150, with --nothing doctor's own"
    )
    parser.add_argument(
        "--nothing", type=_at_least(1), metavar="RUNS", help="examine what has nothing to gain"
    )
    given = parser.parse_args()
    for name, _ in KEPT:
        os.environ.pop(name, None)  # which doctor would take for the user's choice
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.nothing:
            return 0 if check_nothing(folder, given.nothing, given.seconds or 300) else 1
        given.seconds = given.seconds or 150
        for case in CASES:
            if given.only and case.id not in given.only:
                continue
            say(case.name)
            try:
                results.append(check(case, folder, given))
            except (CaseFailedError, ScriptFailedError) as error:
                results.append({"failed": str(error), "agrees": False})
            _print_row("doctor", case.name, results[-1])
    agree = sum(one["agrees"] for one in results)
    narrow = sum(one.get("half_width_percent", math.inf) <= 5 for one in results)
    say(f"{agree} of {len(results)} agree; half-width at most 5% in {narrow}")
    return 1 if any("failed" in one for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
