"""Random models mean in probtorch what their text means in NumPy and SciPy."""

import pytest

from tests.infer.random_models import check


def differences(seeds):
    """What is wrong of these models; a tenth of them at most may be refused."""
    found = [f for f in map(check, seeds) if f is not None]
    wrong = [f for f in found if not f.startswith("refused")]
    assert len(found) - len(wrong) <= 0.1 * len(seeds)
    return wrong


@pytest.mark.parametrize("block", range(3))
def test_random_models_are_what_their_text_says(block):
    assert differences(range(5 * block, 5 * (block + 1))) == []


@pytest.mark.slow
def test_many_more_random_models():
    assert differences(range(10_000, 10_400)) == []
