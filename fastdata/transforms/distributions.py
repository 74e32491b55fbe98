"""Numbers of the beta and Dirichlet distributions, made of counter-based draws.

Both are ratios of numbers of the gamma distribution, by their logarithms, so that none underflows
however small `alpha` is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastdata.random import Draws

__all__ = ["BETA_DRAWS", "GAMMA_DRAWS", "beta", "dirichlet"]

GAMMA_TRIES = 8
"""Proposals for a number.  One is refused with a probability of 5% at most, all with 4e-11."""

GAMMA_DRAWS = 3 * GAMMA_TRIES + 1
"""Draws that one number of the gamma distribution takes."""

BETA_DRAWS = 2 * GAMMA_DRAWS
"""Draws that one number of the beta distribution takes."""


def beta(draws: Draws, alpha: float, *, first: int = 0) -> NDArray[np.float64]:
    """Return a number of Beta(alpha, alpha) for each sample, float64 [n], of `BETA_DRAWS` draws."""
    x, y = _log_gammas(draws, alpha, 2, first)
    share: NDArray[np.float64] = (1 + np.tanh((x - y) / 2)) / 2
    return share


def dirichlet(draws: Draws, alpha: float, count: int, *, first: int = 0) -> NDArray[np.float64]:
    """Return `count` shares that add up to 1 for each sample, float64 [n, count].

    They are of the Dirichlet distribution with `alpha` for each share, and take `GAMMA_DRAWS`
    draws each.
    """
    logarithms = np.stack(_log_gammas(draws, alpha, count, first), axis=1)
    parts = np.exp(logarithms - logarithms.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = parts / parts.sum(axis=1, keepdims=True)
    return shares


def _log_gammas(draws: Draws, alpha: float, count: int, first: int) -> list[NDArray[np.float64]]:
    """Return logarithms of `count` numbers of Gamma(alpha) for each sample, float64 [n] each.

    Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26,
    2000, with normal numbers by Box and Muller's method.
    """
    # In (0, 1], since their logarithms are wanted.
    uniform = 1 - draws.uniform(count * GAMMA_DRAWS, first=first)
    return [
        _log_gamma(uniform[:, at : at + GAMMA_DRAWS], alpha)
        for at in range(0, count * GAMMA_DRAWS, GAMMA_DRAWS)
    ]


def _log_gamma(uniform: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Return the logarithm of a number of Gamma(alpha) by `GAMMA_DRAWS` uniform ones, [n]."""
    radius, angle, accept = (uniform[:, k : 3 * GAMMA_TRIES : 3] for k in range(3))
    normal = np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
    d = (alpha if alpha >= 1 else alpha + 1) - 1 / 3
    cube = np.maximum(1 + normal / np.sqrt(9 * d), 0) ** 3
    v = np.where(cube > 0, cube, 1)  # refused below where it was not
    taken = (cube > 0) & (np.log(accept) < normal**2 / 2 + d - d * v + d * np.log(v))
    log_gamma: NDArray[np.float64] = np.log(d) + np.log(v[np.arange(len(v)), taken.argmax(axis=1)])
    if alpha < 1:
        # Gamma(alpha) is Gamma(alpha + 1) times a uniform number to the power of 1 / alpha.
        log_gamma = log_gamma + np.log(uniform[:, -1]) / alpha
    return log_gamma
