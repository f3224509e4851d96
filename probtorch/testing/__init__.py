"""Tools for testing: ours, and for authors of extensions.

- `compare`: `assert_close`, with tolerances by dtype and a message that shows the worst element.
- `gradcheck`: `gradcheck` and `gradgradcheck`, derivatives against finite differences.
- `domains`: named sets of numbers that op declarations refer to, and test values drawn from them.
- `sweep`: test cases for every registered op; `tests/contracts/test_every_op.py` reads it.
"""

from probtorch.testing.compare import assert_close
from probtorch.testing.gradcheck import GradcheckError, gradcheck, gradgradcheck

__all__ = ["GradcheckError", "assert_close", "gradcheck", "gradgradcheck"]
