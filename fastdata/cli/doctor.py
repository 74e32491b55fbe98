"""``fastdata doctor``: which advice on the training step is worth following in a script?"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from fastdata.cli.options import bounded, json_options
from fastdata.cli.output import emit, emit_json, say
from fastdata.cli.shell import DONE, FAILED, FOUND, INTERRUPTED, ScriptCommand, on_interruption
from fastdata.errors import OptionError
from fastdata.printable import printable

if TYPE_CHECKING:
    from fastdata.doctor.contract import Advice

__all__ = ["doctor_command"]

LINE_SECONDS = 5.0
"""Time between lines of progress in a log."""

_EPILOG = """\b
Examples:
  fastdata doctor main.py --dummy -b 32
  fastdata doctor --seconds 600 --html report.html main.py --epochs 1
  fastdata doctor -m package.train --epochs 1
  fastdata doctor train.py:build
  fastdata doctor --explain D06

\b
SCRIPT and ARGUMENTS are what you give to python.  Options of doctor come before SCRIPT; all words
after SCRIPT belong to the script.  FILE.py:FUNCTION returns `loader, step`; the step is called
with each batch.

\b
The script runs several times, with your rights, each time in a new process that ends after some
steps.  The kernel lets it write only to a scratch folder, and to caches that the report names.
Files that Python opens are written there; it writes no checkpoints; trackers and hubs are off.

\b
Exit codes: 0 done; 3 with --check, a gain is open or a mistake was found; 1 failed, for example
the script, also in a trial, and with --check if no change has a verdict, for lack of time or
because of noise; 2 wrong usage; 4 FILE is not a page of fastdata; 130 Ctrl-C."""


@click.command(
    "doctor",
    cls=ScriptCommand,
    epilog=_EPILOG,
    short_help="Try advice on a script's training step, and measure it.",
)
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]...")
@click.option(
    "--seconds",
    type=float,
    callback=bounded("seconds"),
    default=300,
    show_default=True,
    metavar="S",
    help="End within about S seconds.",
)
@click.option(
    "--only", multiple=True, metavar="ID", help="Try and report this advice; may be repeated."
)
@click.option("--list", "lists", is_flag=True, help="List the advice, with its IDs.")
@click.option("--explain", metavar="ID", help="Explain a piece of advice, e.g. D06.")
@click.option(
    "--all", "notes", is_flag=True, help="Print everything, also notes, which are not measured."
)
@click.option(
    "--check",
    is_flag=True,
    help="For CI: exit with 3 if a gain is open or a mistake was found, and with 1 if no change "
    "has a verdict, for lack of time or because of noise.",
)
@click.option(
    "--threshold",
    type=float,
    callback=bounded("threshold"),
    default=1.05,
    show_default=True,
    metavar="X",
    help="The smallest gain that --check counts, as a ratio of speeds.",
)
@click.option("--html", type=click.Path(), metavar="FILE", help="Also write an HTML page.")
@click.option(
    "--unprotected",
    is_flag=True,
    help="Let libraries in C, and programs that the script starts, write to any file.",
)
@click.option("--quiet", "-q", is_flag=True, help="No progress; the verdict only.")
@json_options
def doctor_command(
    script: tuple[str, ...],
    seconds: float,
    only: tuple[str, ...],
    lists: bool,
    explain: str | None,
    notes: bool,
    check: bool,
    threshold: float,
    html: str | None,
    unprotected: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Find advice that applies to the training step of SCRIPT, try each piece, and report gains."""
    if explain is not None:
        _explain(explain, as_json)
        return DONE
    if lists:
        _list(as_json)
        return DONE
    if not math.isfinite(seconds):  # click lets nan pass
        raise OptionError(f"--seconds is above 0 and finite, not {seconds}")
    if html is not None:
        from fastdata.pages import check_page_path

        check_page_path(html)  # before the time is spent
    from fastdata.doctor import examine, render_text, script_of
    from fastdata.doctor.processes import ScriptFailedError

    chosen = script_of(script)
    with on_interruption("Nothing was written."), _bar(seconds, quiet) as progress:
        try:
            report = examine(
                chosen, seconds=seconds, only=only, progress=progress, unprotected=unprotected
            )
        except ScriptFailedError as error:
            why = error.explained(str(chosen))
            if os.strerror(errno.ENOSPC) in why:
                why += "\n\nTMPDIR=FOLDER names another disk for what the script writes."
            raise click.ClickException(why) from error
    if as_json:
        emit_json(report.to_json())
    else:
        emit(printable(report.verdict) if quiet else render_text(report, everything=notes))
    if html is not None:
        from fastdata.doctor.text import render_page
        from fastdata.pages import write_page

        write_page(render_page(report), html)
    found = FOUND if check and report.is_open(threshold) else DONE
    if check and not found and report.is_unknown:
        say("--check: no change has a verdict, for lack of time or because of noise")
        found = FAILED
    return {"interruption": INTERRUPTED, "failure": FAILED}.get(report.ended_by, found)


@contextlib.contextmanager
def _bar(seconds: float, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Give a function that shows the current work and the remaining time.

    On a terminal it moves a bar; elsewhere it prints a line every `LINE_SECONDS`.
    """
    from tqdm import tqdm

    began, said = time.monotonic(), -math.inf
    disable = True if quiet else None  # None: unless it is a terminal
    form = "{desc} |{bar}| {postfix}"
    with tqdm(total=seconds, disable=disable, leave=False, bar_format=form) as bar:

        def show(text: str) -> None:
            nonlocal said
            gone = time.monotonic() - began
            left = f"{max(seconds - gone, 0):.0f} s left"
            if not bar.disable:
                bar.n = min(gone, seconds)
                bar.set_description_str(left, refresh=False)
                bar.set_postfix_str(printable(text))
            elif not quiet and gone - said >= LINE_SECONDS:
                said = gone
                say(f"{left}: {text}")

        yield show


def _explain(id: str, as_json: bool) -> None:
    """Print the explanation of a piece of advice."""
    from fastdata.doctor.advice import advice_by_id
    from fastdata.doctor.explaining import explanations, shown

    advice = advice_by_id(id)
    if as_json:
        emit_json({"id": id, "title": advice.title, **explanations()[id]})
    else:
        emit(f"{_heading(advice)}\n{shown(explanations()[id])}")


def _list(as_json: bool) -> None:
    """Print all advice."""
    from fastdata.doctor.advice import ADVICE
    from fastdata.doctor.explaining import explanations

    if not as_json:
        emit("\n".join(map(_heading, ADVICE)))
        return
    emit_json(
        {
            "advice": [
                {
                    "id": advice.id,
                    "title": advice.title,
                    "kind": advice.kind,
                    "numerics": str(advice.numerics),
                    "gpu_only": advice.gpu_only,
                    "about": explanations()[advice.id]["what"],
                    "source": explanations()[advice.id]["source"],
                }
                for advice in ADVICE
            ]
        }
    )


def _heading(advice: Advice) -> str:
    return f"{advice.id}  {advice.title}{'  (GPU only)' if advice.gpu_only else ''}"
