"""The Bayesian neural network predicts new points, and is less sure where there were no data."""

import math

# Points scatter by 0.1 around the truth: no prediction is better than its entropy, on average.
BEST = -math.log(0.1 * math.sqrt(2 * math.pi * math.e))


def test_predictions_cover_new_points_and_widen_in_the_gap(run_model, number):
    options = ["--chains", 2, "--warmup", 300, "--draws", 150, "--steps", 2000]
    report = run_model("bayesian_neural_network", *options)
    data, gap = (number(f"NUTS, {where}: log density ", report) for where in ("data", "gap"))
    # The README states 0.71 and 0.34; a straight line has -0.02 and -0.67.
    assert BEST - 0.4 < data < BEST + 0.1
    assert 0.0 < gap < data
    for where in ("data", "gap"):
        _, line = report.split(f"NUTS, {where}: ")
        assert number("90 % interval covers ", line) > 80
    # Independent normals cannot follow the curve as closely: known of them, and said in the README.
    assert number("SVI, data: log density ", report) < data
