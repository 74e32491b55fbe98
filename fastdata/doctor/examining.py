"""A whole examination of a script: watch it, try the advice that applies, and report."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from fastdata.doctor.advice import ADVICE, advice_by_id
from fastdata.doctor.contract import Numerics, Phase
from fastdata.doctor.messages import Plain
from fastdata.doctor.processes import ScriptFailedError, scratch_folder
from fastdata.doctor.report import DoctorReport, Row
from fastdata.doctor.results import EndedBy, Environment, Follow, Trial
from fastdata.doctor.rows import ALLOCATOR
from fastdata.doctor.running import TIME_IS_UP, Running, TrialsEndedError
from fastdata.doctor.script import Script
from fastdata.doctor.trials import THREADS, Trials
from fastdata.errors import OptionError
from fastdata.measuring.statistics import WORTH, product
from fastdata.processes.resources import available_cores

__all__ = ["examine"]

TRIED_FIRST = (
    *("D55", "D09", "D30", "D10", "D17", "D07", "D06"),
    *("D13", "D03", "D08", "D15", "D01", "D35", "D05"),
)
"""Advice that is quickly tried, and often worth it, comes before advice that takes long."""

_PHASES: tuple[Phase, ...] = "train", "evaluate"

LATE = 0.03
"""Running trials may end later by this share of the time, or by 2 seconds.

After that, comparing numerics takes 2 seconds a row for a model with 12 million parameters.
"""


@dataclass
class _Tried:
    """What is known by now; an examination that ends early reports it."""

    trials: dict[str, Trial] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """By ID, why it was not tried."""
    base: Running | None = None
    together: Trial | None = None


def examine(
    script: Script,
    *,
    seconds: float = 300.0,
    only: Sequence[str] = (),
    progress: Callable[[str], object] = lambda _: None,
    unprotected: bool = False,
) -> DoctorReport:
    """Watch a script, try the advice that applies to it within about `seconds`, and report.

    An interruption, a failure of the script in a trial, and the end of the time end the trials.
    The report then has all results so far.

    Parameters
    ----------
    script
        What `script_of` returns.
    seconds
        Nothing is begun after them, and trials end 3% later, or 2 seconds later.
    only
        IDs of advice to try and report.  Mistakes are reported in any case.  Without any, all.
    progress
        Called with a text before each part.
    unprotected
        Do without the kernel's protection of the user's files.

    Raises
    ------
    ScriptFailedError
        If the script fails while it is watched, ends without a step, or makes none in the time.
    OptionError
        For an unknown ID, if this process is one of several ranks, and if the kernel cannot protect
        files.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise OptionError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}: a script is tried with one rank. Start "
            "fastdata doctor itself, without torchrun"
        )
    if unknown := sorted(set(only) - {advice.id for advice in ADVICE}):
        raise OptionError(f"unknown advice {unknown[0]!r}: fastdata doctor --list has all")
    began = time.monotonic()
    times = began + seconds, began + seconds + max(2.0, LATE * seconds)
    with (
        scratch_folder() as scratch,
        Trials(script, scratch, *times, progress, unprotected) as trials,
    ):
        progress("watching the script")
        try:
            watched = trials.watch()
        except TrialsEndedError:
            raise ScriptFailedError(
                f"it made no step within {seconds:.0f} s; --seconds gives more"
            ) from None
        findings = [
            finding
            for finding in watched.findings
            if not only or finding.id in only or advice_by_id(finding.id).kind == "bug"
        ]
        tried = _Tried()
        ended_by: EndedBy = "nothing"
        ended = ""
        try:
            _try(trials, findings, tried)
        except TrialsEndedError as error:
            ended, ended_by = str(error), "time" if str(error) == TIME_IS_UP else "noise"
        except ScriptFailedError as error:
            ended, ended_by = f"the script failed in a trial: {error}", "failure"
        except KeyboardInterrupt:
            ended, ended_by = "interrupted", "interruption"
        _collect(trials, tried, findings, ended)
        noise = trials.rows["train"].found().get(())
        return DoctorReport(
            script=str(script),
            watched=watched,
            step_seconds=tried.base.step_seconds if tried.base else watched.step_seconds,
            peak_bytes=tried.base.peak_bytes if tried.base else 0,
            noise=noise.gain if noise is not None else None,
            repeatable=trials.rows["train"].repeatable,
            rows=_rows(findings, tried),
            together=tried.together,
            seconds=time.monotonic() - began,
            machine=_machine(watched.device),
            smallest_gain=trials.rows["train"].smallest_gain,
            clock=trials.clock,
            ended=ended,
            ended_by=ended_by,
        )


def _try(trials: Trials, findings: Sequence[Plain], tried: _Tried) -> None:
    """Try all advice that can be tried; `tried` collects the results."""
    phases: dict[Phase, dict[Follow, Environment]] = {phase: {} for phase in _PHASES}
    wanted = _wanted(findings)
    for id, environment in wanted.items():
        advice = advice_by_id(id)
        if advice.phase == "train":
            tried.base = trials.base("train")
        at_most = tried.base.at_most(advice.part) if tried.base and advice.part else None
        if at_most is not None and at_most < WORTH:
            tried.left_out[id] = f"it can make a step at most {at_most:.2f}x as fast"
        else:
            phases[advice.phase][(id,)] = environment
    if phases["train"]:
        trials.compare(phases["train"])
    if phases["evaluate"]:
        try:
            trials.compare(phases["evaluate"], "evaluate")
        except ScriptFailedError as error:
            tried.left_out |= {follow[0]: str(error) for follow in phases["evaluate"]}
    if phases["train"]:
        _try_together(trials, tried, wanted)


def _wanted(findings: Sequence[Plain]) -> dict[str, Environment]:
    """Return the environment of each piece of advice that can be tried, in the order of trials."""
    order = {id: n for n, id in enumerate(TRIED_FIRST)}
    ids = dict.fromkeys(finding.id for finding in findings if finding.is_tried)
    return {
        id: tuple(pair for one in findings if one.id == id for pair in one.environment)
        for id in sorted(ids, key=lambda id: (order.get(id, len(order)), id))
    }


def _try_together(trials: Trials, tried: _Tried, wanted: Mapping[str, Environment]) -> None:
    """Follow all gains that keep the numbers, then without each one; keep the fastest set.

    The gain of the allocator multiplies it: all processes but those of its own row have that.
    """
    useful = {
        one.follow[0]: one for one in trials.rows["train"].found().values() if _is_useful(one)
    }
    allocator = useful.pop(ALLOCATOR, None)
    single = sorted((id for id in useful if not wanted[id]), key=lambda id: -_value(useful[id]))
    best = useful[single[0]] if single else None
    if len(single) > 1:
        every = tuple(single)
        rows = [every, *(tuple(x for x in every if x != id) for id in every if len(every) > 2)]
        trials.compare({follow: () for follow in rows})
        found = trials.rows["train"].found()
        tested = [found[follow] for follow in rows if follow in found and _is_useful(found[follow])]
        best = max([*tested, best], key=_value)
    if best is None or best.gain is None:
        return
    if allocator is not None and allocator.gain is not None:
        follow = (ALLOCATOR, *best.follow)
        best = replace(best, follow=follow, gain=product(allocator.gain, best.gain))
    tried.together = best if len(best.follow) > 1 else None


def _is_useful(trial: Trial) -> bool:
    """Return whether it is a gain that keeps the numbers."""
    if trial.verdict != "gain" or not trial.follow:
        return False
    promised = max(advice_by_id(id).numerics for id in trial.follow)
    return (promised if trial.numerics is None else trial.numerics) <= Numerics.ROUNDING


def _value(trial: Trial | None) -> float:
    return trial.gain.value if trial is not None and trial.gain is not None else 0.0


def _collect(trials: Trials, tried: _Tried, findings: Sequence[Plain], ended: str) -> None:
    """Collect the trial of each piece of advice, or the reason why there is none."""
    for phase in _PHASES:
        found = trials.rows[phase].found()
        tried.trials |= {follow[0]: one for follow, one in found.items() if len(follow) == 1}
    for id in _wanted(findings):
        if id not in tried.trials and id not in tried.left_out:
            is_busy = id == THREADS and trials.clock == "cpu"
            why = "other programs are busy, so more threads cannot be judged" if is_busy else ended
            tried.left_out[id] = why or "there was no time left; --seconds gives more"


def _machine(device: str) -> dict[str, object]:
    return {
        "cores": available_cores(),
        "load": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device,
    }


def _rows(findings: Sequence[Plain], tried: _Tried) -> tuple[Row, ...]:
    """Return a row for each piece of advice that applies, mistakes first, then by gain."""
    rows = []
    for advice in ADVICE:
        of_it = [finding for finding in findings if finding.id == advice.id]
        if not of_it:
            continue
        why_not = next((f.why_not for f in of_it if f.why_not), "")
        rows.append(
            Row(
                advice.id,
                advice.kind,
                advice.title,
                tuple(dict.fromkeys(f.where for f in of_it if f.where)),
                tuple(dict.fromkeys(f.what for f in of_it)),
                tried.trials.get(advice.id),
                advice.numerics,
                tried.left_out.get(advice.id, why_not),
                advice.phase,
                advice.saves,
                tried.base.at_most(advice.part) if tried.base is not None else None,
            )
        )
    return tuple(sorted(rows, key=_order))


def _order(row: Row) -> tuple[int, float, str]:
    if row.kind == "bug":
        return 0, 0.0, row.id
    if row.trial is None or row.trial.gain is None:
        return 2, 0.0, row.id
    return 1, -row.trial.gain.value, row.id
