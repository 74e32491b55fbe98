"""A model that the Trainer of transformers trains and evaluates."""

import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Trainer, TrainingArguments


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4))

    def forward(self, x, labels):
        output = self.layers(x)
        return {"loss": F.cross_entropy(output, labels), "logits": output}


data = [{"x": torch.rand(8), "labels": torch.tensor(n % 4)} for n in range(48)]
options = TrainingArguments(
    tempfile.mkdtemp(),
    num_train_epochs=3,
    per_device_train_batch_size=8,
    eval_strategy="epoch",
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
Trainer(Net(), options, train_dataset=data, eval_dataset=data).train()
