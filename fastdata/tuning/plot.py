"""The curve as a picture: throughput against workers, what the step wants, what was chosen.

By matplotlib, the extra ``plot``.
"""

from __future__ import annotations

import os
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastdata.errors import MissingExtraError, OptionError
from fastdata.installing import install_line
from fastdata.tuning.results import Demand, Trial, TuningResult
from fastdata.tuned_settings.settings import Settings

__all__ = ["check_plot", "plot", "require_matplotlib"]


def require_matplotlib() -> Any:
    """Return matplotlib's class of figures.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(f"a plot needs matplotlib: {install_line('plot')}") from error
    return Figure


def check_plot(path: str | os.PathLike[str]) -> None:
    """Raise, before time is spent, what `plot` would.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    OptionError
        If it knows no format of this suffix, or there is no such folder.
    """
    known = require_matplotlib()().canvas.get_supported_filetypes()
    place = Path(path)
    if place.suffix.lstrip(".").lower() not in known:
        raise OptionError(
            f"{path}: no picture of this suffix; it is one of {', '.join(sorted(known))}"
        )
    if not place.absolute().parent.is_dir():
        raise OptionError(f"{path}: there is no folder {place.parent}; make it first")


def plot(result: TuningResult, path: str | os.PathLike[str]) -> None:
    """Write a picture of a result to a file.

    Parameters
    ----------
    result : TuningResult
    path : path-like
        Its suffix says the format: ``.png``, ``.svg``, ``.pdf``...

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    OptionError
        If it knows no such format.
    """
    # No pyplot: it would look for a display, and keep the figure.
    figure = require_matplotlib()(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    _draw_curves(axes, result)
    if result.demand is not None:
        _draw_demand(axes, result.demand)
    _mark_chosen(axes, result)
    axes.set_xlabel("workers")
    axes.set_ylabel(f"batches of {result.batch_size} a second (median, 95% interval)")
    axes.set_ylim(bottom=0)
    axes.set_xticks(sorted({trial.settings.num_workers for trial in result.trials}))
    axes.grid(alpha=0.3)
    axes.set_title("\n".join(textwrap.wrap(result.verdict, 100)), fontsize=9)
    axes.legend(fontsize=8)
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        if "format" not in str(error).lower():
            raise
        raise OptionError(f"{os.fspath(path)}: {error}") from error


def _draw_curves(axes: Any, result: TuningResult) -> None:
    """Draw the rates with their intervals, a curve for each kind of settings; and what failed."""
    for number, (name, trials) in enumerate(_families(result).items()):
        rates = [trial.supply for trial in trials if trial.supply is not None]
        axes.errorbar(
            [trial.settings.num_workers for trial in trials],
            [rate.median for rate in rates],
            yerr=[
                [rate.median - rate.low for rate in rates],
                [rate.high - rate.median for rate in rates],
            ],
            marker="o" if len(trials) > 1 else "x",
            linestyle="-" if len(trials) > 1 else "none",
            capsize=4,
            label=name,
            zorder=2 + number / 100,
        )
    failed = sorted({t.settings.num_workers for t in result.trials if t.supply is None})
    if failed:
        axes.plot(failed, [0.0] * len(failed), "rx", clip_on=False, label="failed")


def _draw_demand(axes: Any, demand: Demand) -> None:
    """Draw what the step wants as a line in its interval."""
    rate = demand.rate
    axes.axhspan(rate.low, rate.high, color="black", alpha=0.15, linewidth=0)
    axes.axhline(rate.median, color="black", linestyle="--", label=f"demand: {demand.step}")


def _mark_chosen(axes: Any, result: TuningResult) -> None:
    """Draw a circle around the choice."""
    chosen = next((t for t in result.trials if t.settings == result.settings), None)
    if chosen is None or chosen.supply is None:
        return
    axes.plot(
        chosen.settings.num_workers,
        chosen.supply.median,
        marker="o",
        markersize=14,
        markerfacecolor="none",
        markeredgecolor="tab:red",
        markeredgewidth=2,
        linestyle="none",
        label=f"chosen: {result.settings}",
        zorder=4,
    )


def _families(result: TuningResult) -> dict[str, list[Trial]]:
    """Return the trials that have a rate, by all but their number of workers."""
    found: dict[str, list[Trial]] = {}
    for trial in result.trials:
        if trial.supply is None:
            continue
        # The point without workers belongs to what it has the rest of its settings of.
        name = _name(trial.settings)
        found.setdefault(name, []).append(trial)
    for trials in found.values():
        trials.sort(key=lambda trial: trial.settings.num_workers)
    return found


def _name(settings: Settings) -> str:
    # Nobody reads "1 thread" in the legend of a curve over threads.
    _, *parts = str(replace(settings, num_workers=1)).split(", ")
    kind = {"thread": "threads", "process": "processes"}[settings.worker_method]
    return ", ".join([kind, *parts])
