"""Results on standard output; everything else goes to standard error."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from fastdata.printable import printable, printable_lines

__all__ = ["emit", "emit_json", "leave_stdout", "log_shown", "megabytes", "say"]


def emit(text: str) -> None:
    """Print a result.

    If the reader has gone (``fastdata info x | head -1``), this does nothing.  Characters that
    standard output cannot show, or that control a terminal, are escaped.
    """
    encoding = sys.stdout.encoding or "utf-8"
    shown = printable_lines(text)
    try:
        click.echo(shown.encode(encoding, "backslashreplace").decode(encoding))
    except BrokenPipeError:
        leave_stdout()


def say(text: str) -> None:
    """Print lines on standard error; the same characters are escaped as in `emit`."""
    with contextlib.suppress(BrokenPipeError):
        click.echo(f"fastdata: {printable_lines(text)}", err=True)


def leave_stdout() -> None:
    """Stop using standard output: its reader has gone."""
    # The interpreter flushes once more as it ends; give it somewhere to.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def emit_json(document: Any) -> None:
    """Print the one JSON document of a ``--json`` run; pure ASCII, so always printable."""
    emit(json.dumps(document, indent=2))


@contextlib.contextmanager
def log_shown(quiet: bool) -> Iterator[set[str]]:
    """Show the log of the library on standard error; yield the set of the messages shown."""
    shown: set[str] = set()

    def note(record: logging.LogRecord) -> bool:
        shown.add(printable(record.getMessage()))
        return True

    log, handler = logging.getLogger("fastdata"), logging.StreamHandler(sys.stderr)
    handler.addFilter(note)
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.WARNING if quiet else logging.INFO)
    log.propagate = False
    try:
        yield shown
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


def megabytes(count: int) -> str:
    """Return a number of bytes for people."""
    if count < 1_000_000:
        return f"{count / 1e3:,.1f} kB"
    return f"{count / 1e6:,.1f} MB" if count < 10_000_000_000 else f"{count / 1e9:,.1f} GB"
