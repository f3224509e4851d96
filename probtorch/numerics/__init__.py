"""Roots and integrals of functions as differentiable operations.

`root` solves a system of equations, `bracketed_root` single ones between bounds, `integral`
integrates over an interval. Searches are native loops under a recorder (searches.py), gradients of
roots come from the implicit function theorem (implicit.py), those of integrals from the nodes that
were used (integrals.py): so each of them inside a model compiles with it, and NUTS runs on it
without Python.
"""

from probtorch.numerics.bracketed import bracketed_root
from probtorch.numerics.integrals import integral
from probtorch.numerics.roots import root

__all__ = ["bracketed_root", "integral", "root"]
