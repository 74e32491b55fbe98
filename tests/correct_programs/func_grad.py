"""Gradients come from `torch.func.grad`."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def loss_of(parameters, x, y):
    return F.cross_entropy(torch.func.functional_call(model, parameters, (x,)), y)


for _ in range(3):
    for x, y in loader:
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        gradients = torch.func.grad(loss_of)(parameters, x, y)
        for name, p in model.named_parameters():
            p.grad = gradients[name]
        optimizer.step()
