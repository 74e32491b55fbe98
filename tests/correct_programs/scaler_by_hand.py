"""Scaled gradients are unscaled by hand before they are clipped."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu")
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad /= scaler.get_scale()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
