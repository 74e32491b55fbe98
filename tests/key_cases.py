"""Datasets of a script, run as one: is the key of the process that measures the loader's own?

python key_cases.py          prints a line for each that differs
"""

from __future__ import annotations

import collections
import enum
import functools
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils.data import Dataset

from fastdata.loading import options_of
from fastdata.measuring.workload import Workload, WorkloadSpec
from fastdata.processes.sharing import PickledFile
from fastdata.tuned_settings.key import key_of


class Mode(enum.Enum):
    TRAIN = 1


class Configuration:
    def __init__(self) -> None:
        self.size = 3


Item = collections.namedtuple("Item", "path label")
CLASSES = ["cat", "dog"]
CONFIGURATION = Configuration()


class Plain(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3), index


class WithEnum(Plain):
    def __init__(self) -> None:
        self.mode = Mode.TRAIN


class WithTuples(Plain):
    def __init__(self) -> None:
        self.items = [Item("a", 1), Item("b", 2)]


class Shares(Plain):
    def __init__(self) -> None:
        self.classes = CLASSES

    def name(self, index: int) -> str:
        return CLASSES[index]


class WithDefault(Plain):
    def __init__(self, mean: Any = [0.5]) -> None:  # noqa: B006 - as users write it
        self.mean = mean


class NamesGlobal(Plain):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(CONFIGURATION.size), index


class WithTransform(Plain):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(torch.zeros(3)), index


class Lazy(Plain):
    handle: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.handle is None:
            self.handle = open(os.devnull, "rb")  # noqa: SIM115 - as users write it
        return torch.zeros(3), index


class Remembers(Plain):
    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def __getitem__(self, index: int) -> Any:
        self.seen[index] = 1
        return torch.zeros(3), index


def scaled(value: Any, factor: int = 2) -> Any:
    return value * factor


def look(recipes: list[PickledFile], end: Connection) -> None:
    """Send the keys, as the process that measures finds them."""
    end.send([Workload(recipe.load()).probe().key for recipe in recipes])


if __name__ == "__main__":
    # A global that the process that measures does not have.
    transform = functools.partial(scaled, factor=3)
    datasets = [
        Plain(),
        WithEnum(),
        WithTuples(),
        Shares(),
        WithDefault(),
        NamesGlobal(),
        WithTransform(transform),
        Lazy(),
        Remembers(),
    ]
    options = {"batch_size": 8}
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    recipes = [PickledFile.of(WorkloadSpec(dataset, options)) for dataset in datasets]
    process = context.Process(target=look, args=(recipes, theirs))
    process.start()
    found = mine.recv()
    process.join()
    # After pickling, which leaves its traces in classes.
    for dataset, key in zip(datasets, found, strict=True):
        wanted = key_of(dataset, options_of({**options, "shuffle": True}))
        if wanted is None or key != wanted:
            sys.stdout.write(f"{type(dataset).__name__}: {wanted} {key}\n")
    sys.stdout.write("all compared\n")
