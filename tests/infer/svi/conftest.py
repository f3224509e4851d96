"""Every test begins with an empty parameter store in view, and leaves one behind."""

import pytest

from probtorch.effects.params import ParamStore
from probtorch.effects.runtime import STATE


@pytest.fixture(autouse=True)
def clean_effects():
    ParamStore().show()
    yield
    ParamStore().show()
    assert STATE.handlers == ()
    assert STATE.params is None
