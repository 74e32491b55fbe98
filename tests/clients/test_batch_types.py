"""Functions of libraries that make batches anew, on named tuples and lists of views."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import fastdata
from fastdata import transforms as T  # noqa: N812


def by_lightning(batch: Any) -> Any:
    from lightning.fabric.utilities.apply_func import move_data_to_device

    return move_data_to_device(batch, torch.device("cpu"))


def by_accelerate(batch: Any) -> Any:
    from accelerate.utils import send_to_device

    return send_to_device(batch, "cpu")


def by_accelerate_concatenating(batch: Any) -> Any:
    from accelerate.utils import concatenate

    return concatenate([batch])


def by_transformers(batch: Any) -> Any:
    from transformers.trainer_pt_utils import nested_detach

    return nested_detach(batch)


WAYS = {
    "lightning": by_lightning,
    "accelerate": by_accelerate,
    "accelerate, concatenate": by_accelerate_concatenating,
    "transformers": by_transformers,
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("stock", [False, True])
def test_batches_stay_named_tuples(packed: str, way: str, stock: bool) -> None:
    if find_spec(way.partition(",")[0]) is None:
        pytest.skip(f"needs {way}")
    views = [T.Views(2, [T.CenterCrop(16)])]
    loader = (
        DataLoader(fastdata.open(packed, transform=views), batch_size=4)
        if stock
        else fastdata.loader(packed, batch_size=4, transform=views)
    )
    batch = next(iter(loader))
    made = WAYS[way](batch)
    assert made._fields == batch._fields
    assert type(made.image) is list
    assert all(map(torch.equal, made.image, batch.image))
    assert torch.equal(made.label, batch.label)
