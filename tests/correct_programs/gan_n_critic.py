"""The critic steps three times as often as the generator, and is frozen for it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


generator, critic = network(4, 8), network(8, 1)
of_generator = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999))
for _ in range(4):
    for number, (x, _) in enumerate(loader, 1):
        critic.requires_grad_(True)
        of_critic.zero_grad()
        loss = critic(generator(torch.randn(len(x), 4)).detach()).mean() - critic(x).mean()
        loss.backward()
        of_critic.step()
        for p in critic.parameters():
            p.data.clamp_(-0.1, 0.1)
        if number % 3 == 0:
            critic.requires_grad_(False)
            of_generator.zero_grad()
            (-critic(generator(torch.randn(len(x), 4))).mean()).backward()
            of_generator.step()
