"""What `fastdata doctor --no-run` reads from the source of a script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doctor_helpers import planted

from fastdata.cli import main
from fastdata.doctor import Script
from fastdata.doctor.source import read_script
from fastdata.errors import OptionError

SCRIPT = """
import os
import torch
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
import torch.optim as optimisers
from models import make

os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # D32
torch.backends.cudnn.benchmark = False  # D04
torch.use_deterministic_algorithms(True)  # D34
torch.autograd.set_detect_anomaly(True)  # D09
torch.autograd.set_detect_anomaly(False)
model = DDP(make(), find_unused_parameters=True)  # D26 D27
other = DDP(make(), gradient_as_bucket_view=True)
third = nn.DataParallel(make())  # D25
first = optim.SGD(model.parameters(), 0.1)  # D06
second = optimisers.Adam(model.parameters(), weight_decay=0.1, fused=True)  # D33
options = {"fused": True}
unknown = optim.AdamW(model.parameters(), **options)
torch.autograd.gradcheck(model, ())  # D31
print(sum(p.numel() for p in model.parameters()), torch.ones(1).item())
for x in range(3):
    first.zero_grad(set_to_none=False)  # D07
    model.zero_grad(False)  # D07
    second.zero_grad()
    with torch.profiler.profile():  # D30
        loss = model(x)
    noise = torch.randn(3).to("cuda")  # D12
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1, foreach=False)  # D13
    torch.cuda.synchronize()  # D11
    total = loss.item()  # D11
    place = dict(item=3).get("item")
    if x % 10 == 0:
        print(loss.item())
        torch.cuda.synchronize()
    if loss.item() > 3:  # D11
        break
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """A script, and a module beside it that it imports."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    Path("models.py").write_text("import other\ndef make(): ...\nraise SystemExit('not run')\n")
    Path("other.py").write_text("import torch\ntorch.autograd.detect_anomaly()\n")
    Path("unrelated.py").write_text("import torch\ntorch.nn.DataParallel()\n")
    return Script("file", "train.py")


def test_what_is_written_is_found_in_its_line_and_nothing_else(script: Script) -> None:
    found = {(row.id, line) for row in read_script(script) for line in row.where}
    expected = {(id, f"train.py:{number}") for id, number in planted(SCRIPT)}
    assert found == expected | {("D09", "other.py:2")}


def test_an_autotuner_that_is_off_for_reproducible_runs_is_left_alone(script: Script) -> None:
    flags = "torch.backends.cudnn.benchmark = False\ntorch.backends.cudnn.deterministic = True\n"
    Path("train.py").write_text(f"import torch\nif args.seed:\n{flags.replace('torch', ' torch')}")
    assert read_script(script) == ()


def test_the_command_prints_it_and_runs_nothing(
    script: Script, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--no-run", "train.py"], standalone_mode=False) == 0
    printed = capfd.readouterr().out
    assert "D09  train.py:12  anomaly detection is on" in printed
    main(["doctor", "--no-run", "--json", "--", "train.py", "-b", "3"], standalone_mode=False)
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert {row["trial"] for row in rows} == {None}


def test_a_module_and_a_function_have_files_too(script: Script) -> None:
    assert read_script(Script("function", "other.py:build"))[0].where == ("other.py:2",)


@pytest.mark.parametrize(
    ("script_", "message"),
    [
        (Script("module", "no.such.module"), "there is no module 'no.such.module'"),
        (Script("file", "broken.py"), "broken.py is no Python"),
    ],
)
def test_what_cannot_be_read_is_refused(script: Script, script_: Script, message: str) -> None:
    Path("broken.py").write_text("def :")
    with pytest.raises(OptionError, match=message):
        read_script(script_)
