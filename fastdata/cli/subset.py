"""``fastdata subset``: a part of a dataset."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from fastdata.cli.options import copy_options, output_options, parse_option
from fastdata.cli.shell import COPIES_KEPT, on_interruption, print_report

__all__ = ["subset_command"]

_EPILOG = """\b
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


@click.command("subset", epilog=_EPILOG, short_help="Copy a part of a dataset.")
@click.argument("dataset", type=click.Path())
@click.argument("destination", type=click.Path())
@click.option(
    "--class",
    "classes",
    multiple=True,
    metavar="NAME",
    help="Name, or number, of a class that is taken; may be repeated.",
)
@click.option("--split", metavar="NAME", help="The same as --where split=NAME.")
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

    conditions: dict[str, list[str]] = {}
    for name, value in [*where, *([("split", split)] if split is not None else [])]:
        conditions.setdefault(name, []).append(value)
    opened = fastdata.open(dataset)
    places = None if indices is None else _places(indices, len(opened))
    with on_interruption(COPIES_KEPT):
        report = fastdata.subset(
            opened,
            destination,
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
