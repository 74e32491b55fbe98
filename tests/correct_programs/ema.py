"""Weights are averaged after each step, and validated."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
average = copy.deepcopy(model).requires_grad_(False)
for _ in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.01)
            for ours, theirs in zip(average.buffers(), model.buffers(), strict=True):
                ours.copy_(theirs)
    average.eval()
    with torch.inference_mode():
        print(sum((average(x).argmax(1) == y).sum() for x, y in loader))
