"""A report as one HTML page: no script, nothing from a network, for light, dark and paper.

The page is well-formed XML too.  Whatever is in a report is text in it: everything is escaped, and
a policy in its head forbids the browser to run or fetch anything, should that ever fail.
"""

from __future__ import annotations

import contextlib
import math
import os
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from fastdata import __version__
from fastdata.errors import OptionError, full_disk_explained
from fastdata.profiling.figures import (
    batch_times,
    gain,
    key_figures,
    largest,
    machine_lines,
    milliseconds,
    number,
    printable,
    rates,
    speedup,
    stall_line,
)
from fastdata.profiling.report import ProfileReport
from fastdata.profiling.timeline import lay_out, percent

__all__ = ["check_page_path", "render_page", "write_page"]

TEMPLATE = "report.html.jinja"


def render_page(report: ProfileReport) -> str:
    """Return a report as an HTML page."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = resources.files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(source).render(_content(report)) + "\n"


def write_page(report: ProfileReport, path: str | os.PathLike[str]) -> None:
    """Write a report as an HTML page to a file, which is there whole or, after an error, as before.

    Parameters
    ----------
    report : ProfileReport
    path : path-like
        An earlier file there is replaced.  Its folder has to exist.

    Raises
    ------
    OptionError
        If `path` is a folder or another thing that is no file, or its folder does not exist.
    DiskFullError
        If there is no room.
    """
    check_page_path(path)
    place = Path(os.path.realpath(path))  # what a link points to is replaced, not the link
    scratch = place.with_name(f".{place.name}.{os.getpid()}.new")
    content = render_page(report).encode()
    with full_disk_explained(place, "Make room, or write the page to another disk."):
        try:
            scratch.write_bytes(content)
            os.replace(scratch, place)
        except BaseException:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise


def check_page_path(path: str | os.PathLike[str]) -> None:
    """Raise what `write_page` would of a place that cannot take a page, before the work is done.

    Raises
    ------
    OptionError
    """
    place = Path(path)
    if place.is_dir():
        raise OptionError(
            f"{place} is a folder: name a file for the page, such as {place / 'profile.html'}"
        )
    if place.exists() and not place.is_file():
        raise OptionError(f"{place} is no ordinary file: name another for the page")
    if not place.parent.is_dir():
        raise OptionError(
            f"{place.parent} is no folder: make it (mkdir -p), or write the page elsewhere"
        )


def _content(report: ProfileReport) -> dict[str, Any]:
    """Return what the template shows: text that can be shown, and lengths in percent."""
    speeds = rates(report)
    spans = batch_times(report)
    stage_scale = largest(
        [stage.seconds for stage in report.stages]
        + [stage.stall_seconds for stage in report.stages]
    )
    # What is drawn is what is gained: a bar for 1.00x would look like something.
    gain_scale = largest([stage.speedup_if_free - 1 for stage in report.stages])
    return {
        "version": __version__,
        "verdict": printable(report.verdict),
        "mood": "data" if report.input_bound else "step" if report.bottleneck else "fine",
        "loader": printable(report.loader),
        "step": printable(report.step),
        "rates": [
            {
                "name": name,
                "steps": number(rate),
                "samples": number(rate * report.batch_size),
                "width": _width(rate, largest([rate for _, rate in speeds])),
            }
            for name, rate in speeds
        ],
        "figures": key_figures(report),
        "stages": [
            {
                "name": stage.name,
                "parallel": stage.parallel,
                "is_bottleneck": stage.name == report.bottleneck,
                "time": milliseconds(stage.seconds),
                "width": _width(stage.seconds, stage_scale),
                "stall": milliseconds(stage.stall_seconds),
                "stall_width": _width(stage.stall_seconds, stage_scale),
                "speedup": speedup(stage.speedup_if_free),
                "speedup_width": _width(stage.speedup_if_free - 1, gain_scale),
                "where": printable(stage.where),
            }
            for stage in report.stages
        ],
        "any_parallel": any(stage.parallel for stage in report.stages),
        "times": [
            {
                "name": name,
                "time": milliseconds(seconds),
                "width": _width(seconds, largest([seconds for _, seconds in spans])),
            }
            for name, seconds in spans
        ],
        "timeline": lay_out(report.timeline),
        "stalls": [(stall_line(stall), printable(stall.where)) for stall in report.stalls],
        "fixes": [(printable(fix.text), gain(fix)) for fix in report.fixes],
        "notes": [printable(note) for note in report.notes],
        "machine": machine_lines(report.machine),
    }


def _width(value: float, whole: float) -> str:
    """Return the length of a bar: nothing for what is not known, all of it for the infinite."""
    if math.isnan(value) or value <= 0:
        return percent(0.0)
    return percent(1.0 if math.isinf(value) or not whole else value / whole)
