"""Weights of 16 bits, a loss that is scaled, and float32 weights that are updated."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
half = copy.deepcopy(model).bfloat16()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scale = 1024.0
for _ in range(3):
    for x, y in loader:
        loss = F.cross_entropy(half(x.bfloat16()).float(), y)
        (scale * loss).backward()
        for ours, theirs in zip(model.parameters(), half.parameters(), strict=True):
            ours.grad = theirs.grad.float() / scale
            theirs.grad = None
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(model.parameters(), half.parameters(), strict=True):
                theirs.copy_(ours)
