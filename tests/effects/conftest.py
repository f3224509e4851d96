"""Every test begins and ends with an empty script-level parameter store and no active handlers."""

import pytest

from probtorch.effects.params import clear_param_store
from probtorch.effects.runtime import STATE


@pytest.fixture(autouse=True)
def clean_effects():
    clear_param_store()
    yield
    clear_param_store()
    assert STATE.handlers == ()
    assert STATE.plates.frames == ()
    assert STATE.params is None
