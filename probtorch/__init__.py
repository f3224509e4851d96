"""probtorch: probabilistic programming on its own autodiff core, compiled by recording."""

from probtorch import autograd, errors
from probtorch.autograd import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from probtorch.core.dtype import (
    float16,
    float32,
    float64,
    get_default_dtype,
    int8,
    int16,
    int32,
    int64,
    set_default_dtype,
    uint8,
)
from probtorch.core.dtype import bool_ as bool
from probtorch.tensor import Tensor, from_numpy, tensor
