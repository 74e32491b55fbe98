"""A policy acts without gradients, and is trained on what came of it."""

import torch
import torch.nn.functional as F
from torch import nn

policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()])
for _ in range(12):
    policy.eval()
    with torch.no_grad():
        states = torch.randn(16, 4)
        actions = torch.distributions.Categorical(logits=policy(states)).sample()
        rewards = (states.sum(1) > 0).eq(actions).float()
    policy.train()
    for _ in range(2):
        values = critic(states).squeeze(1)
        chances = torch.distributions.Categorical(logits=policy(states)).log_prob(actions)
        loss = F.mse_loss(values, rewards) - (chances * (rewards - values.detach())).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
