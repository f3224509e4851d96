"""Where chains and guides start."""
