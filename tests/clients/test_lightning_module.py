"""`PackedDataModule` with Lightning's Trainer, and Fabric with a loader as it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_runs import (
    BATCH,
    checkpoints,
    make_loader,
    needs_lightning,
    of_epoch,
    on_one_and_two,
    plain_epochs,
    saved,
    trainer,
)
from ranks import COUNT, fingerprints, run_ranks

from fastdata import transforms as T  # noqa: N812

pytestmark = needs_lightning


def make_module(path: str, **options: Any) -> Any:
    """Return a module whose loaders are those of `make_loader`."""
    from fastdata.integrations.lightning import PackedDataModule

    transform = [T.RandomCrop(16), T.RandomHorizontalFlip()]
    given = {"batch_size": BATCH, "train_transform": transform, "num_workers": 2, "seed": 0}
    return PackedDataModule(path, path, path, path, **{**given, **options})


def fit(path: str, folder: str, world_size: int, module: Any = None, **options: Any) -> Any:
    """Return the steps of training and validation."""
    from lightning_models import Evaluated

    model = Evaluated()
    runs = trainer(world_size, folder, **options)
    runs.fit(model, make_module(path, **(module or {})))
    return model.steps


@pytest.mark.proves("D4", "D5")
@on_one_and_two
@pytest.mark.parametrize("every", [0, 1])
def test_fitting_takes_the_epochs_of_a_plain_loop_and_validates_each_sample_once(
    packed: str, tmp_path: Path, world_size: int, every: int
) -> None:
    # 97 samples in batches of 12 on two ranks: one rank has 5 batches, the other 4.
    module = {"eval_batch_size": 12}
    options = {"reload_dataloaders_every_n_epochs": every}
    found = run_ranks(fit, world_size, packed, str(tmp_path), world_size, module, **options)
    for rank, steps in enumerate(found):
        assert steps["train"] == plain_epochs(packed, range(3), rank, world_size)
    for epoch in range(3):
        taken = [one[0] for steps in found for b in of_epoch(steps["val"], epoch) for one in b]
        assert sorted(taken) == list(range(COUNT))


def evaluate(path: str, folder: str, world_size: int) -> Any:
    from lightning_models import Evaluated

    model, module = Evaluated(), make_module(path, eval_batch_size=12)
    runs = trainer(world_size, folder)
    (validated,) = runs.validate(model, module, verbose=False)
    (tested,) = runs.test(model, module, verbose=False)
    return [validated["val_mean"], tested["test_mean"]], runs.predict(model, module)


@on_one_and_two
def test_evaluation_is_exact(packed: str, tmp_path: Path, world_size: int) -> None:
    found = run_ranks(evaluate, world_size, packed, str(tmp_path), world_size)
    predicted = [one for _, batches in found for batch in batches for one in batch]
    assert sorted(predicted) == list(range(COUNT))
    for means, _ in found:
        assert means == pytest.approx(2 * [(COUNT - 1) / 2])


def fit_unseeded(path: str, folder: str, world_size: int, when: dict[str, Any]) -> Any:
    """Fit with a drawn seed, then resume where torch's generator is at another place."""
    module = {"seed": None}
    keep = checkpoints(folder, **when)
    torch.manual_seed(100 + int(os.environ.get("RANK", 0)))
    whole = fit(path, folder, world_size, module, callbacks=[keep])["train"]
    resumed = []
    for step, checkpoint in saved(folder):
        from lightning_models import Evaluated

        torch.manual_seed(200 + step)
        model = Evaluated()
        runs = trainer(world_size, folder)
        runs.fit(model, make_module(path, **module), ckpt_path=checkpoint)
        resumed.append((step, model.steps["train"]))
    return whole, resumed


WHEN = {
    "in mid-epoch": {"every_n_train_steps": 9},
    "at an epoch's end": {"save_on_train_epoch_end": True},
    "after an epoch's validation": {"save_on_train_epoch_end": False},
}


@pytest.mark.proves("D2", "D4", "D5")
@on_one_and_two
@pytest.mark.parametrize("when", list(WHEN))
def test_a_drawn_seed_is_the_same_on_all_ranks_and_after_resuming(
    packed: str, tmp_path: Path, world_size: int, when: str
) -> None:
    found = run_ranks(fit_unseeded, world_size, packed, str(tmp_path), world_size, WHEN[when])
    taken = [one[0] for whole, _ in found for batch in of_epoch(whole, 0) for one in batch]
    assert set(taken) == set(range(COUNT))
    assert len(taken) == (COUNT if world_size == 1 else COUNT + 1)
    for whole, resumed in found:
        assert resumed
        for step, steps in resumed:
            assert steps == whole[step:], f"resumed at step {step}"


def fit_with_a_schedule(path: str, folder: str, world_size: int) -> Any:
    """Fit a model that asks for the length of an epoch, as for a schedule, before there is one."""
    from lightning_models import Evaluated

    class Scheduled(Evaluated):
        def configure_optimizers(self) -> Any:
            self.length = len(self.trainer.datamodule.train_dataloader())  # type: ignore[attr-defined]
            return super().configure_optimizers()

    torch.manual_seed(100 + int(os.environ.get("RANK", 0)))
    model = Scheduled()
    trainer(world_size, folder).fit(model, make_module(path, seed=None))
    return model.steps["train"]


@pytest.mark.proves("D5")
def test_ranks_agree_on_a_drawn_seed_where_loaders_are_made_before_the_first_pass(
    packed: str, tmp_path: Path
) -> None:
    found = run_ranks(fit_with_a_schedule, 2, packed, str(tmp_path), 2)
    for epoch in range(3):
        taken = [one[0] for steps in found for batch in of_epoch(steps, epoch) for one in batch]
        assert set(taken) == set(range(COUNT))
        assert len(taken) == COUNT + 1


def resume_with_another_seed(path: str, folder: str) -> None:
    from lightning_models import Evaluated

    from fastdata.errors import OptionError

    fit(path, folder, 1, max_epochs=1, callbacks=[checkpoints(folder)])
    ((_, checkpoint),) = saved(folder)
    with pytest.raises(OptionError, match="trained with seed 0, but this module has 1"):
        trainer(1, folder).fit(Evaluated(), make_module(path, seed=1), ckpt_path=checkpoint)


def test_resuming_with_another_seed_is_refused(packed: str, tmp_path: Path) -> None:
    run_ranks(resume_with_another_seed, 1, packed, str(tmp_path))


@pytest.mark.proves("D4")
@on_one_and_two
def test_overfitting_takes_the_first_samples_in_every_epoch(
    packed: str, tmp_path: Path, world_size: int
) -> None:
    found = run_ranks(fit, world_size, packed, str(tmp_path), world_size, overfit_batches=2)
    for epoch in range(3):
        taken = [s[0] for steps in found for b in of_epoch(steps["train"], epoch) for s in b]
        assert sorted(taken) == list(range(2 * BATCH * world_size))


def fit_without_validation(path: str, folder: str) -> Any:
    from lightning_models import Evaluated

    from fastdata.errors import OptionError
    from fastdata.integrations.lightning import PackedDataModule

    model, module = Evaluated(), PackedDataModule(path, batch_size=BATCH)
    trainer(1, folder, max_epochs=1).fit(model, module)
    with pytest.raises(OptionError, match="no data for test_dataloader: give it test="):
        trainer(1, folder).test(model, module)
    return model.steps


def test_splits_may_be_missing(packed: str, tmp_path: Path) -> None:
    (steps,) = run_ranks(fit_without_validation, 1, packed, str(tmp_path))
    assert len(steps["train"]) == 13
    assert not steps["val"]


def train_with_fabric(path: str, folder: str, world_size: int, set_up: bool) -> Any:
    """Return the batches of two epochs, and those after a checkpoint in the second.

    The loader is used as it is, or `set_up` for Fabric, which then needs no ``set_epoch``.
    """
    import lightning

    from fastdata.integrations.lightning import setup_dataloaders

    if "RANK" in os.environ:
        os.environ["TORCHELASTIC_RUN_ID"] = "tests"
    loader = make_loader(path)
    strategy = "ddp" if world_size > 1 else "auto"
    fabric = lightning.Fabric(accelerator="cpu", devices=world_size, strategy=strategy)
    fabric.launch()
    with pytest.raises(TypeError, match="Only PyTorch DataLoader are currently supported"):
        fabric.setup_dataloaders(loader)
    if set_up:
        stock = torch.utils.data.DataLoader(torch.arange(8), 2)
        loader, stock = setup_dataloaders(fabric, loader, stock)
        assert len(list(stock)) == 4 // world_size
    layer = torch.nn.Linear(3, 1)
    model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.01))
    whole, file = [], f"{folder}/fabric.ckpt"
    for epoch in range(2):
        if not set_up:
            loader.set_epoch(epoch)
        for number, batch in enumerate(loader):
            whole.append((epoch, fingerprints(batch[0])))
            optimizer.zero_grad()
            fabric.backward(model(batch[0].float().mean((2, 3))).mean())
            optimizer.step()
            if (epoch, number) == (1, 2):
                fabric.save(file, {"loader": loader, "model": model})
    loader.close()
    with make_loader(path) as made:
        again = setup_dataloaders(fabric, made) if set_up else made
        fabric.load(file, {"loader": again, "model": model})
        again.set_epoch(1)
        resumed = [(1, fingerprints(batch[0])) for batch in again]
    return whole, resumed


@pytest.mark.proves("D2", "D5")
@pytest.mark.parametrize("set_up", [False, True], ids=["as it is", "set up"])
@on_one_and_two
def test_fabric_takes_a_loader(packed: str, tmp_path: Path, world_size: int, set_up: bool) -> None:
    found = run_ranks(train_with_fabric, world_size, packed, str(tmp_path), world_size, set_up)
    for rank, (whole, resumed) in enumerate(found):
        assert whole == plain_epochs(packed, range(2), rank, world_size)
        assert resumed == whole[len(whole) // 2 + 3 :]
