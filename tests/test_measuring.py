"""What tuning and profiling share: batches of any loader, what is known of one, tables, JSON."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
from tune_helpers import Sleepy

import fastdata
from fastdata.errors import OptionError
from fastdata.measuring.loaders import (
    BatchesExhaustedError,
    EndlessBatches,
    batch_nbytes,
    dataloader_arguments,
)
from fastdata.measuring.windows import in_turns
from fastdata.profiling.loaders import batch_size, loader_info
from fastdata.tuned_settings.settings import plain_json
from fastdata.tuning.report import text_table


def test_one_epoch_follows_another() -> None:
    batches = EndlessBatches([1, 2, 3])
    assert list(islice(batches, 7)) == [1, 2, 3, 1, 2, 3, 1]
    assert (batches.epochs, batches.taken) == (3, 1)
    batches.close()
    batches.close()
    assert next(batches) == 1


def test_a_loader_without_batches_is_refused() -> None:
    with pytest.raises(OptionError, match="gave no batch"):
        next(EndlessBatches([]))


@pytest.mark.parametrize("once", [iter([1, 2]), (n for n in (1, 2)), map(int, "12")])
def test_what_can_be_iterated_over_once_ends(once: Any) -> None:
    batches = EndlessBatches(once)
    assert list(islice(batches, 2)) == [1, 2]
    with pytest.raises(BatchesExhaustedError, match="ended"):
        next(batches)


class Once:
    """A loader whose second epoch is empty."""

    def __init__(self) -> None:
        self.left = [1]

    def __iter__(self) -> Any:
        batches, self.left = self.left, []
        return iter(batches)


def test_a_second_epoch_without_batches_ends() -> None:
    batches = EndlessBatches(Once())
    assert next(batches) == 1
    with pytest.raises(BatchesExhaustedError, match="once only"):
        next(batches)


def test_sizes_of_batches() -> None:
    images, labels = torch.zeros(4, 3, 2, 2), np.zeros(4, np.int64)
    sparse = torch.eye(4).to_sparse()
    batch = {"images": [images], "labels": (labels, "a text"), "scalar": torch.tensor(1.0)}
    assert batch_nbytes(batch) == images.nbytes + labels.nbytes + 4
    assert batch_nbytes([labels, sparse]) == labels.nbytes
    assert batch_size(batch) == 4
    assert batch_size([[images[0], images[1, :, :1]], [{"boxes": torch.zeros(5, 4)}] * 2]) == 2
    assert batch_size({"image": tuple(images), "label": labels[:3]}) == 4
    assert batch_size([images, labels]) == 4
    assert batch_size(["a", "b"]) == 2
    assert batch_size(None) == 1


def test_what_is_known_of_loaders(tiny: dict[str, Path]) -> None:
    loader = fastdata.loader(tiny["lmdb"], batch_size=20, num_workers=2, worker_method="thread")
    info = loader_info(loader)
    assert (info.kind, info.workers, info.batches_ahead) == ("packed", 2, 2)
    assert (info.batches_at_once, info.batches_per_epoch) == (1, len(loader))  # type: ignore[arg-type]
    loader.close()  # type: ignore[union-attr]
    theirs: Any = DataLoader(Sleepy(64, 0.0), batch_size=4, num_workers=2, prefetch_factor=3)
    info = loader_info(theirs)
    assert (info.kind, info.workers, info.batches_ahead) == ("stock", 2, 6)
    assert (info.batches_at_once, info.batches_per_epoch, info.persistent) == (2, 16, False)
    info = loader_info(iter([1]))
    assert (info.kind, info.workers, info.batches_per_epoch) == ("iterable", 0, None)


@pytest.mark.parametrize(
    ("options", "deciding"),
    [
        ({"batch_size": 4}, {"batch_size", "sampler", "drop_last"}),
        ({"batch_sampler": BatchSampler(SequentialSampler(range(8)), 2, True)}, {"batch_sampler"}),
    ],
)
def test_a_dataloader_is_made_again(options: dict[str, Any], deciding: set[str]) -> None:
    like: Any = DataLoader(Sleepy(8, 0.0), **options)
    common = {"dataset", "collate_fn", "worker_init_fn", "generator"}
    assert set(dataloader_arguments(like)) - {"in_order"} == common | deciding
    by_sampler = dataloader_arguments(like, as_batch_sampler=True)
    assert by_sampler["batch_sampler"] is like.batch_sampler
    for arguments in dataloader_arguments(like), by_sampler:
        again = DataLoader(**arguments)
        assert [len(batch[0]) for batch in again] == [len(batch[0]) for batch in like]


def test_turns_are_one_a_round_in_random_order() -> None:
    rounds = list(in_turns("abcd", 5))
    assert all(sorted(each) == list("abcd") for each in rounds)
    assert len(set(map(tuple, rounds))) > 1
    assert rounds == list(in_turns("abcd", 5))


def test_a_table_has_columns_and_rows_that_end_with_text() -> None:
    rows = [("", "name", "rate"), ("*", "one", "1.5"), ("", "a long name", "it failed, and why")]
    rows.append(("", "b", "12345"))
    assert text_table([rows[0], rows[1], rows[3]], left=2) == [
        "   name   rate",
        "*  one     1.5",
        "   b     12345",
    ]
    short = text_table([("", "name", "rate", "more"), rows[2]], left=2)
    assert short == ["  name         rate  more", "  a long name  it failed, and why"]


def test_json_has_no_tuples_and_no_nan() -> None:
    found = plain_json({"a": (1, np.int64(2)), 3: [math.nan, np.float32(0.5)], "c": Path("x")})
    assert found == {"a": [1, 2], "3": [None, 0.5], "c": "x"}
