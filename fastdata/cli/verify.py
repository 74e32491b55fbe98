"""``fastdata verify``: is every byte still what was packed?"""

from __future__ import annotations

import click

from fastdata.cli.output import (
    emit,
    emit_json,
    json_option,
    megabytes,
    quiet_option,
    traceback_option,
)
from fastdata.cli.shell import DONE, FOUND

__all__ = ["verify_command"]

_EPILOG = """\b
Examples:
  fastdata verify train.lmdb
  fastdata verify shards/ --json

\b
Exit codes: 0 intact; 3 damage found; 1 failed, e.g. nothing there; 2 wrong usage."""


@click.command("verify", epilog=_EPILOG, short_help="Compare every checksum of a dataset.")
@click.argument("dataset", type=click.Path())
@quiet_option
@json_option
@traceback_option
def verify_command(dataset: str, quiet: bool, as_json: bool) -> int:
    """Read all of DATASET, compare every checksum, and list all damage, a line each.

    Of a folder of shards, the shards are also held against its manifest.
    """
    from fastdata.verifying import verify

    report = verify(dataset, progress=False if quiet else None)
    if as_json:
        emit_json(report.to_json())
    else:
        for damage in report.damage:
            emit(str(damage))
        if not quiet:
            found = "intact" if report.intact else f"{len(report.damage):,} damaged"
            emit(
                f"{dataset}: {found}; {report.num_samples:,} samples in {report.num_shards:,} "
                f"shard{'s' * (report.num_shards != 1)}, {megabytes(report.file_bytes)} read"
            )
    return DONE if report.intact else FOUND
