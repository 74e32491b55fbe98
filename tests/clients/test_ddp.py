"""Plain PyTorch: DistributedDataParallel, torchrun, torch's own samplers and stock loaders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import COUNT, fingerprints, run_ranks
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler

import fastdata
from fastdata import transforms as T  # noqa: N812

BATCH = 8


def make_loader(path: str, **options: Any) -> Any:
    """Return a loader with random transforms."""
    transform = [T.RandomCrop(16), T.RandomHorizontalFlip()]
    given = {"batch_size": BATCH, "transform": transform, "num_workers": 2}
    return fastdata.loader(path, **{**given, **options})


def ddp_loop(path: str, made: str, options: dict[str, Any]) -> list[list[Any]]:
    """Return the samples of three epochs, the loader being made before or after the group."""
    loader = make_loader(path, **options) if made == "before" else None
    if "RANK" in os.environ and made != "without":
        distributed.init_process_group("gloo")
    loader = loader or make_loader(path, **options)
    model: Any = torch.nn.Linear(3, 1)
    if distributed.is_initialized() and options.get("even", True):
        model = DistributedDataParallel(model)  # where ranks have as many batches
    epochs = []
    with loader:
        for epoch in range(3):
            loader.set_epoch(epoch)
            taken: list[Any] = []
            for batch in loader:
                model(batch[0].float().mean((2, 3))).mean().backward()
                taken += fingerprints(batch[0])
            epochs.append(taken)
    return epochs


ORDERS = {
    "even": ({}, COUNT + 1),
    "drop_last": ({"drop_last": True}, COUNT - 1),
    "even=False": ({"even": False}, COUNT),
}


@pytest.mark.proves("D5")
@pytest.mark.parametrize("made", ["before", "after", "without"])
@pytest.mark.parametrize("case", list(ORDERS))
def test_two_ranks_share_every_epoch(packed: str, made: str, case: str) -> None:
    options, total = ORDERS[case]
    found = run_ranks(ddp_loop, 2, packed, made, {"shuffle": True, **options})
    for epoch in range(3):
        taken = [one[0] for epochs in found for one in epochs[epoch]]
        assert len(taken) == total
        assert len(set(taken)) == min(total, COUNT)
    for rank, epochs in enumerate(found):
        assert epochs[0] != epochs[1] != epochs[2]
        with make_loader(packed, shuffle=True, rank=rank, world_size=2, **options) as reference:
            for taken in epochs:
                assert taken == [one for batch in reference for one in fingerprints(batch[0])]


def with_distributed_sampler(path: str, told: list[int]) -> Any:
    """Return what our loader takes with a `DistributedSampler`, and what a stock loader does."""
    data = fastdata.open(path)
    ours, theirs = (DistributedSampler(data, shuffle=True, seed=3) for _ in range(2))
    stock = DataLoader(torch.arange(COUNT), batch_size=BATCH, sampler=theirs)
    taken, wanted = [], []
    with make_loader(path, sampler=ours) as loader:
        for epoch in told:
            ours.set_epoch(epoch)
            theirs.set_epoch(epoch)
            taken.append([one[0] for batch in loader for one in fingerprints(batch[0])])
            wanted.append([int(one) for batch in stock for one in batch])
    return taken, wanted


@pytest.mark.proves("D3")
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_sampler_keeps_the_epoch_that_it_was_given(packed: str, world_size: int) -> None:
    if world_size == 1:
        distributed_one = run_ranks(with_sampler_of_one, 1, packed, [5, 0, 7])
        found = distributed_one
    else:
        found = run_ranks(with_distributed_sampler, 2, packed, [5, 0, 7], group=True)
    for taken, wanted in found:
        assert taken == wanted


def with_sampler_of_one(path: str, told: list[int]) -> Any:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return with_distributed_sampler(path, told)


def resume(path: str, world_size: int) -> Any:
    """Return an epoch, and what is left of it for a loader that every usual loop resumes."""
    with make_loader(path, shuffle=True) as loader:
        loader.set_epoch(3)
        epoch = iter(loader)
        done = [fingerprints(next(epoch)[0]) for _ in range(3)]
        state = loader.state_dict()
        rest = [fingerprints(batch[0]) for batch in epoch]
        following = [fingerprints(batch[0]) for batch in loader]
    with make_loader(path, shuffle=True) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(state["epoch"])
        resumed = [fingerprints(batch[0]) for batch in loader]
        loader.set_epoch(4)
        after = [fingerprints(batch[0]) for batch in loader]
    with make_loader(path, shuffle=True) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(4)
        other = [fingerprints(batch[0]) for batch in loader]
    return done, (rest, resumed), (following, after, other)


@pytest.mark.proves("D2")
@pytest.mark.parametrize("world_size", [1, 2])
def test_set_epoch_after_load_state_dict_keeps_the_place(packed: str, world_size: int) -> None:
    for done, (rest, resumed), (following, after, other) in run_ranks(
        resume, world_size, packed, world_size, group=world_size > 1
    ):
        assert resumed == rest
        assert done[0] not in resumed
        assert after == following == other


SCRIPT = """
import os
import sys
import torch
from torch import distributed
import fastdata

loader = fastdata.loader(sys.argv[1], batch_size=8, shuffle=True)  # before the group
distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
taken = []
for epoch in range(2):
    loader.set_epoch(epoch)
    for images, labels in loader:
        taken += images[:, 0, 0, 0].tolist()
        model(images.float().mean((2, 3))).mean().backward()
with open(f"{sys.argv[2]}/{distributed.get_rank()}", "w") as file:
    print(*taken, file=file)
distributed.destroy_process_group()
# Threads of gloo abort now and then as Python ends, without any loader too (torch 2.13: 2 of 20).
os._exit(0)
"""


@pytest.mark.proves("D1", "D5")
def test_a_script_under_torchrun(packed: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [*command, str(script), packed, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "Exception ignored" not in run.stderr
    parts = [[int(one) for one in (tmp_path / str(rank)).read_text().split()] for rank in range(2)]
    for epoch in range(2):
        taken = [one for part in parts for one in part[epoch * 49 : (epoch + 1) * 49]]
        assert len(taken) == COUNT + 1
        assert set(taken) == set(range(COUNT))


def stock_loader(path: str, batch_size: int) -> Any:
    """Return what stock loaders over the dataset take, with torch's samplers and ours."""
    data = fastdata.open(path)
    ours, theirs = (RandomSampler(data, generator=torch.Generator().manual_seed(1)) for _ in "ab")
    order = [int(one) for one in theirs]
    loader = DataLoader(data, batch_size, sampler=ours, num_workers=2)
    taken = [one[0] for batch in loader for one in fingerprints(batch[0])]
    return order, taken


def test_a_stock_loader_reads_the_dataset_by_its_sampler(packed: str) -> None:
    ((order, taken),) = run_ranks(stock_loader, 1, packed, 10)
    assert taken == order
