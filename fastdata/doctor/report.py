"""What an examination found: its data, their JSON form, and their text for a terminal.

Whatever comes from the script (names, lines, messages) passes through `fastdata.printable`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fastdata.doctor.contract import Kind, Numerics, Phase
from fastdata.doctor.messages import Watched
from fastdata.doctor.results import BatchSize, Trial
from fastdata.measuring.lines import short_line
from fastdata.measuring.noise import Clock
from fastdata.measuring.statistics import Estimate
from fastdata.printable import printable
from fastdata.processes.resources import format_bytes

__all__ = [
    "DoctorReport",
    "Row",
    "gain_text",
    "held_lines",
    "memory_text",
    "note_of",
    "numerics_text",
    "render_text",
    "what_text",
]

MOST_HELD = 5
"""Operations whose memory is listed."""

WAITS = 0.05
"""A loop that waits a smaller share of its time is fed."""


@dataclass(frozen=True, slots=True)
class Row:
    """A piece of advice that applies: where, what to write, and what came of it."""

    id: str
    kind: Kind
    title: str
    where: tuple[str, ...]
    """``FILE:LINE function``; "" is left out."""
    what: tuple[str, ...]
    trial: Trial | None
    promised: Numerics
    """What following it does to numbers, where that was not measured."""
    why_not: str = ""
    """Why it was not tried."""
    phase: Phase = "train"
    """Whether it is about steps or about passes of a validation."""
    saves: Literal["time", "memory"] = "time"
    """What it is followed for."""
    at_most: float | None = None
    """How many times as fast it can make a step, by what the part takes that it is about."""

    @property
    def numerics(self) -> Numerics:
        """What following it does to numbers: as measured, else as promised."""
        measured = self.trial.numerics if self.trial is not None else None
        return self.promised if measured is None else measured

    @property
    def gain(self) -> float:
        """How many times as fast it makes the script, where that is a gain; else 1."""
        trial = self.trial
        is_gain = trial is not None and trial.verdict == "gain" and trial.gain is not None
        return trial.gain.value if trial and trial.gain and is_gain else 1.0

    @property
    def keeps_numbers(self) -> bool:
        """Whether numbers stay as they are, but for rounding."""
        return self.numerics <= Numerics.ROUNDING


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What an examination of a script found."""

    script: str
    watched: Watched
    step_seconds: float
    """Of the script as it is, with its batches in memory."""
    peak_bytes: int
    noise: Estimate | None
    """The script compared with itself (A/A)."""
    repeatable: bool
    """Whether a step has the same gradients each time."""
    rows: tuple[Row, ...]
    together: Trial | None
    seconds: float
    batch_sizes: tuple[BatchSize, ...] = ()
    machine: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1
    """Number of ranks that were watched; with several, nothing is tried."""
    smallest_gain: float | None = None
    """The smallest gain that a typical row can show; infinite after a single process."""
    ended: str = ""
    """Why trials ended early, as a sentence without its capital and full stop."""
    clock: Clock = "wall"
    """The clock that judged steps: processor time if other programs were busy."""
    pinned: bool = True
    """Whether both sides of each comparison ran with the malloc thresholds `KEPT`."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON; its form is documented in ``docs/doctor.md``."""
        document = asdict(self)
        document["watched"].pop("findings")
        return {"version": 1, "verdict": self.verdict, **document}

    @property
    def waits_for_data(self) -> bool:
        """Whether the loop of the script waits for batches."""
        return self.watched.waited > WAITS

    @property
    def failure(self) -> str:
        """A sentence on how the script failed after an epoch that ended early, or ""."""
        why = "the script failed while it was watched, perhaps because its epochs end early there"
        return f"{why}: {self.watched.failed}" if self.watched.failed else ""

    @property
    def verdict(self) -> str:
        """One sentence: what is wrong, what to do first, or that there is nothing to do."""
        said = []
        if bugs := [row.id for row in self.rows if row.kind == "bug"]:
            said.append(f"something is wrong ({', '.join(bugs)})")
        if self.waits_for_data:
            said.append(f"the loop waits for data {self.watched.waited:.0%} of the time")
        steps = [row for row in self.rows if row.phase == "train" and row.gain > 1]
        steps.sort(key=lambda row: -row.gain)
        keeping = [row for row in steps if row.keeps_numbers]
        others = [row for row in steps if not row.keeps_numbers]
        together = self.together
        if together is not None and together.gain is not None and together.verdict == "gain":
            said.append(_faster(together.gain.value, together.follow))
        elif keeping:
            said.append(_faster(keeping[0].gain, (keeping[0].id,)))
        if others:
            said.append(f"{_faster(others[0].gain, (others[0].id,))}, with other numbers")
        if self.ranks > 1 and self.watched.failed:
            said.append(self.watched.failed)
        elif self.ranks > 1 and not said:
            said.append(f"nothing was found to be wrong between {self.ranks} ranks")
        elif not steps and self.ranks == 1:
            said.append("no advice makes a step faster")
        return "; ".join(said)

    def is_open(self, threshold: float) -> bool:
        """Whether something is wrong, or would be so many times as fast, as measured."""
        return (self.ranks > 1 and bool(self.watched.failed)) or any(
            row.kind == "bug" or (row.gain >= threshold and row.gain > 1 and row.keeps_numbers)
            for row in self.rows
        )


def _faster(gain: float, ids: tuple[str, ...]) -> str:
    return f"a step is {gain:.2f} times as fast by {', '.join(ids)}"


def render_text(report: DoctorReport, *, notes: bool = False) -> str:
    """Return a report as lines for a terminal; with `notes` also rows of that kind."""
    return "\n".join(_lines(report, notes))


def _lines(report: DoctorReport, notes: bool) -> Iterator[str]:
    watched = report.watched
    models = ", ".join(watched.models) or "no model"
    yield printable(
        f"{report.script}: {models}, {watched.parameters:,} parameters, "
        f"{', '.join(watched.optimizers)}, on {watched.device}"
    )
    if report.ranks > 1:
        yield f"{report.ranks} ranks were watched and compared, and nothing was tried"
    if report.waits_for_data:
        yield (
            f"the loop waits for data {watched.waited:.0%} of the time: no advice on the step can "
            "mend that; fastdata profile says what would"
        )
    bugs = [row for row in report.rows if row.kind == "bug"]
    for row in bugs:
        yield printable(f"wrong: {row.title} ({row.id}), {_where(row)}")
    if report.noise is not None:
        low, high = report.noise.low, report.noise.high
        yield (
            f"a step takes {1e3 * report.step_seconds:.4g} ms; the script beside itself: "
            f"{report.noise.value:.2f} ({low:.2f}-{high:.2f}); a gain of less than "
            f"{(report.smallest_gain or 1) - 1:.0%} cannot be seen"
        )
    measured = [row for row in report.rows if row.kind == "speed"]
    if measured:
        yield f"{'gain (95%)':18s} {'numerics':18s} {'ID':4s} {'what':44s} where"
    for row in measured:
        columns = f"{gain_text(row):18s} {numerics_text(row):18s} {row.id:4s} {what_text(row):44s}"
        yield printable("  ".join(filter(None, (f"{columns} {_where(row)}", note_of(row)))))
    if report.together is not None and report.together.gain is not None:
        gain = report.together.gain
        yield (
            f"together {gain.value:.2f} ({gain.low:.2f}-{gain.high:.2f}), measured: "
            f"{', '.join(report.together.follow)}"
        )
    for size in report.batch_sizes:
        speed = f"{size.samples_per_second:,.4g} samples/s"
        yield printable(
            f"batches of {size.samples:,}: {size.why or f'{speed}, {memory_text(size)}'}"
        )
    if watched.held:
        yield (
            f"a step's tensors take {format_bytes(watched.held_bytes)} at most: "
            f"{printable('; '.join(' '.join(words) for words in held_lines(watched)))}"
        )
    if not report.repeatable:
        yield "its steps have other gradients each time, so numerics were not measured"
    if report.failure:
        yield printable(report.failure)
    for row in report.rows if notes else ():
        if row.kind == "note":
            yield printable(f"note: {row.title} ({row.id}), {_where(row)}")
    yield report.verdict
    if watched.blocked:
        yield printable(
            f"not written: {', '.join(f'{what} ({n:,}x)' for what, n in watched.blocked.items())}"
        )


def gain_text(row: Row) -> str:
    """Return the gain of a row with its interval, or why there is none."""
    if row.trial is None:
        return "GPU only" if row.why_not == "GPU only" else "not measured"
    if row.trial.gain is None:
        return "failed"
    gain = row.trial.gain
    return f"{gain.value:.2f} ({gain.low:.2f}-{gain.high:.2f})"


def numerics_text(row: Row) -> str:
    """Return what following a row does to numbers; with a question mark where that is promised."""
    trial = row.trial
    if trial is None or trial.gain is None or trial.numerics is None:
        return f"{row.promised}?"
    if trial.numerics in (Numerics.EQUAL, None) or trial.numerics_error is None:
        return str(trial.numerics)
    return f"{trial.numerics} {trial.numerics_error:.0e}"


def memory_text(size: BatchSize) -> str:
    """Return how much memory batches take; on a GPU also what is taken and cannot be used."""
    text = format_bytes(size.peak_bytes)
    if size.reserved_bytes:
        text += f" of {format_bytes(size.reserved_bytes)} reserved"
    return f"{text}, {size.retries:,} retries" if size.retries else text


def held_lines(watched: Watched) -> list[tuple[str, str]]:
    """Return what holds the memory of a step at its peak, and how much; the rest is the last."""
    shown, rest = watched.held[:MOST_HELD], watched.held[MOST_HELD:]
    found = [
        (" ".join(filter(None, (one.operation, short_line(one.where)))), format_bytes(one.nbytes))
        for one in shown
    ]
    if rest:
        found.append((f"{len(rest):,} others", format_bytes(sum(one.nbytes for one in rest))))
    return found


def what_text(row: Row) -> str:
    """Return what to write, of one place or several."""
    return row.what[0] if len(row.what) == 1 else f"{row.title} ({len(row.what)} places)"


def _where(row: Row) -> str:
    more = f" and {len(row.where) - 1} more" if len(row.where) > 1 else ""
    return (short_line(row.where[0]) if row.where else "") + more


def note_of(row: Row) -> str:
    """Return what else there is to say of a row."""
    trial = row.trial
    if trial is None:
        return "" if row.why_not in ("", "GPU only") else row.why_not
    if trial.gain is None:
        return trial.why
    notes = {
        "gain": "",
        "slower": "do not: it is slower here",
        "no difference": "no difference",
        "cannot be told": "cannot be told",
        "failed": trial.why,
    }
    found = [notes[trial.verdict]] if notes[trial.verdict] else []
    if row.saves == "memory":
        memory = format_bytes(trial.peak_bytes), format_bytes(trial.base_peak_bytes)
        found = ["{} of memory in place of {}".format(*memory)]
    if row.phase == "evaluate":
        found.append("of a pass of the validation")
    if row.at_most is not None:
        found.append(f"it can be {row.at_most:.2f} at most")
    if trial.warm_up_seconds > max(1.0, 5 * trial.step_seconds):
        found.append(f"the first step takes {trial.warm_up_seconds:.0f} s more")
    return "; ".join(found)
