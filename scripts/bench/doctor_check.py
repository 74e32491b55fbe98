"""Does the advice of ``fastdata doctor`` come true, and does it see gains where there are none?

    python scripts/bench/doctor_check.py                     # about 50 minutes
    python scripts/bench/doctor_check.py --only D07 --only D09
    python scripts/bench/doctor_check.py --nothing 20        # with nothing to gain, 20 times

**What comes true.**  Each case is a program, and the same program with a piece of advice followed
by hand.  doctor tries the advice on the first.  In each of its rounds both programs also run by
themselves, half a second each: gains change with what else the machine does, and by minutes.  Only
steps are timed, as doctor does: neither loading nor what a loop does beside.  Epochs have 16 steps
and more, as the first one of an epoch takes longer than others, and doctor measures within an
epoch.  The real gain is the median of the ratios of all rounds; doctor is right where its interval
contains that.

But for D55, which is about just that, programs run with a malloc that keeps its memory: else as
much of a step is page faults as of anything else, and how much differs from process to process.

**Nothing to gain.**  A step whose time is convolutions of few weights, with faults that cost
nothing there: `zero_grad(set_to_none=False)`, clipping one gradient after another, an optimiser
that is not fused.  Counted are runs in which doctor calls any of these a gain.

Prints a JSON line a case, and a line for each row of the table.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fastdata.doctor.advice.processor import KEPT
from fastdata.doctor.contract import Phase
from fastdata.doctor.script import Script
from fastdata.doctor.trials import Trials, judged
from fastdata.measuring.windows import rate_of
from harness import REPOSITORY, say

SECONDS = 0.4
"""For how long each program runs in a turn."""

ROUNDS = 5
"""How often a program runs before it is started anew."""

KEEPS = dict(KEPT)

PROGRAM = """
import itertools, json, statistics, sys, time
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

{threads}
{start}
torch.manual_seed(0)
{model}
{data}
loader = DataLoader(batches * {repeats}, batch_size=None)
held_out = DataLoader(batches * {validations}, batch_size=None)
{optimizer}

def timed(batches, took):
    # Yields batches, and notes how long the loop worked with each.
    for batch in batches:
        began = time.perf_counter()
        yield batch
        took.append(time.perf_counter() - began)

def train(model, took):
    model.train()
    for x, y in timed(loader, took):
{step}

def validate(model, took):
    model.eval()
{validation}

def turn(seconds):
    # Runs epochs for so many seconds, and returns how long a step takes, and one of validation.
    steps, passes = [], []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        train(model, steps)
        validate(model, passes)
    return [statistics.mean(one) if one else 0.0 for one in (steps, passes)]

# By itself it trains for ever; with a number it makes a turn of so many seconds for each line.
turns = sys.stdin if len(sys.argv) > 1 else itertools.count()
for _ in turns:
    print(json.dumps(turn(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)), flush=True)
"""

CONVOLUTIONS = """
def block(inputs, outputs):
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]

blocks = [*block(3, 32), *block(32, 32), *block(32, 32)]
model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
"""
LAYERS = """
layers = [layer for _ in range(40) for layer in (nn.Linear(64, 64), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(64, 10))
"""
WIDE = """
layers = [nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(2048, 10))
"""
POINTWISE = """
class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(256, 256)

    def forward(self, x):
        y = self.weight(x)
        return x + torch.sigmoid(y) * torch.tanh(y) * F.softplus(y) / (1 + y.square())

model = nn.Sequential(Gated(), Gated(), nn.Linear(256, 10))
"""

IMAGES = "batches = [(torch.rand(16, 3, 48, 48), torch.randint(10, (16,))) for _ in range(4)]"
ROWS = "batches = [(torch.rand({n}, {width}), torch.randint(10, ({n},))) for _ in range(8)]"

PLAIN = {
    "threads": "torch.set_num_threads(1)",  # more wait for each other where cores are shared
    "start": "",
    "data": IMAGES,
    "repeats": "4",
    "model": CONVOLUTIONS,
    "optimizer": "optimizer = torch.optim.SGD(model.parameters(), 0.01)",
    "step": """
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    """,
    "validation": "pass",
    "validations": "1",
}
ZEROED = PLAIN["step"].replace("zero_grad()", "zero_grad(set_to_none=False)")
CLIPPED = PLAIN["step"].replace(
    "optimizer.step()",
    "nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)\n        optimizer.step()",
)
VALIDATED = """
for x, y in timed(held_out, took):
    F.cross_entropy(model(x), y)
"""
UNRECORDED = f"with torch.no_grad():{textwrap.indent(VALIDATED, '    ')}"


def rows(count: int, width: int) -> str:
    """Return batches of vectors."""
    return ROWS.format(n=count, width=width)


@dataclass(frozen=True)
class Case:
    """A piece of advice, a program to which it applies, and what it is with the advice followed."""

    id: str
    what: str
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)
    validation: bool = False
    """Whether it is about passes of the validation."""
    environment: tuple[dict[str, str], dict[str, str]] = (KEEPS, KEEPS)
    """Of the two programs."""

    def programs(self) -> tuple[str, str]:
        """Return the text of both."""
        return program(self.before), program({**self.before, **self.after})


def program(parts: dict[str, str]) -> str:
    """Return the program with some parts other than the plain ones."""
    deep = {"step": 8, "validation": 4}
    texts = {
        name: textwrap.indent(textwrap.dedent(text).strip(), " " * deep.get(name, 0))
        for name, text in {**PLAIN, **parts}.items()
    }
    return PROGRAM.format(**texts)


MANY_LAYERS = {"model": LAYERS, "data": rows(32, 64), "repeats": "16"}
CASES = [
    Case(
        "D09",
        "anomaly detection off",
        {**MANY_LAYERS, "start": "torch.autograd.set_detect_anomaly(True)"},
        {"start": ""},
    ),
    Case("D07", "gradients set to None", {**MANY_LAYERS, "step": ZEROED}, {"step": PLAIN["step"]}),
    Case(
        "D07",
        "gradients set to None, of wide layers",
        {"model": WIDE, "data": rows(16, 1024), "step": ZEROED},
        {"step": PLAIN["step"]},
    ),
    Case(
        "D06",
        "fused AdamW",
        {**MANY_LAYERS, "optimizer": "optimizer = torch.optim.AdamW(model.parameters(), 1e-3)"},
        {"optimizer": "optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)"},
    ),
    Case(
        "D08",
        "no bias before a normalisation",
        {"model": CONVOLUTIONS.replace(", bias=False", "")},
        {"model": CONVOLUTIONS},
    ),
    Case(
        "D10", "no_grad in validation", {"validation": VALIDATED}, {"validation": UNRECORDED}, True
    ),
    Case(
        "D03",
        "channels last",
        {},
        {
            "model": f"{CONVOLUTIONS}\nmodel = model.to(memory_format=torch.channels_last)",
            "step": PLAIN["step"].replace(
                "model(x)", "model(x.contiguous(memory_format=torch.channels_last))"
            ),
        },
    ),
    Case(
        "D15", "ReLU in place", {}, {"model": CONVOLUTIONS.replace("ReLU()", "ReLU(inplace=True)")}
    ),
    Case(
        "D13",
        "clipping all gradients at once",
        {**MANY_LAYERS, "step": CLIPPED},
        {"step": CLIPPED.replace("foreach=False", "foreach=True")},
    ),
    Case(
        "D05",
        "torch.compile",
        {"model": POINTWISE, "data": rows(512, 256), "repeats": "8"},
        {"model": f"{POINTWISE}\nmodel.compile()"},
    ),
    Case(
        "D16",
        "normalisations folded for validation",
        # Folding takes time once a validation, as weights were trained since: not of four batches.
        {"validation": UNRECORDED, "validations": "6"},
        {
            "validation": f"""
                from torch.fx.experimental.optimization import fuse
                model = fuse(model)
                {textwrap.indent(UNRECORDED, " " * 16).strip()}
            """
        },
        True,
    ),
    Case("D55", "memory allocator", environment=({}, KEEPS)),
    Case("D17", "as many threads as cores, not one", {}, {"threads": ""}),
]

NOTHING = {
    "model": CONVOLUTIONS,
    "step": CLIPPED.replace("zero_grad()", "zero_grad(set_to_none=False)"),
    "optimizer": "optimizer = torch.optim.AdamW(model.parameters(), 1e-3)",
}
NOTHING_IDS = "D06", "D07", "D13"


def examined(path: Path, ids: tuple[str, ...], environment: dict[str, str]) -> dict[str, Any]:
    """Return doctor's report on a program, of these pieces of advice."""
    only = [word for id in ids for word in ("--only", id)]
    command = [sys.executable, "-m", "fastdata", "doctor", "--json", "--quiet", *only]
    done = subprocess.run(
        [*command, "--seconds", "600", "--", str(path)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, **environment, "PYTHONPATH": str(REPOSITORY)},
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


class Program:
    """A program that runs, and makes a turn when it is asked to; a context, which ends it."""

    def __init__(self, path: Path, environment: dict[str, str], seconds: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(path), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **environment},
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def turn(self) -> list[float]:
        """Return the seconds of an epoch, and of its validation."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        seconds: list[float] = json.loads(self._process.stdout.readline())
        return seconds


class ByHand:
    """A program beside the one with the advice followed; a context, which ends both."""

    def __init__(self, case: Case, paths: tuple[Path, Path], order: random.Random) -> None:
        self._case, self._paths, self._order = case, paths, order
        self._running = ExitStack()
        self.ratios: list[float] = []

    def __enter__(self) -> ByHand:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def run(self) -> None:
        """Make a turn of each; every few turns both are started anew."""
        if len(self.ratios) % ROUNDS == 0:
            self._running.close()
            self._programs = [
                self._running.enter_context(Program(*one, SECONDS))
                for one in zip(self._paths, self._case.environment, strict=True)
            ]
            for one in self._programs:  # the first turn compiles, and takes memory
                one.turn()
        turn = list(enumerate(self._programs))
        self._order.shuffle(turn)
        took = {number: one.turn()[self._case.validation] for number, one in turn}
        self.ratios.append(took[0] / took[1])


def check(case: Case, folder: Path, order: random.Random) -> dict[str, Any]:
    """Try a case's advice, and follow it by hand, in turns."""
    paths = folder / f"{case.id}_before.py", folder / f"{case.id}_after.py"
    for path, text in zip(paths, case.programs(), strict=True):
        path.write_text(text)
    os.environ |= case.environment[0]
    phase: Phase = "evaluate" if case.validation else "train"
    scratch = folder / "scratch"
    with (
        Trials(Script("file", str(paths[0])), scratch) as trials,
        ByHand(case, paths, order) as by_hand,
    ):
        findings = [one for one in trials.watch().findings if one.id == case.id and one.is_tried]
        if not findings:
            return row(case, {"failed": "not found", "right": False})
        noise = trials.noise(phase)
        trials.each_round = by_hand.run
        environment = tuple(pair for one in findings for pair in one.environment)
        trial = trials.trial((case.id,), phase, environment)
    for name in case.environment[0]:
        del os.environ[name]
    shutil.rmtree(scratch, ignore_errors=True)
    if trial.gain is None or noise.gain is None:
        return row(case, {"failed": trial.why or noise.why, "right": False})
    [judgement] = judged([trial], noise.gain)
    gain, real = judgement.gain, rate_of(by_hand.ratios)
    assert gain is not None, "it has one"
    values = {
        "gain": [gain.median, gain.low, gain.high],
        "real": [real.median, real.low, real.high],
        "verdict": judgement.verdict,
        "right": gain.low <= real.median <= gain.high,
    }
    return row(case, values)


def row(case: Case, values: dict[str, Any]) -> dict[str, Any]:
    """Return a case's line."""
    versions = {"torch": torch.__version__}
    name = f"{case.id} {case.what}"
    return {"benchmark": "doctor", "row": name, "values": values, "versions": versions}


def nothing(folder: Path, number: int) -> dict[str, Any]:
    """Examine the program with nothing to gain, once."""
    path = folder / "nothing.py"
    path.write_text(program(NOTHING))
    report = examined(path, NOTHING_IDS, KEEPS)
    trials = {row["id"]: row["trial"] for row in report["rows"] if row["trial"] is not None}
    gains = {
        id: [trial["gain"]["median"], trial["gain"]["low"], trial["gain"]["high"], trial["verdict"]]
        for id, trial in trials.items()
        if trial["gain"] is not None
    }
    noise = [report["noise"][key] for key in ("median", "low", "high")]
    called = [id for id, one in gains.items() if one[-1] == "gain"]
    return {"benchmark": "nothing", "run": number, "same": noise, "gains": gains, "called": called}


def main() -> int:
    """Read the command line, and check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=sorted({case.id for case in CASES}))
    parser.add_argument(
        "--nothing", type=int, metavar="RUNS", help="examine what has nothing to gain"
    )
    given = parser.parse_args()
    order = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.nothing:
            runs = []
            for number in range(given.nothing):
                runs.append(nothing(folder, number))
                print(json.dumps(runs[-1]), flush=True)
            called = sum(bool(run["called"]) for run in runs)
            medians = [run["same"][0] for run in runs]
            values = {
                "runs": len(runs),
                "trials": sum(len(run["gains"]) for run in runs),
                "with_a_gain": called,
                "noise": [min(medians), max(medians)],
            }
            print(json.dumps({"benchmark": "nothing", "row": "nothing", "values": values}))
            return 0
        right = []
        for case in CASES:
            if given.only and case.id not in given.only:
                continue
            say(f"{case.id}: {case.what}")
            found = check(case, folder, order)
            print(json.dumps(found), flush=True)
            right.append(found["values"]["right"])
    say(f"{sum(right)} of {len(right)} intervals have the real gain")
    return 0


if __name__ == "__main__":
    sys.exit(main())
