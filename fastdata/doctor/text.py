"""A report as text for a terminal, and as an HTML page: the verdict first, then the things to do.

The text has at most 25 lines of 100 columns; ``--all`` prints everything.  The page folds it.
`fastdata.printable` removes control characters from names and messages of the script.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from unicodedata import east_asian_width

from fastdata.doctor.advice.processor import KEPT
from fastdata.doctor.report import OUTCOMES, DoctorReport, Row, sentences
from fastdata.doctor.rows import ALLOCATOR
from fastdata.doctor.script import error_line
from fastdata.measuring.lines import short_line
from fastdata.printable import printable
from fastdata.processes.resources import format_bytes

__all__ = ["render_page", "render_text"]

LINES, TO_DO = 25, 5
WIDTH = 98  # of 100: each of two cells in a line may end with half of a wide character


def render_page(report: DoctorReport) -> str:
    """Return a report as an HTML page; the template is ``report.html.jinja``."""
    from fastdata.pages import render  # jinja2 is not imported for text

    content = {
        "report": report,
        "sentences": list(sentences(report)) or ["Nothing was tried."],
        "things_to_do": list(_things_to_do(report, None)),
        "together": _together_text(report),
        "subject": list(_subject(report, everything=True)),
        "groups": _groups(report, None),
    }
    return render("fastdata.doctor", "report.html.jinja", content)


def render_text(report: DoctorReport, *, everything: bool = False) -> str:
    """Return a report as lines for a terminal; with `everything` without a limit of lines."""
    if everything:
        return _joined(_lines(report, None, None))
    for most, listed, blank in (2, 2, True), (2, 1, True), (2, 1, False), (1, 1, False):
        lines = [line for line in _lines(report, most, listed) if line or blank]
        if len(lines) <= LINES:
            return _joined(lines)
    hidden = len(lines) - LINES + 1
    return _joined([*lines[: LINES - 1], f"{hidden} more lines: --all"])


def _lines(report: DoctorReport, most: int | None, listed: int | None) -> Iterator[str]:
    """Yield lines: at most `most` for a sentence or a cell, and `listed` for a list."""
    for sentence in sentences(report):
        yield from _wrapped(sentence, most)
    mistakes = report.mistakes if len(report.mistakes) > 1 or most is None else []
    for row in mistakes[: most and 3]:
        yield from _wrapped(f"Mistake: {row.as_mistake(most and 1)}", most)
    if most and len(mistakes) > 3:
        yield f"and {len(mistakes) - 3} more: --all"
    yield ""
    for sentence in _subject(report, everything=most is None):
        yield from _wrapped(sentence, most)
    yield ""
    if report.faster:
        yield from _table(_things_to_do(report, most), most)
        yield from _wrapped(_together_text(report), most)
        yield ""
    for heading, items in _groups(report, most).items():
        yield from _listed(heading, items, listed)


def _subject(report: DoctorReport, *, everything: bool) -> Iterator[str]:
    """Yield sentences on the script and on the measurement."""
    watched = report.watched
    if everything:
        yield f"Script: {report.script}"
    count = watched.parameters
    millions = f"{count / 1e6:,.1f} M" if count >= 1_000_000 else f"{count:,}"
    names = (*(watched.models or ("No model",)), f"{millions} parameters", *watched.optimizers)
    line = f"{', '.join(names)}, on the {'GPU' if watched.device == 'cuda' else 'CPU'}"
    if report.step_seconds:
        line += f"; a step takes {1e3 * report.step_seconds:.4g} ms"
    seen = report.visible
    yield f"{line}. {seen.capitalize()}." if seen and seen not in report.verdict else f"{line}."
    if report.noise is not None and report.noise.starts == 1:
        yield "Only one process was measured: a verdict needs at least one more."
    if len(report.faster) > 1 and report.faster[0].id == ALLOCATOR:
        yield f"All other gains are in addition to {ALLOCATOR}."
    if report.clock == "cpu":
        yield "Other programs were busy, so steps were judged by processor time."
    if not report.repeatable:
        yield "Each run of the same step has other gradients, so numerics were not measured."
    if watched.failed:
        why = "The script failed while it was watched, perhaps because epochs end early there"
        yield f"{why}: {error_line(watched.failed)}"
    if everything and report.noise is not None:
        yield f"The script compared with itself: {report.noise}."
        pinned = " ".join(f"{name}={os.environ.get(name, value)}" for name, value in KEPT)
        yield f"Both sides of each comparison ran with {pinned}."


def _groups(report: DoctorReport, most: int | None) -> dict[str, list[str]]:
    """Return the lists below the things to do: short texts by heading."""
    watched = report.watched
    found = {"Also faster": [_item(row, most) for row in report.faster[TO_DO:]]}
    found |= {heading: [] for heading in list(OUTCOMES.values())[1:]}
    for row in report.rows:
        if row.kind == "speed" and row.gain <= 1:
            is_said = row.trial is None and row.why_not == report.ended
            heading = "Not tried" if is_said else row.outcome
            found.setdefault(heading, []).append(_item(row, most))
    if most is None:
        found["Notes"] = [_item(row, most) for row in report.rows if row.kind == "note"]
        found["Memory of a step"] = [
            " ".join(filter(None, (one.operation, short_line(one.where), format_bytes(one.nbytes))))
            for one in watched.held
        ]
    found["Not written"] = _not_written(watched.blocked, most)
    found["Caches it may write to"] = [f"{n} {path}" for n, path in watched.writable.items()]
    return {heading: items for heading, items in found.items() if items}


def _not_written(blocked: Mapping[str, int], most: int | None) -> list[str]:
    """Return files that were not written; with a limit, how many each function opened."""
    if most is None:
        return [f"{what} ({count:,}x)" for what, count in blocked.items()]
    files: dict[str, list[str]] = {}
    for function, _, path in (what.partition(": ") for what in blocked):
        files.setdefault(function, []).append(os.path.basename(path))
    shown = ((f"{len(n):,} files" if len(n) > 1 else n[0], f) for f, n in files.items())
    return [" by ".join(filter(None, words)) for words in shown]


def _things_to_do(report: DoctorReport, most: int | None) -> Iterator[tuple[str, ...]]:
    """Yield the gains with the largest first: ratio, numerics, change and places."""
    for row in report.faster[:TO_DO]:
        change = _change(row)
        if row.trial and row.trial.warm_up_seconds > max(1.0, 5 * row.trial.step_seconds):
            change += f" (first step: {row.trial.warm_up_seconds:.0f} s more)"
        yield row.result, _numerics(row), change, row.places(most and 1)


def _numerics(row: Row) -> str:
    """Return the effect on numbers, with a question mark if it was not measured."""
    is_measured = row.trial is not None and row.trial.numerics is not None
    return f"{row.numerics}{'' if is_measured else '?'}"


def _change(row: Row) -> str:
    is_clear = row.phase == "train" or "validation" in row.action
    return f"{row.id} {row.action}{'' if is_clear else ' in validation'}"


def _together_text(report: DoctorReport) -> str:
    """Return the result of following several changes; "" if that was not measured."""
    trial = report.together
    if trial is None or trial.gain is None:
        return ""
    how = f"{ALLOCATOR} times the others" if ALLOCATOR in trial.follow else "measured"
    verdict = "" if trial.verdict == "gain" else f" ({trial.verdict})"
    return f"{trial.gain}  {len(trial.follow)} together, {how}: {', '.join(trial.follow)}{verdict}"


def _item(row: Row, most: int | None) -> str:
    """Return a row as a short text; without a limit all of its facts."""
    words = [_change(row)]
    if most is None or row.outcome != "No difference":
        words.append(row.result)
    is_judged = row.trial is not None and row.trial.verdict != "failed"
    if is_judged and (most is None or not row.keeps_numbers):
        words.append(_numerics(row))
    if row.trial is None or most is None:
        words.append(row.places(most and 1))
    return ", ".join(filter(None, words))


def _table(rows: Iterator[tuple[str, ...]], most: int | None) -> Iterator[str]:
    """Yield rows in columns."""
    cells = [("Faster (95%)", "Numerics", "Change", "Where"), *rows]
    widths = [max(len(_columns(one)) for one in column) for column in zip(*cells, strict=True)]
    widths[3] = min(widths[3], 36)
    widths[2] = min(widths[2], WIDTH - 6 - widths[0] - widths[1] - widths[3])
    for cell in cells:
        parts = [_wrapped(one, most, w) for one, w in zip(cell, widths, strict=True)]
        for line in zip_longest(*parts, fillvalue=""):
            yield "  ".join(f"{one:{w}}" for one, w in zip(line, widths, strict=True)).rstrip()


def _listed(heading: str, items: Sequence[str], most: int | None) -> list[str]:
    """Return a heading and its items as lines; with a limit, how many do not fit."""
    if most is None:
        every = f"{heading}:", *(f"  {item}" for item in items)
        return [line for text in every for line in _wrapped(text, None)]
    for kept in range(len(items), 0, -1):
        shown = (
            [_joined(_wrapped(item, 1, 70)) for item in items[:kept]] if len(items) > 1 else items
        )
        text = f"{heading}: {'; '.join(shown)}"
        if kept < len(items):
            text += f"; and {len(items) - kept} more: --all"
        if len(_wrapped(text, None)) <= most:
            break
    return _wrapped(text, most)


def _wrapped(text: str, most: int | None, width: int = WIDTH) -> list[str]:
    """Return text as lines; `most` limits their number."""
    indent = "  " if width == WIDTH else ""
    lines = textwrap.wrap(_columns(text), width, subsequent_indent=indent, break_on_hyphens=False)
    if most is not None and len(lines) > most:
        lines[most - 1 :] = [f"{lines[most - 1][: width - 4]} ..."]
    return [line.rstrip() for line in lines]


def _columns(text: str) -> str:
    """Return printable text with a NUL after each character that takes two columns."""
    return "".join(f"{c}\0" if east_asian_width(c) in "WF" else c for c in printable(text))


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines).replace("\0", "")
