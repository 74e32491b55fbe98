"""What fastdata does for a GPU, on this machine: tests, copies, overlap, loaders, training, cache.

    scripts/gpu_check                        everything, in about ten minutes
    scripts/gpu_check copies overlap         some parts
    scripts/gpu_check --quick                everything, in less than three minutes
    scripts/gpu_check --device cpu --quick   a dry run, where there is no GPU

A table comes at the end; each figure is in the JSON file as soon as it is measured.  Ctrl-C keeps
what was measured until then.  docs/gpu_check.md tells what each row means.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import copies
import device_cache
import gpu_tests
import loaders
import overlap
import training
from bench_parts import REPOSITORY, say
from budget import Budget
from machine import about, headline
from plot import NO_MATPLOTLIB, can_plot, plot
from report import DRY_RUN, Report
from settings import Settings

__all__ = ["PARTS", "main"]

PARTS: dict[str, tuple[Callable[[Settings, Report, Budget], None], float]] = {
    "tests": (gpu_tests.run, 3.5),
    "copies": (copies.run, 0.5),
    "overlap": (overlap.run, 0.7),
    "loaders": (loaders.run, 0.8),
    "training": (training.run, 6.0),
    "cache": (device_cache.run, 0.5),
}
"""Of each part what runs it, and how much of the time may be its, beside the others."""

MINUTES, QUICK_MINUTES = 11.0, 2.7
INTERRUPTED = 130
"""Exit code after Ctrl-C, as a shell has it."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}, or all (the default)"
    )
    made.add_argument("--device", default="cuda", help="cuda (the default), cuda:1..., or cpu")
    made.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    made.add_argument("--minutes", type=positive_number, help="about so long; rounds are trimmed")
    made.add_argument("--json", type=Path, help="the report; by default gpu_check.json in --work")
    made.add_argument("--plot", type=Path, help="a picture of it (matplotlib)")
    made.add_argument("--images", type=Path, help="folder of class folders of JPEG files")
    made.add_argument(
        "--work", type=Path, default=REPOSITORY / ".bench" / "gpu", help="kept datasets"
    )
    made.add_argument("--samples", type=positive_int, help="of the datasets")
    made.add_argument("--batch-size", type=positive_int)
    made.add_argument(
        "--strict", action="store_true", help="exit code 1 where a bar is not met, or a part fails"
    )
    return made


def positive_int(text: str) -> int:
    """Return a whole number from 1 up."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def positive_number(text: str) -> float:
    """Return a number above 0."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def device_of(name: str) -> torch.device:
    """Return the device that is meant, with its index.

    Raises
    ------
    ValueError
        If it is not there.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"--device {name}: {error}") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ValueError(f"--device is cuda or cpu, not {name}")
    if not torch.cuda.is_available():
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        raise ValueError(
            f"torch {torch.__version__}, built with {built}, finds no GPU. Where there is one: "
            "look at nvidia-smi, or take a Python whose torch has CUDA (--python PATH). Where "
            "there is none: --device cpu --quick is a dry run"
        )
    count = torch.cuda.device_count()
    if ":" not in name:
        return torch.device("cuda", torch.cuda.current_device())
    if device.index >= count:
        raise ValueError(f"--device {name}: there are {count} GPUs, numbered from 0")
    return device


def chosen_parts(given: Sequence[str]) -> list[str]:
    """Return the parts to run, in their order.

    Raises
    ------
    ValueError
        If one of them is none.
    """
    for name in given:
        if name not in PARTS and name != "all":
            raise ValueError(f"{name} is no part; there are {', '.join(PARTS)} and all")
    everything = not given or "all" in given
    return [name for name in PARTS if everything or name in given]


def measure(parts: list[str], settings: Settings, report: Report, minutes: float) -> None:
    """Run the parts; each has its share of the time, and what those before have left."""
    budget = Budget(60 * minutes)
    for place, name in enumerate(parts):
        run, weight = PARTS[name]
        rest = sum(PARTS[later][1] for later in parts[place:])
        say(f"{name} ({budget.remaining:.0f} s left)")
        run(settings, report, budget.share(weight / rest))
        if settings.device.type == "cuda":
            torch.cuda.empty_cache()


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, measure and print.

    Returns
    -------
    int
        0; with ``--strict`` 1 where a bar is not met or a part failed; 2 if nothing could be
        begun; 130 after Ctrl-C.
    """
    given = parser().parse_args(arguments)
    try:
        parts = chosen_parts(given.parts)
        device = device_of(given.device)
        if given.plot is not None and not can_plot():
            raise ValueError(NO_MATPLOTLIB)  # now, not after ten minutes
        if given.images is not None and not given.images.is_dir():
            raise ValueError(f"--images: there is no folder {given.images}")
    except ValueError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    settings = Settings.of(
        device,
        given.work.resolve(),
        images=given.images,
        quick=given.quick,
        samples=given.samples,
        batch_size=given.batch_size,
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    found = about(device)
    path = (given.json or settings.work / "gpu_check.json").resolve()
    report = Report(
        path,
        {
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "parts": parts,
            **found,
            "settings": settings.as_json(),
        },
        dry=settings.dry,
    )
    if settings.dry:
        say(DRY_RUN)
    minutes = given.minutes or (QUICK_MINUTES if given.quick else MINUTES)
    try:
        measure(parts, settings, report, minutes)
    except KeyboardInterrupt:
        report.end("interrupted")
    else:
        report.end("complete")
    print(f"\n{headline(found)}\n{report.table()}\n\nIn JSON: {path}")
    if given.plot is not None:
        try:
            plot(report.document(), given.plot)
            print(f"Plot: {given.plot}")
        except (OSError, ValueError) as error:
            print(f"gpu_check: no plot: {error}", file=sys.stderr)
    if report.state == "interrupted":
        return INTERRUPTED
    return 1 if given.strict and not report.holds else 0


def _end_as_by_ctrl_c(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    # Of `timeout`, or a batch system: what was measured is worth as much then.
    signal.signal(signal.SIGTERM, _end_as_by_ctrl_c)
    sys.exit(main())
