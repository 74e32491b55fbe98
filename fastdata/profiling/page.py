"""A report as one HTML page; what pages promise is told in ``fastdata.pages``."""

from __future__ import annotations

import math
import os
from typing import Any

from fastdata.pages import render
from fastdata.pages import write_page as write
from fastdata.printable import printable
from fastdata.profiling.figures import (
    batch_times,
    gain,
    key_figures,
    largest,
    machine_lines,
    milliseconds,
    number,
    rates,
    speedup,
    stall_line,
)
from fastdata.profiling.report import ProfileReport
from fastdata.profiling.timeline import lay_out, percent

__all__ = ["render_page", "write_page"]

TEMPLATE = "report.html.jinja"


def render_page(report: ProfileReport) -> str:
    """Return a report as an HTML page."""
    return render(__package__, TEMPLATE, _content(report))


def write_page(report: ProfileReport, path: str | os.PathLike[str]) -> None:
    """Write a report as an HTML page to a file; see `fastdata.pages.write_page`."""
    write(render_page(report), path)


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
