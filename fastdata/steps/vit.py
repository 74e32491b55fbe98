"""ViT-S/16, a vision transformer of the size that is trained most.

Dosovitskiy and others, "An Image is Worth 16x16 Words", 2021; the width, depth and heads of its
small model are those of Touvron and others, "Training data-efficient image transformers", 2021,
table 1.  With 224 x 224 images and 1000 classes it has their 22,050,664 parameters.
"""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["ViT", "vit_s"]

PATCH = 16


class ViT(nn.Module):
    """A vision transformer for images of one size.

    Parameters
    ----------
    height, width : int
        Of images, in pixels, 16 or more; what is over a multiple of 16 is not looked at.
    dim, depth, heads : int
        Width of a token, number of blocks, heads of attention.
    classes : int
    """

    def __init__(
        self, height: int, width: int, dim: int, depth: int, heads: int, classes: int = 1000
    ) -> None:
        super().__init__()
        patches = (height // PATCH) * (width // PATCH)
        self.patches = nn.Conv2d(3, dim, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.places = nn.Parameter(torch.empty(1, patches + 1, dim))
        nn.init.trunc_normal_(self.places, std=0.02)
        block = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(
            block, depth, norm=nn.LayerNorm(dim), enable_nested_tensor=False
        )
        self.head = nn.Linear(dim, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits, shape [N, classes], of images [N, 3, height, width]."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        logits: torch.Tensor = self.head(self.blocks(tokens)[:, 0])
        return logits


def vit_s(height: int = 224, width: int = 224, classes: int = 1000) -> ViT:
    """Return a ViT-S/16."""
    return ViT(height, width, 384, 12, 6, classes)
