"""A whole examination of a script: watch it, try what was found, and put it together."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fastdata.doctor.advice import ADVICE, advice_by_id
from fastdata.doctor.advice.ranks import RanksCompared
from fastdata.doctor.contract import Numerics, Phase
from fastdata.doctor.messages import Plain
from fastdata.doctor.processes import ScriptFailedError, scratch_folder
from fastdata.doctor.ranks import watch_ranks
from fastdata.doctor.report import DoctorReport, Row
from fastdata.doctor.script import Script
from fastdata.doctor.trials import START_SECONDS, BatchSize, Running, Trial, Trials, judged
from fastdata.errors import OptionError
from fastdata.measuring.statistics import WORTH
from fastdata.processes.resources import available_cores

__all__ = ["compare_ranks", "examine"]

TRIED_FIRST = (
    *("D09", "D30", "D10", "D17", "D55", "D07", "D06"),
    *("D13", "D03", "D08", "D15", "D01", "D05"),
)
"""Those that are quickly tried, and often worth it, come before those that take long."""

BATCH_FACTORS = 0.25, 0.5, 1.0, 2.0, 4.0, 8.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Advice that is to be tried, with its findings."""

    id: str
    findings: tuple[Plain, ...]
    phase: Phase

    @property
    def environment(self) -> tuple[tuple[str, str], ...]:
        return tuple(pair for finding in self.findings for pair in finding.environment)


def examine(
    script: Script,
    *,
    seconds: float = 300.0,
    only: Sequence[str] = (),
    batch_sizes: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> DoctorReport:
    """Watch a script, try the advice that applies to it for about `seconds`, and report.

    `only` are the IDs to report, in addition to mistakes.  The default is all advice.
    With `batch_sizes` the script also runs with batches of a quarter to eight times its own,
    whatever time that takes.  Raises `ScriptFailedError` if the script fails by itself, ends
    without a step, or makes none in ten minutes, and `OptionError` for an unknown ID.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise OptionError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}: a script is tried with one rank. Start "
            "fastdata doctor itself, without torchrun; with --ranks it compares several"
        )
    if unknown := sorted(set(only) - {advice.id for advice in ADVICE}):
        raise OptionError(f"unknown advice {unknown[0]!r}: fastdata doctor --list has all")
    began = time.monotonic()
    with scratch_folder() as scratch, Trials(script, scratch) as trials:
        progress("watching the script")
        watched = trials.watch()
        findings = [
            finding
            for finding in watched.findings
            if not only or finding.id in only or advice_by_id(finding.id).kind == "bug"
        ]
        wanted = _wanted(findings)
        tried: dict[str, Trial] = {}
        noises: dict[Phase, Trial] = {}
        left_out: dict[str, str] = {}
        repeatable = True
        longest = 0.0
        for number, one in enumerate(wanted, 1):
            if time.monotonic() - began + longest > seconds and tried:
                left_out[one.id] = "there was no time left: --seconds gives more"
                continue
            started = time.monotonic()
            if one.phase not in noises:
                progress("the script beside itself")
                noises[one.phase] = _noise(trials, one.phase)
                if one.phase == "train" and noises["train"].gain is not None:
                    repeatable = noises[one.phase].numerics == Numerics.EQUAL
                started = time.monotonic()
            if noises[one.phase].gain is None:
                tried[one.id] = replace(noises[one.phase], follow=(one.id,))
                continue
            at_most = trials.base(one.phase).at_most(advice_by_id(one.id).part)
            if at_most is not None and at_most < WORTH:
                left_out[one.id] = f"it can make a step {at_most:.2f} times as fast at most"
                continue
            progress(f"{one.id}, {number} of {len(wanted)}: {advice_by_id(one.id).title}")
            tried[one.id] = trials.trial((one.id,), one.phase, one.environment)
            longest = max(longest, time.monotonic() - started)
        tried = _judged(tried, noises, wanted, repeatable=repeatable)
        left = seconds - (time.monotonic() - began)
        environments = {one.id: one.environment for one in wanted}
        together = _together(trials, tried, environments, noises, left, progress)
        sizes = tuple(_batch_sizes(trials, progress)) if batch_sizes else ()
        base = trials.base("train") if "train" in noises or batch_sizes else None
        return DoctorReport(
            script=str(script),
            watched=watched,
            step_seconds=base.step_seconds if base else watched.step_seconds,
            peak_bytes=base.peak_bytes if base else 0,
            noise=noises["train"].gain if "train" in noises else None,
            repeatable=repeatable,
            rows=_rows(findings, tried, left_out, base),
            together=together,
            batch_sizes=sizes,
            seconds=time.monotonic() - began,
            machine=_machine(watched.device),
        )


def compare_ranks(
    script: Script, count: int, *, progress: Callable[[str], None] = lambda _: None
) -> DoctorReport:
    """Watch a script with `count` ranks on this machine, compare them, and report.

    Nothing is tried.  Raises the `ScriptFailedError` of the rank that fails first.
    """
    began = time.monotonic()
    progress(f"watching {count} ranks")
    with scratch_folder() as scratch:
        watched = watch_ranks(script, count, scratch, START_SECONDS)
    facts = [one.rank for one in watched if one.rank is not None]
    findings = [
        replace(one, is_tried=False, why_not=one.why_not or "with --ranks nothing is tried")
        for one in watched[0].findings
    ]
    findings += [
        Plain(advice.id, found.where, found.what, (), False, found.why_not, advice.phase)
        for advice in ADVICE
        if isinstance(advice, RanksCompared) and len(facts) == count
        for found in advice.compare(facts)
    ]
    return DoctorReport(
        script=str(script),
        watched=watched[0],
        step_seconds=watched[0].step_seconds,
        peak_bytes=0,
        noise=None,
        repeatable=True,
        rows=_rows(findings, {}, {}, None),
        together=None,
        seconds=time.monotonic() - began,
        machine=_machine(watched[0].device),
        ranks=count,
    )


def _machine(device: str) -> dict[str, object]:
    return {
        "cores": available_cores(),
        "load": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device,
    }


def _batch_sizes(trials: Trials, progress: Callable[[str], None]) -> Iterator[BatchSize]:
    """Yield what batches of other sizes give, until one does not fit."""
    for factor in BATCH_FACTORS:
        progress(f"batches of {factor:g} times as many samples")
        found = trials.batch_size(factor)
        if found.samples:  # else the script takes batches from no loader
            yield found
        if found.why or not found.samples:
            return


def _wanted(findings: Sequence[Plain]) -> list[_Wanted]:
    """Return what can be tried, in the order of trials."""
    ids = dict.fromkeys(f.id for f in findings if f.is_tried)
    order = {id: n for n, id in enumerate(TRIED_FIRST)}
    return [
        _Wanted(id, tuple(f for f in findings if f.id == id and f.is_tried), advice_by_id(id).phase)
        for id in sorted(ids, key=lambda id: (order.get(id, len(order)), id))
    ]


def _noise(trials: Trials, phase: Phase) -> Trial:
    """Compare the script with itself; a failure where it has no validation that can be measured."""
    if phase == "train":
        return trials.noise(phase)
    try:
        return trials.noise(phase)
    except ScriptFailedError as error:
        return Trial((), verdict="failed", why=str(error))


def _judged(
    tried: dict[str, Trial],
    noises: dict[Phase, Trial],
    wanted: Sequence[_Wanted],
    *,
    repeatable: bool,
) -> dict[str, Trial]:
    """Return trials with their verdicts, each phase by its own noise."""
    found: dict[str, Trial] = {}
    for phase, noise in noises.items():
        ids = [one.id for one in wanted if one.phase == phase and one.id in tried]
        if noise.gain is None:
            found |= {id: tried[id] for id in ids}
            continue
        found |= zip(ids, judged([tried[id] for id in ids], noise.gain), strict=True)
    if not repeatable:
        found = {id: replace(one, numerics=None, numerics_error=None) for id, one in found.items()}
    return found


def _together(
    trials: Trials,
    tried: dict[str, Trial],
    environments: Mapping[str, tuple[tuple[str, str], ...]],
    noises: dict[Phase, Trial],
    seconds: float,
    progress: Callable[[str], None],
) -> Trial | None:
    """Follow all advice that was a gain and keeps the numbers, and measure that anew.

    The largest gain comes first; another is added where the two together are no slower.  In the end
    each is left out once, and stays so where the others are as fast without it.
    """
    gains = [
        (id, one)
        for id, one in tried.items()
        if one.verdict == "gain"
        and one.gain is not None
        and advice_by_id(id).phase == "train"
        and (advice_by_id(id).numerics if one.numerics is None else one.numerics)
        <= Numerics.ROUNDING
    ]
    gains.sort(key=lambda pair: -pair[1].gain.median if pair[1].gain else 0.0)
    if len(gains) < 2 or noises["train"].gain is None:
        return None

    def measure(ids: tuple[str, ...]) -> Trial:
        environment = tuple(pair for id in ids for pair in environments[id])
        return trials.trial(ids, environment=environment)

    best: Trial | None = None
    chosen: tuple[str, ...] = (gains[0][0],)
    before = gains[0][1]
    began = time.monotonic()
    for id, _ in gains[1:]:
        if best is not None and time.monotonic() - began > seconds:
            break
        progress(f"together: {', '.join((*chosen, id))}")
        now = measure((*chosen, id))
        if now.gain is None or before.gain is None or now.gain.median < before.gain.low:
            continue
        chosen, before, best = now.follow, now, now
    for id in chosen if len(chosen) > 2 else ():
        if best is None or best.gain is None or time.monotonic() - began > seconds:
            break
        progress(f"together, without {id}")
        now = measure(tuple(one for one in chosen if one != id))
        if now.gain is not None and now.gain.median >= best.gain.median:
            chosen, best = now.follow, now
    if best is None:
        return None
    progress("together, once more")
    return judged([measure(chosen)], noises["train"].gain)[0]


def _rows(
    findings: Sequence[Plain],
    tried: dict[str, Trial],
    left_out: Mapping[str, str],
    base: Running | None,
) -> tuple[Row, ...]:
    """Return a row for each piece of advice that applies, mistakes first, then by gain."""
    rows = []
    for advice in ADVICE:
        of_it = [finding for finding in findings if finding.id == advice.id]
        if not of_it:
            continue
        why_not = next((f.why_not for f in of_it if f.why_not), "")
        if advice.id in left_out:
            why_not = left_out[advice.id]
        rows.append(
            Row(
                advice.id,
                advice.kind,
                advice.title,
                tuple(dict.fromkeys(f.where for f in of_it if f.where)),
                tuple(dict.fromkeys(f.what for f in of_it)),
                tried.get(advice.id),
                advice.numerics,
                why_not,
                advice.phase,
                advice.saves,
                base.at_most(advice.part) if base is not None else None,
            )
        )
    return tuple(sorted(rows, key=_order))


def _order(row: Row) -> tuple[int, float, str]:
    if row.kind == "bug":
        return 0, 0.0, row.id
    if row.trial is None or row.trial.gain is None:
        return 2, 0.0, row.id
    return 1, -row.trial.gain.median, row.id
