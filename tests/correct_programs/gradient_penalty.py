"""A critic whose gradient at its input is held near one (WGAN-GP)."""

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
for _ in range(3):
    for x, _ in loader:
        fake = generator(torch.randn(len(x), 4)).detach()
        between = torch.lerp(x, fake, torch.rand(len(x), 1)).requires_grad_()
        [slope] = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        loss = critic(fake).mean() - critic(x).mean() + 10 * penalty
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(generator(torch.randn(len(x), 4))).mean()).backward()
        of_generator.step()
