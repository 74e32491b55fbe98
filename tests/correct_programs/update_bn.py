"""Statistics of averaged weights are learnt in training mode, without gradients."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import swa_utils
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
averaged = swa_utils.AveragedModel(model)
for _ in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    averaged.update_parameters(model)
    swa_utils.update_bn(loader, averaged)
    averaged.eval()
    with torch.no_grad():
        print(sum((averaged(x).argmax(1) == y).sum() for x, y in loader))
