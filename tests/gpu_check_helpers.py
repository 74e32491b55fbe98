"""What tests of `scripts/gpu_check` share: where its modules are found, and little settings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.append(str(SCRIPTS / "gpu"))

from settings import Settings  # noqa: E402 - found where the line above says

LONG = 1e6
"""More seconds than any test takes."""


def rows_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of a report's file by their names."""
    return {row["name"]: row for row in report["rows"]}


def little(work: Path, images: Path, **changes: Any) -> Settings:
    """Return settings under which everything is over at once."""
    sizes = {"rounds": 1, "training_seconds": 0.001, "window_seconds": 0.001, **changes}
    made = Settings.of(torch.device("cpu"), work, images=images, quick=True)
    values = {name: getattr(made, name) for name in Settings.__slots__}
    return Settings(**{**values, **sizes})
