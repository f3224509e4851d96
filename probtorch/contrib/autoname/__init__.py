"""Pyro's names for names: sites that are named by what they are, counted and scoped.

`scope` puts a prefix before names, `name_count` a number behind those that come again, and
`autoname` names sites without a name by their distribution, in the scopes of functions and loops.
`named` has objects whose places are names.
"""

from probtorch.contrib.autoname import named
from probtorch.contrib.autoname.automatic import autoname, sample
from probtorch.contrib.autoname.scoping import name_count, scope

__all__ = ["autoname", "name_count", "named", "sample", "scope"]
