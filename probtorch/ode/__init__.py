"""Ordinary differential equations as differentiable operations.

`odeint` solves an initial-value problem at given times, `odeint_event` until something happens.
Methods are tables (methods.py), loops are native under a recorder (solve.py), gradients are
discrete or continuous adjoints (adjoint.py): so a solver inside a model compiles with it, and NUTS
runs on it without Python.
"""

from probtorch.ode.events import odeint_event
from probtorch.ode.methods import METHODS
from probtorch.ode.odeint import odeint, odeint_adjoint

__all__ = ["METHODS", "odeint", "odeint_adjoint", "odeint_event"]
