"""Four algorithms on real posteriors: one evidence, and the means of posteriordb's draws."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from probtorch.infer import DADVI, LaplaceApproximation, NaturalGradientVI, Pathfinder, Target
from tests.posteriordb.models import MODELS, as_arguments
from tests.posteriordb.test_posteriors import draws_of

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "posteriordb"
NAMES = (
    "earnings-logearn_height_male",
    "gp_pois_regr-gp_regr",
    "kidiq-kidscore_interaction",
    "low_dim_gauss_mix-low_dim_gauss_mix",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.exists(), reason=f"no reference draws at {FOLDER}"),
]


@pytest.mark.parametrize("name", NAMES)
def test_evidence_and_means_agree(name):
    data = json.loads((FOLDER / f"{name}.data.json").read_text())
    reference = json.loads((FOLDER / "reference.json").read_text())["posteriors"][name]["params"]
    target = Target.from_model(MODELS[name], **as_arguments(data))
    evidences = []
    for make in (Pathfinder, LaplaceApproximation, DADVI, NaturalGradientVI):
        result = make(target, seed=0).run()
        evidences.append(result.log_evidence(4000))
        samples = result.draws(4000, resample=True).posterior
        for parameter, expected in reference.items():
            x = draws_of(samples, parameter)
            # Draws of 16,000 by weight: an error no larger than that of 1000 independent ones. Over
            # some 60 comparisons a z of 4.5 comes by chance once in two thousand runs.
            error = math.hypot(expected["sd"] / math.sqrt(1000), expected["mcse_mean"])
            assert abs(x.mean() - expected["mean"]) < 4.5 * error, (make.__name__, parameter)
    values, errors = np.array(evidences).T
    assert np.abs(values[:, None] - values).max() < 4.5 * np.hypot(errors[:, None], errors).max()
