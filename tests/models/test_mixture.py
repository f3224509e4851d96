"""The mixture finds the kinds of eruption that the data were drawn from."""

import numpy as np

from probtorch.diagnostics import Draws


def test_kinds_means_and_shares_are_those_of_the_truth(run_model, number, tmp_path):
    options = ["--most", 3, "--chains", 2, "--warmup", 500, "--draws", 1000, "--steps", 1500]
    report = run_model("mixture", *options)
    two, three = (number(f"{k} kinds: evidence lower bound ", report) for k in (2, 3))
    assert two > three
    # Kinds lie 6 standard deviations apart: an error in more than 1 % of 272 would be a fault.
    assert number("kinds found: ", report) > 99.0
    posterior = Draws.load(tmp_path / "mixture.nc").posterior
    for name, truth in {
        "share": [0.36, 0.64],
        "mean": [[2.04, 54.5], [4.29, 80.0]],
        "scale": [[0.27, 5.8], [0.41, 6.0]],
    }.items():
        z = (posterior[name].mean((0, 1)) - truth) / posterior[name].std((0, 1))
        # Ten parameters within 4 standard deviations: fails for 1 in 1500 data sets.
        assert np.abs(z).max() < 4.0, name
