"""What consumes batches: reference models, simulated steps, steps of a user's script."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fastdata.cli import main
from fastdata.errors import OptionError
from fastdata.steps import ReferenceStep, SleepStep, is_script, run_script
from fastdata.steps.models import LEAST_SIDES, MODELS, images_of
from fastdata.steps.script import MODULE_NAME

pytestmark = pytest.mark.usefixtures("one_thread")

# -- reference models -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count"),
    # The first two as torchvision has them, the third as its authors do.
    [("resnet18", 11_689_512), ("resnet50", 25_557_032), ("vit_s", 22_050_664)],
)
def test_reference_models_have_the_parameters_of_their_papers(name: str, count: int) -> None:
    model = MODELS[name][1](224, 224)
    assert sum(weights.numel() for weights in model.parameters()) == count


def test_a_transformer_looks_at_every_patch() -> None:
    torch.manual_seed(0)
    model = MODELS["vit_s"][1](32, 48).eval()
    images = torch.rand(1, 3, 32, 48)
    with torch.no_grad():
        before = model(images)
        for row, column in itertools.product(range(2), range(3)):
            changed = images.clone()
            changed[:, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16] = 0
            assert not torch.allclose(model(changed), before, atol=1e-6)


class Pair(NamedTuple):
    """A batch as fastdata's loaders give it."""

    label: torch.Tensor
    image: torch.Tensor


IMAGES = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)


@pytest.mark.parametrize(
    "batch",
    [
        IMAGES,
        IMAGES.float() / 255,
        IMAGES.double(),
        IMAGES.half(),
        IMAGES[:, :1],
        IMAGES.contiguous(memory_format=torch.channels_last),
        (IMAGES, torch.arange(4)),
        [torch.arange(4), {"views": [IMAGES, IMAGES]}],
        Pair(torch.arange(4), IMAGES),
    ],
    ids=["uint8", "float", "double", "half", "grey", "nhwc", "tuple", "nested", "named tuple"],
)
def test_a_reference_step_trains_on_any_batch_with_images(batch: Any) -> None:
    step = ReferenceStep("resnet18")
    step(batch)
    assert step._model is not None
    before = copy.deepcopy(step._model.state_dict())
    loss = step(batch)
    assert loss.shape == ()
    assert math.isfinite(loss.item())
    assert not loss.requires_grad  # it would keep the batch and the graph
    after = step._model.state_dict()
    for name in ("stem.0.0.weight", "head.2.weight"):
        assert not torch.equal(before[name], after[name])


@pytest.mark.parametrize("name", list(MODELS))
def test_a_reference_step_learns(name: str) -> None:
    torch.manual_seed(0)
    step = ReferenceStep(name)
    losses = [step(IMAGES).item() for _ in range(8)]
    assert losses[0] > 4  # nearly a guess of a thousand classes
    # Not the last: without a warm-up of its rate, AdamW leaps once on the way.
    assert min(losses) < losses[0] / 2


def test_uint8_images_are_the_floats_that_they_stand_for() -> None:
    losses = []
    for images in (IMAGES, IMAGES.float() / 255):
        torch.manual_seed(0)  # the model is made with the first batch
        losses.append(ReferenceStep("resnet18")(images).item())
    assert losses[0] == pytest.approx(losses[1])


def test_a_later_batch_may_have_another_number_of_images() -> None:
    step = ReferenceStep("resnet18")
    for count in (2, 4, 3):
        assert math.isfinite(step(IMAGES[:count]).item())


@pytest.mark.parametrize("name", list(MODELS))
def test_images_that_are_too_small_for_a_model_are_refused(name: str) -> None:
    least = LEAST_SIDES[name]
    small = torch.zeros(2, 3, least, least - 1)
    message = f"images are {least}x{least - 1}, but {name} takes {least}x{least} or more: resize"
    with pytest.raises(OptionError, match=message):
        ReferenceStep(name)(small)
    assert math.isfinite(ReferenceStep(name)(torch.zeros(2, 3, least, least)).item())


def test_an_unknown_model_and_a_batch_without_images_are_refused() -> None:
    with pytest.raises(OptionError, match="resnet18, resnet50, vit_s, not 'resnet19'"):
        ReferenceStep("resnet19")
    for batch in ((torch.arange(4), "text"), torch.zeros(2, 5, 8, 8), {}, None):
        with pytest.raises(OptionError, match="batches have no images"):
            ReferenceStep("resnet18")(batch)


def test_images_are_the_first_that_there_are() -> None:
    other = IMAGES + 1
    assert images_of({"x": np.zeros(3), "y": [torch.zeros(2, 2), IMAGES], "z": other}) is IMAGES


def test_a_reference_step_says_what_it_is() -> None:
    assert str(ReferenceStep("vit_s")) == "a training step of ViT-S/16 in float32 on cpu"


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(MODELS))
def test_a_reference_step_trains_on_a_gpu(name: str, cuda: torch.device) -> None:
    step = ReferenceStep(name, cuda)
    losses = [step(IMAGES.to(cuda)) for _ in range(8)]
    assert losses[0].device.type == "cuda"
    assert min(loss.item() for loss in losses) < losses[0].item() / 2
    assert "bfloat16 on cuda" in str(step)


# -- simulated steps ------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, -1, 3600, math.nan, math.inf])
def test_a_simulated_step_has_a_length_that_can_be_waited_for(seconds: float) -> None:
    with pytest.raises(OptionError, match=f"more than 0 seconds and less than 3600, not {seconds}"):
        SleepStep(seconds)


def test_a_simulated_step_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    step = pickle.loads(pickle.dumps(SleepStep(0.05)))
    assert step(None) is None
    assert slept == [0.05]
    assert str(step) == "a simulated step of 50 ms"


# -- scripts --------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Forget what scripts did to the interpreter's modules and paths."""
    paths, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        if name == MODULE_NAME or name.startswith("user_"):
            del sys.modules[name]


def write(folder: Path, text: str, name: str = "train.py") -> Path:
    """Write a script."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("target", "is_one"),
    [
        ("train.py:build", True),
        ("/a b/train.py:build", True),
        ("package.module:build", True),
        ("module:build", True),
        ("train.lmdb", False),
        ("train.py", False),
        ("train.py:", False),
        ("train.py:2x", False),
        ("train.py:a.b", False),
        ("/data/train.lmdb:x", False),
        (":build", False),
        ("", False),
    ],
)
def test_a_script_is_told_from_a_dataset(target: str, is_one: bool) -> None:
    assert is_script(target) is is_one


@pytest.mark.parametrize(
    ("returned", "data", "has_step"),
    [
        ("[1, 2], print", [1, 2], True),
        ("[1, 2]", [1, 2], False),
        ("([1], None)", [1], False),
        ("'train.lmdb', print", "train.lmdb", True),
    ],
)
def test_a_script_returns_data_and_perhaps_a_step(
    tmp_path: Path, returned: str, data: object, has_step: bool
) -> None:
    path = write(tmp_path, f"def build():\n    return {returned}\n")
    found, step = run_script(f"{path}:build")
    assert found == data
    assert step is (print if has_step else None)


def test_a_script_is_not_run_as_main_and_finds_what_lies_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "DATA = [3, 4]\n", "user_beside.py")
    path = write(
        tmp_path,
        "import user_beside\n"
        "if __name__ == '__main__':\n    raise SystemExit('it was run')\n"
        "def build():\n    return user_beside.DATA\n",
    )
    assert run_script(f"{path}:build") == ([3, 4], None)


def test_a_class_of_a_script_can_be_pickled(tmp_path: Path) -> None:
    # As it is when it is sent to worker processes.
    path = write(tmp_path, "class Data(list):\n    pass\ndef build():\n    return Data([5])\n")
    data, _ = run_script(f"{path}:build")
    again = pickle.loads(pickle.dumps(data))
    assert type(again) is type(data)
    assert again == [5]


def test_a_module_may_be_named_instead_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user_package").mkdir()
    write(tmp_path / "user_package", "def build():\n    return [7]\n", "user_module.py")
    monkeypatch.chdir(tmp_path)
    assert run_script("user_package.user_module:build") == ([7], None)


def test_what_a_script_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, "number = 3\ndef build():\n    pass\n")
    with pytest.raises(OptionError, match=r"missing\.py: no such file"):
        run_script(f"{tmp_path / 'missing.py'}:build")
    with pytest.raises(OptionError, match="has no function 'other'"):
        run_script(f"{path}:other")
    with pytest.raises(OptionError, match="has no function 'number'"):
        run_script(f"{path}:number")
    with pytest.raises(OptionError, match="returned NoneType, not a loader or a dataset"):
        run_script(f"{path}:build")
    with pytest.raises(OptionError, match="module 'user_missing' is neither"):
        run_script("user_missing:build")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "return step, [1]",
            r"returned \(function, list\), not a loader and a step.*`return loader",
        ),
        ("return 1, 2, 3", r"returned \(int, int, int\), not"),
        ("return [1], [2]", r"returned \(list, list\), not"),
        ("return 1, step", r"returned \(int, function\), not"),
        ("return step, step", r"returned \(function, function\), not"),
        ("return ([1],)", r"returned \(list\), not"),
        ("return 5", "returned int, not a loader or a dataset"),
        ("return step", "returned function, not a loader or a dataset"),
    ],
)
def test_what_is_no_loader_and_step_is_refused(tmp_path: Path, text: str, match: str) -> None:
    path = write(tmp_path, f"def step(batch):\n    pass\ndef build():\n    {text}\n")
    with pytest.raises(OptionError, match=match):
        run_script(f"{path}:build")


@pytest.mark.parametrize("command", ["doctor", "profile", "tune-workers"])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1, 2, 3", "(int, int, int), not a loader and a step"),
        ("1, print", "(int, builtin_function_or_method), not a loader and a step"),
        ("[1], 2", "(list, int), not a loader and a step"),
        ("5", "int, not a loader or a dataset"),
    ],
)
def test_commands_refuse_what_is_no_loader_and_step(
    command: str, text: str, found: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, f"def build():\n    return {text}\n")
    with pytest.raises(SystemExit):
        main([command, f"{path}:build"])
    printed = capfd.readouterr().err.splitlines()
    assert any(f"{path}:build returned {found}. Write a function that" in line for line in printed)
    assert "Traceback" not in printed[-1]
    assert len(printed) <= 4


def test_a_script_without_the_function_is_not_run(tmp_path: Path) -> None:
    path = write(tmp_path, "def build():\n    return [1]\nraise SystemExit('it was run')\n")
    with pytest.raises(OptionError, match=r"has no function 'biuld'. Did you mean 'build'\?"):
        run_script(f"{path}:biuld")
    # It may come from another module.
    (tmp_path / "user_star.py").write_text("def build():\n    return [2]\n")
    again = write(tmp_path, "from user_star import *\n", "again.py")
    assert run_script(f"{again}:build") == ([2], None)


@pytest.mark.parametrize(
    "text",
    [
        "raise KeyError('mine')\ndef build():\n    pass\n",
        "def build():\n    raise KeyError('mine')\n",
    ],
    ids=["file", "function"],
)
def test_an_error_inside_a_script_comes_out_as_itself(tmp_path: Path, text: str) -> None:
    with pytest.raises(KeyError, match="mine"):
        run_script(f"{write(tmp_path, text)}:build")


def test_an_import_that_fails_inside_a_script_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "import user_absent\ndef build():\n    pass\n"
    path = write(tmp_path, text, "user_importing.py")
    for target in (f"{path}:build", "user_importing:build"):
        with pytest.raises(ModuleNotFoundError, match="No module named 'user_absent'"):
            run_script(target)
