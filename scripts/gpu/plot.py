"""A picture of a report: `gpu_check --plot OUT.png`, or of a JSON file that is there already.

python scripts/gpu/plot.py gpu_check.json gpu_check.png
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["NO_MATPLOTLIB", "can_plot", "plot"]

NO_MATPLOTLIB = (
    "a plot needs matplotlib, which is not installed: pip install matplotlib brings it, or "
    "leave out --plot (scripts/gpu/plot.py makes the plot later, from the JSON)"
)
PANELS = {
    "copies": ("Host to device", "GB/s"),
    "overlap": ("Copy hidden behind steps", "of the copy"),
    "loaders": ("Batches on the device", "images/s"),
    "training": ("Training", "images/s"),
    "cache": ("Out of the device's memory, bytes moved", "GB/s"),
}
"""Title, and the unit of the rows that are shown, of each part."""


def can_plot() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def plot(document: Mapping[str, Any], path: Path) -> None:
    """Draw the measured rows of a report.

    Parameters
    ----------
    document : mapping
        What the JSON file holds.
    path : Path
        Its suffix tells the format.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    ValueError
        If there is no measured row.
    """
    if not can_plot():
        raise ModuleNotFoundError(NO_MATPLOTLIB)
    # The classes themselves, not pyplot, which would look for a screen.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [(part, rows) for part in PANELS if (rows := shown(document["rows"], part))]
    if not panels:
        raise ValueError("there is nothing to plot: no row was measured")
    heights = [len(rows) + 2 for _, rows in panels]
    figure = Figure(figsize=(11, 0.34 * sum(heights) + 1), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axis, (part, rows) in zip(axes, panels, strict=True):
        draw(axis, part, rows)
    title = ", ".join(filter(None, [document.get("gpu", {}).get("name"), document.get("dry_run")]))
    figure.suptitle(title or "gpu_check")
    canvas.print_figure(path, dpi=110)


def shown(rows: Sequence[Mapping[str, Any]], part: str) -> list[Mapping[str, Any]]:
    """Return the rows of a part that have a bar in its panel."""
    unit = PANELS[part][1]
    return [row for row in rows if row["part"] == part and row.get("unit") == unit]


def draw(axis: Any, part: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw one panel: a bar a row, with its spread, and the mark that is asked for."""
    title, unit = PANELS[part]
    places = range(len(rows))
    values = [row["value"] for row in rows]
    below = [row["value"] - row["lowest"] for row in rows]
    above = [row["highest"] - row["value"] for row in rows]
    # The ceilings stand out.
    colours = ["#8a8a8a" if "synthetic" in row["name"] else "#2a6fbb" for row in rows]
    axis.barh(places, values, xerr=[below, above], color=colours, ecolor="#444444", capsize=2)
    axis.set_yticks(places, [row["name"] for row in rows], fontsize=8)
    axis.invert_yaxis()
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_xlabel(unit, fontsize=8)
    for place, row in zip(places, rows, strict=True):
        if "bar" in row:
            asked = row["bar"]["at_least"]
            axis.plot([asked, asked], [place - 0.45, place + 0.45], color="#c03020")


def main() -> int:
    """Plot a JSON file."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        plot(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
    except (OSError, ValueError, ModuleNotFoundError) as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
