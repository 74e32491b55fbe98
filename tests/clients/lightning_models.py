"""Models that record which samples Lightning gives them.

Ranks import them, not the tests: Lightning is slow to import.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning_runs import Step
from ranks import fingerprints, samples_of
from torchmetrics import MeanMetric


class Recorder(lightning.LightningModule):
    """Records the batches of each kind of step.

    Parameters
    ----------
    folder : str, optional
        Where the training steps of each rank are written as JSON, for runs whose ranks Lightning
        starts.
    """

    def __init__(self, folder: str | None = None) -> None:
        super().__init__()
        # DDP broadcasts the buffers of a BatchNorm in each forward pass, evaluation included.
        self.norm, self.layer = torch.nn.BatchNorm2d(3), torch.nn.Linear(3, 1)
        self.steps: dict[str, list[Step]] = {"train": [], "val": [], "test": []}
        self.folder = folder

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.record("train", batch)

    def record(self, kind: str, batch: Any) -> torch.Tensor:
        if not self.trainer.sanity_checking:
            self.steps[kind].append((self.current_epoch, fingerprints(batch[0])))
        return self.layer(self.norm(batch[0].float()).mean((2, 3))).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def predict_step(self, batch: Any, batch_idx: int) -> list[int]:
        return samples_of(batch[0])

    def on_train_end(self) -> None:
        if self.folder is not None:
            file = Path(self.folder, f"rank{self.global_rank}.json")
            file.write_text(json.dumps(self.steps["train"]))


class Evaluated(Recorder):
    """Evaluates by torchmetrics: exact sums, and collective calls only at the end."""

    def __init__(self, folder: str | None = None) -> None:
        super().__init__(folder)
        self.val_mean, self.test_mean = MeanMetric(), MeanMetric()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate("val", batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate("test", batch)

    def evaluate(self, kind: str, batch: Any) -> None:
        self.record(kind, batch)
        metric = getattr(self, f"{kind}_mean")
        metric.update(torch.tensor(samples_of(batch[0])))
        self.log(f"{kind}_mean", metric)


class Reloading(Recorder):
    """Makes its loader itself, whenever Lightning asks."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def train_dataloader(self) -> Any:
        return self.make()
