"""Expectations under the standard normal distribution."""

import math

import numpy as np

erf = np.frompyfunc(math.erf, 1, 1)


def normal_cdf(z: np.ndarray) -> np.ndarray:
    """P(Z <= z)."""
    return 0.5 + 0.5 * np.asarray(erf(np.asarray(z) / math.sqrt(2.0)), float)


def panels(cuts: tuple[float, ...], parts: int, order: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes z and weights of E f(Z), per interval between the cuts: [intervals, nodes].

    Each interval is divided into `parts`; beyond 9 standard deviations lies less than 1e-18.
    """
    t, weight = np.polynomial.legendre.leggauss(order)
    edges = np.array([-9.0, *cuts, 9.0])
    ends = np.linspace(edges[:-1], edges[1:], parts + 1, axis=1)  # [intervals, parts + 1]
    half, middle = np.diff(ends)[..., None] / 2, (ends[:, 1:] + ends[:, :-1])[..., None] / 2
    z = middle + half * t  # [intervals, parts, order]
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return z.reshape(len(ends), -1), (density * half * weight).reshape(len(ends), -1)
