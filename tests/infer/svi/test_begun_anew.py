"""A second SVI over the same functions begins anew, and says so where it may be a surprise."""

import warnings

import pytest

import probtorch
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.distributions import Delta, Normal
from probtorch.infer import SVI, AutoNormal
from probtorch.infer.vi import begun_anew
from probtorch.optim import Adam


def model():
    probtorch.sample("y", Normal(probtorch.sample("z", Normal(0.0, 1.0)), 1.0), obs=3.0)


def guide():
    probtorch.sample("z", Delta(probtorch.param("where", 0.0)))


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch):
    monkeypatch.setattr(begun_anew, "_TOLD", [])
    monkeypatch.setattr(begun_anew, "_LAST", [])
    probtorch.clear_param_store()


def stepped(guide, **options):
    svi = SVI(model, guide, Adam({"lr": 0.1}), **options)
    svi.step()
    return svi


def test_a_second_run_of_the_same_functions_says_once_that_it_begins_anew():
    stepped(guide)
    with pytest.warns(InferenceWarning, match="begins anew") as told:
        second = stepped(guide)
    assert "'where'" in str(told[0].message)
    assert second.params["where"].item() == pytest.approx(0.1, rel=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stepped(guide)


def clear(_):
    probtorch.clear_param_store()
    return {}


@pytest.mark.parametrize(
    "options",
    [clear, lambda first: {"params": first.params}, lambda _: {"seed": 0}],
    ids=["cleared", "shared", "seed"],
)
def test_who_says_what_is_meant_is_not_told(options):
    first = stepped(guide)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stepped(guide, **options(first)).params["where"].requires_grad


def test_automatic_guides_are_told_of_like_functions():
    own = AutoNormal(model)
    stepped(own)
    with pytest.warns(InferenceWarning, match="begins anew"):
        stepped(own)


def test_other_functions_are_not_told():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stepped(guide)
        assert stepped(AutoNormal(model)).params.keys() != {"where"}
