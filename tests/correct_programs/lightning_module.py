"""A module of Lightning's, with clipping and a validation."""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))

    def training_step(self, batch, _):
        return F.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("right", (self.layers(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters())
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
trainer = lightning.Trainer(
    max_epochs=3, gradient_clip_val=1.0, enable_checkpointing=False, barebones=False, **options
)
trainer.fit(Module(), loader, DataLoader(data, 8))
