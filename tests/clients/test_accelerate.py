"""Hugging Face Accelerate, run for real: epochs over ranks, accumulation, gathering, resuming.

The D-numbers are those of the faults that these tests would find.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import COUNT, RanksError, fingerprints, run_ranks, samples_of
from torch.utils.data import DistributedSampler, SequentialSampler, TensorDataset

import fastdata
from fastdata import transforms
from fastdata.errors import OptionError

accelerate = pytest.importorskip("accelerate")

from accelerate import Accelerator  # noqa: E402
from accelerate.utils import DataLoaderConfiguration  # noqa: E402

from fastdata.integrations.accelerate import prepare  # noqa: E402

SIZES = [4, 8, 13, 31, 96, 97, 100]
"""Batch sizes: for most numbers of ranks, the last batch has samples that are repeated."""


def accelerator_of(steps: int = 1, **config: Any) -> Accelerator:
    return Accelerator(
        cpu=True,
        gradient_accumulation_steps=steps,
        dataloader_config=DataLoaderConfiguration(**config),
    )


def random_loader(path: str, **options: Any) -> Any:
    """Return a loader whose batches differ by epoch in order, crops and flips."""
    return fastdata.loader(
        path,
        batch_size=8,
        shuffle=True,
        seed=5,
        num_workers=2,
        transform=[transforms.RandomCrop(24), transforms.RandomHorizontalFlip()],
        **options,
    )


# -- steps and samples -------------------------------------------------------------------


def count_steps(path: str, accumulated: int) -> tuple[int, int, int]:
    """Return batches, steps that changed the weights, and steps that Accelerate counts."""
    accelerator = accelerator_of(accumulated)
    linear = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.01)
    loader = fastdata.loader(path, batch_size=3, num_workers=0)
    model, optimizer, train = prepare(accelerator, linear, optimizer, loader)
    steps = told = 0
    for batch in train:
        with accelerator.accumulate(model):
            before = linear.weight.clone()
            accelerator.backward(model(batch.image.float().mean((2, 3))).mean())
            optimizer.step()
            optimizer.zero_grad()
            steps += not torch.equal(before, linear.weight)
            told += accelerator.sync_gradients
    assert not accelerator.gradient_state.in_dataloader
    return len(train), steps, told


@pytest.mark.parametrize(("ranks", "batches", "steps"), [(1, 33, 7), (2, 17, 4)])
def test_accumulation_takes_a_step_at_the_end_of_an_epoch(
    packed: str, ranks: int, batches: int, steps: int
) -> None:
    """D6: `accumulate(5)` takes ceil(batches / 5) steps."""
    assert run_ranks(count_steps, ranks, packed, 5) == [(batches, steps, steps)] * ranks


def gather(path: str, sizes: list[int]) -> list[Any]:
    """Return what is gathered of an epoch: samples and labels, by batch size."""
    accelerator, found = accelerator_of(), []
    for size in sizes:
        evaluation = prepare(accelerator, fastdata.loader(path, batch_size=size, num_workers=0))
        samples, objects, batches = [], [], 0
        for batch in evaluation:
            mine = samples_of(batch.image)
            samples += accelerator.gather_for_metrics(torch.tensor(mine)).tolist()
            objects += accelerator.gather_for_metrics([str(sample) for sample in mine], True)
            batches += 1
        assert batches == len(evaluation)
        found.append((samples, [int(sample) for sample in objects]))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_gathered_samples_are_the_dataset_in_its_order(packed: str, ranks: int) -> None:
    """D6: `gather_for_metrics` returns each sample exactly once, whatever the last batch has."""
    exact = list(range(COUNT))
    for found in run_ranks(gather, ranks, packed, SIZES):
        assert [samples for samples, _ in found] == [exact] * len(SIZES)
        assert [objects for _, objects in found] == [exact] * len(SIZES)


def gather_of_sampler(path: str) -> list[int]:
    accelerator = accelerator_of()
    loader = fastdata.loader(path, batch_size=8, sampler=SequentialSampler(range(50)))
    evaluation = prepare(accelerator, loader)
    gathered = [accelerator.gather_for_metrics(batch.label) for batch in evaluation]
    return torch.cat(gathered).tolist()


def test_a_sampler_of_fewer_samples_loses_none_of_them(packed: str) -> None:
    """D6: the last batch has 2 of 50 samples, not 1 as it would have of the dataset's 97."""
    assert run_ranks(gather_of_sampler, 1, packed) == [[sample % 10 for sample in range(50)]]


def epochs(path: str, numbers: list[int | None], **options: Any) -> list[list[Any]]:
    """Return what each epoch had: fingerprints of its images; of epoch None, whichever is next."""
    loader = random_loader(path, **options)  # before there is a process group
    train = prepare(accelerator_of(), loader)
    found = []
    for number in numbers:
        if number is not None:
            train.set_epoch(number)
        found.append([image for batch in train for image in fingerprints(batch.image)])
    return found


@pytest.mark.parametrize(("ranks", "drop_last"), [(1, False), (2, False), (2, True)])
def test_each_epoch_has_each_sample_once(packed: str, ranks: int, drop_last: bool) -> None:
    """D4, D5, D6: over all ranks; orders and draws differ by epoch, `set_epoch` brings one back."""
    by_rank = run_ranks(epochs, ranks, packed, [None, None, 5, 1], drop_last=drop_last)
    for passes in zip(*by_rank, strict=True):
        samples = [sample for share in passes for sample, *_ in share]
        assert len(set(samples)) == (96 if drop_last else COUNT)
        assert len(samples) - len(set(samples)) == (0 if drop_last else COUNT % ranks)
    for first, second, fifth, again in by_rank:
        assert second == again
        assert len({str(each) for each in (first, second, fifth)}) == 3
        draws = [{image[0]: image[1:] for image in each} for each in (first, second)]
        both = draws[0].keys() & draws[1].keys()
        assert any(draws[0][sample] != draws[1][sample] for sample in both)


# -- resuming ----------------------------------------------------------------------------


def train(
    path: str, folder: str, *, save_at: tuple[int, int] | None = None, skip: int | None = None
) -> list[Any]:
    """Train for 3 epochs; with `save_at`, save after that batch of that epoch and stop.

    Without, what is in `folder` is loaded, and with `skip` that many batches are left out as well.
    Returned is each batch, and at last the weights.
    """
    torch.manual_seed(0)
    accelerator = accelerator_of(2)
    linear = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(linear.parameters(), lr=1e-5)
    model, optimizer, batches = prepare(accelerator, linear, optimizer, random_loader(path))
    if save_at is None and any(Path(folder).iterdir()):
        accelerator.load_state(folder)
    found: list[Any] = []
    first = batches.epoch
    for epoch in range(first, 3):
        batches.set_epoch(epoch)
        active = batches
        if skip is not None and epoch == first:
            active = accelerator.skip_first_batches(batches, skip)
        for number, batch in enumerate(active):
            with accelerator.accumulate(model):
                accelerator.backward(model(batch.image.float().mean((2, 3))).mean())
                optimizer.step()
                optimizer.zero_grad()
            found.append((epoch, fingerprints(batch.image)))
            if save_at == (epoch, number):
                accelerator.save_state(folder)
                return found
    return [*found, linear.weight.tolist()]


@pytest.mark.parametrize(("ranks", "at"), [(1, "middle"), (2, "middle"), (2, "end")])
def test_a_resumed_run_is_the_uninterrupted_one(
    packed: str, tmp_path: Path, ranks: int, at: str
) -> None:
    """D2, D6: batches, draws and weights are equal after `load_state` and `set_epoch`."""
    (tmp_path / "none").mkdir()
    folder = str(tmp_path / "state")
    last = -(-COUNT // (8 * ranks)) - 1
    place = (1, 3 if at == "middle" else last)
    whole = run_ranks(train, ranks, packed, str(tmp_path / "none"))
    before = run_ranks(train, ranks, packed, folder, save_at=place)
    after = run_ranks(train, ranks, packed, folder)
    assert [one + two for one, two in zip(before, after, strict=True)] == whole
    if at == "middle":  # which scripts do that were written for a stock DataLoader
        assert run_ranks(train, ranks, packed, folder, skip=4) == after


def skipping(path: str) -> tuple[Any, ...]:
    accelerator = accelerator_of(5)
    train = prepare(accelerator, random_loader(path))
    train.set_epoch(2)
    rest = accelerator.skip_first_batches(train, 9)
    ends, found = [], []
    for batch in rest:
        found.append(fingerprints(batch.image))
        ends.append(accelerator.gradient_state.end_of_dataloader)
    train.set_epoch(2)
    whole = [fingerprints(batch.image) for batch in train]
    again = [fingerprints(batch.image) for batch in accelerator.skip_first_batches(rest, 1)]
    train.load_state_dict({**train.state_dict(), "batch": 2})
    with pytest.raises(OptionError, match=r"leave out 9 batches, .* at batch 2"):
        next(iter(rest))
    with pytest.raises(OptionError, match=r"loader\.skip\(n\)"):  # the function of the module
        next(iter(accelerate.skip_first_batches(train, 3)))
    stock = accelerate.Accelerator.skip_first_batches
    others = torch.utils.data.DataLoader(range(9), batch_size=2)
    left = [list(one) for one in accelerator.skip_first_batches(others, 3)]
    assert left == [list(one) for one in stock(accelerator, others, 3)]
    return len(rest), ends, found == whole[9:], len(whole), len(again)


def test_the_first_batches_can_be_skipped(packed: str) -> None:
    """D6: they are left out of one pass, and Accelerate sees its end."""
    ends = [False] * 3 + [True]
    assert run_ranks(skipping, 1, packed) == [(4, ends, True, 13, 3)]


# -- how it fits together ------------------------------------------------------------------


def inside(path: str) -> list[Any]:
    """Evaluate inside of a training epoch, and leave an epoch early."""
    accelerator = accelerator_of(5)
    model, train, evaluation = prepare(
        accelerator,
        torch.nn.Linear(3, 1),
        fastdata.loader(path, batch_size=8, num_workers=0),
        fastdata.loader(path, batch_size=40, num_workers=0),
    )
    state, found = accelerator.gradient_state, []
    for _ in train:
        with accelerator.accumulate(model):
            inner = [(state.end_of_dataloader, state.remainder) for _ in evaluation]
            found.append((accelerator.sync_gradients, state.end_of_dataloader, inner))
    for _ in train:
        break
    return [*found, state.in_dataloader]


def test_an_evaluation_inside_of_an_epoch_leaves_it_as_it_is(packed: str) -> None:
    """D6: the end and the remainder are those of the innermost loader."""
    (found,) = run_ranks(inside, 1, packed)
    evaluation = [(False, 17), (False, 17), (True, 17)]
    steps = [(number in (5, 10, 13), number == 13, evaluation) for number in range(1, 14)]
    assert found == [*steps, False]


def placing(path: str) -> tuple[Any, ...]:
    accelerator = accelerator_of()
    first = fastdata.loader(path, batch_size=8, num_workers=0)
    train = prepare(accelerator, first)
    assert accelerator.prepare(train) is train
    assert prepare(accelerator, train) is train
    assert accelerator._dataloaders == [train]
    assert isinstance(train, torch.utils.data.DataLoader)
    with pytest.raises(AttributeError, match="batch_size of a fastdata loader cannot be set"):
        train.batch_size = 4
    shown = len(train), train.batch_size, train.drop_last, len(train.dataset), len(train.sampler)
    devices = [next(iter(train)).image.device.type]
    accelerator.state.device = torch.device("meta")
    batch = next(iter(train))
    devices += [batch.image.device.type, batch.label.device.type]
    accelerator.device_placement = False
    devices += [next(iter(train)).image.device.type]
    return shown, devices, type(batch)._fields


def test_batches_are_on_the_device_and_the_loader_is_a_dataloader(packed: str) -> None:
    """D6: also through a second `prepare`; the named tuple stays what it is."""
    shown = (13, 8, False, COUNT, COUNT)
    devices = ["cpu", "meta", "meta", "cpu"]
    assert run_ranks(placing, 1, packed) == [(shown, devices, ("image", "label"))]


def warned(path: str, prepared: bool) -> list[str]:
    accelerator = accelerator_of()
    loader = fastdata.loader(path, batch_size=8, num_workers=0)
    used = prepare(accelerator, loader) if prepared else accelerator.prepare(loader)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            next(iter(used))
    return [str(warning.message) for warning in caught]


def test_a_loader_that_is_not_prepared_warns(packed: str) -> None:
    """D6: where it is used with Accelerate; once."""
    ((warning,),) = run_ranks(warned, 1, packed, False)
    assert "fastdata.integrations.accelerate.prepare(accelerator, loader)" in warning
    assert run_ranks(warned, 1, packed, True) == [[]]


def refused(path: str, config: dict[str, Any], **options: Any) -> Any:
    accelerator = accelerator_of(**config)
    prepare(accelerator, fastdata.loader(path, batch_size=8, num_workers=0, **options))


def refused_stock() -> Any:
    accelerator = accelerator_of()
    dataset = TensorDataset(torch.arange(97))
    rank, ranks = accelerator.process_index, accelerator.num_processes
    loader = fastdata.loader(dataset, batch_size=8, num_workers=0, rank=rank, world_size=ranks)
    prepare(accelerator, loader)


def refused_sampler(path: str) -> Any:
    refused(path, {}, sampler=DistributedSampler(range(97), 2, 0))


@pytest.mark.parametrize(
    ("ranks", "config", "options", "message"),
    [
        (1, {"split_batches": True}, {}, "leave out split_batches and dispatch_batches"),
        (1, {"dispatch_batches": True}, {}, "leave out split_batches and dispatch_batches"),
        (1, {}, {"rank": 0, "world_size": 2}, "among 2 ranks, not 1 data-parallel"),
        (2, {}, {"rank": 0, "world_size": 1}, "among 1 ranks, not 2 data-parallel"),
        (2, {}, {"even": False}, "would be waited for without end"),
        (2, {"even_batches": False}, {}, "would be waited for without end"),
        (
            2,
            {},
            {"cache": "ram", "cache_scope": "rank"},
            "it repeats 1 samples in any of its batches",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    packed: str, ranks: int, config: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    """D6: none of them hangs, aborts a rank or gives other samples in silence."""
    with pytest.raises(RanksError, match=f"OptionError: this Loader cannot .*{message}"):
        run_ranks(refused, ranks, packed, config, **options)


def test_shares_are_not_divided_once_more(packed: str) -> None:
    """D6: a sampler that divides by ranks itself, of packed data and of any other."""
    with pytest.raises(RanksError, match="among 1 ranks, not 2 data-parallel"):
        run_ranks(refused_sampler, 2, packed)
    with pytest.raises(RanksError, match="DistributedSampler has divided already"):
        run_ranks(refused_stock, 2)


def gather_unpacked(when: str) -> list[int]:
    dataset = TensorDataset(torch.arange(COUNT))
    accelerator = None if when == "before" else accelerator_of()
    loader = fastdata.loader(dataset, batch_size=8, num_workers=0)
    accelerator = accelerator or accelerator_of()
    prepared = accelerator.prepare(loader)
    found = [accelerator.gather_for_metrics(samples).tolist() for (samples,) in prepared]
    return sorted(sample for batch in found for sample in batch)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_dataset_that_is_not_packed_is_divided_once(when: str) -> None:
    """Made before or after `Accelerator()`, a stock `DataLoader` is Accelerate's to divide."""
    assert run_ranks(gather_unpacked, 2, when) == [list(range(COUNT))] * 2
