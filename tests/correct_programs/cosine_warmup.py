"""A rate that the loop itself raises and lowers, before each step."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
steps = 3 * len(loader)
for epoch in range(3):
    for number, (x, y) in enumerate(loader, epoch * len(loader)):
        rate = min(1.0, (number + 1) / 6) * (1 + math.cos(math.pi * number / steps)) / 2
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * rate
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
