"""Weights of convolutions are standardised in each forward pass."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 3, 8, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)


class Convolution(nn.Conv2d):
    def forward(self, x):
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        deviation = self.weight.std((1, 2, 3), keepdim=True) + 1e-5
        return self._conv_forward(x, (self.weight - mean) / deviation, self.bias)


layers = Convolution(3, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
