"""Measure what the tables of README.md and docs/ show, keep it in results/, and write the tables.

    scripts/bench/all --images DIR            every measurement; those of the last days are left out
    scripts/bench/all --images DIR --only load,pack    these, whenever they were measured
    scripts/bench/all --list                  what there is, and when it was measured last
    scripts/bench/all --write                 only the tables, from the results that are kept

What was interrupted goes on with the same command.  A contender that is not installed keeps its
last figures, with their date.  DIR has class folders of JPEG files, a thousand or more: fewer are
repeated, and the tables say so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pages
from bench_data import find_images, list_images
from harness import REPOSITORY, hardware, say
from results import Measured, figures_of

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Measurement:
    """A benchmark, as it is run for the tables."""

    script: str
    arguments: Sequence[str] = ()
    minutes: int = 5  # about, on two cores, once its data is made
    images: bool = True
    work: bool = True


FIGURES = ["workers", "cifar", "gap", "first-batch", "cold", "memory", "psnr"]
MEASUREMENTS = {
    "pack": Measurement("pack.py", ["--samples", "8000", "--rounds", "3"], 3),
    "load": Measurement("load.py", ["--rounds", "3", "--epochs", "3"], 22),
    "evaluation": Measurement("load.py", ["evaluation", "--rounds", "2", "--epochs", "1"], 7),
    "unpacked": Measurement("load.py", ["unpacked", "--rounds", "3", "--epochs", "2"], 6),
    "cifar": Measurement("load.py", ["cifar", "--rounds", "2", "--epochs", "2"], 6, images=False),
    "transforms": Measurement("transforms.py", ["--rounds", "2", "--seconds", "0.5"], 8),
    "figures": Measurement("figures.py", [*FIGURES, "--rounds", "3"], 20),
    "accuracy": Measurement("accuracy.py", ["--seeds", "5"], 25),
    "raw": Measurement("figures.py", ["raw", "--rounds", "5"], 2),
    "dct-scale": Measurement("dct_scale.py", minutes=5, work=False),
    "read-blobs": Measurement("read_blobs.py", minutes=3, images=False),
    "tune-check": Measurement("tune_check.py", ["--again"], 16),
    "mnist": Measurement("mnist_table.py", minutes=12, images=False),
    "converters": Measurement("converters.py", minutes=17),
    "remote": Measurement("remote.py", minutes=30),
    "doctor": Measurement("doctor_check.py", minutes=40, images=False, work=False),
    "doctor-nothing": Measurement(
        "doctor_check.py", ["--nothing", "20"], 50, images=False, work=False
    ),
}


def shown(measurement: Measurement) -> str:
    """Return the command as the tables have it."""
    quoted = [f'"{word}"' if " " in word else word for word in measurement.arguments]
    images = ["--images", "DIR"] if measurement.images else []
    return " ".join(["python", f"scripts/bench/{measurement.script}", *quoted, *images])


def is_recent(name: str, days: int) -> bool:
    """Return whether the last run is of the last days."""
    runs = Measured.load(name).runs
    if not runs or runs[0].get("taken_over"):
        return False
    age = datetime.date.today() - datetime.date.fromisoformat(runs[0]["date"])
    return age < datetime.timedelta(days)


def measure(name: str, images: Path, work: Path) -> bool:
    """Run a benchmark, keep its figures and write the tables; return whether all went well."""
    measurement = MEASUREMENTS[name]
    command = [sys.executable, str(HERE / measurement.script), *measurement.arguments]
    command += ["--images", str(images)] if measurement.images else []
    command += ["--work", str(work)] if measurement.work else []
    lines: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("{"):
                lines.append(json.loads(line))
    if not (figures := figures_of(lines)):
        say(f"{name}: nothing was measured")
        return False
    versions = {name: one for line in lines for name, one in line.get("versions", {}).items()}
    settings = [line["settings"] for line in lines if "settings" in line]
    samples = [one.get("samples") or one.get("photographs") for one in settings]
    run = {
        "date": datetime.date.today().isoformat(),
        "command": shown(measurement),
        "machine": hardware(),
        "versions": {"python": platform.python_version(), **dict(sorted(versions.items()))},
        "photographs": len(list_images(images)) if measurement.images else None,
        "samples": next(filter(None, samples), None),
        "figures": figures,
    }
    Measured.load(name).with_run(run).save(name)
    pages.write_all()
    return process.returncode == 0


def names(text: str) -> list[str]:
    """Return the measurements that are named, with commas between them."""
    found = text.split(",")
    if unknown := [name for name in found if name not in MEASUREMENTS]:
        known = ", ".join(MEASUREMENTS)
        raise argparse.ArgumentTypeError(f"no measurement is called {unknown[0]!r}: {known}")
    return found


def main() -> int:
    """Read the command line, measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, help="class folders of JPEG files")
    parser.add_argument("--work", type=Path, default=REPOSITORY / ".bench", help="kept datasets")
    parser.add_argument(
        "--only",
        action="extend",
        type=names,
        default=[],
        metavar="NAME[,NAME]",
        help="only these, whenever they were measured; may be repeated",
    )
    parser.add_argument(
        "--days", type=int, default=7, help="leave out what is as young; 0: measure all anew"
    )
    parser.add_argument("--list", action="store_true", help="list the measurements, and end")
    parser.add_argument("--write", action="store_true", help="write the tables, and end")
    given = parser.parse_args()
    if given.list:
        for name, one in MEASUREMENTS.items():
            runs = Measured.load(name).runs
            last = runs[0]["date"] if runs else "never"
            print(f"{name:14} {last:10}  {one.minutes:2} min  {shown(one)}")
        return 0
    if given.write:
        pages.write_all()
        return 0
    chosen = given.only or [name for name in MEASUREMENTS if not is_recent(name, given.days)]
    needed = any(MEASUREMENTS[name].images for name in chosen)
    images = find_images(given.images) if needed else Path()
    failed = []
    for name in chosen:
        say(f"-- {name}, about {MEASUREMENTS[name].minutes} minutes")
        if not measure(name, images, given.work.resolve()):
            failed.append(name)
    if failed:
        say(f"not all of these could be measured (above): {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
