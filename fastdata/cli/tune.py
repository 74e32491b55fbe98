"""``fastdata tune-workers``: which loader settings keep a training step busy on this machine?"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from fastdata.cli.options import json_option, quiet_option, traceback_option
from fastdata.cli.output import emit, emit_json, say
from fastdata.cli.shell import DONE, FOUND, INTERRUPTED
from fastdata.cli.target import target_options, transform_of
from fastdata.cli.users import users_code

if TYPE_CHECKING:
    from fastdata.tuning.results import Rate, TuningResult

__all__ = ["result_lines", "tune_command"]

_AS_STORED = "images as they are stored"

_EPILOG = """\b
Examples:
  fastdata tune-workers train.lmdb --batch-size 256 --model resnet50
  fastdata tune-workers train.lmdb --batch-size 256 --step-ms 42
  fastdata tune-workers train.py:build
  fastdata tune-workers --show

\b
TARGET is a dataset, or FILE.py:FUNCTION (or package.module:FUNCTION): a function that
returns a loader or a dataset, or that and a step, which is called with each batch.

\b
Without a step (--model, --step-ms, or the function's own) the goal is the most that
there is.

\b
The result is kept, and loader(num_workers="auto") uses it from then on: for this dataset,
batch size and transforms, on this machine.  Of a script's own loader that is seen by itself.

\b
Ctrl-C prints what was measured so far; that is not kept.

\b
Exit codes: 0 done; 3 done, but no settings keep the step busy; 1 failed; 2 wrong usage;
130 Ctrl-C."""


@click.command(
    "tune-workers", epilog=_EPILOG, short_help="Find the loader settings that suit this machine."
)
@click.argument("target", type=click.Path(), required=False)
@click.option("--show", is_flag=True, help="List the results that are kept; of TARGET, or all.")
@click.option("--forget", is_flag=True, help="Remove those of TARGET, or all.")
@click.option(
    "--keep/--no-keep", default=True, help="Whether the result is kept.  [default: it is]"
)
@click.option("--batch-size", type=int, help="Samples a batch, for a dataset.  [default: 256]")
@target_options
@click.option("--seconds", type=float, default=60.0, show_default=True, help="How long to measure.")
@click.option(
    "--max-workers",
    type=int,
    help="Most workers.  [default: the cores of this rank, more while that helps]",
)
@click.option(
    "--trial-seconds",
    type=float,
    default=20.0,
    show_default=True,
    help="When to give up a single measurement.",
)
@click.option("--plot", "picture", type=click.Path(), help="Write the curve to this file (.png).")
@quiet_option
@json_option
@traceback_option
def tune_command(
    target: str | None,
    model: str | None,
    crop: Any,
    picture: str | None,
    show: bool,
    forget: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Measure which loader settings keep a training step busy with TARGET on this machine."""
    if show or forget:
        if show and forget:
            raise click.UsageError("--show and --forget: give one of them.")
        (_show if show else _forget)(target, quiet, as_json)
        return DONE
    if target is None:
        raise click.UsageError("Missing argument 'TARGET'.")
    import fastdata
    from fastdata.tuning.plot import check_plot, plot
    from fastdata.tuning.scripts import names_function

    if picture is not None:
        check_plot(picture)  # now, not after a minute
    said: tuple[str, ...] = ()
    if names_function(target):
        if crop is not None:
            raise click.UsageError("--crop is for a dataset: the function has its own transforms.")
    else:
        transform, said = transform_of(target, crop)
        options["transform"] = list(transform) or None
    if not quiet:
        for note in said:
            say(note)
    result = fastdata.tune_workers(target, step=model, progress=False if quiet else None, **options)
    transforms = ""  # of a script, its own
    if "transform" in options:
        transforms = ", ".join(map(repr, options["transform"] or ())) or _AS_STORED
    if as_json:
        emit_json({**result.to_json(), "transforms": transforms})
    else:
        emit("\n".join(result_lines(result, transforms) if not quiet else [result.verdict]))
    if picture is not None:
        plot(result, picture)
    if not result.complete:
        return INTERRUPTED
    return FOUND if result.demand is not None and not result.saturates else DONE


def _show(dataset: str | None, quiet: bool, as_json: bool) -> None:
    """Print what is kept."""
    from fastdata.tuning import listing, store

    with _users(dataset):
        rows = listing.show(dataset)
    if as_json:
        emit_json(rows)
        return
    for row in rows:
        rate = "" if row["supply"] is None else f", {row['supply']:.4g} batches/s"
        where = "" if row["here"] else f" (measured on {row['host']}, or with other versions)"
        emit(f"{row['dataset']}, batches of {row['batch_size']:,}: {row['settings']}{rate}{where}")
        if not quiet:
            emit(f"  {row['measured_at'][:10]}: {row['verdict']}")
    if not quiet:
        say(f"{len(rows):,} result{'s' * (len(rows) != 1)} kept in {store.directory()}")


def _forget(dataset: str | None, quiet: bool, as_json: bool) -> None:
    """Remove what is kept."""
    from fastdata.tuning import listing

    with _users(dataset):
        count = listing.forget(dataset)
    if as_json:
        emit_json({"forgotten": count})
    elif not quiet:
        emit(f"{count:,} result{'s' * (count != 1)} forgotten")


def _users(target: str | None) -> contextlib.AbstractContextManager[None]:
    """Say of an error that it is the script's, where TARGET is one."""
    from fastdata.steps import is_script

    if target is not None and is_script(target):
        return users_code(target)
    return contextlib.nullcontext()


def result_lines(result: TuningResult, transforms: str = "") -> list[str]:
    """Return a result as text: a table of trials, notes, advice, and the verdict last."""
    lines = [f"batches of {result.batch_size:,} samples" + (f": {transforms}" * bool(transforms))]
    if result.demand is not None:
        lines.append(f"demand: {_interval(result.demand.rate)} batches/s, by {result.demand.step}")
    rows: list[tuple[str, ...]] = [
        ("", "settings", "batches/s", "95% interval", "samples/s", "start", "memory")
    ]
    for trial in result.trials:
        mark = "*" if trial.settings == result.settings else ""
        if trial.supply is None:
            rows.append((mark, str(trial.settings), trial.failure))
            continue
        rows.append(
            (
                mark,
                str(trial.settings),
                f"{trial.supply.median:.4g}",
                f"{trial.supply.low:.4g} - {trial.supply.high:.4g}",
                f"{trial.supply.median * result.batch_size:,.0f}",
                f"{trial.start_seconds:.2f} s",
                f"{trial.memory_bytes / 1e6:,.0f} MB",
            )
        )
    whole = [row for row in rows if len(row) == 7]
    widths = [max(len(row[place]) for row in whole) for place in range(7)]
    widths[1] = max(widths[1], *(len(row[1]) for row in rows))
    for row in rows:
        cells = [f"{row[0]:<1}", f"{row[1]:<{widths[1]}}"]
        if len(row) == 7:
            cells += [f"{row[place]:>{widths[place]}}" for place in range(2, 7)]
        else:
            cells.append(row[2])
        lines.append("  ".join(cells).rstrip())
    lines.append(f"page cache: {result.cache_state}")
    lines += [f"note: {note}" for note in result.notes]
    lines += [f"would help: {advice}" for advice in result.advice]
    if not result.complete:
        lines.append("stopped before its end: of what was measured until then")
    lines.append(result.verdict)
    return lines


def _interval(rate: Rate) -> str:
    return f"{rate.median:.4g} ({rate.low:.4g} - {rate.high:.4g})"
