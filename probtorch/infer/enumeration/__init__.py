"""Discrete latent variables: sums over them, and draws of them given the rest."""
