"""``scripts/soak.py`` kills what it should, and sees what a kill breaks."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.soak

SCRIPT = Path(__file__).parents[1] / "scripts" / "soak.py"


@pytest.fixture(scope="module")
def soak() -> Any:
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the script has them: what others leave is no fault."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


def _contents(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.glob("x")]


def _faults(soak: Any, job: Any, place: Path) -> Iterator[str]:
    """Soak again and again: how many kills meet a job at its work, the machine's load decides."""
    for attempt in range(20):
        count = soak.soak(job, place / str(attempt), 5, random.Random(attempt))
        assert count.kills >= 5
        yield from count.wrong


def test_what_a_kill_leaves_half_done_is_seen(soak: Any, tmp_path: Path) -> None:
    def write_at_leisure(folder: Path) -> None:
        with (folder / "x").open("w") as file:
            for number in range(10):
                file.write(f"{number}\n")
                file.flush()
                time.sleep(0.01)

    job = soak.Job(write_at_leisure, _contents)
    assert any("left ['0" in wrong for wrong in _faults(soak, job, tmp_path))


def test_what_is_whole_or_not_there_is_fine(soak: Any, tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        time.sleep(0.1)
        (folder / "part").write_text("all")  # the next run writes over it
        os.replace(folder / "part", folder / "x")

    count = soak.soak(soak.Job(write, _contents), tmp_path / "soak", 5, random.Random(1))
    assert count.kills >= 5
    assert count.wrong == []


def test_what_is_left_beside_is_seen(soak: Any, tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        part = folder / f"{time.monotonic_ns()}.tmp"
        part.write_text("all")
        time.sleep(0.1)
        os.replace(part, folder / "x")

    job = soak.Job(write, _contents)
    assert any(".tmp" in wrong for wrong in _faults(soak, job, tmp_path))
