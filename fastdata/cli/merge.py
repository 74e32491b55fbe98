"""``fastdata merge``: one dataset of several."""

from __future__ import annotations

from typing import Any

import click

from fastdata.cli.options import copy_options, output_options
from fastdata.cli.shell import COPIES_KEPT, on_interruption, print_report

__all__ = ["merge_command"]

_EPILOG = """\b
Examples:
  fastdata merge a.lmdb b.h5 all.lmdb
  fastdata merge day1.lmdb day2.lmdb all/ --shard-size 2GB --shuffle

\b
Images are copied as they are, never encoded again.  All datasets must have the same
fields and classes.  Interrupted in any way, the same command goes on where it stopped.

\b
Exit codes: 0 done; 3 done, but damaged samples were left out; 1 failed; 2 wrong usage;
4 DESTINATION exists or is being written; 5 disk full."""


@click.command("merge", epilog=_EPILOG, short_help="Make one dataset of several.")
@click.argument("datasets", type=click.Path(), nargs=-1, required=True)
@click.argument("destination", type=click.Path())
@copy_options
@output_options
def merge_command(
    datasets: tuple[str, ...], destination: str, quiet: bool, as_json: bool, **options: Any
) -> int:
    """Copy the samples of DATASETS, in this order, into the new dataset DESTINATION."""
    import fastdata

    with on_interruption(COPIES_KEPT):
        report = fastdata.merge(datasets, destination, progress=False if quiet else None, **options)
    return print_report(report, as_json=as_json, quiet=quiet)
