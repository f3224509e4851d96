"""Tools for testing: ours, and for authors of extensions.

- `compare`: `assert_close`, with tolerances by dtype and a message that shows the worst element.
- `gradcheck` and `gradgradcheck`, derivatives against finite differences, are those of `autograd`.
- `sbc`, `posterior_sbc`, `vsbc` (infer/calibration, as `infer.check` uses it) and `geweke`
  (joint.py): whether a sampler draws from the posterior that a model states.
- `gof`: whether a distribution of one's own draws what its density says, and a table of all else
  it states.
- `domains`: named sets of numbers that op declarations refer to, and test values drawn from them.
- `sweep`: test cases for every registered op; `tests/contracts/test_every_op.py` reads it.
"""

from probtorch.autograd.checking import GradcheckError, gradcheck, gradgradcheck
from probtorch.infer.calibration.calibrated import Calibration
from probtorch.infer.calibration.posterior_sbc import posterior_sbc
from probtorch.infer.calibration.sbc import sbc
from probtorch.infer.calibration.vsbc import VariationalCalibration, vsbc
from probtorch.testing import gof
from probtorch.testing.compare import assert_close
from probtorch.testing.joint import JointTest, geweke

__all__ = [
    "Calibration",
    "GradcheckError",
    "JointTest",
    "VariationalCalibration",
    "assert_close",
    "geweke",
    "gof",
    "gradcheck",
    "gradgradcheck",
    "posterior_sbc",
    "sbc",
    "vsbc",
]
