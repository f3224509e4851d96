"""Warm-up: step sizes and mass matrices, what they are learnt from, and the look at its end."""
