"""One network is called twice a step, and a margin is kept between pairs."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    for x, y in loader:
        order = torch.randperm(len(x))
        apart = F.pairwise_distance(model(x), model(x[order]))
        alike = y == y[order]
        loss = torch.where(alike, apart.square(), F.relu(1 - apart).square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
