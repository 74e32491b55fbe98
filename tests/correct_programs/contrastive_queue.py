"""Embeddings of earlier batches are negatives (cross-batch memory)."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
embeddings, labels = torch.zeros(0, 8), torch.zeros(0, dtype=torch.long)
for _ in range(3):
    for x, y in loader:
        output = F.normalize(model(x), dim=1)
        embeddings = torch.cat([output.detach(), embeddings])[:32]
        labels = torch.cat([y, labels])[:32]
        alike = y[:, None] == labels
        scores = (output @ embeddings.T / 0.1).log_softmax(1)
        loss = -(scores * alike).sum(1).div(alike.sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
