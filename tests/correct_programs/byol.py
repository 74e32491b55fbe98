"""A target network in training mode, without gradients, that follows the online one."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16))


online, predictor = network(), network()
predictor[0] = nn.Linear(16, 16)
target = copy.deepcopy(online)
optimizer = torch.optim.AdamW([*online.parameters(), *predictor.parameters()])
for _ in range(3):
    for x, _ in loader:
        views = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
        with torch.no_grad():
            goals = [F.normalize(target(view), dim=1) for view in views]
        guesses = [F.normalize(predictor(online(view)), dim=1) for view in views]
        loss = 4 - 2 * ((guesses[0] * goals[1]).sum(1) + (guesses[1] * goals[0]).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(target.parameters(), online.parameters(), strict=True):
                ours.lerp_(theirs, 0.01)
