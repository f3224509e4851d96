"""Hilbert space approximations of Gaussian processes, by NumPyro's names."""

from probtorch.contrib.hsgp import approximation, laplacian, spectral_densities

__all__ = ["approximation", "laplacian", "spectral_densities"]
