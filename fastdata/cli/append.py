"""``fastdata append``: more samples for a dataset."""

from __future__ import annotations

from typing import Any

import click

from fastdata.cli.copying import copied
from fastdata.cli.output import emit, emit_json, json_option, quiet_option, traceback_option
from fastdata.cli.shell import DONE, FOUND
from fastdata.cli.sources import source_options as options_of_source
from fastdata.cli.sources import work_options

__all__ = ["append_command"]

_EPILOG = """\b
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


@click.command("append", epilog=_EPILOG, short_help="Add samples to a dataset.")
@click.argument("dataset", type=click.Path())
@click.argument("source", type=click.Path())
@work_options
@click.option("--limit", type=int, metavar="N", help="Take only the first N samples of SOURCE.")
@options_of_source
@quiet_option
@json_option
@traceback_option
def append_command(
    dataset: str,
    source: str,
    fields: Any,
    source_options: Any,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Add the samples of SOURCE, anything that `fastdata pack` takes, to DATASET."""
    import fastdata

    report = copied(
        lambda: fastdata.append(
            dataset,
            source,
            fields=dict(fields) or None,
            source_options=dict(source_options) or None,
            progress=False if quiet else None,
            **options,
        )
    )
    if as_json:
        emit_json(report.to_json())
    elif not quiet:
        total = len(fastdata.open(dataset))
        emit(f"{dataset}: {report.num_samples:,} samples added, {total:,} now")
        for note in report.notes:
            emit(f"note: {note}")
        if report.rejects_path:
            emit(f"{report.num_rejected:,} rejected, with reasons: {report.rejects_path}")
    return FOUND if report.num_rejected else DONE
