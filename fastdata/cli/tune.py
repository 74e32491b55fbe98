"""``fastdata tune-workers``: which loader settings keep a training step busy on this machine?"""

from __future__ import annotations

import contextlib
from typing import Any

import click

from fastdata.cli.options import output_options
from fastdata.cli.output import emit, emit_json, say
from fastdata.cli.shell import DONE, FOUND, INTERRUPTED
from fastdata.cli.target import target_options, users_code

__all__ = ["tune_command"]

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
The file of FUNCTION runs as it is, with your rights.

\b
Ctrl-C prints what was measured so far; that is not kept.

\b
Exit codes: 0 done; 3 done, but no settings keep the step busy; 1 failed; 2 wrong usage;
4 the file of --plot is not a plot of fastdata; 130 Ctrl-C."""


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
@click.option(
    "--dali",
    is_flag=True,
    help="Measure NVIDIA DALI too: a row to compare, never the choice, as its pixels differ.",
)
@click.option("--plot", "picture", type=click.Path(), help="Write the curve to this file (.png).")
@output_options
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
    from fastdata.measuring.images import ChosenCrops
    from fastdata.splits import check_one_split
    from fastdata.steps import is_script_target
    from fastdata.tuning.picture import check_picture_path, plot
    from fastdata.tuning.report import text_lines
    from fastdata.tuning.tuner import tune_workers

    if picture is not None:
        check_picture_path(picture)  # now, not after a minute
    if is_script_target(target):
        for name, value in (("--crop", crop), ("--split", options["split"])):
            if value is not None:
                raise click.UsageError(
                    f"{name} is for a dataset: the function chooses its own data and transforms."
                )
    else:
        options["transform"] = ChosenCrops(crop)
        if options["split"] is None:
            check_one_split(fastdata.open(target), "--split {split}")
    result = tune_workers(target, step=model, progress=False if quiet else None, **options)
    if as_json:
        emit_json(result.to_json())
    else:
        emit("\n".join(text_lines(result) if not quiet else [result.verdict]))
    if picture is not None:
        plot(result, picture)
    if not result.complete:
        return INTERRUPTED
    return FOUND if result.demand is not None and not result.saturates else DONE


def _show(dataset: str | None, quiet: bool, as_json: bool) -> None:
    """Print what is kept."""
    from fastdata.tuned_settings import store
    from fastdata.tuning import listing

    with _script_errors(dataset):
        rows = listing.show(dataset)
    if as_json:
        emit_json(rows)
        return
    for row in rows:
        rate = "" if row["supply"] is None else f", {row['supply']:.4g} batches/s"
        other = "" if row["here"] else f" (measured on {row['host']}, or with other versions)"
        emit(f"{row['dataset']}, batches of {row['batch_size']:,}: {row['settings']}{rate}{other}")
        if not quiet:
            emit(f"  {row['measured_at'][:10]}: {row['verdict']}")
    if not quiet:
        say(f"{len(rows):,} result{'s' * (len(rows) != 1)} kept in {store.directory()}")


def _forget(dataset: str | None, quiet: bool, as_json: bool) -> None:
    """Remove what is kept."""
    from fastdata.tuning import listing

    with _script_errors(dataset):
        count = listing.forget(dataset)
    if as_json:
        emit_json({"forgotten": count})
    elif not quiet:
        emit(f"{count:,} result{'s' * (count != 1)} forgotten")


def _script_errors(target: str | None) -> contextlib.AbstractContextManager[None]:
    """Return a context in which an error is said to be the script's, where TARGET is one."""
    from fastdata.steps import is_script

    if target is not None and is_script(target):
        return users_code(target)
    return contextlib.nullcontext()
