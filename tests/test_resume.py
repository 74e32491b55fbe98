"""Resuming: at any batch, with other workers, containers and world sizes, without reading twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_data import MemoryData, digest
from worker_helpers import METHODS, RRC, SCENES, invert, layouts, no_workers_soon, scenes

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.loading import Loader, loader
from fastdata.sampling import BlockShuffle
from fastdata.sampling import batches as sampling_batches

COUNT = 30
EPOCHS = 2

WEIGHTS = [1 + index % 5 for index in range(COUNT)]
BATCHES = [[3, 1], [4], [1, 5, 9, 2], [6, 5], [29, 0, 28]]

ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {"batch_size": 4},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "drop last": {"batch_size": 4, "shuffle": True, "drop_last": True},
    "block": {"batch_size": 4, "shuffle": BlockShuffle(block_size=3, window_blocks=2)},
    "block by name": {"batch_size": 7, "shuffle": "block"},
    "weighted": {"batch_size": 4, "weights": WEIGHTS},
    "not even": {"batch_size": 4, "shuffle": True, "even": False},
    "sampler": {"batch_size": 4, "sampler": range(29, 4, -1)},
    "batch sampler": {"batch_sampler": BATCHES},
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same scenes in every container, whole and in three shards."""
    records = scenes(COUNT, ("jpeg", "png", "raw"), (40, 44))
    return layouts(tmp_path_factory.mktemp("places"), records, SCENES)


def ready(data: Any, order: str, **options: Any) -> Loader:
    """Return a loader with one of `ORDERS`."""
    defaults = {"seed": 3, "transform": RRC, "num_workers": 0}
    return loader(data, **{**ORDERS[order], **defaults, **options})


def test_a_state_within_an_epoch_warns_scripts_that_skip(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ready(MemoryData(COUNT), "shuffled") as it:
        epoch = iter(it)
        next(epoch)
        within = it.state_dict()
        it.load_state_dict({**within, "batch": 0})
        assert caplog.text == ""
        it.load_state_dict(within)
    assert "continues at batch 1 of epoch 0" in caplog.text
    assert "loses as many others" in caplog.text


def digests(batches: Any) -> list[str]:
    """Return one fingerprint a batch."""
    return [digest([batch]) for batch in batches]


def run(it: Loader, first_epoch: int = 0) -> list[str]:
    """Return fingerprints of all batches until `EPOCHS` epochs are done."""
    return [one for _ in range(first_epoch, EPOCHS) for one in digests(it)]


def states_and_batches(it: Loader) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the state before every batch of two epochs and after all, and the batches."""
    states, batches = [it.state_dict()], []
    for _ in range(EPOCHS):
        for batch in it:
            batches.append(digest([batch]))
            states.append(json.loads(json.dumps(it.state_dict())))
    return states, batches


@pytest.mark.parametrize("order", list(ORDERS))
def test_resuming_at_every_batch_continues_exactly(places: dict[str, Path], order: str) -> None:
    with ready(places["lmdb"], order, num_workers=2, worker_method="thread") as it:
        states, batches = states_and_batches(it)
        length = len(it)
    assert len(batches) == EPOCHS * length
    resumed = ready(places["hdf5 x 3"], order)
    for number, state in enumerate(states[:-1]):
        assert (state["epoch"], state["batch"]) == divmod(number, length)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert run(resumed, state["epoch"]) == batches[number:]
    assert (states[-1]["epoch"], states[-1]["batch"]) == (EPOCHS, 0)


@pytest.mark.parametrize(
    ("order", "transform"),
    [
        ("shuffled", RRC),
        ("block", [*RRC, T.ImageOnly(invert)]),
        ("weighted", RRC),
        ("batch sampler", [*RRC, T.ImageOnly(invert)]),
    ],
    ids=["shuffled", "block, callable", "weighted", "batch sampler, callable"],
)
def test_resuming_with_other_workers_and_containers(
    places: dict[str, Path], order: str, transform: Any
) -> None:
    states, batches = states_and_batches(
        ready(places["hdf5"], order, transform=transform, num_workers=0)
    )
    ways: list[tuple[str, dict[str, Any]]] = [
        ("lmdb", {"num_workers": 1, "worker_method": "thread", "prefetch_factor": 5}),
        ("lmdb x 3", {"num_workers": 3, "worker_method": "process"}),
        ("hdf5 x 3", {"num_workers": 2, "worker_method": "process", "persistent_workers": False}),
        ("hdf5", {"num_workers": 3, "worker_method": "thread", "persistent_workers": False}),
    ]
    for number, (place, options) in enumerate(ways):
        at = 1 + 2 * number
        with ready(places[place], order, transform=transform, **options) as resumed:
            resumed.load_state_dict(states[at])
            assert run(resumed, states[at]["epoch"]) == batches[at:]


@pytest.mark.parametrize("method", METHODS)
def test_a_state_can_be_loaded_in_mid_epoch_of_a_loader_with_work_done_ahead(
    places: dict[str, Path], method: Any
) -> None:
    """What the workers have made for the place before is not handed out."""
    it = ready(places["lmdb"], "shuffled", num_workers=2, worker_method=method)
    states, batches = states_and_batches(it)
    for number in (9, 2, 2, 15, 0, 8):
        it.load_state_dict(states[number])
        epoch = iter(it)
        assert digests([next(epoch)]) == batches[number : number + 1]
    it.load_state_dict(states[8])  # the beginning of the second epoch, which is in the making
    assert digests(it) == batches[8:16]
    it.close()


def test_a_state_says_where_the_loop_is_not_where_the_workers_are() -> None:
    it = loader(MemoryData(40), batch_size=4, transform=RRC, num_workers=3, prefetch_factor=7)
    epoch = iter(it)
    next(epoch)
    assert it.state_dict()["batch"] == 1
    assert it.state_dict()["epoch"] == 0
    list(epoch)
    assert (it.state_dict()["epoch"], it.state_dict()["batch"]) == (1, 0)
    iter(it)
    assert (it.state_dict()["epoch"], it.state_dict()["batch"]) == (1, 0)
    it.close()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("order", ["shuffled", "block", "weighted", "batch sampler"])
def test_resuming_touches_nothing_before(order: str, num_workers: int) -> None:
    whole = ready(MemoryData(COUNT), order)
    expected = [set((batch.label // 3).tolist()) for batch in whole]
    for number in (0, 2, len(expected) - 1):
        data = MemoryData(COUNT)
        options = {"num_workers": num_workers, "worker_method": "thread"}  # which it can look into
        it = ready(data, order, persistent_workers=False, **options)
        it.load_state_dict(whole.state_dict() | {"epoch": 0, "batch": number})
        assert len(list(it)) == len(expected) - number
        assert set(data.reads) == set().union(*expected[number:])
        assert set(data.read_ahead) <= set().union(*expected[number:])


def test_resuming_far_into_an_epoch_looks_up_no_more_than_at_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up: list[int] = []
    look_up = sampling_batches._CutEpoch._positions

    def count(epoch: Any, start: int, stop: int) -> Any:
        looked_up.append(stop - start)
        return look_up(epoch, start, stop)

    monkeypatch.setattr(sampling_batches._CutEpoch, "_positions", count)
    data = MemoryData(3_000_000, size=(4, 4))
    it = loader(data, batch_size=64, shuffle=True, num_workers=0)
    it.load_state_dict(it.state_dict() | {"epoch": 1000, "batch": 46_000})
    assert len(next(iter(it)).label) == 64
    assert len(looked_up) == 1
    assert looked_up[0] <= 8192
    assert len(data.reads) == 64


# -- other world sizes ------------------------------------------------------------------


def of_ranks(
    data: Any, order: str, world_size: int, state: dict[str, Any] | None, **options: Any
) -> Iterator[list[Any]]:
    """Yield the samples of each global batch, as fingerprints, of all ranks together."""
    size = ORDERS[order]["batch_size"] * 3  # 12: for 1, 2, 3, 4 and 6 ranks
    ranks = []
    for rank in range(world_size):
        it = ready(
            data, order, batch_size=size // world_size, rank=rank, world_size=world_size, **options
        )
        if state is not None:
            it.load_state_dict(state)
        ranks.append(iter(it))
    for parts in zip(*ranks, strict=True):
        samples = {
            int(label): digest([[image, mask]])
            for part in parts
            for image, mask, label in zip(part.image, part.mask, part.label, strict=True)
        }
        yield sorted(samples.items())


@pytest.mark.parametrize("order", ["shuffled", "drop last", "block", "weighted"])
def test_resuming_on_another_number_of_ranks(places: dict[str, Path], order: str) -> None:
    """With the same global batch size, each step has the same samples, pixels included."""
    it = ready(places["lmdb"], order, batch_size=12)
    states = [it.state_dict()]
    for _ in it:
        states.append(it.state_dict())
    whole = list(of_ranks(places["lmdb"], order, 1, None))
    assert len(whole) == len(states) - 1
    for world_size in (2, 3, 4, 6):
        for number, state in enumerate(states[:-1]):
            resumed = of_ranks(places["hdf5"], order, world_size, state)
            assert list(resumed) == whole[number:], (world_size, number)


@pytest.mark.parametrize("method", METHODS)
def test_ranks_with_workers_resume_what_one_caller_began(
    places: dict[str, Path], method: Any
) -> None:
    it = ready(places["lmdb"], "shuffled", batch_size=12)
    next(iter(it))
    options = {"num_workers": 1, "worker_method": method, "persistent_workers": False}
    resumed = list(of_ranks(places["hdf5 x 3"], "shuffled", 2, it.state_dict(), **options))
    assert resumed == list(of_ranks(places["lmdb"], "shuffled", 1, None))[1:]
    assert no_workers_soon()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    count=st.integers(1, 70),
    per_rank=st.integers(1, 5),
    world_size=st.integers(1, 4),
    into=st.integers(1, 4),
    drop_last=st.booleans(),
    shuffle=st.sampled_from([False, True, "block", BlockShuffle(block_size=2, window_blocks=3)]),
    at=st.integers(0, 100),
    epoch=st.integers(0, 3),
)
def test_any_place_means_the_same_on_any_number_of_ranks(
    count: int,
    per_rank: int,
    world_size: int,
    into: int,
    drop_last: bool,
    shuffle: Any,
    at: int,
    epoch: int,
) -> None:
    """`world_size` ranks take as many samples a step as `into` ranks after the resume."""
    data = MemoryData(count, size=(2, 2))

    def steps(ranks: int, batch_size: int, state: dict[str, Any] | None) -> list[set[int]]:
        found: list[set[int]] = []
        for rank in range(ranks):
            it = loader(
                data,
                batch_size=batch_size,
                shuffle=shuffle,
                drop_last=drop_last,
                rank=rank,
                world_size=ranks,
                num_workers=0,
            )
            it.set_epoch(epoch)
            if state is not None:
                it.load_state_dict(state)
            labels = [set(batch.label.tolist()) for batch in it]
            found = found or [set() for _ in labels]
            for step, part in zip(found, labels, strict=True):
                step |= part
        return found

    before = steps(world_size, per_rank * into, None)
    at = at % max(len(before), 1)
    one = loader(
        data, batch_size=per_rank * into, shuffle=shuffle, drop_last=drop_last, rank=0,
        world_size=world_size, num_workers=0,
    )  # fmt: skip
    state = one.state_dict() | {"epoch": epoch, "batch": at}
    assert steps(into, per_rank * world_size, state) == before[at:]


# -- states that mean something else ------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": [1.0] * COUNT}, "taken with weights "),
        ({"weights": None, "shuffle": True}, "order 'Weighted', but this loader has 'Shuffled'"),
        ({"weights": None, "batch_sampler": BATCHES, "batch_size": 1}, "order 'Weighted'"),
        ({"batch_size": 3}, r"4, but this loader has 3.*batch_size=4 on 1 ranks has the same"),
        (
            {"batch_size": 2, "rank": 1, "world_size": 3},
            "global_batch_size 4, .* has 6.*2 or 4 ranks have the same batches, 3 cannot",
        ),
        ({"even": False}, "taken with even True, but this loader has False"),
        ({"drop_last": True}, "taken with drop_last False, but this loader has True"),
        ({"seed": 8}, "taken with seed 3, but this loader has 8"),
    ],
)
def test_a_state_of_another_order_is_refused(
    places: dict[str, Path], change: dict[str, Any], message: str
) -> None:
    state = ready(places["lmdb"], "weighted").state_dict()
    with pytest.raises(OptionError, match=message):
        ready(places["hdf5"], "weighted", **change).load_state_dict(state)


def test_a_state_of_other_content_is_refused(places: dict[str, Path]) -> None:
    dataset = fastdata.open(places["lmdb"])
    state = ready(dataset, "sequential").state_dict()
    ready(fastdata.open(places["hdf5 x 3"]), "sequential").load_state_dict(state)
    with pytest.raises(OptionError, match="taken with digest"):
        ready(dataset[:20], "sequential").load_state_dict(state)
    with pytest.raises(OptionError, match="taken with digest"):
        ready(dataset[np.arange(COUNT)[::-1]], "sequential").load_state_dict(state)
    with pytest.raises(OptionError, match="taken with seed 3, but this loader has 8"):
        ready(dataset, "sequential", seed=8).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": -1}, "epoch=-1 is not an integer from 0"),
        ({"batch": 1.5}, "batch=1.5 is not an integer"),
        ({"batch": None}, "batch=None is not an integer"),
        ({"version": 2}, "not the state of a loader of this version"),
        ({"version": None}, "not the state of a loader of this version"),
    ],
)
def test_a_state_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    it = ready(MemoryData(COUNT), "shuffled")
    before = it.state_dict()
    with pytest.raises(OptionError, match=message):
        it.load_state_dict(before | change)
    assert it.state_dict() == before


def test_a_state_is_small_and_plain(places: dict[str, Path]) -> None:
    for order in ORDERS:
        state = ready(places["lmdb"], order).state_dict()
        text = json.dumps(state)
        assert json.loads(text) == state
        assert len(text) < 400
