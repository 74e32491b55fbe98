"""Sharpness-aware minimisation: a second backward pass at weights that are moved."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
parameters = list(model.parameters())
for _ in range(3):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in parameters]).norm()
            moves = [0.05 * p.grad / (norm + 1e-12) for p in parameters]
            torch._foreach_add_(parameters, moves)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            torch._foreach_sub_(parameters, moves)
        optimizer.step()
        optimizer.zero_grad()
