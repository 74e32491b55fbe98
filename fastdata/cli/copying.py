"""Options that the commands share which copy packed datasets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fastdata.cli.choices import CONTAINERS, ON_ERROR, Choice
from fastdata.cli.output import emit, emit_json
from fastdata.cli.shell import DONE, FOUND, Terminated

__all__ = ["copied", "copy_options", "emit_report"]

_KEPT = "What was copied so far is kept: running the same command again continues."

_OPTIONS = (
    click.option(
        "--container",
        type=Choice(CONTAINERS),
        help="Kind of file.  [default: by the destination's suffix, else lmdb]",
    ),
    click.option(
        "--shards",
        type=int,
        default=1,
        show_default=True,
        help="Cut into so many files; more than one make the destination a folder.",
    ),
    click.option(
        "--shard-size",
        metavar="N|SIZE",
        help="Cut into files of so many samples (5000), or of about so many bytes (2GB).",
    ),
    click.option("--shuffle", is_flag=True, help="In a random order."),
    click.option("--seed", type=int, default=0, show_default=True, help="Of what is random."),
    click.option(
        "--on-error",
        type=Choice(ON_ERROR),
        default="stop",
        show_default=True,
        help="Stop at a damaged sample, or leave such samples out and list them.",
    ),
    click.option(
        "--overwrite", is_flag=True, help="Replace the destination once the new one is complete."
    ),
)


def copy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add these options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def copied(work: Callable[[], Any]) -> Any:
    """Run what copies; an interruption says that it can go on."""
    try:
        return work()
    except (KeyboardInterrupt, Terminated) as stop:
        stop.args = (_KEPT,)
        raise


def emit_report(report: Any, quiet: bool, as_json: bool) -> int:
    """Print a report; return the exit code."""
    if as_json:
        emit_json(report.to_json())
    elif not quiet:
        emit(str(report))
    return FOUND if report.num_rejected else DONE
