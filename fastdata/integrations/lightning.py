"""A LightningDataModule over packed files, and Fabric's ``setup_dataloaders``.

    data = PackedDataModule("train.lmdb", "val.lmdb", batch_size=256, train_transform=[...])
    trainer.fit(model, data)

A loader also works without it: ``trainer.fit(model, loader)``.  The module knows the trainer: it
does not shuffle for ``overfit_batches``, evaluates each sample exactly once, copies batches to the
trainer's GPU ahead of their use, and keeps a drawn seed in checkpoints.  The place in an epoch is
not part of its state: Lightning saves that of the loader, or informs its sampler.

    train = setup_dataloaders(fabric, fastdata.loader("train.lmdb", batch_size=256))

replaces ``fabric.setup_dataloaders``, which accepts only a `DataLoader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule

import fastdata
from fastdata.engine.loader import Loader
from fastdata.errors import OptionError
from fastdata.transforms import Transform

__all__ = ["FabricLoader", "PackedDataModule", "setup_dataloaders"]


def setup_dataloaders(
    fabric: Any, *loaders: Any, use_distributed_sampler: bool = True, move_to_device: bool = True
) -> Any:
    """Return what ``fabric.setup_dataloaders`` does, with each `Loader` as a `FabricLoader`.

    Parameters
    ----------
    fabric : lightning.Fabric
        Launched, as for its own method.
    *loaders
        `Loader` objects, which divide their epochs among ranks by themselves, and any `DataLoader`.
    use_distributed_sampler, move_to_device : bool
        As of Fabric; the first is for a `DataLoader` only.
    """
    options = {
        "use_distributed_sampler": use_distributed_sampler,
        "move_to_device": move_to_device,
    }
    ready = [
        FabricLoader(one, fabric if move_to_device else None)
        if isinstance(one, Loader)
        else fabric.setup_dataloaders(one, **options)
        for one in loaders
    ]
    return ready[0] if len(ready) == 1 else ready


class FabricLoader:
    """A `Loader` whose batches are brought to Fabric's device; all else is the loader's.

    A pass is the loader's next epoch, or continues at a loaded place.  Give the loader ``device=``
    to have batches copied ahead of their use.  Without `fabric` they stay as they are.
    """

    def __init__(self, loader: Loader, fabric: Any = None) -> None:
        self.loader, self._fabric = loader, fabric

    def __iter__(self) -> Iterator[Any]:
        if self._fabric is None:
            return iter(self.loader)
        return map(self._fabric.to_device, self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not yet there, while a copy is made
            raise AttributeError(name)
        return getattr(self.loader, name)

    # Not by `__getattr__`: Fabric looks for these in the class.

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the loader."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the loader continue at a place."""
        self.loader.load_state_dict(state)


class PackedDataModule(LightningDataModule):
    """Loaders over packed data for training, validation, testing and prediction.

    Parameters
    ----------
    train, val, test, predict : path, list of paths or Dataset, optional
        Packed data, as `fastdata.loader` takes it.
    batch_size, eval_batch_size : int
        Samples a batch and rank; by default those of evaluation are as large as those of training.
    train_transform, eval_transform : transform or sequence of transforms, optional
    shuffle, drop_last : bool
        Of training.  With ``Trainer(overfit_batches=...)`` nothing is shuffled.
    seed : int, optional
        Of order and random transforms.  None: drawn from torch's generator, which
        ``lightning.seed_everything`` seeds, and taken from the checkpoint when resuming.
    device : torch.device, str, "auto" or None
        Where the loaders put batches.  "auto": on the trainer's device where that is a GPU, to be
        normalised there.  None: on the CPU, from where Lightning moves them when they are due.
    train_options : mapping, optional
        Options of `fastdata.loader` for training only, such as ``{"weights": weights}``.
    **options
        Options of `fastdata.loader` for all loaders, such as `num_workers`.

    Notes
    -----
    Evaluation has ``even=False``: over all ranks each sample comes exactly once, and ranks may
    differ by one batch.  So reduce metrics at the end of the epoch, as torchmetrics' objects do
    (``self.log(..., sync_dist=True)`` rounds the number of samples down to a multiple of the world
    size).  A collective call in a step, such as ``self.all_gather``, would wait for a batch that
    another rank does not have: it needs ``even=True``, which repeats samples.
    """

    def __init__(
        self,
        train: Any = None,
        val: Any = None,
        test: Any = None,
        predict: Any = None,
        *,
        batch_size: int = 1,
        eval_batch_size: int | None = None,
        train_transform: Transform | Sequence[Transform] | None = None,
        eval_transform: Transform | Sequence[Transform] | None = None,
        shuffle: Any = True,
        drop_last: bool = False,
        seed: int | None = None,
        device: torch.device | str | None = "auto",
        train_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.data = {"train": train, "val": val, "test": test, "predict": predict}
        self.seed, self.device = seed, device
        self._train_options = {**options, "batch_size": batch_size, "transform": train_transform}
        self._train_options |= {"shuffle": shuffle, "drop_last": drop_last, **(train_options or {})}
        size = batch_size if eval_batch_size is None else eval_batch_size
        self._eval_options = {"even": False, **options, "batch_size": size}
        self._eval_options["transform"] = eval_transform
        self._loaders: dict[str, Loader] = {}
        self._saved_seed: int | None = None

    def train_dataloader(self) -> Loader:
        """Return the loader of training."""
        options = dict(self._train_options)
        if self.trainer and self.trainer.overfit_batches:
            options["shuffle"] = False
        return self._loader("train", options, self._training_seed())

    def val_dataloader(self) -> Any:
        """Return the loader of validation; none, if there is no `val`, while fitting."""
        if self.data["val"] is None and self.trainer and self.trainer.state.fn == "fit":
            return []
        return self._evaluating("val")

    def test_dataloader(self) -> Loader:
        """Return the loader of testing."""
        return self._evaluating("test")

    def predict_dataloader(self) -> Loader:
        """Return the loader of prediction."""
        return self._evaluating("predict")

    def teardown(self, stage: str) -> None:
        """End the loaders' workers, whatever the `stage`."""
        for loader in self._loaders.values():
            loader.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the seed of training, for a checkpoint."""
        train, seed = self._loaders.get("train"), self._saved_seed
        if train is not None and train.seed_is_final:
            seed = train.seed  # not one that only this rank has drawn, before the first pass
        return {} if seed is None else {"seed": seed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the seed of training from a checkpoint."""
        self._saved_seed = state_dict["seed"]

    def _training_seed(self) -> int | None:
        saved: int | None = self.state_dict().get("seed")
        if self.seed is not None and saved not in (None, self.seed):
            raise OptionError(
                f"the checkpoint was trained with seed {saved}, but this module has {self.seed}: "
                "orders and draws would be others. Give that seed, or None to take it from there"
            )
        return saved if self.seed is None else self.seed

    def _evaluating(self, name: str) -> Loader:
        return self._loader(name, self._eval_options, self.seed or 0)

    def _loader(self, name: str, options: Mapping[str, Any], seed: int | None) -> Loader:
        """Return a new loader, in place of the one before, whose workers end."""
        if self.data[name] is None:
            raise OptionError(f"this module has no data for {name}_dataloader: give it {name}=...")
        device = self.device
        if device == "auto":
            root = self.trainer.strategy.root_device if self.trainer else torch.device("cpu")
            device = root if root.type == "cuda" else None
        loader: Any = fastdata.loader(self.data[name], device=device, seed=seed, **options)
        if before := self._loaders.pop(name, None):
            before.close()
        return self._loaders.setdefault(name, loader)
