"""The hidden Markov model has the density of a forward algorithm and the published rates."""

import numpy as np
import pytest

from probtorch.diagnostics import Draws


# Short chains: their R-hat may be above 1.01.
@pytest.mark.filterwarnings("ignore::probtorch.diagnostics.findings.ConvergenceWarning")
def test_density_is_that_of_the_forward_algorithm_and_rates_are_the_published_ones(
    run_model, number, tmp_path
):
    options = ["--chains", 2, "--warmup", 250, "--draws", 250]
    report = run_model("hmm", *options)
    assert number("largest difference from NumPy's density: ", report) < 1e-9
    rate = Draws.load(tmp_path / "hmm.nc").posterior["rate"]
    # Maximum likelihood has 13.13, 19.71, 29.71 (Zucchini and MacDonald 2009, table 3.2); their
    # standard errors are about 0.9, 1.0 and 1.8, the weak prior moves the means by less.
    assert np.abs(rate.mean((0, 1)) - [13.13, 19.71, 29.71]).max() < 1.0
    assert "2006" in report.split("calmest state: ")[1]
