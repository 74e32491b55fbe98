"""Does tune_workers choose right?  Against an exhaustive sweep, with a step of known length.

    python scripts/bench/tune_check.py --images DIR          # ten pairs, about 15 minutes
    python scripts/bench/tune_check.py --quick --only sleep-10ms/100 jpeg/16

Each pair is a dataset and the length of a step that sleeps, so that it takes no core.  The sweep
trains with every number of workers and, where there is a choice, every kind of them, in turns in
random order; nothing of the tuner is in it.  The step's ceiling is its rate without a loader.  A
setting feeds the step if its median reaches 97% of the ceiling.  The tuner is right in a pair if

*  its choice feeds the step in the sweep, or no setting does, and it reaches 90% of the best; and
*  no setting with fewer workers feeds it.

A pair that is done is kept in ``--work`` and not done again; ``--again`` forgets them.  Prints a
markdown table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import fastdata
from bench_data import Datasets, find_images
from fastdata import transforms as T  # noqa: N812
from fastdata.engine.loader import Loader
from fastdata.processes.resources import available_cores
from fastdata.tuned_settings.settings import Settings
from harness import say

CEILING, ALIKE = 0.97, 0.9
ROUNDS, WINDOW_SECONDS = 3, 1.2
QUICK_ROUNDS, QUICK_WINDOW_SECONDS = 3, 0.7
TUNE_SECONDS, QUICK_TUNE_SECONDS = 30.0, 15.0
PASS_SAMPLES = 2048


class Waiting(Dataset[Any]):
    """Samples that wait, as for a disk, and take no core."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.zeros(8), index


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
            if isinstance(made, Loader):
                made.close()
            elif isinstance(made, DataLoader):
                stop = getattr(made._iterator, "_shutdown_workers", None)
                if stop is not None:
                    stop()


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
    feeds = share[chosen] >= CEILING
    return {
        "pair": pair.name,
        "step_ms": pair.step_ms,
        "ceiling": top,
        "chosen": asdict(chosen),
        "chosen_text": str(chosen),
        "chosen_share": share[chosen],
        "smallest_text": str(smallest) if smallest else "none",
        "smallest_share": share[smallest] if smallest else max(share.values()),
        "feeds": feeds or (not feeding and share[chosen] >= ALIKE * max(share.values())),
        "smallest": smallest is None or (feeds and chosen.num_workers <= smallest.num_workers),
        "verdict": result.verdict,
        "tune_seconds": tuned_seconds,
        "seconds": time.monotonic() - began,
        "shares": {str(settings): share[settings] for settings in sorted(share, key=cost)},
    }


def cost(settings: Settings) -> tuple[int, ...]:
    """Return what settings are ordered by."""
    return (settings.num_workers, settings.prefetch_factor, settings.worker_method == "process")


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows in markdown."""
    lines = [
        "| dataset/step ms | chosen | of the ceiling | smallest that feeds, or none: the best "
        "| of the ceiling | right |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['pair']} | {row['chosen_text']} | {row['chosen_share']:.1%} "
            f"| {row['smallest_text']} | {row['smallest_share']:.1%} "
            f"| {'yes' if row['feeds'] and row['smallest'] else 'NO'} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Check the pairs, and print what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, help="class folders of JPEG files")
    parser.add_argument("--work", type=Path, default=Path(".cache/tune_check"))
    parser.add_argument("--only", nargs="+", choices=[pair.name for pair in PAIRS])
    parser.add_argument("--samples", type=int, default=PASS_SAMPLES)
    parser.add_argument("--minutes", type=float, default=15.0, help="begin no pair after these")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter windows")
    parser.add_argument("--again", action="store_true", help="also pairs that are done")
    options = parser.parse_args()
    work: Path = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    kept = work / ("quick.json" if options.quick else "done.json")
    done: dict[str, Any] = {}
    if kept.exists() and not options.again:
        done = json.loads(kept.read_text())
    pairs = [pair for pair in PAIRS if not options.only or pair.name in options.only]
    end = time.monotonic() + 60 * options.minutes
    datasets: Datasets | None = None
    for pair in pairs:
        if pair.name in done or time.monotonic() > end:
            continue
        if datasets is None:
            waits = all(one.name.startswith("sleep") for one in pairs)
            images = work if waits else find_images(options.images)
            datasets = Datasets(images, work, options.samples)
        say(f"{pair.name} ms")
        done[pair.name] = check(pair, datasets, options.quick)
        kept.write_text(json.dumps(done))
    rows = [done[pair.name] for pair in pairs if pair.name in done]
    print(table(rows))
    feeding, smallest = (sum(row[name] for row in rows) for name in ("feeds", "smallest"))
    possible = sum(row["smallest_text"] != "none" for row in rows)
    print(
        f"\n{len(rows)} of {len(pairs)} pairs, {possible} of which can be fed: in {feeding} "
        f"the choice feeds the step or is near the best, in {smallest} none with fewer workers does"
    )
    machine = {
        "cores": available_cores(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    print(json.dumps({"benchmark": "tune_check", "machine": machine, "pairs": rows}))


if __name__ == "__main__":
    main()
