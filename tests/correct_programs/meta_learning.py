"""Weights after an inner step are judged, and gradients flow through it (MAML)."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for _ in range(3):
    for x, y in loader:
        parameters = dict(model.named_parameters())
        loss = F.cross_entropy(functional_call(model, parameters, (x[:4],)), y[:4])
        slopes = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        pairs = zip(parameters.items(), slopes, strict=True)
        inner = {name: p - 0.1 * slope for (name, p), slope in pairs}
        optimizer.zero_grad()
        F.cross_entropy(functional_call(model, inner, (x[4:],)), y[4:]).backward()
        optimizer.step()
