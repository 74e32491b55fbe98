"""Public layouts and difficult class folders are read right, or refused with the way on."""

from __future__ import annotations

from pathlib import Path

import pytest
from layout_check import outcome
from recognition_layouts import LAYOUTS, THOROUGH


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_read_right_or_refused(tmp_path: Path, name: str) -> None:
    done = outcome(LAYOUTS[name], tmp_path / "in", name in THOROUGH)
    assert not done.faults, (done.got, *done.faults)
