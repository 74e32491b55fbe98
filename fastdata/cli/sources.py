"""Options that the commands share which read other people's formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fastdata.cli.choices import MAX_PIXELS, ON_ERROR, Choice, parse_field, parse_option

__all__ = ["source_options", "work_options"]

_WORK = (
    click.option(
        "--num-workers",
        "--workers",
        type=int,
        help="Worker processes; 0 for none.  [default: one a core]",
    ),
    click.option(
        "--on-error",
        type=Choice(ON_ERROR),
        default="report",
        show_default=True,
        help="Leave bad images out and list them, or stop at the first.",
    ),
)

_SOURCE = (
    click.option(
        "--format", metavar="NAME", help="Format of SOURCE, e.g. folder.  [default: recognised]"
    ),
    click.option(
        "--field",
        "fields",
        type=parse_field,
        multiple=True,
        metavar="NAME=KIND",
        help="Kind of a column, where it is not guessed right; may be repeated.",
    ),
    click.option(
        "--option",
        "source_options",
        type=parse_option,
        multiple=True,
        metavar="NAME=VALUE",
        help="An option that only this format has (fastdata formats); may be repeated.",
    ),
    click.option(
        "--max-pixels",
        type=int,
        default=MAX_PIXELS,
        show_default=True,
        help="Reject larger images: decompression bombs.",
    ),
)


def work_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of who works, and what a bad image does."""
    return _with(_WORK, command)


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of what a source is."""
    return _with(_SOURCE, command)


def _with(options: tuple[Any, ...], command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command
