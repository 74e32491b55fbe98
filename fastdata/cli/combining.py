"""``fastdata merge``, ``subset`` and ``append`` make new datasets of packed ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from fastdata.cli.options import (
    Command,
    copy_options,
    output_options,
    parse_option,
    seed_option,
    source_options,
    split_option,
    store_options,
)
from fastdata.cli.shell import on_interruption, print_report, print_result

__all__ = ["append_command", "merge_command", "subset_command"]

_KEPT = "The copied samples are kept: run the same command again to continue."
_OUTPUT = {"Output": "container shards shard-size overwrite"}

_MERGE_EPILOG = """\b
Examples:
  fastdata merge a.lmdb b.h5 all.lmdb
  fastdata merge day1.lmdb day2.lmdb all/ --shard-size 2GB --shuffle

\b
Images are copied byte for byte.  All datasets must have the same fields and classes.
If the command is interrupted, run it again: it continues.

\b
Exit codes: 0 done; 1 failed; 2 wrong usage; 3 done, without damaged samples;
4 DESTINATION exists or is locked; 5 disk full; 130 Ctrl-C."""


@click.command(
    "merge",
    cls=Command,
    groups={"Which samples": "shuffle seed on-error", **_OUTPUT},
    epilog=_MERGE_EPILOG,
    short_help="Join several datasets into one.",
)
@click.argument("datasets", type=click.Path(), nargs=-1, required=True)
@click.argument("destination", type=click.Path())
@copy_options
@seed_option("--shuffle")
@store_options
@output_options
def merge_command(
    datasets: tuple[str, ...], destination: str, quiet: bool, as_json: bool, **options: Any
) -> int:
    """Copy the samples of DATASETS, in this order, to the new dataset DESTINATION."""
    import fastdata

    with on_interruption(_KEPT):
        report = fastdata.merge(datasets, destination, progress=False if quiet else None, **options)
    return print_report(report, as_json=as_json, quiet=quiet)


def parse_shares(value: str | dict[str, float]) -> dict[str, float]:
    """Parse ``train=0.8,val=0.2``; numbers without a point are counts."""
    if isinstance(value, dict):
        return value  # click converts twice
    shares: dict[str, float] = {}
    for part in value.split(","):
        name, size = parse_option(part.strip())
        try:
            number = int(size) if re.fullmatch(r"\d+", size) else float(size)
        except ValueError:
            raise click.BadParameter(f"{part!r} is not NAME=SHARE, e.g. train=0.8.") from None
        if name in shares:
            raise click.BadParameter(f"there are two parts {name!r}.")
        shares[name] = number
    return shares


_SUBSET_EPILOG = """\b
Examples:
  fastdata subset train.lmdb pets.lmdb --class cat --class dog
  fastdata subset all.lmdb train.lmdb --split train
  fastdata subset all.lmdb parts/ --divide train=0.8,val=0.1,test=0.1 --stratify label
  fastdata subset all.lmdb parts/ --divide small=0.1
  fastdata subset all.lmdb some.lmdb --indices 0:1000,5000,-1

\b
Images are copied byte for byte, and classes keep their numbers.  A sample must meet all
conditions; --divide divides these samples.  If the command is interrupted, run it again: it
continues.

\b
Exit codes: 0 done; 1 failed; 2 wrong usage; 3 done, without damaged samples;
4 DESTINATION exists or is locked; 5 disk full; 130 Ctrl-C."""


@click.command(
    "subset",
    cls=Command,
    groups={
        "Which samples": "class split where indices invert shuffle seed on-error",
        "Division": "divide stratify group",
        **_OUTPUT,
    },
    epilog=_SUBSET_EPILOG,
    short_help="Copy a part of a dataset.",
)
@click.argument("dataset", type=click.Path())
@click.argument("destination", type=click.Path())
@click.option(
    "--class",
    "classes",
    multiple=True,
    metavar="NAME",
    help="Take samples of this class, by name or number. Repeatable.",
)
@split_option
@click.option(
    "--where",
    type=parse_option,
    multiple=True,
    metavar="FIELD=VALUE",
    help="Take samples with this value: a number, class name or text. Repeatable.",
)
@click.option(
    "--indices",
    metavar="LIST|FILE",
    help="Take samples by position: 0,5,10:20, or a file with one number per line.",
)
@click.option("--invert", is_flag=True, help="Take all other samples instead.")
@click.option(
    "--divide",
    type=parse_shares,
    metavar="NAME=SHARE,...",
    help="Write a dataset for each part into the folder DESTINATION: train=0.8,val=0.2. Whole "
    "numbers count samples. A single part, small=0.1, is written without the rest.",
)
@click.option(
    "--stratify",
    metavar="FIELD",
    help="Give each part its share of each class or value of this field.",
)
@click.option(
    "--group",
    metavar="FIELD",
    help="Keep samples with one value of this field together, e.g. of one patient.",
)
@copy_options
@seed_option("--divide and --shuffle")
@store_options
@output_options
def subset_command(
    dataset: str,
    destination: str,
    classes: tuple[str, ...],
    split: str | None,
    where: tuple[tuple[str, str], ...],
    indices: str | None,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Copy the samples of DATASET that meet the conditions to the new dataset DESTINATION.

    With --divide, DESTINATION is a folder for the parts.
    """
    import fastdata
    from fastdata.splits import select_split

    conditions: dict[str, list[str]] = {}
    for name, value in where:
        conditions.setdefault(name, []).append(value)
    opened = fastdata.open(dataset)
    places = None
    if indices is not None:
        places = _places(indices, len(opened if split is None else select_split(opened, split)))
    with on_interruption(_KEPT):
        report = fastdata.subset(
            opened,
            destination,
            split=split,
            classes=classes or None,
            where=conditions or None,
            indices=places,
            progress=False if quiet else None,
            **options,
        )
    return print_report(report, as_json=as_json, quiet=quiet)


def _places(text: str, count: int) -> list[int]:
    """Read positions of samples, from the text itself or from the file that it names."""
    if re.fullmatch(r"[-\d:,\s]+", text):
        parts = text.split(",")
    else:
        try:
            parts = Path(text).read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(
                f"{text!r} is neither a list such as 0,5,10:20 nor a readable file.",
                param_hint="--indices",
            ) from error
    places: list[int] = []
    for part in filter(None, map(str.strip, parts)):
        match = re.fullmatch(r"(-?\d+)|(-?\d+)?:(-?\d+)?", part)
        if match is None:
            raise click.BadParameter(
                f"expected the position of a sample, e.g. 5 or 10:20, not {part!r}.",
                param_hint="--indices",
            )
        if match[1] is not None:
            places.append(int(match[1]))
        else:
            start, stop = (int(end) if end else None for end in match.group(2, 3))
            places += range(count)[start:stop]
    return places


_APPEND_EPILOG = """\b
Examples:
  fastdata append train.lmdb ./more_images
  fastdata append shards/ other.lmdb

\b
New images are resized and encoded like those of DATASET; a packed SOURCE is copied byte
for byte.  Classes are matched by name, and SOURCE may have no new ones.  A folder gets
more shards; a single file is copied and replaced.  If the command is interrupted, run it
again: it continues, and adds nothing twice.

\b
Exit codes: 0 done; 1 failed; 2 wrong usage; 3 done, but DATASET.append.rejects.csv lists
rejected samples; 4 another append is running; 5 disk full; 130 Ctrl-C."""


@click.command(
    "append",
    cls=Command,
    groups={
        "Which samples": "format option field limit max-pixels on-error",
        "Speed": "num-workers",
    },
    epilog=_APPEND_EPILOG,
    short_help="Add samples to a dataset.",
)
@click.argument("dataset", type=click.Path())
@click.argument("source", type=click.Path())
@source_options
@output_options
def append_command(
    dataset: str,
    source: str,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Add the samples of SOURCE to DATASET; SOURCE is anything that `fastdata pack` reads."""
    import fastdata

    def text() -> str:
        total = len(fastdata.open(dataset))
        lines = [f"{dataset}: {report.num_samples:,} samples added, {total:,} now"]
        lines += [f"note: {note}" for note in report.notes]
        if report.rejects_path:
            lines.append(f"{report.num_rejected:,} samples rejected: see {report.rejects_path}")
        return "\n".join(lines)

    with on_interruption(_KEPT):
        report = fastdata.append(
            dataset,
            source,
            progress=False if quiet else None,
            **options,
        )
    return print_result(
        report.to_json(), text, as_json=as_json, quiet=quiet, found=report.num_rejected > 0
    )
