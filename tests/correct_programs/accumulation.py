"""Gradients of three batches are added up for a step."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    for number, (x, y) in enumerate(loader, 1):
        (F.cross_entropy(model(x), y) / 3).backward()
        if number % 3 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
