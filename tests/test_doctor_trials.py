"""What following advice does to a script, and how what was measured is judged."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from doctor_helpers import script_with, started, watch

from fastdata.doctor import session
from fastdata.doctor.contract import Numerics
from fastdata.doctor.first_steps import WATCHED_STEPS
from fastdata.doctor.messages import Ended, Ran, Run, Watched
from fastdata.doctor.numerics import compare_dumps
from fastdata.doctor.replaying import KEPT_BATCHES
from fastdata.doctor.script import Script
from fastdata.doctor.trials import Trials

pytestmark = pytest.mark.doctor

BIASED = """
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 8),
    )
"""

FOLLOWED = {
    "D01": ({}, {Numerics.PRECISION, Numerics.ROUNDING}),
    "D03": ({"model": BIASED, "step": """
        x = x.contiguous()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    """}, {Numerics.EQUAL, Numerics.ROUNDING}),
    "D06": ({"optimizer": "optimizer = torch.optim.AdamW(model.parameters())"},
            {Numerics.EQUAL, Numerics.ROUNDING}),
    "D07": ({"step": """
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    """}, {Numerics.EQUAL}),
    "D08": ({"model": BIASED}, {Numerics.EQUAL, Numerics.ROUNDING}),
    "D09": ({"start": "torch.autograd.set_detect_anomaly(True)"}, {Numerics.EQUAL}),
    "D13": ({"step": """
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01, foreach=False)
        optimizer.step()
    """}, {Numerics.EQUAL, Numerics.ROUNDING}),
    "D15": ({"model": BIASED}, {Numerics.EQUAL}),
    "D30": ({"step": """
        optimizer.zero_grad()
        with torch.profiler.profile():
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
    """}, {Numerics.EQUAL}),
    "D34": ({"start": "torch.use_deterministic_algorithms(True)"}, {Numerics.EQUAL}),
}  # fmt: skip


def dump(
    text: str, folder: Path, name: str, follow: tuple[str, ...] = (), **request: object
) -> Path:
    """Write the dump of the first step after advice was followed."""
    (folder / name).mkdir()
    path = folder / f"{name}.pt"
    with started(text, folder / name, **request) as answer:
        assert isinstance(answer(), Watched)
        assert isinstance(answer(Run(1, follow, dump=str(path))), Ran)
        assert isinstance(answer(Run(2, follow)), Ran)
    return path


@pytest.mark.parametrize("id", FOLLOWED)
def test_following_advice_does_to_the_numbers_what_it_promises(id: str, tmp_path: Path) -> None:
    parts, expected = FOLLOWED[id]
    text = script_with(**parts)
    base = dump(text, tmp_path, "base")
    other = dump(text, tmp_path, "other", follow=(id,))
    exact = dump(text, tmp_path, "exact", in_float64=True)
    assert compare_dumps(base, other, exact).numerics in expected


@pytest.mark.parametrize("id", FOLLOWED)
def test_advice_is_switched_on_and_off_in_one_process(id: str, tmp_path: Path) -> None:
    text = script_with(**FOLLOWED[id][0])
    base, followed = dump(text, tmp_path, "base"), dump(text, tmp_path, "followed", follow=(id,))
    with started(text, tmp_path) as answer:
        assert isinstance(answer(), Watched)
        for number, follow in enumerate([(), (id,), (), (id,)]):
            path = tmp_path / f"{number}.pt"
            for run in (Run(1, follow, dump=str(path)), Run(2, follow), Run(1, (id,)), Run(1)):
                assert isinstance(answer(run), Ran)
            expected = followed if follow else base
            assert compare_dumps(expected, path, expected).numerics == Numerics.EQUAL, number


def test_a_model_with_several_outputs_and_a_method_to_of_its_own_is_changed(tmp_path: Path) -> None:
    text = script_with(
        model="""
            class Two(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer, self.head = nn.Conv2d(3, 8, 3), nn.Linear(288, 8)
                def forward(self, x):
                    x = self.layer(x)
                    return self.head(x.flatten(1)).sigmoid(), x
                def to(self, device):
                    return self
            model = Two()
        """,
        step="""
            x = x.contiguous()
            optimizer.zero_grad()
            F.binary_cross_entropy(model(x)[0], torch.full((4, 8), 0.5)).backward()
            optimizer.step()
        """,
    )
    with started(text, tmp_path) as answer:
        assert isinstance(answer(), Watched)
        for follow in ("D01",), ("D03",), ("D01", "D03"), ():
            assert isinstance(answer(Run(2, follow)), Ran)


@pytest.mark.parametrize("dropout", [True, False])
def test_another_seed_shows_whether_a_step_draws_numbers(dropout: bool, tmp_path: Path) -> None:
    drops = "nn.Dropout(), " if dropout else ""
    text = script_with(model=f"model = nn.Sequential(nn.Flatten(), {drops}nn.Linear(192, 8))")
    paths = [tmp_path / f"{number}.pt" for number in range(3)]
    with started(text, tmp_path) as answer:
        assert isinstance(answer(), Watched)
        for path, seed in zip(paths, (0, 1, 0), strict=True):
            assert isinstance(answer(Run(1, dump=str(path), seed=seed)), Ran)
    compared = [compare_dumps(paths[0], path, paths[0]).numerics for path in paths[1:]]
    assert (compared[0] != Numerics.EQUAL, compared[1]) == (dropout, Numerics.EQUAL)


def test_a_part_that_a_script_calls_is_no_model_of_its_own(tmp_path: Path) -> None:
    text = script_with(
        model="model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8))",
        validation="model.eval(); model[1](torch.rand(4, 192))",
    )
    watched = watch(text, tmp_path, watch_only=True)
    assert isinstance(watched, Watched)
    assert watched.models == ("Sequential",)


def test_the_state_of_an_optimizer_with_lists_is_restored(tmp_path: Path) -> None:
    text = script_with(
        model="model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8))",
        optimizer="optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=2)",
        step="""
            def closure():
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss
            optimizer.step(closure)
        """,
    )
    paths = tmp_path / "first.pt", tmp_path / "second.pt"
    with started(text, tmp_path) as answer:
        assert isinstance(answer(), Watched)
        for path in paths:
            assert isinstance(answer(Run(1, dump=str(path))), Ran)
            assert isinstance(answer(Run(2)), Ran)
    assert compare_dumps(*paths, paths[0]).numerics == Numerics.EQUAL


def test_the_state_is_restored_between_two_optimizers(tmp_path: Path) -> None:
    """The graph of a GAN's fakes is kept over the step of the discriminator."""
    text = (Path(__file__).parent / "correct_programs" / "dcgan.py").read_text()
    with started(text, tmp_path) as answer:
        assert isinstance(answer(), Watched)
        for number in range(2):
            assert isinstance(answer(Run(1, dump=str(tmp_path / f"{number}.pt"))), Ran)
            assert isinstance(answer(Run(3)), Ran)


@pytest.mark.smoke
def test_the_script_beside_itself_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    text = script_with(start="import random; random.random()")
    dumps = [dump(text, tmp_path, name) for name in ("one", "two")]
    first, second = (torch.load(path, weights_only=True) for path in dumps)
    for kind in ("gradients", "updates"):
        assert first[kind].keys() == second[kind].keys()
        assert all(torch.equal(first[kind][name], second[kind][name]) for name in first[kind])


STEPS = {
    "plain": """
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    """,
    "a closure": """
        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss
        optimizer.step(closure)
    """,
}


@pytest.mark.parametrize("step", STEPS)
def test_gradients_in_float64_are_those_of_a_plain_loop(step: str, tmp_path: Path) -> None:
    text = script_with(
        step=STEPS[step],
        model="model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8))",
        optimizer="optimizer = torch.optim.SGD(model.parameters(), 0.1)",
    )
    dumped = torch.load(dump(text, tmp_path, "exact", in_float64=True), weights_only=True)
    torch.manual_seed(0)
    scope: dict[str, object] = {}
    loop, _, _ = text.partition("for epoch in")
    exec(loop, scope)  # what the script makes before its loop
    model, optimizer, loader = (scope[name] for name in ("model", "optimizer", "loader"))
    batches = list(loader)  # type: ignore[call-overload]
    for number in range(WATCHED_STEPS):
        x, y = batches[number % KEPT_BATCHES]
        optimizer.zero_grad()  # type: ignore[attr-defined]
        torch.nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[operator]
        optimizer.step()  # type: ignore[attr-defined]
    model.double()  # type: ignore[attr-defined]
    x, y = batches[0]
    optimizer.zero_grad()  # type: ignore[attr-defined]
    torch.nn.functional.cross_entropy(model(x.double()), y).backward()  # type: ignore[operator]
    expected = [p.grad for p in model.parameters()]  # type: ignore[attr-defined]
    for got, right in zip(dumped["gradients"].values(), expected, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-12)
    for got, right in zip(dumped["updates"].values(), expected, strict=True):
        torch.testing.assert_close(got, -0.1 * right, rtol=1e-9, atol=1e-12)


def test_a_batch_that_the_script_changes_is_the_same_each_time(tmp_path: Path) -> None:
    text = script_with(
        step="""
            print(float(x.sum()), flush=True)
            x.mul_(2)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """
    ).replace("        x = x.contiguous(memory_format=torch.channels_last)\n", "")
    with started(text, tmp_path) as answer:
        answer()
        answer(Run(8))
    sums = (tmp_path / "output.txt").read_text().split()
    assert sums[4:8] == sums[:4]
    assert sums[8:12] == sums[:4]


def test_checkpointing_keeps_gradients_and_takes_less_memory(tmp_path: Path) -> None:
    text = script_with(
        model="""
            class Block(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layers = nn.Sequential(*(nn.Sigmoid() for _ in range(8)), nn.Dropout(0.1))
                    self.layers.append(nn.Conv2d(3, 3, 3, padding=1))
                def forward(self, x):
                    return x + self.layers(x)
            blocks = [Block() for _ in range(4)]
            upsample = nn.Upsample(scale_factor=32)
            model = nn.Sequential(upsample, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        """,
        step="""
            optimizer.zero_grad()
            F.cross_entropy(model(x), y % 3).backward()
            optimizer.step()
        """,
    )
    dumps = [dump(text, tmp_path, name, follow=ids) for name, ids in (("a", ()), ("b", ("D35",)))]
    assert compare_dumps(*dumps, dumps[0]).numerics == Numerics.EQUAL
    peaks = []
    for ids in ((), ("D35",)):
        with started(text, tmp_path) as answer:
            answer()
            peaks.append(answer(Run(1, ids, forget_peak=True)).peak_bytes)
    kept = 4 * 8 * 4 * 3 * 256 * 256 * 4  # of sigmoids, in bytes
    # Not all of it: the allocator keeps some of what was freed.
    assert peaks[0] - peaks[1] > kept / 8


SHOWING = """
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    print("anomalies:", torch.is_anomaly_enabled(), flush=True)
    optimizer.step()
"""
IN_EACH_STEP = f"with torch.autograd.detect_anomaly():{textwrap.indent(SHOWING, '    ')}"
LOOKS_FOR_ANOMALIES = {
    "everywhere": script_with(step=SHOWING, start="torch.autograd.set_detect_anomaly(True)"),
    "in each step": script_with(step=IN_EACH_STEP),
    **{
        f"{name} around the loop": script_with(step=SHOWING).replace(
            "for epoch in", f"with torch.autograd.{name}(True):\n for epoch in"
        )
        for name in ("detect_anomaly", "set_detect_anomaly")
    },
}


@pytest.mark.parametrize("name", LOOKS_FOR_ANOMALIES)
def test_anomaly_detection_is_off_only_while_that_advice_is_followed(
    name: str, tmp_path: Path
) -> None:
    states = []
    with started(LOOKS_FOR_ANOMALIES[name], tmp_path) as answer:
        assert isinstance(answer(), Watched)
        for follow in ((), ("D09",), (), ("D09",), ()):
            before = (tmp_path / "output.txt").read_text().count("anomalies:")
            assert isinstance(answer(Run(3, follow)), Ran)
            shown = (tmp_path / "output.txt").read_text().split("anomalies:")[before + 1 :]
            states.append([line.split()[0] for line in shown])
    assert states == [["True"] * 3, ["False"] * 3, ["True"] * 3, ["False"] * 3, ["True"] * 3]


def test_a_script_that_ends_says_so(tmp_path: Path) -> None:
    step = """
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        count += 1
        if count == 6:
            raise SystemExit
    """
    text = script_with(start="count = 0", step=step)
    with started(text, tmp_path) as answer:
        assert isinstance(answer(), Watched)
        ended = answer(Run(50))
    assert isinstance(ended, Ended)
    assert ended.why == "the script ended after 6 steps"


def test_batches_that_are_put_into_a_list_are_all_there(tmp_path: Path) -> None:
    text = script_with(
        step="""
            print("step", flush=True)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """
    ).replace("    for x, y in loader:", "    for x, y in list(loader):", 1)
    with started(text, tmp_path) as answer:
        assert isinstance(answer(), Watched)
        assert isinstance(answer(Run(8)), Ran)  # of the 16 of an epoch
    assert (tmp_path / "output.txt").read_text().count("step") == WATCHED_STEPS + 8


@pytest.mark.parametrize("phase", ["watch", "train", "evaluate"])
def test_a_loader_whose_workers_stay_for_all_epochs_has_epochs(phase: str, tmp_path: Path) -> None:
    loader = """
class Repeated:
    def __init__(self, sampler):
        self.sampler = sampler
    def __iter__(self):
        while True:
            yield from iter(self.sampler)

class MultiEpochsDataLoader(DataLoader):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._DataLoader__initialized = False
        self.batch_sampler = Repeated(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()
    def __len__(self):
        return len(self.batch_sampler.sampler)
    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)
"""
    text = script_with() + "\n    print('validated', flush=True)\n"
    text = text.replace("\ndata =", f"{loader}\ndata =", 1)
    text = text.replace("loader = DataLoader(", "loader = MultiEpochsDataLoader(")
    if phase == "watch":
        assert isinstance(watch(text, tmp_path, watch_only=True), Watched)
        assert "validated" in (tmp_path / "output.txt").read_text()
        return
    with started(text, tmp_path, phase=phase) as answer:
        assert isinstance(answer(), Watched)
        assert isinstance(answer(Run(50)), Ran)


def test_a_validation_that_cannot_be_measured_is_said_to_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "WATCHED_SECONDS", 0.1)
    text = script_with(validation="model.eval(); model(torch.rand(4, 3, 8, 8))")
    with started(text, tmp_path, phase="evaluate") as answer:
        ended = answer()
    assert isinstance(ended, Ended)
    assert ended.why == "no validation was reached whose batches come from a loader"


def test_a_validation_is_measured_by_its_passes_without_modes_of_torch(tmp_path: Path) -> None:
    text = script_with(
        validation="""
            model.eval()
            for x, y in loader:
                of_functions = torch._C._len_torch_function_stack()
                print("pass", of_functions + torch._C._len_torch_dispatch_stack(), flush=True)
                model(x)
        """
    )
    with started(text, tmp_path, phase="evaluate") as answer:
        assert isinstance(answer(), Watched)
        before = (tmp_path / "output.txt").read_text().count("pass")
        assert isinstance(answer(Run(20, ("D10", "D16"))), Ran)
    lines = (tmp_path / "output.txt").read_text().splitlines()
    assert sum("pass" in line for line in lines) == before + 20
    assert set(lines[-20:]) == {"pass 0"}


# -- how rows are compared -------------------------------------------------------------------


def test_bare_sequential_models_are_compiled_once(tmp_path: Path) -> None:
    text = script_with(
        model="""
            calls = []
            torch._dynamo.config.suppress_errors = False
            def backend(graph, inputs):
                print("compiled", flush=True)
                return graph.forward
            of_torch = torch.compile
            torch.compile = lambda model, **options: of_torch(model, backend=backend)
            model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8))
        """
    )
    counts = []
    with started(text, tmp_path) as answer:
        assert isinstance(answer(), Watched)
        for follow in ((), ("D05",), (), ("D05",)):
            answer(Run(2, follow))
            counts.append((tmp_path / "output.txt").read_text().count("compiled"))
    assert counts == [0, 1, 1, 1]


SLEEPS = """
import time
class Slow(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(0.1)
        return super().step(closure)
optimizer = Slow(model.parameters(), 0.1)
"""


def test_no_more_can_be_gained_than_a_part_of_a_step_takes(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(script_with(optimizer=SLEEPS))
    with Trials(Script("file", str(path)), tmp_path / "scratch") as found:
        base = found.base("train")
        of_step, of_clipping = base.at_most("step"), base.at_most("clip")
        assert base.last is not None
        share = base.last.part_seconds["step"] / base.last.seconds
    assert of_step == pytest.approx(1 / (1 - share))
    assert of_clipping is None  # there is none
