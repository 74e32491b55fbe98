"""Advice applied to the user's source: a patch, its effect on the script, and its writing.

    findings --edits--> Patch --sources--> the script is watched again, and measured --> written

The patched script runs before any file changes: Python reads other texts in place of the files.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from fastdata.doctor.advice import ADVICE, advice_by_id
from fastdata.doctor.contract import Numerics, Phase
from fastdata.doctor.messages import Plain, Watched
from fastdata.doctor.processes import ScriptFailedError, scratch_folder
from fastdata.doctor.script import Script
from fastdata.doctor.source import read_script
from fastdata.doctor.trials import Trial, Trials, at_least_promised, judged
from fastdata.errors import FastdataError, MissingExtraError, OptionError, drive_explained
from fastdata.installing import install_line
from fastdata.measuring.lines import is_users

__all__ = [
    "Applied",
    "CannotApplyError",
    "Left",
    "Patch",
    "applied_text",
    "apply_advice",
    "patch",
]

BY_HAND = "docs/doctor.md has what to do by hand"

_PLACE = re.compile(r"(.+?):(\d+)(?: .*)?")


class CannotApplyError(FastdataError, ValueError):
    """Advice cannot be followed by an edit of the source, or what that gives is not right."""


@dataclass(frozen=True, slots=True)
class Left:
    """A place that is not edited, and why."""

    id: str
    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.id}, {self.where or 'which has no line'}: {self.why}"


@dataclass(frozen=True, slots=True)
class Patch:
    """The texts of files, by their real paths, as they are and as advice would have them."""

    ids: tuple[str, ...]
    before: dict[str, bytes]
    after: dict[str, bytes]
    left: tuple[Left, ...] = ()

    def diff(self) -> str:
        """Return the difference in the unified format, which ``git apply`` and ``patch`` take."""
        return "".join(line for path in self.after for line in self._diff(path))

    def _diff(self, path: str) -> Iterator[str]:
        below = os.path.relpath(path)
        name = path.lstrip("/") if below.startswith(os.pardir) else below
        texts = (self.before[path], self.after[path])
        # Encoding the text in the same way gives the file's bytes.
        decoded = (text.decode("utf-8", "surrogateescape") for text in texts)
        old, new = ([*io.StringIO(text, newline="\n")] for text in decoded)
        for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"

    def write(self) -> dict[str, str]:
        """Write the files; return the paths of their backups, which replace nothing.

        A file is there whole at any time, as it was or as it shall be, with its mode.  Raises
        `CannotApplyError` before anything is written if a file has changed meanwhile, or may not
        be written.
        """
        for path, text in self.before.items():
            if Path(path).read_bytes() != text:
                raise CannotApplyError(f"{path} has changed meanwhile: nothing was written")
            if not os.stat(path).st_mode & 0o222 or not os.access(path, os.W_OK):
                raise CannotApplyError(f"{path} is read-only: nothing was written")
        backups = {path: _back_up(path) for path in self.after}
        for path, text in self.after.items():
            _replace(path, text)
        return backups


def _back_up(path: str) -> str:
    """Copy a file to one that does not exist, ``train.py.orig`` or ``train.py.orig.1``."""
    number = 0
    while True:
        backup = f"{path}.orig.{number}" if number else f"{path}.orig"
        with contextlib.suppress(FileExistsError), open(backup, "xb") as file:
            file.write(Path(path).read_bytes())
            shutil.copystat(path, backup)
            return backup
        number += 1


def _replace(path: str, text: bytes) -> None:
    descriptor, scratch = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".", suffix=".new")
    try:
        with open(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            with drive_explained(os.path.dirname(path), "fsync", "Apply it to a copy"):
                os.fsync(file.fileno())
        shutil.copymode(path, scratch)
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise


# -- from findings to a patch ------------------------------------------------------------------


def patch(findings: Iterable[Plain], ids: Sequence[str], *, unsafe: bool = False) -> Patch:
    """Return the edits for advice in the files of its findings.

    Places that cannot be edited are `left`, with the reason.  Raises `OptionError` for an ID
    without an edit, or, unless `unsafe`, for advice that changes numbers; `CannotApplyError` if
    advice was not found, or cannot be applied anywhere.
    """
    edits = _edits()
    _check(ids, edits, unsafe=unsafe)
    chosen = [finding for finding in findings if finding.id in ids]
    if missing := [id for id in ids if all(finding.id != id for finding in chosen)]:
        raise CannotApplyError(f"{', '.join(missing)} was not found in the script")
    sources: dict[str, Any] = {}
    before: dict[str, bytes] = {}
    left: list[Left] = []
    partly = {(finding.id, finding.where) for finding in chosen if finding.partly}
    done = set()
    for finding in {(one.id, one.where): one for one in chosen}.values():
        try:
            if (finding.id, finding.where) in partly:
                raise edits.CannotEditError("the line is also of what should stay as it is")
            for edit, where, name in _places(finding, edits.EDITS[finding.id]):
                path, line = _file(where, edits)
                if path not in sources:
                    before[path] = Path(path).read_bytes()
                    sources[path] = edits.Source(before[path])
                edit(sources[path], line, name)
            done.add(finding.id)
            edited = True
        except edits.CannotEditError as error:
            left.append(Left(finding.id, finding.where, str(error)))
            edited = False
        for source in sources.values():
            source.settle(keep=edited)
    if undone := [one for one in left if one.id not in done]:
        reasons = "; ".join(map(str, undone))
        raise CannotApplyError(f"not applied: {reasons}. {BY_HAND}")
    try:
        after = {path: source.result() for path, source in sources.items()}
    except edits.CannotEditError as error:
        raise CannotApplyError(f"not applied: {error}") from error
    changed = [path for path in after if after[path] != before[path]]
    if not changed:
        raise CannotApplyError(f"not applied: the source says so already. {BY_HAND}")
    return Patch(
        tuple(ids), {p: before[p] for p in changed}, {p: after[p] for p in changed}, tuple(left)
    )


def _edits() -> ModuleType:
    try:
        import libcst  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"--apply needs LibCST: {install_line('doctor')}, or follow the advice by hand"
        ) from error
    from fastdata.doctor import edits

    return edits


def _check(ids: Sequence[str], edits: ModuleType, *, unsafe: bool) -> None:
    known = {advice.id for advice in ADVICE}
    for id in ids:
        if id not in known:
            raise OptionError(f"there is no advice {id!r}: fastdata doctor --list has all")
        if id not in edits.EDITS:
            raise OptionError(
                f"{id} ({advice_by_id(id).title}) is not followed by an edit of the source: "
                f"{BY_HAND}, under {id}. There are edits for {', '.join(sorted(edits.EDITS))}"
            )
        if not unsafe and advice_by_id(id).numerics > Numerics.ROUNDING:
            raise OptionError(
                f"{id} ({advice_by_id(id).title}) changes what is computed "
                f"({advice_by_id(id).numerics}): it is applied with --unsafe only"
            )


def _places(finding: Plain, edits: Sequence[Any]) -> Iterator[tuple[Any, str, str]]:
    """Yield the edits of a finding, each with its line and the model's name there."""
    first, *others = edits
    yield first, finding.where, dict(finding.calls).get(finding.where, "")
    for edit in others:
        for where, name in finding.calls:
            yield edit, where, name


def _file(where: str, edits: ModuleType) -> tuple[str, int]:
    """Return the real path and the number of a line, ``FILE:LINE function``."""
    place = _PLACE.fullmatch(where)
    if place is None:
        raise edits.CannotEditError("nothing in the source says it")
    path = os.path.realpath(place[1])
    if not is_users(path):
        raise edits.CannotEditError("it is a library's file")
    if not os.path.isfile(path):
        raise edits.CannotEditError("there is no such file")
    return path, int(place[2])


# -- the effect of a patch on the script--------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Applied:
    """A patch of a script, with its measurements of steps and validations.

    `trials` and `noises`, which compare the script with itself, are empty if nothing was measured.
    """

    script: str
    patch: Patch
    trials: dict[Phase, Trial]
    noises: dict[Phase, Trial]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON; its form is documented in ``docs/doctor.md``."""
        return {
            "version": 1,
            "script": self.script,
            "ids": self.patch.ids,
            "diff": self.patch.diff(),
            "files": list(self.patch.after),
            "left": [asdict(one) for one in self.patch.left],
            "trials": {phase: asdict(trial) for phase, trial in self.trials.items()},
            "noises": {phase: asdict(noise) for phase, noise in self.noises.items()},
        }


def apply_advice(
    script: Script,
    ids: Sequence[str],
    *,
    measure: bool = False,
    unsafe: bool = False,
    run: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Applied:
    """Return a patch that applies advice to the source of a script; no file changes.

    The script is watched without and with the patch, which must remove its findings and cause no
    new mistakes.  With `measure` both are then measured in turns.  Without `run` only the source is
    read.  Unless `unsafe`, a patch changes numbers only by rounding; `Patch.write` writes it.

    Raises the errors of `patch`; `CannotApplyError` also if the patched script fails, and
    `ScriptFailedError` if the script itself fails.
    """
    _check(ids, _edits(), unsafe=unsafe)
    ids = tuple(dict.fromkeys(ids))
    if not run:
        made = patch(_read(script), ids, unsafe=unsafe)
        return Applied(str(script), made, {}, {})
    began = time.time()
    with scratch_folder() as scratch, Trials(script, scratch) as trials:
        progress("watching the script")
        watched = trials.watch()
        made = patch(watched.findings, ids, unsafe=unsafe)
        for path in made.before:
            if os.stat(path).st_mtime > began:
                raise CannotApplyError(f"{path} has changed while the script was watched")
        progress("watching the patched script")
        try:
            again = trials.watch(made.after)
        except ScriptFailedError as error:
            raise CannotApplyError(f"the patched script fails: {error}") from error
        _check_followed(made, watched, again)
        found = Applied(str(script), made, {}, {})
        for phase in dict.fromkeys(advice_by_id(id).phase for id in ids) if measure else ():
            progress("the script beside itself")
            found.noises[phase] = trials.noise(phase)
            progress("the patched script")
            found.trials[phase] = _tried(trials, found, watched, phase)
            _check_measured(found.trials[phase], unsafe=unsafe)
        return found


def applied_text(applied: Applied, backups: Mapping[str, str]) -> Iterator[str]:
    """Yield the remarks below the diff."""
    for one in applied.patch.left:
        yield f"not edited: {one}"
    for phase, trial in applied.trials.items():
        noise = applied.noises[phase].gain
        assert trial.gain is not None, "what fails is not returned"
        assert noise is not None, "what fails is not returned"
        unit = "a step" if phase == "train" else "a pass of the validation"
        low, high = trial.gain.low, trial.gain.high
        verdict = {"gain": "", "none": ": cannot be told from nothing", "harm": ": slower here"}
        yield (
            f"{unit} is {trial.gain.median:.2f} ({low:.2f}-{high:.2f}) times as fast"
            f"{verdict.get(trial.verdict, '')}; the script beside itself: {noise.median:.2f} "
            f"({noise.low:.2f}-{noise.high:.2f})"
        )
        promised = max(advice_by_id(id).numerics for id in applied.patch.ids)
        yield f"numbers: {f'{promised}?' if trial.numerics is None else trial.numerics}"
    for path, backup in backups.items():
        yield f"written: {path}; as it was: {backup}"
    if backups and not applied.trials:
        yield "it was not measured, as the script was not run"


def _read(script: Script) -> list[Plain]:
    """Return the findings in the source of a script."""
    return [
        Plain(row.id, where, "", (), False, row.why_not, row.phase)
        for row in read_script(script)
        for where in row.where
    ]


def _check_followed(made: Patch, before: Watched, after: Watched) -> None:
    """Check that the findings are gone, and that nothing failed."""
    for id in made.ids:
        places = dict.fromkeys(finding.where for finding in after.findings if finding.id == id)
        if len(places) > len({one.where for one in made.left if one.id == id}):
            raise CannotApplyError(
                f"not applied: with the patch {id} is still found, {', '.join(places)}. {BY_HAND}"
            )
    known = {finding.id for finding in before.findings}
    for finding in after.findings:
        if advice_by_id(finding.id).kind == "bug" and finding.id not in known:
            raise CannotApplyError(
                f"not applied: the patched script has a mistake that the script has not: "
                f"{finding.what} ({finding.id}, {finding.where}). {BY_HAND}"
            )


def _tried(trials: Trials, found: Applied, watched: Watched, phase: Phase) -> Trial:
    """Measure a patch, and its effect on the numbers."""
    noise, ids = found.noises[phase], found.patch.ids
    assert noise.gain is not None, "a failed A/A trial raises"
    [trial] = judged([trials.trial((), phase, sources=found.patch.after)], noise.gain)
    numerics, error = trial.numerics, trial.numerics_error
    if noise.numerics not in (Numerics.EQUAL, None):
        numerics = error = None  # the script has other gradients each time
    elif numerics is None or numerics > Numerics.ROUNDING:
        # The patched script may draw other random numbers, and so begin with other weights: the
        # same advice is followed in the running script.
        chosen = [finding for finding in watched.findings if finding.id in ids]
        numerics = error = None
        if phase == "train" and all(finding.is_tried for finding in chosen):
            compared = trials.numerics(ids, tuple(p for f in chosen for p in f.environment))
            numerics, error = compared.numerics, compared.error
    numerics = at_least_promised(numerics, ids)
    return replace(trial, follow=ids, numerics=numerics, numerics_error=error)


def _check_measured(trial: Trial, *, unsafe: bool) -> None:
    if trial.gain is None:
        raise CannotApplyError(f"the patched script fails: {trial.why}")
    if trial.numerics is not None and trial.numerics > Numerics.ROUNDING and not unsafe:
        raise CannotApplyError(
            f"the patched script computes something else ({trial.numerics}): it is written with "
            "--unsafe only"
        )
