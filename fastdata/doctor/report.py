"""What an examination found: its data, its verdict, and its JSON form."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fastdata.doctor.contract import Kind, Numerics, Phase
from fastdata.doctor.messages import Watched
from fastdata.doctor.results import EndedBy, Trial
from fastdata.doctor.rows import ALLOCATOR
from fastdata.doctor.script import error_line
from fastdata.measuring.noise import Clock
from fastdata.measuring.statistics import WORTH, Estimate
from fastdata.processes.resources import format_bytes

__all__ = ["OUTCOMES", "DoctorReport", "Row", "sentences"]

WAITS = 0.05  # a loop that waits for a smaller share of its time does not wait for data
LESS_MEMORY = 0.95  # peaks of memory above this ratio may differ by chance

OUTCOMES = {
    "gain": "Faster",
    "no difference": "No difference",
    "slower": "Slower, do not use",
    "cannot be told": "Cannot be told",
    "failed": "Failed",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A piece of advice that applies: its places, the changes, and the result of its trial."""

    id: str
    kind: Kind
    title: str
    where: tuple[str, ...]  # each is ``FILE:LINE function``
    what: tuple[str, ...]  # the changes, such as ``AdamW(fused=True)``
    trial: Trial | None
    promised: Numerics
    why_not: str = ""  # why it was not tried
    phase: Phase = "train"
    saves: Literal["time", "memory"] = "time"
    at_most: float | None = None  # of its gain: as if the part that it changes took no time

    @property
    def numerics(self) -> Numerics:
        """The effect on numbers: as measured, else as promised."""
        measured = self.trial.numerics if self.trial is not None else None
        return self.promised if measured is None else measured

    @property
    def gain(self) -> float:
        """The speed-up, if the verdict is a gain; else 1."""
        trial = self.trial
        return trial.gain.value if trial and trial.gain and trial.verdict == "gain" else 1.0

    @property
    def keeps_numbers(self) -> bool:
        """Whether numbers stay the same, except for rounding."""
        return self.numerics <= Numerics.ROUNDING

    @property
    def needs_gpu(self) -> bool:
        """Whether a trial needs a GPU and there is none."""
        return self.trial is None and self.why_not == "GPU only"

    @property
    def action(self) -> str:
        """What to change; for many changes the title and their number."""
        every = ", ".join(self.what)
        is_long = len(self.what) > 1 and len(every) > 60
        return f"{self.title} ({len(self.what)} places)" if is_long else every or self.title

    @property
    def outcome(self) -> str:
        """The heading of this row in the report."""
        if self.needs_gpu:
            return "Needs a GPU to try"
        if self.trial is None:
            return f"Not tried ({error_line(self.why_not)})" if self.why_not else "Not tried"
        peak, before = self.trial.peak_bytes, self.trial.base_peak_bytes
        if self.saves == "memory" and self.gain <= 1 and 0 < peak < LESS_MEMORY * before:
            return "Less memory"
        return OUTCOMES[self.trial.verdict]

    @property
    def result(self) -> str:
        """The ratio, with peaks of memory if that is less; the bound; or why the trial failed."""
        trial = self.trial
        if trial is None:
            return f"at most {self.at_most:.2f}x" if (self.at_most or 0) >= WORTH else ""
        if trial.verdict == "failed":
            return error_line(trial.why)
        ratio = str(trial.gain or "")
        if self.outcome != "Less memory":
            return ratio
        peak, before = format_bytes(trial.peak_bytes), format_bytes(trial.base_peak_bytes)
        return f"{peak} instead of {before}, {ratio}"

    def places(self, most: int | None = None) -> str:
        """Return each ``FILE:LINE``; with `most` that many, shortened, and how many more."""
        shown = [(re.match(r".*:\d+(?= |$)", where) or [where])[0] for where in self.where[:most]]
        if most is not None:
            shown = [one if len(one) <= 24 else f"...{one[-21:]}" for one in shown]
        more = len(self.where) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")

    def as_mistake(self, places: int | None = None) -> str:
        """Return a mistake with its places and its ID; `places` limits their number."""
        return ", ".join(filter(None, (self.action, self.places(places)))) + f" ({self.id})"


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What an examination of a script found."""

    script: str
    watched: Watched
    step_seconds: float  # of the unchanged script, with batches from memory
    peak_bytes: int
    noise: Estimate | None  # the script compared with itself (A/A)
    repeatable: bool  # whether a step has the same gradients each time
    rows: tuple[Row, ...]
    together: Trial | None
    seconds: float
    machine: dict[str, Any] = field(default_factory=dict)
    smallest_gain: float | None = None  # that a typical row can show
    ended: str = ""  # why trials ended early: a sentence without its capital and full stop
    ended_by: EndedBy = "nothing"
    clock: Clock = "wall"  # that judged steps: "cpu" if other programs were busy

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON; its form is documented in ``docs/doctor.md``."""
        document = asdict(self, dict_factory=_plain)
        document["watched"].pop("findings")
        return {"version": 1, "verdict": self.verdict, **document}

    @property
    def mistakes(self) -> list[Row]:
        """The rows that are about mistakes."""
        return [row for row in self.rows if row.kind == "bug"]

    @property
    def faster(self) -> list[Row]:
        """The gains: the memory allocator first, then the largest."""
        rows = [row for row in self.rows if row.kind == "speed" and row.gain > 1]
        return sorted(rows, key=lambda row: (row.id != ALLOCATOR, -row.gain, row.id))

    @property
    def candidates(self) -> list[Row]:
        """The rows that could make this script faster on this machine."""
        rows = [row for row in self.rows if row.kind == "speed" and not row.needs_gpu]
        return [row for row in rows if row.trial is not None or (row.at_most or WORTH) >= WORTH]

    @property
    def mood(self) -> Literal["good", "unsure", "bad"]:
        """The colour of the verdict; good is a gain, or the certainty that there is none."""
        if self.mistakes:
            return "bad"
        results = {row.trial.verdict if row.trial else "failed" for row in self.candidates}
        is_decided = bool(results) and results <= {"no difference", "slower"} and not self.ended
        is_good = bool(self.faster) or is_decided
        return "good" if is_good and self.watched.waited <= WAITS else "unsure"

    @property
    def verdict(self) -> str:
        """What is known, in a few sentences."""
        return " ".join(sentences(self))

    @property
    def visible(self) -> str:
        """The gains that cannot be seen; "" if that is not known."""
        smallest = self.smallest_gain or math.inf
        return f"gains below {smallest - 1:.0%} cannot be seen" if math.isfinite(smallest) else ""

    @property
    def is_unknown(self) -> bool:
        """Whether no change has a verdict, for lack of time or because of noise."""
        verdicts = {row.trial.verdict for row in self.candidates if row.trial}
        if verdicts & {"gain", "no difference", "slower"}:
            return False
        is_left_out = any(re.search("--seconds|busy", row.why_not) for row in self.candidates)
        return is_left_out or "cannot be told" in verdicts or self.ended_by in ("time", "noise")

    def is_open(self, threshold: float) -> bool:
        """Whether there is a mistake, or a gain of `threshold` or more that keeps the numbers."""
        return any(
            row.kind == "bug" or (row.gain >= threshold and row.gain > 1 and row.keeps_numbers)
            for row in self.rows
        )


def _plain(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return fields as plain JSON; numbers that are not finite, and such intervals, are null."""
    plain = {name: str(value) if isinstance(value, Numerics) else value for name, value in fields}
    infinite = [one for one, n in fields if isinstance(n, float) and not math.isfinite(n)]
    return plain | dict.fromkeys(infinite + ["low"] * ("high" in infinite))


def sentences(report: DoctorReport) -> Iterator[str]:
    """Yield the sentences of the verdict."""
    if report.watched.protection == "none":
        yield "Files that C libraries and other programs write were not protected (--unprotected)."
    yield from _gains(report)
    mistakes = report.mistakes
    if len(mistakes) == 1:
        yield f"1 mistake: {mistakes[0].as_mistake(1)}."
    elif mistakes:
        yield f"{len(mistakes)} mistakes: {', '.join(dict.fromkeys(row.id for row in mistakes))}."
    if report.watched.waited > WAITS:
        waited = f"{report.watched.waited:.0%} of the time"
        yield f"The loop waits for data {waited}: fastdata profile says why."
    yield from _state(report)


def _gains(report: DoctorReport) -> Iterator[str]:
    """Yield a sentence for each kind of gain: its largest, or the best changes together."""
    allocator, main = ("train", True, True), ("train", True, False)
    best: dict[Any, tuple[Trial | None, list[Row]]] = {}
    for row in report.faster:
        best.setdefault((row.phase, row.keeps_numbers, row.id == ALLOCATOR), (row.trial, [row]))
    is_pinned = allocator in best
    together = report.together
    if together is not None and together.verdict == "gain":
        followed = [row for id in together.follow for row in report.rows if row.id == id]
        best[main] = together, followed
        if ALLOCATOR in together.follow:
            best.pop(allocator, None)
    for kind in sorted(best, key=lambda kind: kind not in (allocator, main)):
        trial, rows = best[kind]
        gain = trial.gain if trial else ""
        is_further = is_pinned and all(row.id != ALLOCATOR for row in rows)
        than = f" as with {ALLOCATOR} alone" if is_further else ""
        price = "" if kind[1] else f"with {rows[0].numerics}, "
        subject = "a step" if kind[0] == "train" else "validation"
        yield _sentence(f"{price}{subject} can be {gain} as fast{than}: {_actions(rows)}")


def _actions(rows: Sequence[Row]) -> str:
    actions = [row.action if len(row.action) <= 60 else row.title for row in rows]
    if len(actions) > 3:
        actions[2:] = [f"{len(actions) - 2} more"]
    return " and ".join(filter(None, (", ".join(actions[:-1]), *actions[-1:])))


def _state(report: DoctorReport) -> Iterator[str]:
    """Yield how many changes were tried, and why trials ended."""
    results = [row.trial.verdict for row in report.candidates if row.trial is not None]
    count, failed, is_faster = len(report.candidates), results.count("failed"), bool(report.faster)
    if not count and not report.ended:
        needs = " without a GPU" if any(row.needs_gpu for row in report.rows) else ""
        yield f"Nothing to try was found{needs}."
    elif (results or not report.ended) and (not is_faster or failed or len(results) < count):
        of = f"{len(results)} of " if len(results) < count else ""
        said = f"{of}{count} change{'' if count == 1 else 's'} tried"
        is_none = len(results) > failed and not is_faster
        if is_none:
            said += f", none is {'known to be ' if 'cannot be told' in results else ''}faster"
        said += f", {failed} failed" if failed else ""
        yield f"{said}; {report.visible}." if is_none and report.visible else f"{said}."
    if report.ended:
        what, colon, why = report.ended.partition(":")
        yield _sentence(f"{what}: {error_line(why)}" if colon else what)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('?') else '.'}"
