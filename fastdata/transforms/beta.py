"""Numbers of the beta distribution, as functions of counter-based draws."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastdata.random import Draws

__all__ = ["DRAWS", "beta"]

TRIES = 8
"""Proposals a number; each is refused with a chance of 5% at most, all of them with 4e-11."""

DRAWS = 2 * (3 * TRIES + 1)
"""Draws that one number takes."""


def beta(draws: Draws, alpha: float, *, first: int = 0) -> NDArray[np.float64]:
    """Return a number from 0 to 1 a sample, distributed as Beta(alpha, alpha).

    Parameters
    ----------
    draws : Draws
        Of which the draws `first` to ``first + DRAWS - 1`` are taken.
    alpha : float
        Above 0.

    Returns
    -------
    ndarray of float64, shape [n]

    Notes
    -----
    X / (X + Y) for two numbers of the gamma distribution, by their logarithms, so that
    none underflows however small `alpha` is.
    """
    half = DRAWS // 2
    uniform = 1 - draws.uniform(DRAWS, first=first)  # in (0, 1]: their logarithms are wanted
    x, y = (_log_gamma(part, alpha) for part in (uniform[:, :half], uniform[:, half:]))
    share: NDArray[np.float64] = (1 + np.tanh((x - y) / 2)) / 2
    return share


def _log_gamma(uniform: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Return logarithms of numbers of Gamma(alpha), of 3 * TRIES + 1 uniform ones each.

    Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26,
    2000, with normal numbers by Box and Muller's method.
    """
    radius, angle, accept = (uniform[:, k : 3 * TRIES : 3] for k in range(3))
    normal = np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
    d = (alpha if alpha >= 1 else alpha + 1) - 1 / 3
    cube = np.maximum(1 + normal / np.sqrt(9 * d), 0) ** 3
    v = np.where(cube > 0, cube, 1)  # refused below where it was not
    taken = (cube > 0) & (np.log(accept) < normal**2 / 2 + d - d * v + d * np.log(v))
    found = np.log(d) + np.log(v[np.arange(len(v)), taken.argmax(axis=1)])
    # Gamma(alpha) is Gamma(alpha + 1) times a uniform number to the power of 1 / alpha.
    log_gamma: NDArray[np.float64] = found
    if alpha < 1:
        log_gamma = found + np.log(uniform[:, -1]) / alpha
    return log_gamma
