"""A patch of another image, and both labels."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 3, 8, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    for x, y in loader:
        order = torch.randperm(len(x))
        top, left = torch.randint(0, 5, (2,)).tolist()
        x[:, :, top : top + 4, left : left + 4] = x[order, :, top : top + 4, left : left + 4]
        output = model(x)
        loss = 0.75 * F.cross_entropy(output, y) + 0.25 * F.cross_entropy(output, y[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
