"""Labels of one loader come from the model itself, in evaluation mode."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
unlabelled = DataLoader(TensorDataset(torch.rand(48, 8)), 8)
for _ in range(3):
    for (x, y), [more] in zip(loader, unlabelled, strict=True):
        model.eval()
        with torch.no_grad():
            sure, guess = model(more).softmax(1).max(1)
        model.train()
        loss = F.cross_entropy(model(x), y)
        loss = loss + ((sure > 0.5) * F.cross_entropy(model(more), guess, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
