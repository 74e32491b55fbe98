"""Activations of blocks are computed again in the backward pass."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)) for _ in range(4))
head = nn.Linear(8, 4)
optimizer = torch.optim.AdamW([*blocks.parameters(), *head.parameters()])
for _ in range(3):
    for x, y in loader:
        for block in blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        optimizer.zero_grad()
        F.cross_entropy(head(x), y).backward()
        optimizer.step()
