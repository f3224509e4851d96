"""Kernels, a file each, beside what several of them share (stepping, ensembles, integrators)."""
