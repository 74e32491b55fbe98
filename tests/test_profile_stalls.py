"""What a step does that makes a device wait is found, with the line; what does not, is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastdata.measuring.stalls import (
    COPIED_ARRAY,
    LARGE_BYTES,
    Stall,
    StallCounter,
    find_stalls,
    stall_modes,
    synchronisations_warned,
)

BATCH = torch.linspace(-1, 1, 12).reshape(3, 4)
LARGE = 50_000


def item(batch: Any) -> None:
    batch.mean().item()  # here


def as_float(batch: Any) -> None:
    float(batch.mean())  # here


def as_bool(batch: Any) -> None:
    if batch.mean() > 3:  # here
        raise AssertionError


def to_list(batch: Any) -> None:
    batch.mean(0).tolist()  # here


def to_cpu(batch: Any) -> None:
    batch.cpu().numpy()  # here


def shown(batch: Any) -> None:
    str(batch.mean())  # here


def where_not_zero(batch: Any) -> None:
    batch.nonzero()  # here


def chosen(batch: Any) -> None:
    torch.masked_select(batch, batch > 0)  # here


def masked(batch: Any) -> None:
    batch[batch > 0]  # here


def masked_write(batch: Any) -> None:
    batch.clone()[batch[:, 0] >= 0] = batch[0]  # here


def distinct(batch: Any) -> None:
    batch.unique()  # here


SYNCHRONISING: dict[Callable[[Any], None], str] = {
    item: ".item()",
    as_float: "float()",
    as_bool: "bool()",
    to_list: ".tolist()",
    to_cpu: ".cpu()",
    shown: "print()",
    where_not_zero: "nonzero",
    chosen: "masked_select",
    masked: "a boolean mask",
    masked_write: "a boolean mask",
    distinct: "unique",
}


def line_of(function: Callable[..., Any]) -> int:
    lines = Path(__file__).read_text().splitlines()
    first = function.__code__.co_firstlineno
    return next(n for n in range(first, len(lines)) if lines[n - 1].endswith("# here"))


@pytest.mark.parametrize("step", list(SYNCHRONISING), ids=lambda step: step.__name__)
def test_synchronisation_is_found_with_its_line(step: Callable[[Any], None]) -> None:
    (stall,) = find_stalls(step, BATCH, "cpu")
    assert (stall.kind, stall.operation, stall.count) == ("synchronisation", SYNCHRONISING[step], 1)
    place, _, name = stall.where.partition(" ")
    assert place.endswith(f"{Path(__file__).name}:{line_of(step)}")
    assert name == step.__name__


def test_a_training_step_without_any_has_none() -> None:
    weight = torch.nn.Parameter(torch.zeros(4, 4))
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        optimizer = kind([weight], lr=0.1)

        def step(batch: Any, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            (batch @ weight).softmax(1)[:, 0].mean().backward()
            optimizer.step()
            batch[torch.arange(2)]
            assert batch.shape[0] == 3
            torch.where(batch > 0, batch, 0)
            batch.clone()[batch > 0] = 0  # torch does it by masked_fill_

        assert find_stalls(step, BATCH, "cpu") == ()


def test_it_is_one_real_step() -> None:
    weights = [torch.nn.Parameter(torch.ones(4, 4)) for _ in range(2)]

    def step_of(weight: torch.nn.Parameter) -> Callable[[Any], None]:
        optimizer = torch.optim.AdamW([weight], lr=0.1)

        def step(batch: Any) -> None:
            loss = (batch @ weight).pow(2).mean()
            loss.backward()
            optimizer.step()
            loss.detach().item()

        return step

    step_of(weights[0])(BATCH)
    find_stalls(step_of(weights[1]), BATCH, "cpu")
    assert torch.equal(*weights)


def test_counts_are_a_step() -> None:
    def step(batch: Any) -> None:
        for row in batch:
            row.sum().item()
        batch.sum().item()

    assert [stall.count for stall in find_stalls(step, BATCH, "cpu")] == [3, 1]


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Copy to the device that stands for a GPU: it computes nothing, but is another."""
    return tensor.to("meta")


def permutation() -> torch.Tensor:
    return torch.randperm(LARGE)


def random_and_changed() -> torch.Tensor:
    return torch.rand(LARGE).mul(2).clamp_(0, 1)


def of_numpy() -> torch.Tensor:
    return torch.from_numpy(np.zeros(LARGE))


def of_list() -> torch.Tensor:
    return torch.tensor([0.5] * LARGE)


@pytest.mark.parametrize(
    ("make", "operation", "nbytes"),
    [
        (permutation, "torch.randperm", 8 * LARGE),
        (random_and_changed, "torch.rand", 4 * LARGE),
        (of_numpy, "torch.from_numpy", 8 * LARGE),
        (of_list, "torch.tensor", 4 * LARGE),
    ],
)
def test_large_tensor_of_the_host_is_found_where_it_is_made(
    make: Callable[[], torch.Tensor], operation: str, nbytes: int
) -> None:
    (stall,) = find_stalls(lambda batch: on_device(make()), BATCH, "meta")
    if operation != "torch.from_numpy":  # that shows only when it is copied
        assert stall.where.endswith(f" {make.__name__}")
    assert stall == Stall("host tensor", operation, stall.where, 1, nbytes)


@pytest.mark.parametrize(
    "step",
    [
        lambda batch: on_device(batch),
        lambda batch: on_device(batch.float()),
        lambda batch: on_device(batch[:, 1:]),
        lambda batch: on_device(torch.randperm(10)),
        lambda batch: torch.randperm(LARGE, device="meta"),
        lambda batch: torch.randperm(LARGE),
    ],
    ids=["batch", "made of it", "part of it", "small", "on the device", "not copied"],
)
def test_other_copies_are_none(step: Callable[[Any], Any]) -> None:
    batch = torch.zeros(2, LARGE_BYTES, dtype=torch.uint8)
    assert find_stalls(step, batch, "meta") == ()


def test_an_error_of_the_step_comes_out_and_nothing_stays_on() -> None:
    def step(batch: Any) -> None:
        raise ZeroDivisionError("in the step")

    with pytest.raises(ZeroDivisionError, match="in the step"):
        find_stalls(step, BATCH, "cpu")
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert torch.overrides._get_current_function_mode() is None


def test_what_torch_warns_of_is_found_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, of which only the warning is made up."""
    mode = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[0])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda m: mode.__setitem__(0, m))

    def wait_for_the_gpu() -> None:
        assert mode == ["warn"]
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    show, found = warnings.showwarning, StallCounter(torch.device("cuda"))
    with synchronisations_warned(found):
        wait_for_the_gpu()
        wait_for_the_gpu()
    (stall,) = found.stalls()
    assert stall.where.endswith("wait_for_the_gpu")
    assert stall.count == 2
    assert (mode, warnings.showwarning) == ([0], show)
    with synchronisations_warned(found):  # now it is known
        wait_for_the_gpu()
    assert found.stalls() == (stall,)


@pytest.mark.gpu
def test_synchronisations_on_a_gpu(cuda: torch.device) -> None:
    before = torch.cuda.get_sync_debug_mode()
    batch = BATCH.to(cuda)
    for step, operation in SYNCHRONISING.items():
        found = {stall.operation for stall in find_stalls(step, batch, cuda)}
        assert operation in found
    assert find_stalls(lambda batch: batch.mean(), batch, cuda) == ()
    assert torch.cuda.get_sync_debug_mode() == before
    (stall,) = find_stalls(lambda batch: torch.randperm(LARGE).to(cuda), batch, cuda)[:1]
    assert stall.operation == "torch.randperm"


@pytest.mark.gpu
def test_small_tensors_of_the_host_on_a_gpu(cuda: torch.device) -> None:
    batch, found = BATCH.to(cuda), StallCounter(cuda)

    def step() -> None:
        batch[torch.randperm(3)]
        torch.rand(4).mul(2).to(cuda)
        torch.tensor([1.0, 2.0], device=cuda)
        torch.tensor(np.ones(4))
        str(batch)
        batch[torch.randperm(3, device=cuda)]
        padded = torch.zeros(2)
        padded[1] = 1.0
        padded.to(cuda)

    with stall_modes(found, only_moved=True):
        step()
    operations = {stall.operation for stall in found.stalls()}
    tensors = {"torch.randperm", "torch.rand", "torch.tensor", COPIED_ARRAY}
    assert operations == {*tensors, "print()"}
