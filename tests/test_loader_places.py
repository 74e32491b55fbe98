"""Epochs and places of a loader, told in the ways that training loops and libraries tell them."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from memory_data import MemoryData, digest
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)
from worker_helpers import RRC, worker_threads

from fastdata.errors import OptionError
from fastdata.loading import Loader, loader

COUNT = 20

pytestmark = pytest.mark.usefixtures("workers_are_threads")


def made(**options: Any) -> Loader:
    defaults: dict[str, Any] = {
        "batch_size": 4,
        "shuffle": True,
        "transform": RRC,
        "num_workers": 2,
    }
    found = loader(MemoryData(COUNT), **{**defaults, **options})
    assert isinstance(found, Loader)
    return found


def epochs(it: Loader, *numbers: int) -> list[str]:
    """Return the fingerprints of a loader's batches in these epochs."""
    found = []
    for number in numbers:
        it.set_epoch(number)
        found += [digest([batch]) for batch in it]
    return found


def digests(it: Any) -> list[str]:
    return [digest([batch]) for batch in it]


@pytest.fixture
def truth() -> list[str]:
    """Fingerprints of the batches of epochs 0 to 5, five an epoch."""
    with made(num_workers=0) as it:
        return [one for _ in range(6) for one in digests(it)]


# -- D2: a loaded place and set_epoch ---------------------------------------------------


def test_a_loaded_place_is_kept_by_set_epoch_of_its_epoch(truth: list[str]) -> None:
    state = {**made().state_dict(), "epoch": 3, "batch": 2}
    with made() as it:
        it.load_state_dict(state)
        resumed = []
        for epoch in range(3, 6):
            it.set_epoch(epoch)
            resumed += digests(it)
    assert resumed == truth[17:]


def test_set_epoch_of_another_epoch_begins_at_its_beginning(truth: list[str]) -> None:
    state = {**made().state_dict(), "epoch": 3, "batch": 2}
    with made() as it:
        it.load_state_dict(state)
        it.set_epoch(4)
        assert digests(it) == truth[20:25]
        it.load_state_dict(state)
        it.set_epoch(2)
        it.set_epoch(3)
        assert digests(it) == truth[15:20], "the place was given up by the epoch before"


def test_an_epoch_can_be_had_again_after_it_was_resumed(truth: list[str]) -> None:
    with made() as it:
        it.load_state_dict({**it.state_dict(), "epoch": 1, "batch": 3})
        assert digests(it) == truth[8:10]
        it.set_epoch(1)
        assert digests(it) == truth[5:10]


# -- D4: iterators that give nothing, and loader.sampler.set_epoch -----------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_iterators_that_give_nothing_count_for_nothing(truth: list[str], num_workers: int) -> None:
    with made(num_workers=num_workers) as it:
        for epoch in range(3):
            iter(it)
            kept = iter(it)
            assert digests(iter(it)) == truth[5 * epoch : 5 * epoch + 5]
            assert it.state_dict()["epoch"] == epoch + 1
            del kept


def test_an_iterator_is_of_the_epoch_that_is_next_at_its_first_batch(truth: list[str]) -> None:
    with made() as it:
        begun = iter(it)
        it.sampler.set_epoch(4)
        assert digests(begun) == truth[20:25]
        begun = iter(it)
        it.load_state_dict({**it.state_dict(), "epoch": 2, "batch": 1})
        assert digests(begun) == truth[11:15]
        begun = iter(it)
        it.skip(3)
        assert digests(begun) == truth[18:20]


def test_an_iterator_that_has_given_a_batch_stays_where_it_is(truth: list[str]) -> None:
    with made() as it:
        begun = iter(it)
        first = digest([next(begun)])
        it.set_epoch(4)
        assert [first, *digests(begun)] == truth[:5]
        assert digests(it) == truth[20:25]


def test_work_begins_with_the_iterator_and_is_used_by_its_first_batch() -> None:
    data = MemoryData(100)
    with loader(data, batch_size=5, transform=RRC, num_workers=2) as it:
        assert isinstance(it, Loader)
        iter(it)
        iter(it)
        list(iter(it))
    assert set(data.reads) == set(range(100))
    assert len(data.reads) <= 100 + 3 * 5, "no more than the epoch and what is ahead of the next"


def test_iterators_that_are_dropped_leave_no_threads_without_persistent_workers() -> None:
    with made(persistent_workers=False) as it:
        begun = iter(it)
        assert worker_threads()
        del begun
        assert worker_threads() == []
        assert len(list(it)) == 5


def test_a_closed_iterator_gives_nothing() -> None:
    with made() as it:
        begun: Any = iter(it)
        begun.close()
        assert list(begun) == []
        assert it.state_dict()["epoch"] == 0


# -- skip ----------------------------------------------------------------------------


def test_skip_leaves_out_batches_of_the_next_pass_alone(truth: list[str]) -> None:
    with made() as it:
        assert digests(it.skip(2)) == truth[2:5]
        assert digests(it) == truth[5:10]
        assert digests(it.skip(1).skip(2)) == truth[13:15]
        assert digests(it.skip(9)) == []
        assert digests(it) == truth[20:25]
        with pytest.raises(OptionError, match="batches=-1 is not an integer from 0"):
            it.skip(-1)


def test_skip_counts_from_a_loaded_place_and_is_part_of_the_state(truth: list[str]) -> None:
    with made() as it:
        it.load_state_dict({**it.state_dict(), "epoch": 1, "batch": 1})
        it.skip(2)
        state = it.state_dict()
        assert (state["epoch"], state["batch"]) == (1, 3)
        assert digests(it) == truth[8:10]


# -- D3: a sampler of the user's ----------------------------------------------------------


def order(it: Any) -> list[int]:
    return [label // 3 for batch in it for label in batch.label.tolist()]


def sampler_of(**options: Any) -> DistributedSampler[int]:
    return DistributedSampler(range(COUNT), num_replicas=2, rank=1, seed=5, **options)  # type: ignore[arg-type]


def expected_order(epoch: int) -> list[int]:
    sampler = sampler_of()
    sampler.set_epoch(epoch)
    return list(sampler)


def labelled(sampler: Any) -> Loader:
    found = loader(MemoryData(COUNT), batch_size=3, sampler=sampler, num_workers=0, transform=RRC)
    assert isinstance(found, Loader)
    return found


def test_a_sampler_keeps_the_epoch_that_it_is_given() -> None:
    sampler = sampler_of()
    it = labelled(sampler)
    for epoch in (5, 2, 3, 0):
        sampler.set_epoch(epoch)
        assert order(it) == expected_order(epoch)
        assert it.state_dict()["epoch"] == epoch + 1, "draws follow the sampler's epoch"
    assert order(it) == expected_order(0), "kept, also where it was set once for two passes"


def test_a_sampler_that_nobody_sets_gets_the_loaders_epochs() -> None:
    it = labelled(sampler_of())
    assert [order(it) for _ in range(3)] == [expected_order(epoch) for epoch in range(3)]
    it.set_epoch(7)
    assert order(it) == expected_order(7)


def test_a_sampler_that_is_set_before_its_loader_is_made_keeps_that_epoch() -> None:
    sampler = sampler_of()
    for epoch in (0, 3, 4):  # a loader an epoch, as scripts make them
        sampler.set_epoch(epoch)
        it = labelled(sampler)
        assert order(it) == expected_order(epoch)
        assert it.state_dict()["epoch"] == epoch + 1
    assert order(it) == expected_order(5), "the loader counts on from there"
    assert order(copy.deepcopy(it)) == order(it) == expected_order(6)


@pytest.mark.parametrize("before", [True, False])
def test_a_state_before_the_first_batch_has_the_samplers_epoch(before: bool) -> None:
    sampler = sampler_of()
    if before:
        sampler.set_epoch(7)
    it = labelled(sampler)
    if not before:
        sampler.set_epoch(7)
    assert it.epoch == it.state_dict()["epoch"] == 7
    resumed = labelled(sampler_of())
    resumed.load_state_dict(it.state_dict())
    assert order(resumed) == order(it) == expected_order(7)


def test_a_loop_that_sets_the_samplers_epoch_can_be_resumed() -> None:
    sampler = sampler_of()
    it = labelled(sampler)
    sampler.set_epoch(4)
    begun = iter(it)
    next(begun)
    state = it.state_dict()
    rest = order(begun)
    for first in ("sampler", "state"):
        again = sampler_of()
        resumed = labelled(again)
        if first == "sampler":
            again.set_epoch(4)
        resumed.load_state_dict(state)
        if first == "state":
            again.set_epoch(4)
        assert order(resumed) == rest


def test_a_sampler_whose_epoch_is_not_to_be_seen_is_left_to_others() -> None:
    class Hidden:
        asked: list[int] = []  # noqa: RUF012

        def set_epoch(self, epoch: int) -> None:
            self.asked.append(epoch)

        def __iter__(self) -> Iterator[int]:
            return iter(range(COUNT))

        def __len__(self) -> int:
            return COUNT

    sampler = Hidden()
    it = labelled(sampler)
    list(it)
    assert sampler.asked == []
    it.set_epoch(3)
    list(it)
    list(it)
    assert sorted({*sampler.asked}) == [3, 4], "once asked for an epoch, the loader tells it"


def test_what_a_library_sees_of_the_order() -> None:
    own = sampler_of()
    assert labelled(own).sampler is own
    assert isinstance(made(shuffle=False).sampler, SequentialSampler)
    assert isinstance(made().sampler, RandomSampler)
    assert isinstance(made(shuffle=False, weights=[1.0] * COUNT).sampler, RandomSampler)
    plain = labelled(range(5)).sampler
    assert not isinstance(plain, (RandomSampler, SequentialSampler))
    assert len(plain) == 5
    assert len(made().sampler) == COUNT
    assert len(made(rank=1, world_size=3).sampler) == 7
    batch_sampler = made(drop_last=True).batch_sampler
    assert (batch_sampler.batch_size, batch_sampler.drop_last, len(batch_sampler)) == (4, True, 5)


def test_a_stock_loader_cannot_be_made_of_the_samplers(truth: list[str]) -> None:
    it = made()
    rebuilt = torch.utils.data.DataLoader(it.dataset, batch_sampler=it.batch_sampler)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"batch_sampler of a fastdata loader cannot be iterated"):
        next(iter(rebuilt))
    with pytest.raises(OptionError, match=r"loader\.skip\(n\)"):
        list(it.sampler)
    it.batch_sampler.set_epoch(1)
    assert digests(it) == truth[5:10]
    it.batch_sampler.sampler.set_epoch(3)
    assert digests(it) == truth[15:20]


# -- D5: ranks ------------------------------------------------------------------------------


def test_ranks_are_those_of_when_a_pass_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    it = made(shuffle=False, num_workers=0)
    assert (len(it), it.rank, it.world_size) == (5, 0, 1)
    begun = iter(it)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert (len(it), it.rank, it.world_size) == (3, 1, 2)
    assert made(rank=0, world_size=1).world_size == 1, "what is given wins"
    assert order(begun) == [4, 5, 6, 7, 12, 13, 14, 15, 18, 19]
    assert it.state_dict()["global_batch_size"] == 8


def test_ranks_may_not_change_in_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    it = made(num_workers=0)
    begun = iter(it)
    next(begun)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(OptionError, match=r"rank 0 of 1 when its epoch began .* is 0 of 2"):
        iter(it)
    list(begun)
    assert it.world_size == 2
    it.load_state_dict({**it.state_dict(), "batch": 1})
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(OptionError, match="or its state was loaded"):
        list(it)


def test_without_a_group_the_environment_says_the_rank(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fastdata.distributed._logged", set())
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with caplog.at_level(logging.INFO, "fastdata"):
        it = made(shuffle=False, num_workers=0)
        assert len(it) == 3
        assert caplog.messages == [], "nothing is loaded yet"
        assert [len(batch.label) for _ in range(2) for batch in it] == [4, 4, 2] * 2
    assert caplog.messages == [
        "loading as rank 1 of 2, as RANK and WORLD_SIZE say: no process group is initialised"
    ]


def test_a_world_without_a_rank_is_refused_when_data_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    it = made()
    assert len(it) == 3, "as many on either rank"
    with pytest.raises(OptionError, match=r"WORLD_SIZE=2 and RANK=None, and no process group"):
        iter(it)
    monkeypatch.setenv("RANK", "two")
    with pytest.raises(OptionError, match=r"RANK=two, which is not a number"):
        iter(it)
    assert made(rank=1, world_size=3).world_size == 3, "what is given wins"


# -- D5: pickling ------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_of_a_loader_goes_on_at_the_same_place(truth: list[str], copied: Any) -> None:
    with made() as it:
        assert digests(copied(it)) == truth[:5]
        digests(it)
        with copied(it.skip(2)) as second:
            assert digests(second) == truth[7:10]
        assert digests(it) == truth[7:10]


def test_a_loader_in_the_middle_of_an_epoch_is_not_copied() -> None:
    with made() as it:
        begun = iter(it)
        pickle.dumps(it)
        next(begun)
        with pytest.raises(
            OptionError, match="cannot be pickled or copied while an epoch is under"
        ):
            pickle.dumps(it)


# -- seeds -------------------------------------------------------------------------------------


def test_a_seed_of_none_is_torchs() -> None:
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append((digests(made(seed=None)), digests(made(seed=None))))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1], "two loaders differ"
    assert found[0] != found[2]


def test_a_seed_that_is_given_is_not_torchs(truth: list[str]) -> None:
    torch.manual_seed(123)
    assert digests(made()) == truth[:5]
    assert digests(made(seed=1)) != truth[:5]
    with pytest.raises(OptionError, match="seed='x' is not None or an integer from 0"):
        made(seed="x")


def test_a_loader_with_a_seed_of_none_resumes_with_the_seed_of_the_state() -> None:
    torch.manual_seed(1)
    it = made(seed=None)
    begun = iter(it)
    next(begun)
    state = it.state_dict()
    rest = digests(begun)
    torch.manual_seed(2)
    resumed = made(seed=None)
    resumed.load_state_dict(state)
    assert digests(resumed) == rest
    with pytest.raises(OptionError, match="the state was taken with seed"):
        made().load_state_dict(state)


def test_a_copy_of_a_loader_with_a_seed_of_none_draws_nothing() -> None:
    it = made(seed=None)
    before = torch.get_rng_state()
    second = copy.deepcopy(it)
    assert torch.equal(torch.get_rng_state(), before)
    assert digests(second) == digests(it)


def test_ranks_that_cannot_agree_on_a_seed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    it = made(seed=None, rank=0, world_size=2)
    with pytest.raises(OptionError, match="seed=None with 2 ranks, but no process group"):
        iter(it)


# -- strict=False -----------------------------------------------------------------------------


def test_another_batch_size_continues_behind_as_many_samples(truth: list[str]) -> None:
    state = {**made(shuffle=False).state_dict(), "epoch": 1, "batch": 3}
    it = made(shuffle=False, batch_size=5)
    with pytest.raises(
        OptionError, match=r"global_batch_size 4, but this loader has 5.*strict=False"
    ):
        it.load_state_dict(state)
    with pytest.warns(
        UserWarning, match="global_batch_size 4, .* continuing at batch 2 of epoch 1"
    ):
        it.load_state_dict(state, strict=False)
    assert order(it) == list(range(10, 20)), "12 samples were done, and batches are of 5"


def test_another_dataset_continues_where_it_can() -> None:
    state = {**made().state_dict(), "epoch": 1, "batch": 3}
    it = loader(MemoryData(8), batch_size=4, num_workers=0, transform=RRC, shuffle=True)
    assert isinstance(it, Loader)
    with pytest.warns(UserWarning, match=r"samples 20, .* continuing at batch 0 of epoch 2"):
        it.load_state_dict(state, strict=False)
    assert it.state_dict()["epoch"] == 2


# -- the surface of a DataLoader ------------------------------------------------------------------


def test_a_loader_has_what_a_dataloader_has() -> None:
    stock = torch.utils.data.DataLoader([1, 2, 3])  # type: ignore[arg-type]
    it = made()
    names = [name for name in vars(stock) if not name.startswith("_")]
    missing = [name for name in names if not hasattr(it, name)]
    assert missing == ["worker_init_fn"], "which Lightning would set, if it were there"
    assert (it.batch_size, it.drop_last, it.num_workers, it.prefetch_factor) == (4, False, 2, 2)
    assert (it.timeout, it.collate_fn, it.generator) == (0, None, None)
    assert loader(MemoryData(3), batch_sampler=[[1], [2]]).batch_size is None  # type: ignore[union-attr]


def test_a_loader_is_no_dataloader() -> None:
    assert not isinstance(made(), torch.utils.data.DataLoader)


@pytest.mark.parametrize("name", ["batch_size", "sampler", "timeout", "transform", "epoch"])
def test_attributes_of_a_loader_cannot_be_set(name: str) -> None:
    with pytest.raises(AttributeError, match=f"{name} of a fastdata loader cannot be set"):
        setattr(made(), name, 1)


def test_values_that_ask_for_nothing_are_taken(truth: list[str]) -> None:
    it = loader(
        MemoryData(COUNT),
        4,
        True,
        transform=RRC,
        num_workers=0,
        prefetch_factor=None,
        timeout=0,
        collate_fn=None,
        worker_init_fn=None,
        multiprocessing_context=None,
        generator=None,
        pin_memory_device="",
        in_order=True,
        persistent_workers=None,  # type: ignore[arg-type]
        pin_memory=None,  # type: ignore[arg-type]
    )
    assert digests(it) == truth[:5]
    assert order(loader(MemoryData(5), shuffle=None, num_workers=0)) == list(range(5))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"collate_fn": list}, "batch_format=, names= and image_lists="),
        ({"timeout": 3}, "a worker that dies is noticed at once"),
        ({"worker_init_fn": print}, "workers have nothing to be initialised"),
        ({"generator": torch.Generator()}, r"seed=generator\.initial_seed\(\)"),
        ({"pin_memory_device": "cuda"}, "device= says where"),
        ({"in_order": False}, "batches come in order"),
    ],
)
def test_other_values_are_refused_with_what_to_do(options: dict[str, Any], instead: str) -> None:
    name = next(iter(options))
    with pytest.raises(OptionError, match=f"{name} is not an option of a loader .*: .*{instead}"):
        made(**options)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("batchsize", "batch_size"),
        ("transforms", "transform"),
        ("num_worker", "num_workers"),
        ("colate_fn", "collate_fn"),
        ("cachedir", "cache_dir"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_right_one(
    name: str, meant: str, packed: bool
) -> None:
    data: Any = MemoryData(COUNT) if packed else TensorDataset(torch.zeros(3))
    with pytest.raises(OptionError, match=f"no option '{name}'. Did you mean '{meant}'"):
        loader(data, **{name: None})


def test_an_option_like_no_other_is_refused() -> None:
    with pytest.raises(OptionError, match=r"no option 'zzz'\.$"):
        made(zzz=1)


def test_the_name_of_a_transform_is_no_transform() -> None:
    with pytest.raises(OptionError, match="not the str 'RandomResizedCrop'"):
        made(transform="RandomResizedCrop")
    with pytest.raises(OptionError, match=r"not the int 224$"):
        made(transform=[224])


# -- dicts and names ------------------------------------------------------------------------------


def test_batches_can_be_dicts_with_the_names_of_a_model() -> None:
    plain = next(iter(made()))
    batch = next(iter(made(batch_format="dict", names={"image": "pixel_values"})))
    assert list(batch) == ["pixel_values", "label"]
    assert torch.equal(batch["pixel_values"], plain.image)
    assert torch.equal(batch["label"], plain.label)
    named = next(iter(made(names={"label": "labels"})))
    assert torch.equal(named.labels, plain.label)
    with pytest.raises(OptionError, match="there is no field 'picture'"):
        made(names={"picture": "pixel_values"})


@pytest.mark.parametrize("cache", [None, "device"])
def test_a_drawn_seed_is_not_replaced_under_an_epoch_that_is_under_way(cache: Any) -> None:
    # The iterator would give its workers back, and they draw from the seed before.
    with made(seed=123, cache=cache) as it:
        next(begun := iter(it))
        state = it.state_dict()
        rest = digests(begun)
    with made(seed=None, cache=cache) as resumed:
        next(begun := iter(resumed))
        with pytest.raises(OptionError, match="an epoch is under way"):
            resumed.load_state_dict(state)
        begun.close()  # type: ignore[attr-defined]
        with pytest.raises(OptionError, match="seed='x' is not an integer from 0"):
            resumed.load_state_dict({**state, "seed": "x"})
        resumed.load_state_dict(state)
        assert digests(resumed) == rest
        next(iter(resumed))
        resumed.load_state_dict(state)
        assert digests(resumed) == rest


def test_a_loader_of_parts_continues_behind_as_many_samples() -> None:
    with made() as whole:
        begun = iter(whole)
        next(begun), next(begun), next(begun)
        state = whole.state_dict()
        begun.close()  # type: ignore[attr-defined]
    # 12 samples of 20: on each of two ranks, three batches of two.
    parts = {"cache": "device", "cache_scope": "rank", "rank": 0, "world_size": 2}
    with made(batch_size=2, **parts) as it:
        with pytest.warns(UserWarning, match="continuing at batch 3 of epoch 0"):
            it.load_state_dict(state, strict=False)
        assert len(digests(it)) == len(it) - 3
