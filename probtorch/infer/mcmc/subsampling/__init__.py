"""Kernels that look at some rows of the data at a time."""
