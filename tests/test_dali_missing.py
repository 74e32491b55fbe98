"""``backend="dali"`` where DALI is not installed; needs none."""

from __future__ import annotations

import subprocess
import sys

import pytest
from memory_data import MemoryData

from fastdata.errors import MissingExtraError
from fastdata.loading import loader


def test_without_dali_the_install_line_is_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(
        MissingExtraError, match=r"pip install 'fastdata-vision\[dali\]'.*backend=\"cpu\""
    ):
        loader(MemoryData(4), backend="dali", num_workers=1)


def test_nobody_else_imports_dali() -> None:
    script = (
        "import sys, fastdata.loading, fastdata.dali;"
        "print([name for name in sys.modules if name.startswith('nvidia.dali')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
