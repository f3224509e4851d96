"""Inference begins and ends with an empty parameter store, as tests of effects do."""

from tests.effects.conftest import clean_effects

__all__ = ["clean_effects"]
