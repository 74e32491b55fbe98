"""Two losses, a backward pass each, and gradients that do not conflict (PCGrad)."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
body, first, second = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 1)
optimizer = torch.optim.AdamW([*body.parameters(), *first.parameters(), *second.parameters()])
for _ in range(3):
    for x, y in loader:
        hidden = body(x).relu()
        gradients = []
        for loss in (F.cross_entropy(first(hidden), y), second(hidden).square().mean()):
            body.zero_grad()
            loss.backward(retain_graph=True)
            gradients.append(body.weight.grad.flatten().clone())
        one, other = gradients
        if (dot := one @ other) < 0:
            one = one - dot / other.square().sum() * other
        body.weight.grad = (one + other).view_as(body.weight)
        optimizer.step()
        optimizer.zero_grad()
