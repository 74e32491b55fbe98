"""A dataset of torch's kind gets torch's own loader, seeded and tuned."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.loading import loader
from fastdata.processes import resources

RRC = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]


# -- torch datasets -----------------------------------------------------------------


class Squares(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index**2


class Noise(Squares):
    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        import random

        threads = torch.get_num_threads()
        return torch.tensor([random.random(), np.random.random(), torch.rand(()).item(), threads])


def test_a_torch_dataset_gets_a_stock_dataloader() -> None:
    it = loader(Squares(), batch_size=4, drop_last=True, num_workers=0)
    assert isinstance(it, torch.utils.data.DataLoader)
    assert [batch.tolist() for batch in it] == [[0, 1, 4, 9], [16, 25, 36, 49]]
    assert it.pin_memory == torch.cuda.is_available()


def test_the_stock_dataloader_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_cores", lambda: 1)
    it = loader(Squares(), batch_size=4, prefetch_factor=5)
    assert (it.num_workers, it.prefetch_factor, it.persistent_workers) == (1, 5, True)


def test_the_stock_dataloaders_workers_are_seeded_and_single_threaded() -> None:
    def batch(seed: int, context: str, num_workers: int) -> torch.Tensor:
        it = loader(
            Noise(),
            batch_size=5,
            seed=seed,
            num_workers=num_workers,
            multiprocessing_context=context,
            persistent_workers=False,
        )
        return torch.cat(list(it))

    # However they are started; spawned ones, which import everything, take seconds.
    spawned = batch(1, "spawn", 1)
    assert torch.equal(spawned, batch(1, "fork", 1))
    first, other = batch(1, "fork", 2), batch(2, "fork", 2)
    assert not torch.equal(first[:, :3], other[:, :3])
    assert len(first[:, :3].unique()) == 30
    assert (torch.cat([spawned, first])[:, 3] == 1).all()


class Enlarged(Squares):
    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        cv2 = pytest.importorskip("cv2")
        return int(cv2.resize(np.full((50, 50), index, np.uint8), (100, 100))[0, 0])


def test_workers_forked_after_opencv_used_threads_do_not_hang() -> None:
    cv2 = pytest.importorskip("cv2")
    cv2.resize(np.zeros((3000, 3000, 3), np.uint8), (4000, 4000))  # starts OpenCV's threads
    it = loader(Enlarged(), num_workers=2, multiprocessing_context="fork", persistent_workers=False)
    assert [int(batch) for batch in it] == list(range(len(Enlarged())))


def test_the_stock_dataloader_shuffles_by_seed() -> None:
    def order(seed: int) -> list[int]:
        return [int(x) for x in loader(Squares(), shuffle=True, seed=seed, num_workers=0)]

    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == [i**2 for i in range(10)]


def test_the_stock_dataloader_takes_its_own_options() -> None:
    it = loader(Squares(), batch_size=4, num_workers=0, collate_fn=sum)
    assert list(it) == [14, 126, 145]
    by_batch = loader(Squares(), num_workers=0, batch_sampler=[[1, 2], [3]])
    assert [batch.tolist() for batch in by_batch] == [[1, 4], [9]]


def test_ranks_share_a_torch_dataset() -> None:
    shares = [
        [int(x) for x in loader(Squares(), num_workers=0, rank=rank, world_size=2)]
        for rank in range(2)
    ]
    assert shares == [[0, 4, 16, 36, 64], [1, 9, 25, 49, 81]]


@pytest.mark.parametrize("option", ["transform", "dtype"])
def test_options_of_packed_data_are_refused_for_torch_datasets(option: str) -> None:
    value = {"transform": RRC, "dtype": torch.float32}[option]
    with pytest.raises(OptionError, match=f"{option} is for packed data, but Squares"):
        loader(Squares(), **{option: value})


def of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)


def test_a_torch_dataset_is_divided_by_the_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    of_a_group(monkeypatch)
    assert len(loader(Squares(), num_workers=0)) == (len(Squares()) + 1) // 2


def test_a_torch_dataset_is_left_to_accelerate_to_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    class State:
        AcceleratorState = type("AcceleratorState", (), {"_shared_state": {"made": True}})

    of_a_group(monkeypatch)
    monkeypatch.setitem(sys.modules, "accelerate.state", State())  # type: ignore[arg-type]
    assert len(loader(Squares(), num_workers=0)) == len(Squares())
    assert len(loader(Squares(), num_workers=0, rank=0, world_size=2)) < len(Squares())


def test_without_a_group_every_rank_has_a_torch_dataset_whole_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with caplog.at_level("WARNING", "fastdata"):
        assert len(loader(Squares(), num_workers=0)) == len(Squares())
    assert "each rank loads all samples of this dataset, which is not packed" in caplog.text
