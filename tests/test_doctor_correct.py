"""Correct programs, which `fastdata doctor --check` must not call wrong: ``correct_programs/``."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_helpers import planted, watch
from selecting import mark_except

from fastdata.cli import main
from fastdata.doctor import examining
from fastdata.doctor.messages import Ended, Watched
from fastdata.doctor.processes import ScriptFailedError
from fastdata.doctor.trials import Trials

FOLDER = Path(__file__).parent / "correct_programs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))
BY_DEFAULT = {
    *("moco", "byol", "gan", "update_bn", "sequential_lr", "autograd_grad", "func_grad"),
    *("cleared_by_hand", "autocast_inside", "validation_in_training_mode"),
}
"""Programs of the default run."""

NEEDS = {
    "accelerate_loop": "accelerate",
    "lightning_module": "lightning",
    "transformers_trainer": "transformers",
}


class OnlyWatched(Trials):
    """Takes the place of `Trials`: the script is forked from this process, and nothing is tried."""

    def watch(self) -> Watched:
        self.scratch.mkdir(exist_ok=True)
        found = watch(Path(self.script.name).read_text(), self.scratch, watch_only=True)
        if isinstance(found, Ended):
            if found.failed or found.watched is None or not found.watched.steps:
                raise ScriptFailedError(found.why, raised=True)
            found = found.watched
        return replace(found, findings=tuple(replace(f, is_tried=False) for f in found.findings))


@pytest.mark.parametrize("name", mark_except(BY_DEFAULT, pytest.mark.doctor, PROGRAMS))
def test_a_correct_program_is_not_called_wrong(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.setattr(examining, "Trials", OnlyWatched)
    path = FOLDER / f"{name}.py"
    command = ["doctor", "--check", "--json", "--", str(path)]
    assert main(command, standalone_mode=False) == 0
    report = json.loads(capfd.readouterr().out)
    assert [row for row in report["rows"] if row["kind"] == "bug"] == []
    assert report["watched"]["failed"] == ""
    places = [line for row in report["rows"] if row["id"] == "D10" for line in row["where"]]
    found = {("D10", int(re.findall(r"\.py:(\d+)", line)[0])) for line in places}
    assert found == planted(path.read_text())
