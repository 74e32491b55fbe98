"""Does tune_workers choose right, and does the advice of a profile come true?

    python scripts/bench/tune_check.py --images DIR          # ten pairs, about 15 minutes
    python scripts/bench/tune_check.py --quick --only sleep-10ms/100 jpeg/16
    python scripts/bench/tune_check.py --images DIR --advice --against CHECKOUT

**The choice** is held against an exhaustive sweep, with a step of known length.  Each pair is a
dataset and the length of a step that sleeps, so that it takes no core.  The sweep trains with every
number of workers and, where there is a choice, every kind of them, in turns in random order;
nothing of the tuner is in it.  The step's ceiling is its rate without a loader.  A setting feeds
the step if its median reaches 97% of the ceiling.  The tuner is right in a pair if

*  its choice feeds the step in the sweep, or no setting does, and it reaches 90% of the best; and
*  no setting with fewer workers feeds it.

**The advice** is followed by hand.  Each loop of `advice_cases` is profiled, in a process of its
own, by this version and, with ``--against``, by that of another checkout.  Each fix that an option
can make is made, and the loop run with and without it, in turns in random order: the real gain is
the ratio of the median rates.  Bounds ("at most") are in the table and do not count.

What is done is kept in ``--work`` and not done again; ``--again`` forgets it.  Prints a markdown
table and a JSON line for each.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import random
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from torch.utils.data import Dataset

import fastdata
import pages
from advice_cases import CASES, Case, Waiting
from bench_data import Datasets, find_images
from fastdata import transforms as T  # noqa: N812
from fastdata.measuring.loaders import end_workers
from fastdata.processes.resources import available_cores
from fastdata.tuned_settings.settings import Settings
from harness import REPOSITORY, say
from results import Measured

CEILING, ALIKE = 0.97, 0.9
ROUNDS, WINDOW_SECONDS = 3, 1.2
QUICK_ROUNDS, QUICK_WINDOW_SECONDS = 3, 0.7
TUNE_SECONDS, QUICK_TUNE_SECONDS = 30.0, 15.0
PROFILE_SECONDS, QUICK_PROFILE_SECONDS = 20.0, 10.0
PASS_SAMPLES = 2048

Found = TypeVar("Found")


@dataclass(frozen=True)
class Pair:
    """A dataset, and a step.

    Attributes
    ----------
    name : str
    step_ms : float
    options : callable
        Returns the data, the options of `fastdata.loader`, and the most workers of the sweep.
    """

    name: str
    step_ms: float
    options: Callable[[Datasets], tuple[Any, dict[str, Any], int]]


def waiting(seconds: float) -> Callable[[Datasets], tuple[Any, dict[str, Any], int]]:
    """Sixteen samples a batch that wait."""
    return lambda data: (Waiting(seconds), {"batch_size": 16}, 4 * available_cores())


def photographs(data: Datasets) -> tuple[Any, dict[str, Any], int]:
    """JPEGs of a short side of 256, cropped to 224."""
    transform = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
    path = str(data.packed(".lmdb"))
    return path, {"batch_size": 128, "transform": transform}, 2 * available_cores()


def small_crops(data: Datasets) -> tuple[Any, dict[str, Any], int]:
    """The same JPEGs, cropped to 96."""
    transform = [T.RandomResizedCrop(96), T.RandomHorizontalFlip()]
    path = str(data.packed(".lmdb"))
    return path, {"batch_size": 128, "transform": transform}, 2 * available_cores()


def small_raw(data: Datasets) -> tuple[Any, dict[str, Any], int]:
    """Raw images of 32 x 32."""
    transform = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip()]
    path = str(data.noise(".lmdb"))
    return path, {"batch_size": 512, "transform": transform}, 2 * available_cores()


PAIRS = [
    # Supply of n workers: n / (16 x the sample's time).  Steps are long enough that the 1.3 ms
    # which a stock DataLoader takes of the loop for each batch are no 3% of them.
    Pair("sleep-4ms/100", 100, waiting(0.004)),
    Pair("sleep-10ms/100", 100, waiting(0.010)),
    Pair("sleep-20ms/100", 100, waiting(0.020)),
    Pair("sleep-30ms/140", 140, waiting(0.030)),
    Pair("jpeg/10", 10, photographs),
    Pair("jpeg/16", 16, photographs),
    Pair("jpeg/60", 60, photographs),
    Pair("jpeg-96/30", 30, small_crops),
    Pair("raw-32/10", 10, small_raw),
    Pair("raw-32/400", 400, small_raw),
]


def candidates(data: Any, most: int) -> list[Settings]:
    """Return every number of workers by every kind of them."""
    if isinstance(data, Dataset) and not isinstance(data, fastdata.Dataset):
        return [Settings(count, "process", backend="torch") for count in range(most + 1)]
    found = [Settings(0)]
    for count in range(1, most + 1):
        found += [Settings(count, "thread"), Settings(count, "process")]
    return found


@contextmanager
def opened(data: Any, options: dict[str, Any], settings: Settings) -> Iterator[Any]:
    """Make a loader as a user does."""
    given: dict[str, Any] = {"num_workers": settings.num_workers}
    if settings.num_workers:
        given |= {
            "prefetch_factor": settings.prefetch_factor,
            "persistent_workers": settings.persistent_workers,
        }
    if settings.backend != "torch":
        given["worker_method"] = settings.worker_method
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        made = fastdata.loader(data, shuffle=True, drop_last=True, **options, **given)
        try:
            yield made
        finally:
            end_workers(made)


def endless(loader: Any) -> Generator[Any, None, None]:
    """Yield batches of one epoch after another."""
    while True:
        yield from loader


def steps_a_second(loader: Any, seconds: float, window: float, settings: Settings) -> float:
    """Train for a while; return the rate of the second part."""
    batches = endless(loader)
    ahead = settings.prefetch_factor * max(settings.num_workers, 1)
    for _ in range(ahead + 3):
        next(batches)
        time.sleep(seconds)
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < window:
        next(batches)
        time.sleep(seconds)
        count += 1
    batches.close()
    return count / took


def ceiling(seconds: float, window: float) -> float:
    """Return the rate of the step alone."""
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < window:
        time.sleep(seconds)
        count += 1
    return count / took


def check(pair: Pair, datasets: Datasets, quick: bool) -> dict[str, Any]:
    """Tune, and sweep; return what came out."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    window = QUICK_WINDOW_SECONDS if quick else WINDOW_SECONDS
    data, options, most = pair.options(datasets)
    began = time.monotonic()
    result = fastdata.tune_workers(
        data,
        step_ms=pair.step_ms,
        seconds=QUICK_TUNE_SECONDS if quick else TUNE_SECONDS,
        progress=False,
        keep=False,
        **options,
    )
    tuned_seconds = time.monotonic() - began
    chosen, seconds = result.settings, pair.step_ms / 1e3
    swept = list(dict.fromkeys([*candidates(data, most), chosen]))
    rates: dict[Settings, list[float]] = {settings: [] for settings in swept}
    ceilings, order = [], random.Random(0)
    for number in range(rounds):
        order.shuffle(swept)
        ceilings.append(ceiling(seconds, window))
        for settings in swept:
            # Once far off is enough: what has half the rate does not feed the step later.
            if number and median(rates[settings]) < 0.8 * CEILING * median(ceilings):
                continue
            with opened(data, options, settings) as loader:
                rates[settings].append(steps_a_second(loader, seconds, window, settings))
    top = median(ceilings)
    share = {settings: median(found) / top for settings, found in rates.items()}
    feeding = sorted((settings for settings in share if share[settings] >= CEILING), key=cost)
    smallest = feeding[0] if feeding else None
    best = smallest or max(share, key=share.__getitem__)
    feeds = share[chosen] >= CEILING
    return {
        "pair": pair.name,
        "step_ms": pair.step_ms,
        "ceiling": top,
        "chosen": asdict(chosen),
        "chosen_text": str(chosen),
        "chosen_share": share[chosen],
        "fed": smallest is not None,
        "best_text": str(best),
        "best_share": share[best],
        "feeds": feeds or (not feeding and share[chosen] >= ALIKE * max(share.values())),
        "smallest": smallest is None or (feeds and chosen.num_workers <= smallest.num_workers),
        "verdict": result.verdict,
        "tune_seconds": tuned_seconds,
        "seconds": time.monotonic() - began,
        "shares": {str(settings): share[settings] for settings in sorted(share, key=cost)},
    }


# -- advice ----------------------------------------------------------------------------------

CHANGES: list[tuple[str, Callable[..., dict[str, Any]]]] = [
    (r"num_workers=(\d+) \(now", lambda count: {"num_workers": int(count)}),
    (r"persistent_workers=True", lambda: {"persistent_workers": True}),
    (r"a faster transform", lambda: {"transform": None}),
    (r"a faster collate", lambda: {"collate_fn": None}),
]
"""Beginnings of the text of fixes, and the options that follow them."""

MOST_TRIES, CALM_CORES = 3, 0.2
"""What is measured while others take more cores is measured again."""

DISTURBED_CORES = 0.5
"""A loop beside which others took more all the time says nothing."""

ALLOWED = 1.2
"""A prediction that is more than this too high, or too low, is wrong."""


def profiled(case: Case, tree: Path, arguments: list[str]) -> dict[str, Any]:
    """Return the report of a profile by the version in `tree`."""
    here = Path(__file__).resolve()
    path = os.pathsep.join([str(tree), str(here.parent)])
    done = subprocess.run(
        [sys.executable, str(here), "--profile", case.name, *arguments],
        env={**os.environ, "PYTHONPATH": path, "FASTDATA_TUNED": "0"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def print_profile(case: Case, datasets: Datasets, seconds: float) -> None:
    """Profile the loop of a case, and print the report's JSON."""
    step = case.step()
    loader = case.made(datasets, {})
    report = fastdata.profile(loader, step, seconds=seconds, progress=False)
    say(str(report))
    print(json.dumps({**report.to_json(), "timeline": []}))


def advice_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return fixes that can be followed, by the JSON of what they change."""
    found: dict[str, dict[str, Any]] = {}
    for fix in report["fixes"]:
        for start, change in CHANGES:
            if match := re.match(start, fix["text"]):
                bound = fix.get("at_most", "at most" in fix["text"])
                key = json.dumps(change(*match.groups()))
                found.setdefault(key, {"speedup": fix["speedup"], "bound": bound})
    return found


def loop_rate(
    case: Case, datasets: Datasets, change: dict[str, Any], step: Any, window: float
) -> float:
    """Return steps a second of a case with some options changed."""
    loader = case.made(datasets, change)
    batches = endless(loader)
    epoch = len(loader) if case.whole_epochs else 1
    workers, prefetch = getattr(loader, "num_workers", 0), loader.prefetch_factor or 2
    ahead = workers * prefetch + 3
    try:
        for _ in range(-(-ahead // epoch) * epoch):
            step(next(batches))
        at_once = epoch * max(workers, 1)
        count, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < window:
            for _ in range(at_once):
                step(next(batches))
            count += at_once
        return count / took
    finally:
        batches.close()
        end_workers(loader)


def calmly(measure: Callable[[], Found]) -> tuple[float, Found]:
    """Measure while others leave the cores alone, or at the calmest of some times.

    Returns how many cores others took, and what was measured.  What runs beside a case is a child
    of this process, and no other.
    """
    from fastdata.measuring.cores import CoresOfOthers  # versions to compare with may have none

    found: list[tuple[float, Found]] = []
    while len(found) < MOST_TRIES and not (found and found[-1][0] <= CALM_CORES):
        others = CoresOfOthers()
        measured = measure()
        others.end()
        found.append((others.cores, measured))
    return min(found, key=lambda one: one[0])


def check_advice(
    case: Case, datasets: Datasets, trees: dict[str, Path], arguments: list[str], window: float
) -> dict[str, Any]:
    """Profile a case with each version, follow the advice of all; return what came out."""
    with case.beside():
        reports, disturbed, others = {}, [], []
        for name, tree in trees.items():
            taken, reports[name] = calmly(functools.partial(profiled, case, tree, arguments))
            disturbed.append(taken)
        advice = {name: advice_of(report) for name, report in reports.items()}
        changes = ["{}", *dict.fromkeys(key for found in advice.values() for key in found)]
        rates: dict[str, list[float]] = {change: [] for change in changes}
        order, step = random.Random(0), case.step()
        for _ in range(ROUNDS if len(changes) > 1 else 0):
            order.shuffle(changes)
            for change in changes:
                options = json.loads(change)
                rate = functools.partial(loop_rate, case, datasets, options, step, window)
                taken, found_rate = calmly(rate)
                rates[change].append(found_rate)
                others.append(taken)
    return {
        "case": case.name,
        "others": max([*disturbed, median(others or [0.0])]),
        "verdicts": {name: report["verdict"] for name, report in reports.items()},
        "rates": rates,
        "rows": [
            {
                "change": change,
                "real": median(rates[change]) / median(rates["{}"]),
                "predicted": {name: found.get(change) for name, found in advice.items()},
            }
            for change in rates
            if change != "{}"
        ],
    }


def advice_table(cases: list[dict[str, Any]], versions: list[str]) -> str:
    """Return predictions against real gains in markdown, and how many came true."""
    lines = [
        f"| loop | change | real gain | {' | '.join(versions)} |",
        "|---|---|--:|" + "--:|" * len(versions),
    ]
    ratios: dict[str, list[float]] = {name: [] for name in versions}
    calm = [case for case in cases if case["others"] <= DISTURBED_CORES]
    for case in calm:
        for row in case["rows"]:
            cells = []
            for name in versions:
                fix = row["predicted"].get(name)
                if fix is None:
                    cells.append("no advice")
                elif fix["bound"]:
                    cells.append(f"at most {fix['speedup']:.2f}")
                else:
                    ratios[name].append(fix["speedup"] / row["real"])
                    cells.append(f"{fix['speedup']:.2f} ({ratios[name][-1] - 1:+.0%})")
            change = ", ".join(f"{k}={v}" for k, v in json.loads(row["change"]).items())
            lines.append(f"| {case['case']} | {change} | {row['real']:.2f} | {' | '.join(cells)} |")
    if len(calm) < len(cases):
        lines.append(f"\n{len(cases) - len(calm)} loops are left out: others took the cores")
    for name, found in ratios.items():
        near = sum(1 / ALLOWED <= ratio <= ALLOWED for ratio in found)
        high = sum(ratio > ALLOWED for ratio in found)
        lines.append(
            f"\n{name}: {near} of {len(found)} predictions within 20%, {high} too high by more"
        )
    return "\n".join(lines)


# -- the program -----------------------------------------------------------------------------


def cost(settings: Settings) -> tuple[int, ...]:
    """Return what settings are ordered by."""
    return (settings.num_workers, settings.prefetch_factor, settings.worker_method == "process")


def main() -> None:
    """Check the pairs, or the advice, and print what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [pair.name for pair in PAIRS] + [case.name for case in CASES]
    parser.add_argument("--images", type=Path, help="class folders of JPEG files")
    parser.add_argument("--work", type=Path, default=Path(".cache/tune_check"))
    parser.add_argument("--only", nargs="+", choices=names)
    parser.add_argument("--samples", type=int, default=PASS_SAMPLES)
    parser.add_argument("--minutes", type=float, default=15.0, help="begin nothing after these")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter windows")
    parser.add_argument("--again", action="store_true", help="also what is done")
    parser.add_argument("--advice", action="store_true", help="check the advice of profiles")
    parser.add_argument("--against", type=Path, help="a checkout to compare with")
    parser.add_argument("--profile", help=argparse.SUPPRESS)
    options = parser.parse_args()
    work: Path = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    seconds = QUICK_PROFILE_SECONDS if options.quick else PROFILE_SECONDS
    if options.profile:
        case = next(case for case in CASES if case.name == options.profile)
        print_profile(case, Datasets(options.images, work, options.samples), seconds)
        return
    known: Sequence[Pair | Case] = CASES if options.advice else PAIRS
    chosen = [one for one in known if not options.only or one.name in options.only]
    waits = all(one.name.startswith("sleep") for one in chosen)
    images = work if waits else find_images(options.images)
    datasets = Datasets(images, work, options.samples)
    versions = {"before": options.against} if options.against else {}
    versions["now"] = REPOSITORY
    window = QUICK_WINDOW_SECONDS if options.quick else WINDOW_SECONDS
    arguments = ["--images", str(images), "--work", str(work), "--samples", str(options.samples)]
    arguments += ["--quick"] * options.quick

    def checked(one: Pair | Case) -> dict[str, Any]:
        if isinstance(one, Pair):
            return check(one, datasets, options.quick)
        return check_advice(one, datasets, versions, arguments, window)

    name = "advice" if options.advice else "quick" if options.quick else "done"
    kept = work / f"{name}.json"
    done: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    if options.again:
        done = {name: row for name, row in done.items() if name not in {o.name for o in chosen}}
    end = time.monotonic() + 60 * options.minutes
    for one in chosen:
        if one.name in done or time.monotonic() > end:
            continue
        say(one.name)
        done[one.name] = checked(one)
        kept.write_text(json.dumps(done))
    rows = [done[one.name] for one in chosen if one.name in done]
    benchmark = "tune_check, advice" if options.advice else "tune_check"
    named = [(row["case" if options.advice else "pair"], row) for row in rows]
    lines = [{"benchmark": benchmark, "row": name, "values": row} for name, row in named]
    if options.advice:
        print(advice_table(rows, list(versions)))
    else:
        print("\n".join(pages.tune_check(Measured.of(lines))))
        print(summary(rows, len(chosen)))
    machine = {
        "cores": available_cores(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    for line in lines:
        print(json.dumps(line | {"machine": machine}))


def summary(rows: list[dict[str, Any]], pairs: int) -> str:
    """Return how often the choice was right."""
    feeding, smallest = (sum(row[name] for row in rows) for name in ("feeds", "smallest"))
    possible = sum(row["fed"] for row in rows)
    return (
        f"\n{len(rows)} of {pairs} pairs, {possible} of which can be fed: in {feeding} "
        f"the choice feeds the step or is near the best, in {smallest} none with fewer workers does"
    )


if __name__ == "__main__":
    main()
