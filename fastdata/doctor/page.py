"""A report as one HTML page."""

from __future__ import annotations

from typing import Any

from fastdata.doctor.report import (
    DoctorReport,
    Row,
    gain_text,
    held_lines,
    memory_text,
    note_of,
    numerics_text,
    what_text,
)
from fastdata.measuring.statistics import Estimate
from fastdata.pages import render
from fastdata.processes.resources import format_bytes

__all__ = ["render_page"]


def render_page(report: DoctorReport) -> str:
    """Return a report as an HTML page."""
    return render("fastdata.doctor", "report.html.jinja", _content(report))


def _content(report: DoctorReport) -> dict[str, Any]:
    """Return what the template shows, and the functions by which it shows it."""
    others = [row for row in report.rows if row.kind != "bug"]
    gains = [row.trial.gain for row in others if row.trial is not None and row.trial.gain]
    if report.together is not None and report.together.gain is not None:
        gains.append(report.together.gain)
    scale = max([rate.high for rate in gains] + [1.5]) - 1
    return {
        "report": report,
        "bugs": [row for row in report.rows if row.kind == "bug"],
        "tried": [row for row in others if row.trial is not None],
        "others": [row for row in others if row.trial is None],
        "mood": "data" if report.waits_for_data else "fine",
        "milliseconds": f"{1e3 * report.step_seconds:.4g} ms",
        "gain_text": gain_text,
        "numerics_text": numerics_text,
        "what_text": what_text,
        "note_of": note_of,
        "memory_text": memory_text,
        "held_lines": held_lines(report.watched),
        "held": format_bytes(report.watched.held_bytes),
        "width": lambda rate: _width(rate, scale),
        "kind": _kind,
    }


def _width(rate: Estimate, scale: float) -> str:
    """Return the length of a bar: of what is more than 1, or less."""
    return f"{100 * min(abs(rate.value - 1) / scale, 1.0):.3f}%"


def _kind(row: Row) -> str:
    """Return what colours a bar."""
    slower_for_memory = row.saves == "memory" and row.gain <= 1
    verdict = "none" if row.trial is None or slower_for_memory else row.trial.verdict
    return {"gain": "step", "slower": "wait"}.get(verdict, "none")
