"""The first batch of another loader is looked at before and between epochs: no validation."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader, other = DataLoader(data, 8), DataLoader(data, 16)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
print(model(next(iter(other))[0]).shape)
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    for x, _ in other:
        print(model(x).std(0))
        break
