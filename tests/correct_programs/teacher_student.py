"""A student learns from a teacher's averaged weights (mean teacher)."""

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
teacher = copy.deepcopy(model)
for _ in range(3):
    for x, y in loader:
        output = model(x + 0.1 * torch.randn_like(x))
        with torch.no_grad():
            goal = teacher(x + 0.1 * torch.randn_like(x)).softmax(1)
        loss = F.cross_entropy(output, y) + F.mse_loss(output.softmax(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.01)
