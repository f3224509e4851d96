"""`kl_divergence` and `register_kl` where `torch.distributions` has them, with all rules known.

`kl_rules.py` has the functions and the registry, `divergences/` the rules.
"""

from probtorch.distributions.divergences import kl_divergence, register_kl

__all__ = ["kl_divergence", "register_kl"]
