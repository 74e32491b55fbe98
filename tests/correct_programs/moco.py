"""A momentum encoder in training mode, without gradients, whose keys go to a queue."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
encoder = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
momentum = copy.deepcopy(encoder)
queue = F.normalize(torch.rand(4, 64), dim=0)
optimizer = torch.optim.SGD(encoder.parameters(), 0.1, momentum=0.9)
for _ in range(3):
    for x, _ in loader:
        query = F.normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            for ours, theirs in zip(momentum.parameters(), encoder.parameters(), strict=True):
                ours.lerp_(theirs, 0.01)
            key = F.normalize(momentum(x + 0.1 * torch.randn_like(x)), dim=1)
        positive = (query * key).sum(1, keepdim=True)
        logits = torch.cat([positive, query @ queue], 1) / 0.07
        loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue = torch.cat([key.T, queue], 1)[:, :64]
