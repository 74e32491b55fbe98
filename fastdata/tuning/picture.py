"""The result of a tuning as a picture by matplotlib, the extra ``plot``."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastdata.errors import MissingExtraError, OptionError
from fastdata.installing import install_line
from fastdata.regular_files import read_piece
from fastdata.replacing import Destination, Kind
from fastdata.tuning.choice import Measured, curve
from fastdata.tuning.report import Demand, TuningResult

__all__ = ["check_picture_path", "plot"]

_MARK = "fastdata tune-workers --plot"
_MARKED_AS = {"png": "Software", **dict.fromkeys(("svg", "pdf", "ps", "eps"), "Creator")}
"""Where the mark of a plot is in each format.  Plots in other formats are never replaced."""


def plot(result: TuningResult, path: str | os.PathLike[str]) -> None:
    """Write a picture: supply and training against workers, the demand, and what was chosen."""
    figure = _figure_class()(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    _draw_supply(axes, result)
    trained = [(one.settings, one.trained) for one in result.trials if one.trained is not None]
    if trained:
        points = curve(trained, result.settings)
        _draw_curve(axes, points, "training: steps/s with the step", "tab:green")
    if result.demand is not None:
        _draw_demand(axes, result.demand)
    _mark_chosen(axes, result)
    axes.set_xlabel("workers")
    axes.set_ylabel(f"batches of {result.batch_size} a second (median, 95% interval)")
    axes.set_ylim(bottom=0)
    size = result.batch_size
    right = axes.secondary_yaxis("right", functions=(lambda y: y * size, lambda y: y / size))
    right.set_ylabel("samples a second")
    axes.set_xticks(sorted({trial.settings.num_workers for trial in result.trials}))
    axes.grid(alpha=0.3)
    axes.set_title("\n".join(textwrap.wrap(result.verdict, 100)), fontsize=9)
    axes.legend(fontsize=8)
    _save(figure, path)


def _draw_supply(axes: Any, result: TuningResult) -> None:
    """Draw the rates of loaders alone: a curve of the chosen kind, points of others, failures."""
    supplied = [(one.settings, one.supply) for one in result.trials if one.supply is not None]
    points = curve(supplied, result.settings)
    _draw_curve(axes, points, "supply: the loader alone", "tab:blue")
    others = [point for point in supplied if point not in points]
    if others:
        axes.plot(
            [settings.num_workers for settings, _ in others],
            [rate.median for _, rate in others],
            "x",
            color="tab:gray",
            label="supply of other settings",
        )
    failed = sorted({t.settings.num_workers for t in result.trials if t.supply is None})
    if failed:
        axes.plot(failed, [0.0] * len(failed), "rx", clip_on=False, label="failed")


def _draw_curve(axes: Any, points: Sequence[Measured], label: str, color: str) -> None:
    """Draw rates with their intervals, against numbers of workers."""
    rates = [rate for _, rate in points]
    axes.errorbar(
        [settings.num_workers for settings, _ in points],
        [rate.median for rate in rates],
        yerr=[
            [rate.median - rate.low for rate in rates],
            [rate.high - rate.median for rate in rates],
        ],
        marker="o",
        capsize=4,
        color=color,
        label=label,
    )


def _draw_demand(axes: Any, demand: Demand) -> None:
    """Draw the rate of the step as a line in its interval."""
    rate = demand.rate
    axes.axhspan(rate.low, rate.high, color="black", alpha=0.15, linewidth=0)
    axes.axhline(rate.median, color="black", linestyle="--", label=f"demand: {demand.step}")


def _mark_chosen(axes: Any, result: TuningResult) -> None:
    """Draw a circle around the choice: with the step, where that was run."""
    chosen = next((t for t in result.trials if t.settings == result.settings), None)
    rate = result.trained or (None if chosen is None else chosen.supply)
    if rate is None:
        return
    axes.plot(
        result.settings.num_workers,
        rate.median,
        marker="o",
        markersize=14,
        markerfacecolor="none",
        markeredgecolor="tab:red",
        markeredgewidth=2,
        linestyle="none",
        label=f"chosen: {result.settings}",
        zorder=4,
    )


# -- matplotlib -------------------------------------------------------------------------------


def _figure_class() -> Any:
    # No pyplot: it would look for a display, and keep the figure.
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(f"a plot needs matplotlib: {install_line('plot')}") from error
    return Figure


def check_picture_path(path: str | os.PathLike[str]) -> Destination:
    """Raise, before time is spent, what writing a picture there would.

    `MissingExtraError` without matplotlib; `OptionError` where it writes no format of this suffix,
    or there is no such folder; `DestinationExistsError` if something else than a plot is there.
    """
    known = _figure_class()().canvas.get_supported_filetypes()
    place = Path(path)
    if place.suffix.lstrip(".").lower() not in known:
        raise OptionError(
            f"{path}: no picture of this suffix; it is one of {', '.join(sorted(known))}"
        )
    if not place.absolute().parent.is_dir():
        raise OptionError(f"{path}: there is no folder {place.parent}; make it first")
    return Destination(place, _PLOT)


def _save(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure to a file, in the format of its suffix."""
    place, data = check_picture_path(path), io.BytesIO()
    format = place.path.suffix.lstrip(".").lower()
    marks = {"metadata": {_MARKED_AS[format]: _MARK}} if format in _MARKED_AS else {}
    figure.savefig(data, format=format, dpi=120, **marks)
    place.write(data.getvalue())


def _no_plot(path: Path) -> str:
    is_plot = path.is_file() and _MARK.encode() in read_piece(path, 1 << 26)
    return "" if is_plot else "is not a plot of fastdata"


_PLOT = Kind("a plot of fastdata", _no_plot)
