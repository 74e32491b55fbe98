"""Patches of four images become one, and so do their losses."""

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
        width, height = torch.randint(1, 8, (2,)).tolist()
        orders = [torch.randperm(len(x)) for _ in range(4)]
        left, right = (
            (x[o][..., :width] for o in orders[:2]),
            (x[o][..., width:] for o in orders[2:]),
        )
        sides = [torch.cat([a[:, :, :height], b[:, :, height:]], 2) for a, b in (left, right)]
        output = model(torch.cat(sides, 3))
        shares = [width * height, width * (8 - height), (8 - width) * height]
        shares.append(64 - sum(shares))
        loss = sum(
            s / 64 * F.cross_entropy(output, y[o]) for s, o in zip(shares, orders, strict=True)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
