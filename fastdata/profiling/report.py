"""The report of a profile: its data, their JSON form, and their text for a terminal.

Everything in a report may come from outside (a file's name, a line of the user's code, the name
of a device): whatever is shown of it passes through `fastdata.printable`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from fastdata.measuring.stalls import Stall
from fastdata.printable import printable
from fastdata.profiling.figures import (
    BAR_CHARACTERS,
    UNKNOWN,
    blocks,
    gigabytes_per_second,
    largest,
    machine_lines,
    megabytes_per_second,
    milliseconds,
    number,
    share,
    speedup,
)
from fastdata.tuned_settings.settings import plain_json

__all__ = [
    "Download",
    "Event",
    "Fix",
    "ProfileReport",
    "Stage",
    "StageName",
    "batch_times",
    "gain",
    "key_figures",
    "rates",
    "render_text",
    "stall_line",
]

StageName: TypeAlias = Literal[
    "download", "read", "decode", "augment", "collate", "load", "hand over", "pin", "copy", "step"
]
"""In the order in which a batch passes them.

download   waiting of the loop for images that have not come out of a store yet
read       bytes from the disk or the page cache
decode     from a file's bytes to pixels (of packed data: cut and resized in one)
augment    transforms of samples and of batches
collate    samples put together to a batch
load       all of these, of a loader whose stages cannot be measured apart; and waiting of the
           loop that its stages do not explain
hand over  from workers to the loop
pin        a copy to page-locked memory
copy       from the host to the device
step       the training step
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage takes."""

    name: StageName
    seconds: float
    """Mean seconds a batch, of one worker's time (of the loop's for ``step`` and ``download``; of
    the device's for ``copy``)."""
    parallel: bool
    """Whether workers share it."""
    stall_seconds: float = 0.0
    """Seconds a batch that the loop waits because of this stage."""
    speedup_if_free: float = 1.0
    """Steps a second if this stage took no time, divided by those measured; 1 or more."""
    where: str = ""
    """The line of the user's code that takes most of it, ``FILE:LINE function``, if known."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A change to make, in one sentence, and the steps a second after it over those measured.

    The speed-up is 1 where it cannot be predicted, and with `at_most` a bound: what the changed
    part will take is not known.
    """

    text: str
    speedup: float = 1.0
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Download:
    """How images came out of a store while the loop ran.

    Attributes
    ----------
    wait_seconds : float
        Mean time a batch that the loop waited for them.
    waiting : float
        Share of the loop's time, 0 to 1, that this is.
    bytes_per_second : float
        That came meanwhile, for all that use the cache.
    needed_bytes_per_second : float or None
        That a loop which never waits would take, if no image were in the cache; None without a
        step.
    sample_bytes : float
        Stored bytes of the images of a sample.
    present_before, present : float
        Share of the samples, 0 to 1, whose images were in the cache: before, and after the loop.
    total_bytes, cache_bytes : int
        Of the whole dataset, and what the cache may take.
    streams : int
        Requests at once.
    """

    wait_seconds: float
    waiting: float
    bytes_per_second: float
    needed_bytes_per_second: float | None
    sample_bytes: float
    present_before: float
    present: float
    total_bytes: int
    cache_bytes: int
    streams: int

    @property
    def fits(self) -> bool:
        """Whether the cache has room for the whole dataset."""
        return self.total_bytes <= self.cache_bytes


@dataclass(frozen=True, slots=True)
class Event:
    """A stretch of the timeline, in seconds since the beginning of its window."""

    row: str
    """Such as "loop: wait", "loop: step", "worker 0"."""
    start: float
    seconds: float
    label: str = ""
    """Such as "batch 12"."""
    stage: str = ""
    """The `StageName` of a worker's stretch; "" for the loop."""


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """Where the time of a training loop goes.

    Attributes
    ----------
    verdict : str
        One line.
    bottleneck : StageName or None
        The stage that would have to be faster; "step" where the step itself is the limit and has
        stalls that can be mended, None where there is nothing to gain.
    input_bound : bool
        Whether training waits for data.
    steps_per_second : float
        With the real loader.
    steps_per_second_host : float
        With one cached batch on the host: nothing is loaded, everything is copied.
    steps_per_second_device : float
        With cached batches on the device: the ceiling.
    batch_size : int
    waiting : float
        Share of the time, 0 to 1, that the step waits for data.
    stages : tuple of Stage
        In the order of `StageName`.
    stalls : tuple of Stall
        Of the step.
    fixes : tuple of Fix
        The one that gains most first; those whose gain is only bounded after the others.
    batch_seconds_p50, batch_seconds_p99 : float
        Of the time from one batch to the next, with the real loader.
    ready_batches : float
        Mean number of batches that were ready when the loop requested one; nan where that is
        unknown.
    wait_seconds : float
        Mean time that the loop waited for a batch.
    copy_bytes_per_second : float
        From host to device; 0 without a copy.
    workers : int
    workers_to_saturate : int or None
        How many would be enough, where more workers help; None where they do not.
    cores : int
        That this process may use.
    cores_of_others : float
        How many of them other processes took in the mean, while no workers of this one wanted any.
    cores_to_saturate : float or None
        That loading would need at the step's own rate; None where it is not known: without a
        step, or of an iterable of which nothing but waiting is known.
    overhead : float
        Share of the measured time that profiling itself took; the measurements are corrected for
        it where it is over 0.05.
    steps : int
        That were measured.
    timeline : tuple of Event
        A few steps: what the loop did and, where it could be seen, each worker.
    step : str
        The step, described for people.
    loader : str
        The loader, described for people.
    machine : dict
        What it was measured on.
    notes : tuple of str
        What to know when reading this: what could not be measured, and why.
    download : Download or None
        How images came out of a store; None where all of them were in the cache, or are files.
    """

    verdict: str
    bottleneck: StageName | None
    input_bound: bool
    steps_per_second: float
    steps_per_second_host: float
    steps_per_second_device: float
    batch_size: int
    waiting: float
    stages: tuple[Stage, ...]
    stalls: tuple[Stall, ...] = ()
    fixes: tuple[Fix, ...] = ()
    batch_seconds_p50: float = 0.0
    batch_seconds_p99: float = 0.0
    ready_batches: float = float("nan")
    wait_seconds: float = 0.0
    copy_bytes_per_second: float = 0.0
    workers: int = 0
    workers_to_saturate: int | None = None
    cores: int = 1
    cores_of_others: float = 0.0
    cores_to_saturate: float | None = None
    overhead: float = 0.0
    steps: int = 0
    timeline: tuple[Event, ...] = ()
    step: str = ""
    loader: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    download: Download | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON types; numbers that are nan or infinite, as None."""
        plain: dict[str, Any] = plain_json(asdict(self))
        return plain

    def __str__(self) -> str:
        return render_text(self)


# -- what text and page have in common -------------------------------------------------------


def gain(fix: Fix) -> str:
    """Return what a fix is predicted to gain, or that it is not known."""
    if math.isfinite(fix.speedup) and fix.speedup > 1:
        return f"{'at most ' * fix.at_most}{speedup(fix.speedup)} as fast"
    return "gain not predicted"


def stall_line(stall: Stall) -> str:
    """Return what a stall of the step is, how often it happens, and how much it copies."""
    copied = f", {stall.nbytes / 1e6:,.1f} MB copied" if stall.nbytes else ""
    what = {
        "synchronisation": "makes the host wait for the device",
        "host tensor": "is made on the host, then copied",
    }[stall.kind]
    times = f"{stall.count:,} time{'s' * (stall.count != 1)} a step"
    return f"{printable(stall.operation)} {what}, {times}{copied}"


def rates(report: ProfileReport) -> list[tuple[str, float]]:
    """Return the three rates that are compared, steps a second, each with its name."""
    return [
        ("the real loader", report.steps_per_second),
        ("one batch, on the host", report.steps_per_second_host),
        ("batches on the device", report.steps_per_second_device),
    ]


def batch_times(report: ProfileReport) -> list[tuple[str, float]]:
    """Return the times from one batch to the next, seconds, each with its name."""
    ceiling = report.steps_per_second_device
    best = 1 / ceiling if ceiling > 0 else math.nan
    return [
        ("half of all batches (p50)", report.batch_seconds_p50),
        ("99 of 100 batches (p99)", report.batch_seconds_p99),
        ("the step, without waiting", best),
    ]


def key_figures(report: ProfileReport) -> list[tuple[str, str]]:
    """Return names and values of the figures beside rates and stages."""
    figures = [
        ("step waits for data", share(report.waiting)),
        ("wait for a batch", milliseconds(report.wait_seconds)),
        ("batches ready when asked for", number(report.ready_batches)),
        ("batch time, p50", milliseconds(report.batch_seconds_p50)),
        ("batch time, p99", milliseconds(report.batch_seconds_p99)),
        ("batch size", f"{report.batch_size:,}"),
        ("workers", f"{report.workers:,}"),
    ]
    if report.workers_to_saturate is not None:
        figures.append(("workers that would be enough", f"{report.workers_to_saturate:,}"))
    figures.append(("cores", f"{report.cores:,}"))
    figures.append(("cores that others used", number(report.cores_of_others)))
    if report.cores_to_saturate is not None:
        figures.append(("cores that loading would need", number(report.cores_to_saturate)))
    if report.copy_bytes_per_second:
        figures.append(("host to device", gigabytes_per_second(report.copy_bytes_per_second)))
    figures += _download_figures(report.download)
    figures.append(("steps measured", f"{report.steps:,}"))
    figures.append(("taken by profiling itself", share(report.overhead)))
    return figures


def _download_figures(download: Download | None) -> list[tuple[str, str]]:
    if download is None:
        return []
    figures = [
        ("step waits for the store", share(download.waiting)),
        ("came out of the store", megabytes_per_second(download.bytes_per_second)),
    ]
    if download.needed_bytes_per_second is not None:
        needed = megabytes_per_second(download.needed_bytes_per_second)
        figures.append(("the step alone would take", needed))
    before, after = share(download.present_before), share(download.present)
    figures.append(("images of a sample", f"{number(download.sample_bytes / 1e3)} kB"))
    figures.append(("samples in the cache", f"{before}, then {after}"))
    return figures


# -- text for a terminal ---------------------------------------------------------------------

WIDTH = 88
"""Columns; paths are not broken, and may be longer."""


def render_text(report: ProfileReport, *, ascii_only: bool = False) -> str:
    """Return a report as text: the verdict first, then what it rests on.

    With `ascii_only` bars are drawn of ``#``, and all other characters beyond ASCII escaped.  No
    line has control characters, and the last one no newline.
    """
    lines = [
        printable(report.verdict),  # one line, for grep
        *_subject_lines(report),
        "",
        f"{'with':<24}{'steps/s':>10}{'samples/s':>12}",
        *(
            f"{name:<24}{number(rate):>10}{number(rate * report.batch_size):>12}"
            for name, rate in rates(report)
        ),
        "",
        *(f"{name:<30} {value}" for name, value in key_figures(report)),
        "",
        *_stage_lines(report, ascii_only),
        *_finding_lines(report),
    ]
    text = "\n".join(lines)
    return text.encode("ascii", "backslashreplace").decode() if ascii_only else text


def _wrapped(text: str, first: str, rest: str) -> str:
    return textwrap.fill(
        printable(text),
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _subject_lines(report: ProfileReport) -> Iterator[str]:
    if report.loader or report.step:
        yield ""
    for name, text in (("loader", report.loader), ("step", report.step)):
        if text:
            yield _wrapped(text, f"{name + ':':<8}", " " * 8)
    machine = ", ".join(f"{name} {value}" for name, value in machine_lines(report.machine))
    if machine:
        yield _wrapped(machine, "machine: ", " " * 9)


def _stage_lines(report: ProfileReport, ascii_only: bool) -> Iterator[str]:
    if not report.stages:
        yield "No stage could be measured by itself."
        return
    bar = " " * BAR_CHARACTERS
    yield f"{'stage':<12}{'a batch':>12}  {bar}{'loop waits':>12}  {'if it were free':>16}"
    longest = largest(stage.seconds for stage in report.stages)
    for stage in report.stages:
        name = stage.name + " *" * stage.parallel
        bar = blocks(stage.seconds, longest, ascii_only=ascii_only)
        free = speedup(stage.speedup_if_free)
        free = free if free == UNKNOWN else f"{free} as fast"
        yield (
            f"{name:<12}{milliseconds(stage.seconds):>12}  {bar}"
            f"{milliseconds(stage.stall_seconds):>12}  {free:>16}"
        ).rstrip()
        if stage.where:
            yield _wrapped(f"at {stage.where}", " " * 12, " " * 15)
    if any(stage.parallel for stage in report.stages):
        yield "* of one worker's time; workers share it"


def _finding_lines(report: ProfileReport) -> Iterator[str]:
    if report.stalls:
        yield from ("", "The step makes the device wait:")
    for stall in report.stalls:
        yield _wrapped(stall_line(stall), "- ", "  ")
        if stall.where:
            yield _wrapped(f"at {stall.where}", "  ", "     ")
    yield ""
    if report.fixes:
        yield "What to do, the one that gains most first, and bounds last:"
    else:
        yield "Nothing to mend was found."
    for place, fix in enumerate(report.fixes, 1):
        yield _wrapped(f"{fix.text} ({gain(fix)})", f"{place}. ", "   ")
    if report.notes:
        yield from ("", "Notes:")
    for note in report.notes:
        yield _wrapped(note, "- ", "  ")
