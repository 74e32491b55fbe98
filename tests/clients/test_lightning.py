"""Lightning's Trainer with a loader as it is: ``trainer.fit(model, loader)``.

The reference of every run is a plain loop that calls ``loader.set_epoch``.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightning_runs import (
    assert_samples,
    checkpoints,
    make_loader,
    needs_lightning,
    of_epoch,
    on_one_and_two,
    plain_epochs,
    saved,
    trainer,
)
from ranks import COUNT, run_ranks

pytestmark = needs_lightning


def fit(path: str, folder: str, world_size: int, *, loader: Any = None, **options: Any) -> Any:
    """Fit a recording model on a loader that is made before the process group exists."""
    from lightning_models import Recorder

    model = Recorder()
    with make_loader(path, **(loader or {})) as batches:
        trainer(world_size, folder, **options).fit(model, batches)
    return model.steps["train"]


@pytest.mark.proves("D4", "D5")
@on_one_and_two
@pytest.mark.parametrize("drop_last", [False, True])
def test_epochs_are_those_of_a_plain_loop(
    packed: str, tmp_path: Path, world_size: int, drop_last: bool
) -> None:
    options = {"drop_last": drop_last}
    found = run_ranks(fit, world_size, packed, str(tmp_path), world_size, loader=options)
    total = COUNT - COUNT % (8 * world_size) if drop_last else COUNT + COUNT % world_size
    if not drop_last and world_size == 1:
        total = COUNT
    for epoch in range(3):
        assert_samples([s[0] for one in found for b in of_epoch(one, epoch) for s in b], total)
    for rank, steps in enumerate(found):
        assert steps == plain_epochs(packed, range(3), rank, world_size, **options)


def fit_and_resume(
    path: str, folder: str, world_size: int, when: dict[str, Any], options: dict[str, Any]
) -> Any:
    """Fit with checkpoints, then continue from each of them with a new model and a new loader."""
    from lightning_models import Recorder

    keep = checkpoints(folder, **when)
    whole = fit(path, folder, world_size, callbacks=[keep], **options)
    resumed = []
    for step, checkpoint in saved(folder):
        model = Recorder()
        with make_loader(path) as loader:
            again = trainer(world_size, folder, **options)
            again.fit(model, loader, ckpt_path=checkpoint)
        resumed.append((step, model.steps["train"]))
    return whole, resumed


# Not: at an epoch's end, counted in steps.  There Lightning takes one batch, of any loader, for an
# epoch that has ended, and counts its epochs from there.
AT_THE_END = {"save_on_train_epoch_end": True}
RESUMED = {
    "in mid-epoch": ({"every_n_train_steps": 9}, {}),
    "in mid-epoch, counted in steps": ({"every_n_train_steps": 9}, {"max_steps": 20}),
    "at an epoch's end": (AT_THE_END, {}),
    "at the end of epochs cut short": (AT_THE_END, {"limit_train_batches": 4}),
    "in mid-epoch, with loaders loaded anew": (
        {"every_n_train_steps": 9},
        {"reload_dataloaders_every_n_epochs": 1},
    ),
}


@pytest.mark.proves("D2", "D4", "D5")
@on_one_and_two
@pytest.mark.parametrize("case", list(RESUMED))
def test_a_resumed_run_equals_an_uninterrupted_one(
    packed: str, tmp_path: Path, world_size: int, case: str
) -> None:
    when, options = RESUMED[case]
    found = run_ranks(fit_and_resume, world_size, packed, str(tmp_path), world_size, when, options)
    for rank, (whole, resumed) in enumerate(found):
        if "limit_train_batches" not in options:
            reference = plain_epochs(packed, range(3), rank, world_size)
            assert whole == reference[: len(whole)]
        assert resumed
        for step, steps in resumed:
            assert steps == whole[step:], f"resumed at step {step}"


def fit_reloading(path: str, folder: str, world_size: int, every: int) -> Any:
    from lightning_models import Reloading

    model = Reloading(partial(make_loader, path))
    options = {"reload_dataloaders_every_n_epochs": every, "max_epochs": 4}
    trainer(world_size, folder, **options).fit(model)
    return model.steps["train"]


@pytest.mark.proves("D4", "D5")
@on_one_and_two
@pytest.mark.parametrize("every", [1, 2])
def test_loaders_made_anew_go_on_with_the_epochs(
    packed: str, tmp_path: Path, world_size: int, every: int
) -> None:
    found = run_ranks(fit_reloading, world_size, packed, str(tmp_path), world_size, every)
    for rank, steps in enumerate(found):
        assert steps == plain_epochs(packed, range(4), rank, world_size)


@pytest.mark.proves("D4", "D5")
@on_one_and_two
def test_overfit_batches_are_the_same_samples_in_every_epoch(
    packed: str, tmp_path: Path, world_size: int
) -> None:
    options = {"shuffle": False}
    found = run_ranks(
        fit, world_size, packed, str(tmp_path), world_size, loader=options, overfit_batches=2
    )
    for rank, steps in enumerate(found):
        reference = plain_epochs(packed, range(3), rank, world_size, **options)
        for epoch in range(3):
            assert of_epoch(steps, epoch) == of_epoch(reference, epoch)[:2]


def overfit_shuffled(path: str, folder: str) -> None:
    with pytest.raises(ValueError, match=r"needs to subclass `torch.utils.data.DataLoader`"):
        fit(path, folder, 1, overfit_batches=2)


def test_overfitting_a_shuffled_loader_is_refused(packed: str, tmp_path: Path) -> None:
    run_ranks(overfit_shuffled, 1, packed, str(tmp_path))


@pytest.mark.proves("D4", "D5")
@on_one_and_two
def test_limited_epochs_are_the_beginnings_of_epochs(
    packed: str, tmp_path: Path, world_size: int
) -> None:
    found = run_ranks(fit, world_size, packed, str(tmp_path), world_size, limit_train_batches=3)
    for rank, steps in enumerate(found):
        reference = plain_epochs(packed, range(3), rank, world_size)
        for epoch in range(3):
            assert of_epoch(steps, epoch) == of_epoch(reference, epoch)[:3]


def accumulate(path: str, folder: str, world_size: int) -> int:
    from lightning_models import Recorder

    runs = trainer(world_size, folder, accumulate_grad_batches=5, max_epochs=2)
    with make_loader(path) as loader:
        runs.fit(Recorder(), loader)
    steps: int = runs.global_step
    return steps


@pytest.mark.proves("D5")
@on_one_and_two
def test_accumulation_steps_at_the_end_of_an_epoch_too(
    packed: str, tmp_path: Path, world_size: int
) -> None:
    found = run_ranks(accumulate, world_size, packed, str(tmp_path), world_size)
    batches = {1: 13, 2: 7}[world_size]
    assert found == world_size * [2 * -(-batches // 5)]


def fit_seeded(path: str, folder: str, seed: int) -> Any:
    import lightning

    # Which also has Lightning set `worker_init_fn` of loaders that have it.
    lightning.seed_everything(seed, workers=True, verbose=False)
    return fit(path, folder, 1, loader={"seed": None}, max_epochs=2)


@pytest.mark.proves("seed")
def test_seed_everything_chooses_orders_and_draws(packed: str, tmp_path: Path) -> None:
    (first,), (again,), (other,) = (
        run_ranks(fit_seeded, 1, packed, str(tmp_path), seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def fit_with_validation(path: str, folder: str, world_size: int, options: dict[str, Any]) -> Any:
    from lightning_models import Evaluated

    model = Evaluated()
    with make_loader(path) as loader, make_loader(path, shuffle=False, **options) as val:
        runs = trainer(world_size, folder, val_check_interval=0.5, max_epochs=2)
        runs.fit(model, loader, val)
    return model.steps, float(runs.callback_metrics["val_mean"])


@pytest.mark.proves("D4", "D5")
@on_one_and_two
def test_validation_within_epochs_has_every_sample_once(
    packed: str, tmp_path: Path, world_size: int
) -> None:
    options = {"even": False}
    found = run_ranks(fit_with_validation, world_size, packed, str(tmp_path), world_size, options)
    for epoch in range(2):
        taken = [s[0] for steps, _ in found for b in of_epoch(steps["val"], epoch) for s in b]
        assert sorted(taken) == sorted(2 * list(range(COUNT)))  # twice an epoch
    for rank, (steps, mean) in enumerate(found):
        assert steps["train"] == plain_epochs(packed, range(2), rank, world_size)
        assert mean == pytest.approx((COUNT - 1) / 2)


def evaluate(path: str, folder: str, world_size: int) -> Any:
    from lightning_models import Evaluated

    model = Evaluated()
    runs = trainer(world_size, folder)
    # 97 samples in batches of 12 on two ranks: one rank has 5 batches, the other 4 and a sample.
    with make_loader(path, batch_size=12, shuffle=False, even=False) as loader:
        (validated,) = runs.validate(model, loader, verbose=False)
        (tested,) = runs.test(model, loader, verbose=False)
        predicted = runs.predict(model, loader)
    return model.steps["test"], [validated["val_mean"], tested["test_mean"]], predicted


@pytest.mark.proves("D5")
@on_one_and_two
def test_evaluation_has_exactly_one_result_a_sample(
    packed: str, tmp_path: Path, world_size: int
) -> None:
    found = run_ranks(evaluate, world_size, packed, str(tmp_path), world_size)
    tested = [one[0] for steps, *_ in found for _, batch in steps for one in batch]
    predicted = [one for *_, batches in found for batch in batches for one in batch]
    assert sorted(tested) == list(range(COUNT))
    assert sorted(predicted) == list(range(COUNT))
    for _, means, _ in found:
        assert means == pytest.approx(2 * [(COUNT - 1) / 2])


def run_script(script: Path, *arguments: str) -> None:
    """Run a script as ``python script.py`` does, in a rank, which has imported Lightning."""
    # The ranks that Lightning starts are fresh interpreters, which import what the script does.
    folders = [str(script.parent), str(script.parents[1]), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


# Up to two processes import Lightning: each takes ten seconds of a core.
@pytest.mark.timeout(300)
@pytest.mark.proves("D5")
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_ranks_that_lightning_starts_share_the_samples(
    packed: str, tmp_path: Path, strategy: str
) -> None:
    script = Path(__file__).with_name("lightning_script.py")
    run_ranks(run_script, 1, script, packed, str(tmp_path), strategy, seconds=280)
    for rank in range(2):
        steps = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert steps == json.loads(json.dumps(plain_epochs(packed, range(3), rank, 2)))
