"""What people write who come from other libraries, and what the message says about each.

One row per slip: the class that is caught, and what the message says, in this order. Every message
has its three parts, and blames a line of this file.
"""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch import ones, plate, sample, tensor
from probtorch.diagnostics import compare
from probtorch.errors import ArgumentError, ProbtorchError
from probtorch.infer import HMC, MCMC, NUTS, SVI, AutoNormal, Predictive, Target, Trace_ELBO
from probtorch.ode import odeint
from probtorch.optim import SGD, Adam, ClippedAdam

HERE = Path(__file__).name


def line(x, y):
    b = sample("b", dist.Normal(0.0, 1.0))
    with plate("n", len(x)):
        sample("y", dist.Normal(b * x, 1.0), obs=y)


def one_draw(y):
    with plate("n", 3):
        sample("y", dist.MultivariateNormal(ones(3), probtorch.eye(3)), obs=y)


def mcmc():
    return MCMC(NUTS(line), num_samples=5, progress_bar=False)


def svi(model=line):
    return SVI(model, AutoNormal(model), Adam({"lr": 0.1}), Trace_ELBO())


X = ones(3)
KEY = np.array([0, 7], np.uint32)

SLIPS = {
    "optimizer without parameters": (
        lambda: Adam(lr=0.1),
        ["Adam", "missing 'params'", "got:      lr=", "Adam({'lr': 0.1}) for SVI"],
    ),
    "optimizer with a number": (
        lambda: Adam(0.1).step(),
        ["has no attribute 'step'", "of options alone, for SVI", "Adam(module.parameters()"],
    ),
    "optimizer without anything": (
        lambda: SGD(),
        ["SGD", "missing 'params'", "no arguments", "SGD({'lr': 0.01}) for SVI"],
    ),
    "option of another library": (
        lambda: Adam([X.clone().requires_grad_()], learning_rate=0.1),
        ["Adam(learning_rate=...)", "unknown argument", "write lr=..."],
    ),
    "option of another library in a dict": (
        lambda: ClippedAdam({"lr": 0.1, "clipnorm": 10.0}),
        ["ClippedAdam(clipnorm=...)", "clip_norm", "did you mean clip_norm=...?"],
    ),
    "negative rate in a dict": (
        lambda: Adam({"lr": -1}),
        ["learning rate: -1", "lr >= 0", "got:      -1", "maximize=True"],
    ),
    "depth of trees": (
        lambda: NUTS(line, max_treedepth=8),
        ["NUTS(max_treedepth=...)", "'max_treedepth'", "write max_tree_depth=..."],
    ),
    "acceptance": (
        lambda: HMC(line, target_accept=0.9),
        ["HMC(target_accept=...)", "write target_accept_prob=..."],
    ),
    "kernel with the driver's settings": (
        lambda: NUTS(line, num_samples=100),
        ["NUTS(num_samples=...)", "MCMC(NUTS(model), num_samples=1000"],
    ),
    "misspelt setting of a kernel": (
        lambda: NUTS(line, step_sise=0.1),
        ["NUTS(step_sise=...)", "did you mean step_size=...?"],
    ),
    "draws": (
        lambda: MCMC(NUTS(line), draws=100),
        ["MCMC(draws=...)", "'draws'", "write num_samples=..."],
    ),
    "tuning": (
        lambda: MCMC(NUTS(line), num_samples=10, tune=10),
        ["MCMC(tune=...)", "write warmup_steps=..."],
    ),
    "driver with the kernel's settings": (
        lambda: MCMC(NUTS(line), num_samples=10, target_accept_prob=0.9),
        ["MCMC(target_accept_prob=...)", "NUTS(model, target_accept_prob=0.9"],
    ),
    "key in front of the arguments": (
        lambda: mcmc().run(KEY, X, X),
        ["model line", "key", "run(x, y)", "then 2 more", "seed=0"],
    ),
    "seed in front of the arguments": (
        lambda: mcmc().run(0, X, X),
        ["model line", "key", "run(x, y)", "got:      int 0", "seed=0"],
    ),
    "key in front of the steps": (
        lambda: svi().run(KEY, 100, X, X),
        ["SVI.run", "num_steps", "SVI(..., seed=0)"],
    ),
    "seed in front of the steps": (
        lambda: svi().run(0, 100, X, X),
        ["model line", "svi.run(num_steps, x, y)", "got:      int 100", "seed=0"],
    ),
    "key in front of a prediction": (
        lambda: Predictive(line, num_samples=3)(KEY, X, X),
        ["model line", "key", "predictive(x, y)", "seed=0"],
    ),
    "forgotten argument of a model": (
        lambda: mcmc().run(X),
        ["model line: missing 'y'", "line(x, y)", "1 argument by position", "write run(x, y)"],
    ),
    "forgotten argument of a model in SVI": (
        lambda: svi().step(X),
        ["model line: missing 'y'", "write svi.step(x, y)"],
    ),
    "forgotten argument of a model to predict": (
        lambda: Predictive(line, num_samples=3)(X),
        ["model line: missing 'y'", "write predictive(x, y)"],
    ),
    "argument that the model has not": (
        lambda: mcmc().run(X, X, sigma=1.0),
        ["model line(sigma=...)", "unknown argument 'sigma'", "write run(x, y)"],
    ),
    "forgotten argument behind a handler": (
        lambda: Target.from_model(probtorch.handlers.condition(line, {"b": 1.0}), X),
        ["missing 'y'", "write run(x, y)"],
    ),
    "optimizer forgotten": (
        lambda: SVI(line, AutoNormal(line)),
        ["SVI: missing 'optim'", "2 arguments", 'Adam({"lr": 0.01})'],
    ),
    "optimizer by another name": (
        lambda: SVI(line, AutoNormal(line), optimizer=Adam({"lr": 0.1})),
        ["SVI: missing 'optim'", "optimizer=...", "write optim=..."],
    ),
    "samples by another name": (
        lambda: Predictive(line, samples={"b": ones(3)}),
        ["Predictive(samples=...)", "write posterior_samples=..."],
    ),
    "parameters of a slope by position": (
        lambda: odeint(lambda t, y, theta: -theta * y, X, tensor([0.0, 1.0]), (1.0,)),
        ["odeint", "4 arguments by position", "lambda t, y: func(t, y, theta)"],
    ),
    "parameters of a slope by name": (
        lambda: odeint(lambda t, y, theta: -theta * y, X, tensor([0.0, 1.0]), args=(1.0,)),
        ["odeint(args=...)", "'args'", "lambda t, y: func(t, y, theta)"],
    ),
    "slope without a time": (
        lambda: odeint(lambda y: -y, X, tensor([0.0, 1.0])),
        ["odeint(func)", "func(t, y)", "<lambda>(y)", "lambda t, y: ..."],
    ),
    "slope with parameters": (
        lambda: odeint(lambda t, y, theta: -y, X, tensor([0.0, 1.0])),
        ["odeint(func)", "func(t, y)", "<lambda>(t, y, theta)", "closing over"],
    ),
    "slope in a list": (
        lambda: odeint(lambda t, y: [-y[0], y[1]], ones(2), tensor([0.0, 1.0])),
        ["odeint", "shapes [(2,)]", "shapes [(), ()]", "return stack([...])"],
    ),
    "times that turn back": (
        lambda: odeint(lambda t, y: -y, X, tensor([0.0, 2.0, 1.0])),
        ["odeint", "times t that increase", "[0. 2. 1.]", "sort them"],
    ),
    "scale of a gamma": (
        lambda: dist.Gamma(1.0, scale=2.0),
        ["Gamma", "concentration, rate", "got:      scale", "write rate=1 / scale"],
    ),
    "class of constraints for a parameter": (
        lambda: probtorch.param("x", 1.5, constraint=dist.constraints.interval),
        ["param 'x'", "type", "call it: Interval(lower_bound, upper_bound)"],
    ),
    "class of constraints for a transform": (
        lambda: dist.biject_to(dist.constraints.greater_than),
        ["biject_to(GreaterThan)", "a class of constraints", "call it: GreaterThan(lower_bound)"],
    ),
    "shape of independent copies": (
        lambda: dist.Normal(0.0, 1.0, shape=3),
        ["Normal", "got:      shape", ".expand((n,)) behind it", "plate of that size"],
    ),
    "mean of a negative binomial": (
        lambda: dist.NegativeBinomial(mu=3.0, alpha=2.0),
        ["NegativeBinomial", "got:      mu", "write NegativeBinomial2(mean, concentration)"],
    ),
    "mean of a beta": (
        lambda: dist.Beta(mu=0.5, kappa=2.0),
        ["Beta", "got:      mu", "write BetaProportion(mean, concentration)"],
    ),
    "shape of an LKJ": (lambda: dist.LKJ(2, eta=2.0), ["LKJ", "eta", "concentration?"]),
    "plate with its size first": (
        lambda: plate(3, "rows").__enter__(),
        ["plate 3", "got:      'rows'", "write plate('rows', 3)"],
    ),
    "distribution of SciPy": (
        lambda: sample("x", stats.norm(0.0, 1.0)),
        ["site 'x'", "a distribution", "probtorch.distributions, such as Normal"],
    ),
    "what a model returns": (
        lambda: NUTS(line(X, X)),
        ["NUTS", "neither", "the function itself and not what it returns"],
    ),
    "criteria in a list": (
        lambda: compare([ones(2), ones(2)]),
        ["compare", "a dict", "got:      list", "{'name': draws, ...}"],
    ),
    "a matrix that is not symmetric": (
        lambda: dist.MultivariateNormal(ones(2), tensor([[1.0, 0.2], [0.3, 1.0]])),
        ["covariance_matrix", "differ by 0.1 from those across the diagonal", "(x + x.mT) / 2"],
    ),
    "truths for parts of a draw": (
        lambda: sample(
            "x",
            dist.MultivariateNormal(ones(2), probtorch.eye(2)),
            obs=ones(3, 2),
            obs_mask=np.ones((3, 2), bool),
        ),
        ["obs_mask of site 'x'", "one truth for each draw", "(3, 2)", "obs_mask.all(-1)"],
    ),
    "predictions with the data": (
        lambda: Predictive(line, {"b": ones(3)})(X, X),
        ["Predictive", "data at 'y'", "handlers.uncondition(model)"],
    ),
    "fewer than no trials": (
        lambda: dist.Binomial(-2, 0.5),
        ["Binomial: parameter total_count", "got:      -2", "at least 0", "ExtendedBinomial"],
    ),
    "a plate around one draw": (
        lambda: one_draw(X),
        ["'y'", "3 terms for 1 observations", "one draw of MultivariateNormal", "outside of plate"],
    ),
    "bounds the other way round": (
        lambda: dist.Uniform(1.0, 0.0),
        ["Uniform: parameter high", "lower_bound=1", "got:      0", "low=smaller, high=larger"],
    ),
    "parameters by other names": (
        lambda: dist.Normal(mu=0.0, sigma=1.0),
        ["Normal", "loc, scale", "got:      mu", "did you mean loc?"],
    ),
    "rate by another name": (
        lambda: dist.Gamma(alpha=1.0, beta=2.0),
        ["Gamma", "got:      alpha", "did you mean concentration?"],
    ),
    "plate larger than memory": (
        lambda: plate("n", 10**15).__enter__(),
        ["1e+15 rows", "memory", "1000000000000000 rows", "subsample_size"],
    ),
    "data by PyMC's name": (
        lambda: sample("x", dist.Normal(0.0, 1.0), observed=X),
        ["site 'x'", "obs, obs_mask, infer", "unknown argument 'observed'", "obs="],
    ),
    "data by position": (
        lambda: sample("x", dist.Normal(0.0, 1.0), X),
        ["site 'x'", "1 more argument by position", "sample('x', Normal(...), obs=data)"],
    ),
    "shape of a site": (
        lambda: sample("x", dist.Normal(0.0, 1.0), shape=(3,)),
        ["site 'x'", "unknown argument 'shape'", "Normal(...).expand([n])"],
    ),
    "dims of a site": (
        lambda: sample("x", dist.Normal(0.0, 1.0), dims="n"),
        ["site 'x'", "unknown argument 'dims'", "with plate('rows', coords=names)"],
    ),
    "misspelt argument of a site": (
        lambda: sample("x", dist.Normal(0.0, 1.0), ob=X),
        ["site 'x'", "unknown argument 'ob'", "did you mean obs=...?"],
    ),
    "class in place of a distribution": (
        lambda: sample("x", dist.Normal),
        ["site 'x'", "Normal(...)", "the class Normal", "sample('x', Normal(...))"],
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_slip_is_told_with_what_was_meant(slip):
    run, words = SLIPS[slip]
    with pytest.raises(ProbtorchError) as info:
        run()
    text = str(info.value)
    assert re.search(".*".join(map(re.escape, words)), text, re.DOTALL), text
    for part in ("  expected: ", "  got:      ", "  fix:      "):
        assert text.count(part) == 1, text
    assert re.search(rf"at:       .*{HERE}:\d+$", text), text


def test_errors_are_still_the_classes_that_python_raises():
    with pytest.raises(TypeError):
        Adam(lr=0.1)
    with pytest.raises(TypeError):
        mcmc().run(X)
    with pytest.raises(MemoryError):
        plate("n", 10**15).__enter__()
    with pytest.raises(AttributeError):
        dist.Nromal  # noqa: B018


def test_calls_that_fit_are_left_alone():
    assert Adam([X.clone().requires_grad_()], lr=0.1).defaults["lr"] == 0.1
    assert NUTS(line, max_tree_depth=8).max_tree_depth == 8
    solved = odeint(lambda t, y: -y, X, tensor([0.0, 1.0]), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(solved[-1].numpy(), np.exp(-1.0), rtol=1e-6)


def test_type_error_from_inside_is_not_taken_for_a_call_that_does_not_fit():
    def bad_slope(t, y):
        return y + "text"

    def bad_model(x):
        raise TypeError("the model's own")

    with pytest.raises(TypeError) as info:
        odeint(bad_slope, X, tensor([0.0, 1.0]))
    assert "arguments" not in str(info.value)
    with pytest.raises(TypeError, match=r"^the model's own$"):
        Target.from_model(bad_model, X)


def test_number_or_generator_that_the_model_takes_is_no_key():
    def counted(n, x=None):
        sample("a", dist.Normal(0.0, 1.0).expand([n]).to_event(1))

    assert Target.from_model(counted, 3).dim == 3
    assert Target.from_model(counted, np.int64(3), X).dim == 3


def test_signatures_are_shown_as_before():
    import inspect

    assert list(inspect.signature(Adam).parameters)[:2] == ["params", "lr"]
    assert "max_tree_depth" in inspect.signature(NUTS).parameters
    assert list(inspect.signature(odeint).parameters)[:3] == ["func", "y0", "t"]


# ---------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize("text", ["abc", "0", "-1", "99999999999", "2.5"])
def test_number_of_threads_that_is_none_is_warned_about(monkeypatch, text):
    from probtorch.compiler.native import threads

    monkeypatch.setenv("PROBTORCH_NUM_THREADS", text)
    monkeypatch.setattr(threads._state, "count", None)
    with pytest.warns(
        RuntimeWarning, match=rf"PROBTORCH_NUM_THREADS[\s\S]*whole number[\s\S]*'{text}'[\s\S]*fix:"
    ):
        count = probtorch.get_num_threads()
    assert 1 <= count <= 4096


def test_number_of_threads_in_use_elsewhere_is_not_ours_to_judge(monkeypatch):
    from probtorch.compiler.native import threads

    monkeypatch.delenv("PROBTORCH_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "99999999999")
    monkeypatch.setattr(threads._state, "count", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert probtorch.get_num_threads() <= 4096


# --------------------------------------------------------------------------------------- the store


def test_refused_options_leave_no_optimizer_behind():
    with pytest.raises(ArgumentError):
        Adam({"lr": 0.1, "betas": (1.5, 0.9)})
    with pytest.raises(ArgumentError):
        SGD({"lr": 0.1, "momentun": 0.9})
