"""A report as one HTML page: verdict, mistakes and things to do; the rest is folded."""

from __future__ import annotations

from fastdata.doctor.report import DoctorReport, mistake_text, sentences
from fastdata.doctor.text import groups, subject, things_to_do, together_text
from fastdata.pages import render

__all__ = ["render_page"]


def render_page(report: DoctorReport) -> str:
    """Return a report as an HTML page."""
    content = {
        "report": report,
        "sentences": list(sentences(report)) or ["Nothing was tried."],
        "mistakes": [mistake_text(row) for row in report.mistakes],
        "things_to_do": list(things_to_do(report)),
        "together": together_text(report),
        "subject": list(subject(report, everything=True)),
        "groups": groups(report),
    }
    return render("fastdata.doctor", "report.html.jinja", content)
