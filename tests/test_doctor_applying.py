"""Advice followed in the source: planted faults, edited away, and what is not edited."""

from __future__ import annotations

from pathlib import Path

import pytest
from doctor_helpers import script_with, watch
from test_doctor_findings import ALWAYS, DDP, SCRIPTS, ddp_model

pytest.importorskip("libcst")

from fastdata.doctor.patching import patch
from fastdata.doctor.session import Watched

BLOCKS = {
    "step": """
        optimizer.zero_grad()
        output = model(x)
        # of images
        loss = F.cross_entropy(output, y)
        loss.backward()
        optimizer.step()
    """
}

EDITED = {
    "D01": BLOCKS,
    "D03": SCRIPTS["channels first"],
    "D05": {},
    "D06": SCRIPTS["an optimiser that is not fused"],
    "D07": SCRIPTS["gradients of zeros, of the model"],
    "D08": SCRIPTS["a bias before a normalisation"],
    "D09": SCRIPTS["anomaly detection, a context"],
    "D10": SCRIPTS["validation that records"],
    "D13": SCRIPTS["clipping one by one"],
    "D15": SCRIPTS["an activation that copies"],
    "D26": {"start": DDP, "model": ddp_model("find_unused_parameters=True")},
    "D27": {"start": DDP, "model": ddp_model("find_unused_parameters=True")},
    "D30": SCRIPTS["a profiler"],
    "D34": SCRIPTS["deterministic algorithms"],
    "D41": SCRIPTS["clipping of scaled gradients"],
    "D42": SCRIPTS["clipping before the backward pass"],
    "D43": SCRIPTS["two steps"],
    "D44": SCRIPTS["a schedule that steps first"],
    "D45": SCRIPTS["gradients that are never cleared"],
    "D46": SCRIPTS["validation that trains"],
    "D47": SCRIPTS["training in evaluation mode"],
}


def seen(text: str, folder: Path) -> Watched:
    watched = watch(text, folder, watch_only=True)
    assert isinstance(watched, Watched), watched
    return watched


def ids_of(watched: Watched) -> set[str]:
    return {finding.id for finding in watched.findings}


@pytest.mark.parametrize("id", EDITED)
def test_what_was_planted_is_edited_away(id: str, tmp_path: Path) -> None:
    text = script_with(**EDITED[id])
    before = seen(text, tmp_path)
    made = patch(before.findings, [id], unsafe=True)
    [after] = made.after.values()
    found = ids_of(seen(after.decode(), tmp_path))
    assert id not in found
    assert found - ids_of(before) <= ALWAYS
