"""Samples with a large loss come more often; losses are computed between epochs."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
weights = torch.ones(len(data))
for _ in range(3):
    sampler = WeightedRandomSampler(weights, len(data))
    model.train()
    for x, y in DataLoader(data, 8, sampler=sampler):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        losses = [F.cross_entropy(model(x), y, reduction="none") for x, y in loader]
    weights[: sum(map(len, losses))] = torch.cat(losses)
