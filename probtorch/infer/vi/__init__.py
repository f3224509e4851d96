"""Variational inference: SVI, its steps eager and compiled, what it measures on the way."""
