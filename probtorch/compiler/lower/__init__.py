"""How each kind of op is lowered, one file per kin; importing this package fills the table.

A rule is a function ``rule(low, node, block)`` under ``@lowers(...)``: it places items or
statements into `block` and defines the node's outputs by `low.define`. `low` is the `Lowering`.
Most rules are for what ops declare as their native form (`Op.native`), a few for an op's name.
"""

from probtorch.compiler.lower import control as control
from probtorch.compiler.lower import indexing as indexing
from probtorch.compiler.lower import linalg as linalg
from probtorch.compiler.lower import movement as movement
from probtorch.compiler.lower import products as products
from probtorch.compiler.lower import reductions as reductions
from probtorch.compiler.lower import sorting as sorting
from probtorch.compiler.lower import sparse as sparse
from probtorch.compiler.lower import special as special
