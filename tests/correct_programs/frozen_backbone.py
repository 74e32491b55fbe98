"""A backbone in evaluation mode, without gradients, below a head that trains."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
backbone = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU()).eval()
backbone.requires_grad_(False)
head = nn.Linear(16, 4)
optimizer = torch.optim.SGD(head.parameters(), 0.1)
for _ in range(3):
    head.train()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(head(backbone(x)), y).backward()
        optimizer.step()
    head.eval()
    with torch.no_grad():
        print(sum((head(backbone(x)).argmax(1) == y).sum() for x, y in loader))
