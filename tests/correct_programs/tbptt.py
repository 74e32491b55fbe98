"""A recurrent network whose state is detached after each part of a sequence."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 32), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
model = nn.LSTM(4, 16, batch_first=True)
head = nn.Linear(16, 4)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
for _ in range(3):
    for x, y in loader:
        state = None
        for part in x.unflatten(1, (8, 4)).split(4, 1):
            output, state = model(part, state)
            state = tuple(one.detach() for one in state)
            optimizer.zero_grad()
            F.cross_entropy(head(output[:, -1]), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
