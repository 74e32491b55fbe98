"""``fastdata append``: more samples for a dataset."""

from __future__ import annotations

from typing import Any

import click

from fastdata.cli.options import output_options, source_options, work_options
from fastdata.cli.shell import COPIES_KEPT, on_interruption, print_result

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
@source_options
@output_options
def append_command(
    dataset: str,
    source: str,
    fields: Any,
    format_options: Any,
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

    with on_interruption(COPIES_KEPT):
        report = fastdata.append(
            dataset,
            source,
            fields=dict(fields) or None,
            source_options=dict(format_options) or None,
            progress=False if quiet else None,
            **options,
        )
    return print_result(
        report.to_json(), text, as_json=as_json, quiet=quiet, found=report.num_rejected > 0
    )
