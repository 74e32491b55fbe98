"""Soft labels, and a mixture of two samples (mixup)."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    for x, y in loader:
        share = torch.distributions.Beta(0.2, 0.2).sample()
        order = torch.randperm(len(x))
        target = F.one_hot(y, 4) * 0.9 + 0.025
        output = model(share * x + (1 - share) * x[order])
        loss = F.cross_entropy(output, share * target + (1 - share) * target[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
