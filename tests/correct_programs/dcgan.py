"""Fakes are made once: detached for the discriminator, and with gradients for the generator."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)


def network(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, outputs)
    )


generator, critic = network(4, 8), network(8, 1)
of_generator = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999))
for _ in range(3):
    for x, _ in loader:
        fake = generator(torch.randn(len(x), 4))
        loss = F.softplus(-critic(x)).mean() + F.softplus(critic(fake.detach())).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        loss = F.softplus(-critic(fake)).mean()
        of_generator.zero_grad()
        loss.backward()
        of_generator.step()
