"""Datasets for tests of tuning, which processes that are started anew find: slow, and dying."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

SAMPLE_SECONDS = 0.004


class Sleepy(Dataset[Any]):
    """Samples that each take a known time and no core."""

    def __init__(self, count: int = 2000, seconds: float = SAMPLE_SECONDS) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.zeros(4), index


class Tiring(Sleepy):
    """Fine for as many samples as a look at it takes, and not for more, in any process."""

    def __init__(self) -> None:
        super().__init__(seconds=0.0)
        self.made = 0

    def __getitem__(self, index: int) -> Any:
        self.made += 1
        if self.made > 40:
            raise ValueError("sample 7 is no good")
        return super().__getitem__(index)


class Dying(Sleepy):
    """Fine with any number of workers but one, with which it does what it is told."""

    def __init__(self, how: str, workers: int = 2) -> None:
        super().__init__(seconds=0.001)
        self.how, self.workers = how, workers
        self.main = 0

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if (info.num_workers if info else 0) == self.workers:
            _die(self.how)
        return super().__getitem__(index)


def _die(how: str) -> None:
    if how == "exit":
        os._exit(3)
    if how == "kill parent":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    if how == "hang":
        time.sleep(1000)
    if how == "memory":
        raise MemoryError("no more of it")
    raise ValueError("sample 7 is no good")


def build() -> Any:
    """Return a loader and a step, as a script does."""
    return DataLoader(Sleepy(), batch_size=8, worker_init_fn=say_so), sleep


def say_so(number: int) -> None:
    """Add a letter to the file that the environment names, and hang if there are so many."""
    if "TUNE_TEST_SEEN" in os.environ:
        with open(os.environ["TUNE_TEST_SEEN"], "a") as file:
            file.write("x")
            count = file.tell()
        if count > int(os.environ.get("TUNE_TEST_HANG_AFTER", "1000000")):
            time.sleep(1000)


def sleep(batch: Any) -> None:
    """Take 20 ms."""
    time.sleep(0.02)


class Squares(Dataset[torch.Tensor]):
    """A dataset that is not packed."""

    def __init__(self, count: int = 8, scale: float = 1.0) -> None:
        self.count, self.scale = count, scale

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index * self.scale)
