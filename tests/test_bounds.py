"""Numbers from outside have bounds: the error has the name, the value and the range."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import make_records, write_shard

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.bounds import BOUNDS, strict_json
from fastdata.errors import OptionError
from fastdata.processes.ranks import local_processes

URL = "http://127.0.0.1:1/never/asked"
ENTRANCES: dict[str, Callable[[Path, Any], Any]] = {
    **{
        name: lambda path, value, name=name: fastdata.loader(
            path, **{"batch_size": 2, "num_workers": 0, name: value}
        )
        for name in ("batch_size", "num_workers", "prefetch_factor", "seed", "max_pixels")
    },
    "streams": lambda path, value: fastdata.open(URL, streams=value),
    "cache_bytes": lambda path, value: fastdata.open(URL, cache_bytes=value),
    "depth": lambda path, value: fastdata.CUDAPrefetcher([], device="cpu", depth=value),
    "epoch": lambda path, value: fastdata.loader(path, num_workers=0).set_epoch(value),
    "batches": lambda path, value: fastdata.loader(path, num_workers=0).skip(value),
    "size": lambda path, value: T.RandomResizedCrop(value),
    "padding": lambda path, value: T.Pad(value),
    "num_ops": lambda path, value: T.RandAugment(num_ops=value),
    "quality": lambda path, value: fastdata.pack(path, path.parent / "o", quality=value),
    "shards": lambda path, value: fastdata.pack(path, path.parent / "o", shards=value),
    "limit": lambda path, value: fastdata.pack(path, path.parent / "o", limit=value),
    "max_workers": lambda path, value: fastdata.tune_workers(path, max_workers=value),
    "trial_seconds": lambda path, value: fastdata.tune_workers(path, trial_seconds=value),
    "seconds": lambda path, value: fastdata.profile(path, seconds=value),
    "steps": lambda path, value: fastdata.profile(path, steps=value),
    "thumbnail": lambda path, value: fastdata.view(path, thumbnail=value),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bounds")
    return write_shard(folder / "a.lmdb", make_records(count=4, size=(8, 8)))


@pytest.mark.parametrize("name", ENTRANCES)
def test_a_number_out_of_its_bounds_is_refused_with_name_value_and_range(
    path: Path, name: str
) -> None:
    low, high = BOUNDS[name]
    whole = isinstance(low, int)
    wrong = [low - 1, high + 1, 10**30, float("nan"), float("inf"), True, "7x", 10**5000]
    for value in [*wrong, 1.5] if whole else wrong:
        with pytest.raises(OptionError) as caught:
            ENTRANCES[name](path, value)
        text = str(caught.value)
        if not (name == "cache_bytes" and value == "7x"):  # which is text, as "200GB" is
            assert re.match(rf"{name}=.+ is not .*from .* to [\d,]+$", text), value


def test_large_numbers_and_those_of_numpy_are_taken(path: Path) -> None:
    seeds = (2**64 - 1, np.int64(3), np.uint32(3))
    for options in [{"seed": seed} for seed in seeds] + [{"prefetch_factor": np.int64(100)}]:
        with fastdata.loader(path, batch_size=np.int64(100_000), num_workers=0, **options) as one:
            assert sum(len(batch.label) for batch in one) == 4


def test_a_state_with_absurd_numbers_is_refused_soon(path: Path) -> None:
    loader = fastdata.loader(path, batch_size=2, num_workers=0)
    for name, value in {"global_batch_size": 10**12, "batch": 10**30, "epoch": -1}.items():
        with pytest.raises(OptionError):
            loader.load_state_dict({**loader.state_dict(), name: value})


def test_an_index_beyond_counting_is_one_that_the_dataset_lacks(path: Path) -> None:
    for sampler in ([10**30], [-(10**30)]):
        with pytest.raises(OptionError), fastdata.loader(path, sampler=sampler) as loader:
            list(loader)


@pytest.mark.parametrize("value", ["9" * 5000, "10000000000", "x", "2.0", "²", "nan"])
def test_variables_of_launchers_have_bounds(
    path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    message = "the environment has {}=.*, which is not a number from"
    monkeypatch.setenv("WORLD_SIZE", value)
    with pytest.raises(OptionError, match=message.format("WORLD_SIZE")):
        list(fastdata.loader(path, num_workers=0))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", value)
    with pytest.raises(OptionError, match=message.format("RANK")):
        list(fastdata.loader(path, num_workers=0))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", value)
    with pytest.raises(OptionError, match=message.format("LOCAL_WORLD_SIZE")):
        local_processes()


def test_all_other_text_is_strict_json() -> None:
    assert strict_json(b'{"a": [1, -2.5, "\\ud83d\\ude00"]} ') == {"a": [1, -2.5, "\U0001f600"]}
    for text in (
        *(b"NaN", b"-Infinity", b"1e999", b"9" * 30, b"9" * 5000, b'"\\ud800"', b'"\\uDFFF x"'),
        *(b'{"a": 1, "a": 1}', b"\xff", b"\xef\xbb\xbf1", b'"\x00"', b"", b"[1"),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            strict_json(text)


def test_messages_of_the_log_move_no_cursor(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("fastdata").warning("%s and %s: %d", "\x1b[2J", OSError("\x9b0m"), 3)
    assert caplog.messages == [r"\x1b[2J and \x9b0m: 3"]
