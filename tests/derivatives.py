"""`gradcheck` and `gradgradcheck` with the tolerances our own smooth functions meet.

The defaults are PyTorch's, for users' functions; a wrong factor of 1.0001 would pass them.
"""

import functools

from probtorch import testing

__all__ = ["gradcheck", "gradgradcheck"]

gradcheck = functools.partial(testing.gradcheck, atol=1e-8, rtol=1e-6)
gradgradcheck = functools.partial(testing.gradgradcheck, atol=1e-8, rtol=1e-6)
