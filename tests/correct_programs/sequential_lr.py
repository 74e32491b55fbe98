"""A warm-up by `SequentialLR`, which steps its schedules when it is made."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6)
falling = lr_scheduler.CosineAnnealingLR(optimizer, 12)
schedule = lr_scheduler.SequentialLR(optimizer, [warm, falling], [6])
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
