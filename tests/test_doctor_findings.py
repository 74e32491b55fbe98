"""What `fastdata doctor` finds in scripts with planted faults, and that it finds nothing else."""

from __future__ import annotations

import textwrap
from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from doctor_helpers import PLAIN, planted, script_with, watch
from planted_scripts import ALWAYS, SCRIPTS, TEN
from selecting import mark_except

from fastdata.doctor.advice import loop, processor
from fastdata.doctor.messages import Ended, Watched
from fastdata.doctor.seen import Metric, Seen

BY_DEFAULT = {
    "nothing", "anomaly detection", "gradients of zeros", "an optimiser that is not fused",
    "channels first", "a value in each step", "gradients that are added up", "a copy that blocks",
    "a metric in each step, a function", "a metric after the step",
    "values that are read after the step", "tensors of arrays and lists",
    "an index that is made on the host",
    "clipping before the backward pass", "gradients that are never cleared",
    "validation without autocast", "DDP that copies gradients",
}  # fmt: skip
"""Scripts of the default run: one of each kind of fault."""


def found(watched: Watched | Ended, but: Collection[str] = ALWAYS) -> set[tuple[str, int]]:
    """Return IDs and lines of what was found, without what applies to any model."""
    assert isinstance(watched, Watched), watched
    return {
        (finding.id, int(finding.where.partition(" ")[0].rpartition(":")[2] or 0))
        for finding in watched.findings
        if finding.id not in but
    }


@pytest.mark.parametrize("name", mark_except(BY_DEFAULT, pytest.mark.doctor, SCRIPTS))
def test_what_was_planted_is_found_in_its_line_and_nothing_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LEAST_SHARE", 0.3)  # steps are so short that a metric is much
    text = script_with(**SCRIPTS[name])
    assert found(watch(text, tmp_path, watch_only=True)) == planted(text)


def test_ten_faults_at_once_are_all_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LEAST_SHARE", 0.3)
    assert len(planted(TEN)) >= 10
    assert found(watch(TEN, tmp_path, watch_only=True)) == planted(TEN)


def lines_of(id: str, text: str, folder: Path) -> list[str]:
    watched = watch(text, folder, watch_only=True)
    watched = watched.watched if isinstance(watched, Ended) else watched
    assert watched is not None
    return [f.where.partition(" ")[0].rpartition(":")[2] for f in watched.findings if f.id == id]


OWN_MODEL = """
class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 8)
        )
    def forward(self, x):
        return self.part(x)
model = Whole().to(memory_format=torch.channels_last)  # D05 D16
"""


@pytest.mark.doctor
@pytest.mark.parametrize("id", ["D01", "D05", "D16"])
def test_advice_on_a_model_is_for_where_it_trains_or_is_made(id: str, tmp_path: Path) -> None:
    text = script_with(
        model=OWN_MODEL,
        step="""
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)  # D01
            loss.backward()
            optimizer.step()
        """,
        validation="""
            model.eval()
            with torch.no_grad():
                for x, y in loader:
                    model(x.contiguous(memory_format=torch.channels_last))
                    model.part(x)  # a model of its own, and a part of the other
        """,
    ).replace("range(1000)", "range(1)")  # its validation comes last
    assert [(id, int(line)) for line in lines_of(id, text, tmp_path)] == [
        one for one in planted(text) if one[0] == id
    ]


@pytest.mark.doctor
def test_flags_that_are_set_where_there_is_a_gpu_are_no_advice(tmp_path: Path) -> None:
    on = "torch.backends.cudnn.benchmark = True", "torch.backends.cuda.matmul.allow_tf32 = True"
    for id, flag in zip(("D04", "D02"), on, strict=True):
        assert not lines_of(
            id, script_with(start=f"if torch.cuda.is_available(): {flag}"), tmp_path
        )
        assert lines_of(id, script_with(start=f"# {flag}"), tmp_path)
        assert lines_of(id, script_with(start=f"text = '{flag}'"), tmp_path)
    off = "torch.backends.cudnn.benchmark = False"
    assert lines_of("D04", script_with(start=off), tmp_path)


def test_a_tensor_that_is_made_once_an_epoch_is_no_advice(tmp_path: Path) -> None:
    text = script_with(before="model.train(); weights = torch.rand(8).to('cpu')")
    assert not lines_of("D12", text.replace("64", "12"), tmp_path)


def test_labels_that_a_loader_puts_together_are_no_advice(tmp_path: Path) -> None:
    """`default_collate` makes a tensor of numbers, in the process that trains."""
    text = script_with(
        step="""
        x, y = x.to("cpu"), y.to("cpu")
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    """
    ).replace("DataLoader(data, 4)", "DataLoader([(x, int(y)) for x, y in data], 4)")
    assert not lines_of("D12", text, tmp_path)


ATTENDING = """
class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.last = nn.Linear(24, 72), nn.Linear(24, 8)
    def forward(self, x):
        q, k, v = self.project(x.reshape(4, 8, 24)).chunk(3, -1)
        {attend}
        return self.last(out.mean(1))
    {other}
model = Attending()
"""

BY_HAND = {
    "operators": "out = ((q @ k.transpose(-2, -1)) * 24**-0.5).softmax(-1) @ v",
    "functions": """
        scores = torch.bmm(q, k.transpose(1, 2)) / 24**0.5
        scores = scores.masked_fill(torch.ones(8, 8).triu(1).bool(), float("-inf"))
        weights = F.dropout(F.softmax(scores, dim=-1), 0.1)
        out = torch.bmm(weights, v)
    """,
    "heads": """
        q, k, v = (one.reshape(4, 8, 3, 8).transpose(1, 2) for one in (q, k, v))
        weights = torch.softmax(torch.matmul(q, k.mT) / 8**0.5 + torch.zeros(8, 8), dim=3)
        out = torch.matmul(weights, v).transpose(1, 2).reshape(4, 8, 24)
    """,
    "einsum": """
        weights = torch.einsum("bld,bsd->bls", q, k).mul(24**-0.5).softmax(2)
        out = torch.einsum("bls,bsd->bld", weights, v)
    """,
    "baddbmm": "out = torch.baddbmm(torch.zeros(8, 8), q, k.mT, alpha=0.2).softmax(-1).bmm(v)",
}

NOT_BY_HAND = {
    "the function itself": "out = F.scaled_dot_product_attention(q, k, v)",
    "a mask of its own": "out = F.scaled_dot_product_attention(q, k, v, torch.zeros(8, 8))",
    "torch's module": "out = nn.MultiheadAttention(24, 3, batch_first=True)(q, k, v)[0]",
    "linear attention": "out = q.softmax(-1) @ (k.softmax(-2).transpose(-2, -1) @ v)",
    "no softmax": "out = (q @ k.mT).relu() @ v",
    "a softmax of classes": "out = self.last(x.reshape(4, 8, 24)).softmax(-1) @ self.last.weight",
    "weights that are normalised": """
        weights = (q @ k.mT).softmax(-1)
        out = (weights / weights.sum(1, keepdim=True)) @ v
    """,
    "heads that are mixed": "out = F.linear(q @ k.mT, torch.eye(8)).softmax(-1) @ v",
    "weights that are used": """
        weights = (q @ k.mT).softmax(-1)
        out = weights @ v
        entropy = -(weights * weights.log()).sum()
    """,
    "weights that are returned": "out = self.attend(q, k, v)[0]",
    "weights that are kept": """
        weights = (q @ k.mT).softmax(-1)
        self.map = weights
        out = weights @ v
    """,
}


def attending(attend: str) -> str:
    other = """
    def attend(self, q, k, v):
        weights = (q @ k.mT).softmax(-1)
        return weights @ v, weights
    """
    text = textwrap.indent(textwrap.dedent(attend).strip(), " " * 8).strip()
    return script_with(model=ATTENDING.format(attend=text, other=other.strip()))


@pytest.mark.parametrize("name", mark_except({"operators"}, pytest.mark.doctor, BY_HAND))
def test_attention_that_is_computed_by_hand_is_found_in_its_line(name: str, tmp_path: Path) -> None:
    text = attending(BY_HAND[name])
    last = next(n for n, line in enumerate(text.splitlines(), 1) if "  out = " in line)
    assert lines_of("D58", text, tmp_path) == [str(last)]


@pytest.mark.parametrize(
    "name", mark_except({"weights that are returned"}, pytest.mark.doctor, NOT_BY_HAND)
)
def test_other_attention_is_no_advice(name: str, tmp_path: Path) -> None:
    watched = watch(attending(NOT_BY_HAND[name]), tmp_path, watch_only=True)
    assert "D58" not in {id for id, _ in found(watched)}


ONLY_ON_A_GPU = """
if torch.cuda.is_available():
    x = x.cuda()  # D21
    y = y.to("cuda")  # D21
    x, y = x.cuda(non_blocking=True), y.to("cuda", torch.long, True)
    x = x.to(torch.float32)
    model = model.cuda()
    print("x.cuda()")  # x.cuda()
"""


@pytest.mark.parametrize("pinned", [False, True])
def test_copies_that_only_run_on_a_gpu_are_found_in_the_source(
    pinned: bool, tmp_path: Path
) -> None:
    start = "options = {'pin_memory': True}" if pinned else ""
    text = script_with(start=start, step=ONLY_ON_A_GPU + textwrap.dedent(PLAIN["step"]))
    watched = watch(text, tmp_path, watch_only=True)
    assert found(watched) == planted(text)
    assert isinstance(watched, Watched)
    hints = {"pin_memory" in one.what for one in watched.findings if one.id == "D21"}
    assert hints == {not pinned}


def test_a_function_that_trains_has_its_copies_found(tmp_path: Path) -> None:
    text = script_with(
        start="""
            def train(model, x, y, to_gpu=False):
                if to_gpu:
                    model, x = model.cuda(), x.cuda()  # D21
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        """,
        step="train(model, x, y)",
        validation="""
            if torch.cuda.is_available():
                for x, y in loader:
                    x = x.cuda()
        """,
    )
    assert found(watch(text, tmp_path, watch_only=True)) == planted(text)


def test_dataparallel_that_only_runs_on_a_gpu_is_found_in_the_source(tmp_path: Path) -> None:
    text = script_with(
        start="""
            # nn.DataParallel(model)
            text = "nn.DataParallel(model)"
            def several(model):
                return nn.DataParallel(model) if torch.cuda.device_count() > 1 else model  # D25
        """,
        optimizer=f"{PLAIN['optimizer']}; assert not isinstance(model, nn.DataParallel)",
    )
    assert found(watch(text, tmp_path, watch_only=True)) == planted(text)


LARGE = "    torch.ones(large)"

APPLIES = {
    "D01": {
        "step": """
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()  # D01
            optimizer.step()
        """,
        "validation": "pass",
    },
    "D02": {"model": "model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8))  # D02"},
    "D04": {
        "model": """
            model = nn.Sequential(  # D04
                nn.Conv2d(3, 8, 3, bias=False), nn.Flatten(), nn.Linear(8 * 36, 8)
            )
        """
    },
    "D05": {"model": "model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8))  # D05"},
    "D23": {"model": "model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8))  # D23"},
    "D16": {
        "model": """
            model = nn.Sequential(  # D16
                nn.Conv2d(3, 8, 3, bias=False),
                nn.BatchNorm2d(8),
                nn.Flatten(),
                nn.Linear(8 * 36, 8),
            ).to(memory_format=torch.channels_last)
        """
    },
    "D17": {"start": "torch.set_num_threads(torch.get_num_threads() + 63)  # D17"},
    "D18": {"start": "torch.set_num_threads(2)"},
    "D54": {"optimizer": f"{PLAIN['optimizer']}  # D54"},
    "D55": {"before": "model.train(); large = 12_000_000", "step": PLAIN["step"] + LARGE},
}
"""Applies to nearly any script; this one has it in the line that is marked, or in none."""

FOLLOWED = {
    "D01": {
        "step": """
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        """
    },
    "D02": {"start": "torch.set_float32_matmul_precision('high')"},
    "D04": {"start": "torch.backends.cudnn.benchmark = True"},
    "D05": {"optimizer": PLAIN["optimizer"] + "; model.compile(backend='eager')"},
    "D16": {"validation": "pass"},
    "D23": {"optimizer": PLAIN["optimizer"] + "; model.compile(backend='eager')"},
    "D17": {"start": "torch.set_num_threads(len(__import__('os').sched_getaffinity(0)))"},
    "D18": {"start": "torch.set_num_threads(1)"},
    "D54": {
        "optimizer": f"""
            {PLAIN["optimizer"]}
            rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=1000)
        """,
        "step": f"{PLAIN['step']}    rates.step()",
    },
    "D54, a schedule of its own": {"before": "optimizer.param_groups[0]['lr'] = 0.1 / (1 + epoch)"},
}
"""The same, where it is followed already."""


@pytest.mark.doctor
@pytest.mark.parametrize("id", APPLIES)
def test_what_applies_to_any_model_is_found_in_its_line(
    id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "LEAST_SHARE", 0.0)  # of a step's time, however long it is
    text = script_with(**APPLIES[id])
    expected = planted(text) or {(id, 0)}
    assert expected <= found(watch(text, tmp_path, watch_only=True), but=set())


@pytest.mark.doctor
@pytest.mark.parametrize("id", FOLLOWED)
def test_advice_that_is_followed_is_not_found(id: str, tmp_path: Path) -> None:
    text = script_with(**FOLLOWED[id])
    assert id[:3] not in {id for id, _ in found(watch(text, tmp_path, watch_only=True), but=set())}


@pytest.mark.doctor
def test_memory_that_malloc_keeps_already_is_no_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "LEAST_SHARE", 0.0)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000000")
    assert not lines_of("D55", script_with(**APPLIES["D55"]), tmp_path)


@pytest.mark.parametrize(("pages", "expected"), [(2_000, False), (3_000, True)])
def test_page_faults_are_found_where_clearing_them_takes_much_of_a_step(
    pages: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page takes 1 us, a step 50 ms, of which 2 or 3 are 4% or 6%."""
    monkeypatch.setattr(processor, "_has_own_allocator", lambda: False)
    ends = [(0.05 * step, pages * step) for step in range(12)]
    assert bool(list(processor.memory_allocator.find(Seen(ends=ends)))) is expected


def test_a_metric_is_reported_with_its_share_and_what_is_gained_without_it() -> None:
    seen = Seen(metrics=[Metric("train.py:41 main", "accuracy", 0.63), Metric("x.py:1", "", 0.05)])
    [finding] = loop.metrics_in_each_step.find(seen)
    assert finding.what == "accuracy() takes 63% of a step: at most 2.7x"
    assert (finding.where, finding.is_tried) == ("train.py:41 main", False)


def test_what_holds_memory_when_a_step_takes_the_most_is_told(tmp_path: Path) -> None:
    text = script_with(
        model="model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8))",
        optimizer="optimizer = torch.optim.Adam(model.parameters())",
        step="""
            optimizer.zero_grad()
            flat = x.flatten(1)
            wide = flat * torch.ones(1000, 1, 1)
            F.cross_entropy(model(wide.mean(0)), y).backward()
            del wide
            optimizer.step()
        """,
    )
    watched = watch(text, tmp_path, watch_only=True)
    assert isinstance(watched, Watched)
    line = 1 + next(n for n, one in enumerate(text.splitlines()) if "wide = flat" in one)
    held = {(one.operation, one.where.partition(" ")[0]): one for one in watched.held}
    batch = 4 * 192 * 4
    assert watched.held[0] is held["mul", f"{tmp_path / 'train.py'}:{line}"]
    assert (watched.held[0].nbytes, watched.held[0].tensors) == (1000 * batch, 1)
    assert ("ones", f"{tmp_path / 'train.py'}:{line}") not in held  # it was gone by then
    weights = 4 * (192 * 8 + 8)
    assert held["parameters", ""].nbytes == weights
    assert 2 * weights <= held["state of the optimiser", ""].nbytes <= 2 * weights + 8
    assert sum(one.nbytes for one in watched.held) == watched.held_bytes
    assert watched.held_bytes < 1010 * batch + 10 * weights


def test_memory_that_is_given_back_is_not_held(tmp_path: Path) -> None:
    text = script_with(
        step="""
            optimizer.zero_grad()
            first = torch.zeros(1_000_000)
            del first
            second = torch.zeros(1_500_000)
            view = second[:10]
            del second
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """
    )
    watched = watch(text, tmp_path, watch_only=True)
    assert isinstance(watched, Watched)
    zeros = [one.nbytes for one in watched.held if one.operation == "zeros"]
    assert zeros == [12_000_000]  # what `view` is of, and the same of the step before


@pytest.mark.parametrize(
    ("reserved", "active", "retries", "expected"),
    [(100, 90, 0, False), (100, 70, 0, True), (100, 90, 2, True)],
)
def test_fragmented_memory_of_a_gpu_is_found(
    reserved: int, active: int, retries: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {
        "reserved_bytes.all.peak": reserved,
        "active_bytes.all.peak": active,
        "num_alloc_retries": retries,
    }
    monkeypatch.setattr(Seen, "on_gpu", True)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: figures)
    findings = list(processor.expandable_segments.find(Seen()))
    assert bool(findings) is expected
    environment = (("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),)
    assert all(finding.environment == environment for finding in findings)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert not list(processor.expandable_segments.find(Seen()))


@pytest.mark.doctor
def test_launches_that_block_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert ("D32", 0) in found(watch(script_with(), tmp_path, watch_only=True))
