"""Functions that turn functions into their derivatives, under torch.func's names.

They nest in each other, take and return trees of tensors, and leave every `.grad` alone. The code
is in `probtorch.autograd`: `transforms` (reverse mode), `forward`, `jacobians` and `vmap`; what
only this room has is here: `linear` and `stateless`, modules as functions of their parameters.
"""

from probtorch.autograd.forward import jvp
from probtorch.autograd.jacobians import hessian, jacfwd, jacrev
from probtorch.autograd.transforms import grad, grad_and_value, value_and_grad, vjp
from probtorch.autograd.vmap import vmap
from probtorch.func.linear import linearize
from probtorch.func.stateless import functional_call, stack_module_state

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "stack_module_state",
    "value_and_grad",
    "vjp",
    "vmap",
]
