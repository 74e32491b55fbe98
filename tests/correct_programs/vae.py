"""An autoencoder that samples; pictures are drawn without gradients after each epoch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(48, 8), torch.randint(4, (48,)))
loader = DataLoader(data, 8)
encoder, decoder = nn.Linear(8, 8), nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
for _ in range(3):
    for x, _ in loader:
        mean, spread = encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (spread / 2).exp()
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        loss = F.mse_loss(decoder(z), x, reduction="sum") / len(x) + divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print(decoder(torch.randn(4, 4)).mean())
