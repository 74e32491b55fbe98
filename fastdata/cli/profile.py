"""``fastdata profile``: where does the time of training go?"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import click

from fastdata.cli.options import (
    WORKER_METHODS,
    Choice,
    bounded,
    json_options,
    parse_workers,
)
from fastdata.cli.output import emit, emit_json, say
from fastdata.cli.shell import DONE, Terminated, on_interruption
from fastdata.cli.target import (
    BATCH_SIZE,
    Target,
    choose,
    loader_of,
    target_options,
    users_code,
)
from fastdata.printable import printable

__all__ = ["profile_command"]

_STOPPED = "Nothing was written."
_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}

_EPILOG = f"""\b
Examples:
  fastdata profile train.lmdb --model resnet50
  fastdata profile train.lmdb --batch-size 128 --step-ms 42 --html report.html
  fastdata profile train.py:build --json | jq -r .verdict

\b
TARGET is a dataset, or FILE.py:FUNCTION, a function of yours without arguments.  It
returns a loader or dataset, or that and a step: `return loader, step`.  Any iterable of
batches is a loader; a step is called with each batch, and is really run.  Of a dataset
a shuffled loader is made, with batches of {BATCH_SIZE}.

\b
The file of FUNCTION runs as it is, with your rights.

\b
Exit codes: 0 done; 1 failed, e.g. no dataset, or an error in FUNCTION; 2 wrong usage;
4 FILE is not a page of fastdata; 5 disk full; 130 Ctrl-C."""


@click.command("profile", epilog=_EPILOG, short_help="Tell where the time of training goes.")
@click.argument("target", metavar="TARGET")
@click.option(
    "--batch-size",
    type=int,
    callback=bounded("batch_size"),
    metavar="N",
    help=f"[default: {BATCH_SIZE}]",
)
@target_options
@click.option(
    "--num-workers",
    "--workers",
    type=parse_workers,
    metavar="N|auto",
    help="Workers of the loader; 0 for none.  [default: auto]",
)
@click.option(
    "--worker-method", type=Choice(WORKER_METHODS), help="What workers are.  [default: auto]"
)
@click.option(
    "--seconds",
    type=float,
    callback=bounded("seconds"),
    default=30,
    show_default=True,
    metavar="S",
    help="How long to measure, about.",
)
@click.option("--html", type=click.Path(), metavar="FILE", help="Also write an HTML page.")
@click.option("--quiet", "-q", is_flag=True, help="No progress; the verdict only.")
@json_options
def profile_command(
    target: str,
    batch_size: int | None,
    num_workers: Any,
    worker_method: Any,
    seconds: float,
    html: str | None,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Train on TARGET for a while, and tell whether that waits for data, and what would mend it."""
    import fastdata

    if html is not None:
        from fastdata.pages import check_page_path

        check_page_path(html)  # before the time is spent
    with on_interruption(_STOPPED):
        chosen = choose(target, **options)
        if not quiet:
            for note in chosen.notes:
                say(note)
        with (
            _stopped_by_signals(),
            _opened(
                chosen,
                batch_size=batch_size,
                num_workers=num_workers,
                worker_method=worker_method,
            ) as loader,
            users_code(target) if chosen.is_script else contextlib.nullcontext(),
        ):
            report = fastdata.profile(
                loader,
                chosen.step,
                seconds=seconds,
                device=chosen.device,
                progress=False if quiet else None,
            )
    if html is not None:
        from fastdata.pages import write_page
        from fastdata.profiling.page import render_page

        write_page(render_page(report), html)
    if as_json:
        emit_json(report.to_json())
    elif quiet:
        emit(printable(report.verdict))
    else:
        from fastdata.profiling.report import render_text

        emit(render_text(report, ascii_only=not _shows_blocks()))
    if html is not None and not quiet:
        say(f"the page is {html}")
    return DONE


@contextlib.contextmanager
def _opened(target: Target, **options: Any) -> Iterator[Any]:
    """Make a target's loader, and end its workers."""
    loader = loader_of(target, **options)
    try:
        yield loader
    finally:
        close = getattr(loader, "close", None)
        if callable(close):
            close()


def _shows_blocks() -> bool:
    """Return whether standard output can show the characters of bars."""
    try:
        "█".encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


# -- signals --------------------------------------------------------------------------------


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Stop the block by Ctrl-C or SIGTERM, even where it is slow to close.

    The first signal raises, and everything is closed.  Closing may wait for workers, and a second
    exception in the midst of that would leave some of them, or be printed by whatever cannot raise
    it.  So a second signal kills all child processes and ends this one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    owner, count, over = os.getpid(), 0, False

    def stop(number: int, frame: object) -> None:
        nonlocal count
        count += 1
        if os.getpid() != owner:
            # A forked worker has this handler too.  Ctrl-C it gets together with its parent, and
            # torch's know what to do then; SIGTERM is its parent's way of ending it.
            if number == signal.SIGTERM or count > 1:
                os._exit(128 + number)
            raise KeyboardInterrupt
        if count > 1:
            _end_at_once(number, silent=over)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    before: dict[signal.Signals, Any] = {n: signal.signal(n, stop) for n in _NAMES}
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        _clear_frames(error)
        raise
    finally:
        over = True
        if not count:  # else the process is about to end, which a second one may hasten
            for number, handler in before.items():
                signal.signal(number, handler)


def _clear_frames(error: BaseException | None) -> None:
    """Close what only the frames of an error hold, here and not when the interpreter ends."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _end_at_once(number: int, *, silent: bool) -> None:
    """End this process and its children without any code of theirs.

    `silent` where the command has printed its message already.
    """
    for child in multiprocessing.active_children():
        with contextlib.suppress(OSError):
            child.kill()
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # in the midst of a write, say
        sys.stdout.flush()
    if not silent:
        line = f"fastdata: stopped by {_NAMES[signal.Signals(number)]}. {_STOPPED}\n"
        with contextlib.suppress(OSError):
            os.write(2, line.encode())
    os._exit(128 + number)
