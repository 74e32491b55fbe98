"""Two parts of a model, each with an optimiser; one steps every other batch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
head = nn.Linear(16, 4)
of_body = torch.optim.AdamW(body.parameters())
of_head = torch.optim.SGD(head.parameters(), 0.1)
for _ in range(3):
    for number, (x, y) in enumerate(loader):
        F.cross_entropy(head(body(x)), y).backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        of_head.step()
        of_head.zero_grad()
        if number % 2:
            of_body.step()
            of_body.zero_grad()
