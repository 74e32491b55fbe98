"""Slow weights follow fast ones every five steps."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
slow = [p.detach().clone() for p in model.parameters()]
steps = 0
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        steps += 1
        if steps % 5 == 0:
            with torch.no_grad():
                for ours, fast in zip(slow, model.parameters(), strict=True):
                    ours.lerp_(fast, 0.5)
                    fast.copy_(ours)
