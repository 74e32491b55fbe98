"""What `fastdata doctor --ranks` finds between ranks, over gloo."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
import torch.distributed.fsdp

from fastdata.cli import main
from fastdata.doctor import compare_ranks, processes, script_of
from fastdata.doctor.processes import ScriptFailedError

pytestmark = pytest.mark.doctor

SCRIPT = """
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.rand(64, 4), torch.randint(2, (64,)))
torch.manual_seed({seed})
{loader}
model = {wrapped}
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def validate():
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            getattr(model, "module", model)(x)

for epoch in range(100):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy({model}(x), y).backward()
        optimizer.step(){step}
    {validation}
"""
SHARED = "from torch.distributed.fsdp import fully_shard; fully_shard(model)"
PLAIN = {
    "seed": "0",
    "loader": "loader = DataLoader(data, 4, sampler=DistributedSampler(data))",
    "wrapped": "DistributedDataParallel(nn.Linear(4, 2), gradient_as_bucket_view=True)",
    "model": "model",
    "step": "",
    "validation": "validate()",
}
CASES = {
    "nothing": {},
    "weights of which each rank has a part": {"wrapped": f"nn.Linear(4, 2)\n{SHARED}"},
    "no sampler, in another order on each rank": {
        "seed": "rank",
        "loader": "loader = DataLoader(data, 5, shuffle=True, drop_last=True)  # D50",
    },
    "a part of its own for each rank": {
        "loader": "loader = DataLoader(Subset(data, range(32 * rank, 32 + 32 * rank)), 4)",
    },
    "validation on one rank, and the model inside of DDP": {
        "seed": "rank",
        "model": "model.module",
        "step": "  # D52",
        "validation": "if rank == 0: validate()  # D51",
    },
    "other lengths": {
        "loader": "loader = DataLoader(Subset(data, range(20 * rank, 20 + 28 * rank)), 4)  # D53",
    },
}

SMOKE = "no sampler, in another order on each rank"


def script(folder: Path, **parts: str) -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(SCRIPT).format(**{**PLAIN, **parts}))
    return path


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.smoke] if name == SMOKE else []) for name in CASES],
)
def test_what_is_wrong_between_ranks_is_found_and_nothing_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if SHARED in str(CASES[name]) and not hasattr(torch.distributed.fsdp, "fully_shard"):
        pytest.skip("this torch has another FSDP")
    is_late = name == "other lengths"  # the rank with more batches waits for the other for ever
    monkeypatch.setattr(processes, "PATIENCE_SECONDS", 1.0 if is_late else 5.0)
    path = script(tmp_path, **CASES[name])
    report = compare_ranks(script_of([str(path)]), 2)
    found = {row.id: row for row in report.rows if "D50" <= row.id <= "D53" or row.kind == "bug"}
    lines = path.read_text().splitlines()
    planted = {
        line.partition("# ")[2]: number
        for number, line in enumerate(lines, 1)
        if re.search(r"# D\d\d$", line)
    }
    assert found.keys() == planted.keys()
    for id, row in found.items():
        if id != "D51":  # which is about the other ranks
            assert [where.partition(" ")[0] for where in row.where] == [f"{path}:{planted[id]}"]
        assert row.trial is None
    assert report.ranks == 2
    if name == "other lengths":
        assert found["D53"].what == ("ranks have other numbers of batches: 5, 7",)


def test_a_rank_that_never_begins_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE_SECONDS", 1.0)
    waits = "import time\nif rank: time.sleep(3600)\nloader = DataLoader(data, 4)"
    path = script(tmp_path, loader=waits, validation="pass")
    ddp = "DistributedDataParallel(nn.Linear(4, 2), gradient_as_bucket_view=True)"
    path.write_text(path.read_text().replace(ddp, "nn.Linear(4, 2)"))
    report = compare_ranks(script_of([str(path)]), 2)
    assert "Rank 1 went on no more when others were done" in report.verdict
    compared = [row for row in report.rows if "D50" <= row.id <= "D53"]
    assert not compared  # there is nothing to compare
    assert report.is_open(1.05)


def test_the_error_of_the_rank_that_fails_is_shown(tmp_path: Path) -> None:
    path = script(tmp_path, step="\n        assert rank == 0, 'one is too many'")
    with pytest.raises(ScriptFailedError, match="AssertionError: one is too many"):
        compare_ranks(script_of([str(path)]), 2)


def test_the_command_compares_ranks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(tmp_path, loader="loader = DataLoader(data, 4)")
    page = tmp_path / "page.html"
    arguments = ["doctor", "--ranks", "2", "--json", "--check", "--html", str(page)]
    assert main([*arguments, "--", str(path)], standalone_mode=False) == 3
    report = json.loads(capfd.readouterr().out)
    assert report["ranks"] == 2
    assert report["verdict"].startswith("1 mistake: ")
    assert report["verdict"].endswith("(D50).")
    assert "D50" in page.read_text()
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", "--ranks", "2", "--only", "D50", "--", str(path)])
