"""``fastdata merge``, ``subset`` and ``append``: new datasets from packed ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from fastdata.cli.options import (
    copy_options,
    output_options,
    parse_option,
    source_options,
    split_option,
    store_options,
    work_options,
)
from fastdata.cli.shell import on_interruption, print_report, print_result

__all__ = ["append_command", "merge_command", "subset_command"]

_KEPT = "What was copied so far is kept: running the same command again continues."

_MERGE_EPILOG = """\b
Examples:
  fastdata merge a.lmdb b.h5 all.lmdb
  fastdata merge day1.lmdb day2.lmdb all/ --shard-size 2GB --shuffle

\b
Images are copied as they are, never encoded again.  All datasets must have the same
fields and classes.  Interrupted in any way, the same command goes on where it stopped.

\b
Exit codes: 0 done; 3 done, but damaged samples were left out; 1 failed; 2 wrong usage;
4 DESTINATION exists or is being written; 5 disk full."""


@click.command("merge", epilog=_MERGE_EPILOG, short_help="Make one dataset of several.")
@click.argument("datasets", type=click.Path(), nargs=-1, required=True)
@click.argument("destination", type=click.Path())
@copy_options
@store_options
@output_options
def merge_command(
    datasets: tuple[str, ...], destination: str, quiet: bool, as_json: bool, **options: Any
) -> int:
    """Copy the samples of DATASETS, in this order, into the new dataset DESTINATION."""
    import fastdata

    with on_interruption(_KEPT):
        report = fastdata.merge(datasets, destination, progress=False if quiet else None, **options)
    return print_report(report, as_json=as_json, quiet=quiet)


_SUBSET_EPILOG = """\b
Examples:
  fastdata subset train.lmdb pets.lmdb --class cat --class dog
  fastdata subset all.lmdb train.lmdb --split train
  fastdata subset all.lmdb train.lmdb --fraction 0.9
  fastdata subset all.lmdb val.lmdb --fraction 0.9 --invert
  fastdata subset all.lmdb some.lmdb --indices 0:1000,5000,-1
  fastdata subset all.lmdb some.lmdb --indices chosen.txt

\b
Images are copied as they are, and classes keep their numbers.  A sample must meet all
conditions that are given; --fraction draws from what they leave.  Interrupted in any way,
the same command goes on where it stopped.

\b
Exit codes: 0 done; 3 done, but damaged samples were left out; 1 failed; 2 wrong usage;
4 DESTINATION exists or is being written; 5 disk full."""


@click.command("subset", epilog=_SUBSET_EPILOG, short_help="Copy a part of a dataset.")
@click.argument("dataset", type=click.Path())
@click.argument("destination", type=click.Path())
@click.option(
    "--class",
    "classes",
    multiple=True,
    metavar="NAME",
    help="Name, or number, of a class that is taken; may be repeated.",
)
@split_option
@click.option(
    "--where",
    type=parse_option,
    multiple=True,
    metavar="FIELD=VALUE",
    help="A value of a field (number, class name or text) that is taken; may be repeated.",
)
@click.option(
    "--indices",
    metavar="LIST|FILE",
    help="Places of samples: 0,5,10:20, or a file with one on each line.",
)
@click.option("--fraction", type=float, help="Draw so much of what the others leave, 0 to 1.")
@click.option("--invert", is_flag=True, help="Take all samples but these.")
@copy_options
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
    """Copy the samples of DATASET that meet the conditions into the new dataset DESTINATION."""
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
    """Read places of samples, from the text itself or from the file that it names."""
    if re.fullmatch(r"[-\d:,\s]+", text):
        parts = text.split(",")
    else:
        try:
            parts = Path(text).read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(
                f"{text!r} is neither a list like 0,5,10:20 nor a file that can be read ({error}).",
                param_hint="--indices",
            ) from error
    places: list[int] = []
    for part in filter(None, map(str.strip, parts)):
        match = re.fullmatch(r"(-?\d+)|(-?\d+)?:(-?\d+)?", part)
        if match is None:
            raise click.BadParameter(f"{part!r} is no place of a sample.", param_hint="--indices")
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
Images are resized and encoded as those of DATASET were; another dataset of fastdata's is
copied as it is.  Classes are matched by name, and none may be new.  To a folder of shards,
shards are added; a single file is written anew and replaced.  Interrupted in any way, the
same command goes on where it stopped, and adds nothing twice.

\b
Exit codes: 0 done; 3 done, but samples were rejected (listed in
DATASET.append.rejects.csv); 1 failed; 2 wrong usage; 4 an unfinished append of something
else is there, or another process appends; 5 disk full."""


@click.command("append", epilog=_APPEND_EPILOG, short_help="Add samples to a dataset.")
@click.argument("dataset", type=click.Path())
@click.argument("source", type=click.Path())
@work_options
@click.option("--limit", type=int, metavar="N", help="Take only the first N samples of SOURCE.")
@source_options
@output_options
def append_command(
    dataset: str,
    source: str,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Add the samples of SOURCE, anything that `fastdata pack` takes, to DATASET."""
    import fastdata

    def text() -> str:
        total = len(fastdata.open(dataset))
        lines = [f"{dataset}: {report.num_samples:,} samples added, {total:,} now"]
        lines += [f"note: {note}" for note in report.notes]
        if report.rejects_path:
            lines.append(f"{report.num_rejected:,} rejected, with reasons: {report.rejects_path}")
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
