"""Hugging Face's Trainer, run for real: training, resuming, evaluation and prediction.

The D-numbers are those of the faults that these tests would find.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import COUNT, RanksError, fingerprints, run_ranks, samples_of
from torch.nn.functional import cross_entropy
from torch.utils.data import random_split

import fastdata
from fastdata import transforms

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import Trainer, TrainerCallback, TrainingArguments

from fastdata.integrations.transformers import FastdataTrainerMixin

NAMES = {"image": "pixel_values", "label": "labels"}


class Tiny(torch.nn.Module):
    """A classifier of the mean colour; its second output is the sample's number.

    Dropout makes a resumed run depend on the state of torch's generator too.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 10)
        self.dropout = torch.nn.Dropout(0.2)
        self.seen: list[Any] = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        if self.training:
            self.seen.append(fingerprints(pixel_values))
        logits = self.linear(self.dropout(pixel_values.mean((2, 3))))
        answer = {"logits": logits, "samples": pixel_values[:, 0, 0, 0] * 255}
        return answer if labels is None else {"loss": cross_entropy(logits, labels), **answer}


class LikeVit(Tiny):
    """Takes what models of transformers do; Trainer then has their losses divided by all labels."""

    def forward(self, pixel_values: torch.Tensor, labels: Any = None, **others: Any) -> Any:
        answer = super().forward(pixel_values, labels)
        count = others.get("num_items_in_batch")
        if count is not None:
            answer["loss"] = cross_entropy(answer["logits"], labels, reduction="sum") / count
        return answer


class PackedTrainer(FastdataTrainerMixin, Trainer):
    """What a user writes."""


class StopAt(TrainerCallback):
    """Saves at a step and stops, as if the run was interrupted."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True
        return control


def arguments(folder: str, **options: Any) -> TrainingArguments:
    usual: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "num_train_epochs": 3,
        "learning_rate": 0.01,
        "save_strategy": "no",
        "disable_tqdm": True,
        "report_to": "none",
        "use_cpu": True,
        "data_seed": 7,
    }
    return TrainingArguments(folder, **usual | options)


def random_data(path: str) -> Any:
    """Return a dataset whose crops and flips differ by epoch."""
    random = [transforms.RandomCrop(24), transforms.RandomHorizontalFlip()]
    return fastdata.open(path, transform=[*random, transforms.ToDtype(torch.float32)])


def plain_data(path: str) -> Any:
    return fastdata.open(path, transform=transforms.ToDtype(torch.float32))


# -- training ------------------------------------------------------------------------------


def train(
    path: str, folder: str, *, stop_at: int | None = None, resume: bool = False, **options: Any
) -> tuple[list[Any], int, list[Any]]:
    """Return the batches of training on this rank, how many steps were taken, and the weights."""
    model = Tiny()
    trainer = PackedTrainer(model, arguments(folder, **options), train_dataset=random_data(path))
    if stop_at is not None:
        trainer.add_callback(StopAt(stop_at))
    trainer.train(resume_from_checkpoint=resume)
    return model.seen, trainer.state.global_step, model.linear.weight.tolist()


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_epoch_has_each_sample_once(packed: str, tmp_path: Path, ranks: int) -> None:
    """D4, D6, D8: orders and draws differ by epoch."""
    by_rank = [seen for seen, *_ in run_ranks(train, ranks, packed, str(tmp_path))]
    batches = -(-COUNT // (8 * ranks))
    orders, draws = [], []
    for epoch in range(3):
        shares = [seen[epoch * batches : (epoch + 1) * batches] for seen in by_rank]
        images = [image for share in shares for batch in share for image in batch]
        orders.append([sample for sample, *_ in images])
        draws.append({image[0]: image[1:] for image in images})
        assert set(orders[-1]) == set(range(COUNT))
        assert len(orders[-1]) == COUNT + COUNT % ranks
    assert all(len(seen) == 3 * batches for seen in by_rank)
    for first, second in [(0, 1), (1, 2), (0, 2)]:
        assert orders[first] != orders[second]
        assert draws[first] != draws[second]


@pytest.mark.parametrize(("ranks", "steps"), [(1, 3), (2, 2)])
def test_accumulation_takes_exactly_its_steps(
    packed: str, tmp_path: Path, ranks: int, steps: int
) -> None:
    """D6: 13 batches, or 7 on each of 2 ranks, by 5 are 3 steps an epoch, or 2."""
    found = run_ranks(train, ranks, packed, str(tmp_path), gradient_accumulation_steps=5)
    assert [taken for _, taken, _ in found] == [3 * steps] * ranks
    assert all(len(seen) == 3 * -(-COUNT // (8 * ranks)) for seen, *_ in found)


@pytest.mark.parametrize(
    ("ranks", "place", "accumulated"), [(1, "middle", 2), (2, "middle", 1), (2, "end", 1)]
)
def test_a_resumed_run_is_the_uninterrupted_one(
    packed: str, tmp_path: Path, ranks: int, place: str, accumulated: int
) -> None:
    """D2, D4, D6: batches, draws, steps and weights."""
    batches = -(-COUNT // (8 * ranks))
    steps = -(-batches // accumulated)
    at = steps + 2 if place == "middle" else 2 * steps
    options = {"gradient_accumulation_steps": accumulated}
    whole = run_ranks(train, ranks, packed, str(tmp_path / "whole"), **options)
    folder = str(tmp_path / "part")
    before = run_ranks(train, ranks, packed, folder, stop_at=at, **options)
    after = run_ranks(train, ranks, packed, folder, resume=True, **options)
    for (seen, taken, weights), (part, stopped, _), (rest, last, resumed) in zip(
        whole, before, after, strict=True
    ):
        assert (stopped, last) == (at, taken)
        assert part + rest == seen
        assert resumed == weights


# -- evaluation ------------------------------------------------------------------------------


def evaluate(path: str, folder: str, model: type[Tiny], size: int) -> tuple[Any, ...]:
    metrics: list[Any] = []

    def compute(prediction: Any) -> dict[str, float]:
        metrics.append([part.tolist() for part in prediction.predictions[1:]])
        return {"labels": float(np.sum(prediction.label_ids))}

    trainer = PackedTrainer(
        model(),
        arguments(folder, per_device_eval_batch_size=size, dataloader_drop_last=True),
        eval_dataset=plain_data(path),
        compute_metrics=compute,
    )
    first = trainer.evaluate()
    again = trainer.evaluate()
    loader = trainer.get_eval_dataloader()
    assert loader is trainer.get_eval_dataloader()
    keys = ("eval_loss", "eval_labels")
    predicted = trainer.predict(plain_data(path))
    return (
        [first[key] for key in keys],
        [again[key] for key in keys],
        metrics,
        [round(value) for value in predicted.predictions[1]],
        predicted.label_ids.tolist(),
        trainer.num_examples(loader),
    )


def true_loss(path: str) -> float:
    """Return the mean loss of all samples, by another way."""
    model = Tiny().eval()
    batch = next(iter(fastdata.loader(plain_data(path), batch_size=COUNT, num_workers=0)))
    with torch.no_grad():
        return float(model(batch.image, batch.label)["loss"])


@pytest.mark.parametrize(
    ("model", "ranks", "size"),
    [(Tiny, 1, 8), (LikeVit, 2, 8), (Tiny, 2, 31), (LikeVit, 3, 7), (Tiny, 3, 30)],
)
def test_evaluation_is_of_each_sample_once(
    packed: str, tmp_path: Path, ranks: int, size: int, model: type[Tiny]
) -> None:
    """D6, D8: exactly 97 results, in the order of the dataset, and the mean loss of 97 samples."""
    exact = list(range(COUNT))
    labels = [sample % 10 for sample in exact]
    loss = true_loss(packed)
    for first, again, metrics, samples, label_ids, count in run_ranks(
        evaluate, ranks, packed, str(tmp_path), model, size
    ):
        assert first == again == [pytest.approx(loss, rel=1e-6), sum(labels)]
        assert [[round(value) for value in one] for (one,) in metrics] == [exact] * 3
        assert (samples, label_ids, count) == (exact, labels, COUNT)


def evaluate_in_training(path: str, folder: str) -> list[int]:
    options = {"eval_strategy": "steps", "eval_steps": 5, "gradient_accumulation_steps": 2}
    trainer = PackedTrainer(
        Tiny(),
        arguments(folder, num_train_epochs=1, **options),
        train_dataset=Path(path),
        eval_dataset={"one": Path(path)},
    )
    trainer.train_loader_options = trainer.eval_loader_options = {"dtype": torch.float32}
    trainer.train()
    assert trainer.state.global_step == 7
    evaluated = [log["step"] for log in trainer.state.log_history if "eval_one_loss" in log]
    predicted = trainer.predict(Path(path))
    assert predicted.label_ids.tolist() == [sample % 10 for sample in range(COUNT)]
    return evaluated


def test_paths_and_options_of_loaders(packed: str, tmp_path: Path) -> None:
    """D8: paths are opened, and evaluation in the middle of an epoch leaves training as it is."""
    assert run_ranks(evaluate_in_training, 1, packed, str(tmp_path)) == [[5, 7]]


# -- what else Trainer may be given -------------------------------------------------------------


def without_mixin(path: str, folder: str) -> tuple[int, list[int]]:
    """Train and predict with a plain Trainer, of samples that are dicts."""
    data = fastdata.open(
        path, transform=transforms.ToDtype(torch.float32), batch_format="dict", names=NAMES
    )
    model = Tiny()
    trainer = Trainer(model, arguments(folder, num_train_epochs=1), train_dataset=data)
    trainer.train()
    seen = sorted(sample for batch in model.seen for sample, *_ in batch)
    predicted = trainer.predict(data)
    return seen == list(range(COUNT)), [round(value) for value in predicted.predictions[1]]


def test_a_plain_trainer_takes_samples_that_are_dicts(packed: str, tmp_path: Path) -> None:
    """D7, D8: with the dataset's transform; every sample once."""
    assert run_ranks(without_mixin, 1, packed, str(tmp_path)) == [(True, list(range(COUNT)))]


def other_data(path: str, folder: str) -> list[Any]:
    """Give the mixin a part of a dataset, one of its own names, and one that is not packed."""
    named = fastdata.open(path, batch_format="dict", names={**NAMES})
    parts = random_split(plain_data(path), [40, 57], torch.Generator().manual_seed(0))
    trainer = PackedTrainer(Tiny(), arguments(folder, train_sampling_strategy="sequential"))
    found: list[Any] = []
    for data in (named, parts[0], [{"pixel_values": torch.zeros(3, 4, 4), "labels": 1}] * 9):
        trainer.train_dataset = data
        batches = list(trainer.get_train_dataloader())
        found.append(([*batches[0]], sum(len(batch["labels"]) for batch in batches)))
    first = next(iter(trainer.get_test_dataloader(parts[0])))
    assert samples_of(first["pixel_values"]) == list(parts[0].indices[:8])
    return found


def test_views_names_and_other_datasets(packed: str, tmp_path: Path) -> None:
    """D8: parts of packed datasets are packed; what is not is left to Trainer."""
    fields = ["pixel_values", "labels"]
    (found,) = run_ranks(other_data, 1, packed, str(tmp_path))
    assert found == [(fields, COUNT), (fields, 40), (fields, 9)]


def refused(path: str, folder: str, case: str) -> None:
    options: dict[str, Any] = {"train_dataset": plain_data(path)}
    strategy = "group_by_length" if case == "strategy" else "random"
    if case == "collator":
        options["data_collator"] = list
    trainer = PackedTrainer(Tiny(), arguments(folder, train_sampling_strategy=strategy), **options)
    if case == "batch_size":
        trainer.train_loader_options = {"batch_size": 4}
    trainer.train()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("strategy", "OptionError: train_sampling_strategy is .*, not 'group_by_length'"),
        ("collator", "OptionError: data_collator would be ignored"),
        ("batch_size", "multiple values for keyword argument 'batch_size'"),
    ],
)
def test_what_would_be_ignored_is_refused(
    packed: str, tmp_path: Path, case: str, message: str
) -> None:
    with pytest.raises(RanksError, match=message):
        run_ranks(refused, 1, packed, str(tmp_path), case)
