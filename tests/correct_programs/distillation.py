"""A teacher in evaluation mode, whose output is detached."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
teacher = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4)).eval()
layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    for x, y in loader:
        output = model(x)
        goal = teacher(x).detach()
        soft = F.kl_div((output / 4).log_softmax(1), (goal / 4).softmax(1), reduction="batchmean")
        loss = F.cross_entropy(output, y) + 16 * soft
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
