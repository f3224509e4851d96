"""Every public constructor, and every function that no operation waits for, tells misfits apart.

A call with a name that is not taken raises `ArgumentError`, which says what was expected and what
to write. Functions that run for each operation on tensors are left to Python's own words: the
frame that catches a misfit costs 0.1 to 0.3 us, a tenth of such a call.
"""

import importlib
import inspect

import pytest

import probtorch
from probtorch import nn
from probtorch.core.signatures import SPELLINGS, closest
from probtorch.errors import ArgumentError, ProbtorchError

ROOMS = (
    "probtorch",
    "probtorch.autograd",
    "probtorch.diagnostics",
    "probtorch.distributions",
    "probtorch.distributions.constraints",
    "probtorch.distributions.transforms",
    "probtorch.effects",
    "probtorch.estimators",
    "probtorch.func",
    "probtorch.handlers",
    "probtorch.infer",
    "probtorch.nn",
    "probtorch.nn.init",
    "probtorch.nn.utils",
    "probtorch.nn.utils.parametrizations",
    "probtorch.nn.utils.parametrize",
    "probtorch.numerics",
    "probtorch.ode",
    "probtorch.optim",
    "probtorch.optim.lr_scheduler",
    "probtorch.optim.swa_utils",
    "probtorch.testing",
    "probtorch.utils.data",
)
# What is made or called for each operation or statement.
HOT = ("probtorch.ops.", "probtorch.nn.functional.", "probtorch.autograd.modes", "numpy")
SMALL = {
    "Size", "Tensor", "as_dtype", "detach", "promote_types", "broadcast_shapes", "default_dtype_as",
    "finfo",
    "get_default_dtype", "set_default_dtype", "enable_validation", "validation_enabled",
    "get_num_threads", "set_num_threads", "warn_about",
    "Frame", "Handler", "PlateInfo", "Site", "Trace", "Reparam", "perform", "plate_info",
    "Draws", "SiteDraws", "Fitted", "Finding", "Estimate", "Estimated", "Estimator", "Problem",
    "VarianceTable", "applicable",
    "Parameter", "Buffer",
    "WorkerInfo", "Identity",  # Identity takes anything, as in PyTorch
    "biject_to", "transform_to", "ConstraintRegistry", "identity_transform",  # objects
}  # fmt: skip


def taken(made):
    """Whether something takes a name that nobody would give it."""
    try:
        parameters = inspect.signature(made).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.kind is p.VAR_KEYWORD for p in parameters) or not parameters


def public():
    found = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in getattr(module, "__all__", None) or dir(module):
            made = getattr(module, name)
            if name.startswith("_"):
                continue
            home = getattr(made, "__module__", "") or ""
            if not callable(made) or name in SMALL or home.startswith(HOT):
                continue
            if isinstance(made, type) and issubclass(made, BaseException):
                continue
            if not isinstance(made, type) and not inspect.isfunction(made):
                continue  # constraints and the like: made already
            if isinstance(made, type) and inspect.isabstract(made):
                continue
            if not taken(made):
                found[f"{room}.{name}"] = made
    return found


PUBLIC = public()


@pytest.mark.parametrize("name", PUBLIC)
def test_name_that_is_not_taken_is_refused_in_our_words(name):
    with pytest.raises(ProbtorchError, match="nobody_asked") as info:
        PUBLIC[name](nobody_asked=1)
    error = info.value
    assert isinstance(error, TypeError) or isinstance(error, ArgumentError)
    assert error.expected and error.got and error.fix
    assert "test_unknown_arguments.py" in error.location


def test_most_of_the_library_is_held_to_it():
    assert len(PUBLIC) > 350


def names_taken():
    methods = probtorch.infer.SVI, probtorch.distributions.Normal.sample
    found = {name for made in methods for name in inspect.signature(made).parameters}
    for made in PUBLIC.values():
        found |= set(inspect.signature(made).parameters)
    return found


def test_no_spelling_is_in_vain():
    """Every word of another library leads to a name that something here has."""
    known = names_taken()
    for word, meant in SPELLINGS.items():
        assert any(name in known for name in meant), word
        assert word not in meant


def test_words_of_other_libraries_lead_to_ours():
    x = probtorch.ones(3)
    for call, fix in {
        lambda: probtorch.utils.data.DataLoader([1], batchsize=3): "did you mean batch_size=",
        lambda: probtorch.handlers.seed(None, seed=0): "did you mean rng_seed=",
        lambda: probtorch.param("a", 1.0, constraints=None): "did you mean constraint=",
        lambda: probtorch.plate("n", 3, shape=3): "did you mean size=",
        lambda: probtorch.plate("n", 3, coord=["a"]): "did you mean coords=",
        lambda: probtorch.tensor([1.0], require_grad=True): "did you mean requires_grad=",
        lambda: probtorch.zeros(3, dtyp="float64"): "did you mean dtype=",
        lambda: probtorch.linspace(0, 1, num=3): "did you mean steps=",
        lambda: probtorch.arange(stop=3): "did you mean end=",
        lambda: probtorch.vmap(len, in_axes=0): "did you mean in_dims=",
        lambda: probtorch.infer.Trace_ELBO(num_samples=3): "did you mean num_particles=",
        lambda: probtorch.distributions.Normal(0.0, 1.0).sample(
            size=3
        ): "did you mean sample_shape",
        lambda: probtorch.diagnostics.hdi(x[None], hdi_prob=0.9): "did you mean prob=",
        lambda: probtorch.infer.infer_discrete(len, temp=0): "did you mean temperature=",
        lambda: probtorch.optim.lr_scheduler.ExponentialLR(None, factor=0.9): "did you mean gamma=",
        lambda: nn.init.xavier_uniform(gains=1.0): "did you mean gain=",
        lambda: probtorch.configure(jitt=False): "check the spelling",
        lambda: probtorch.deterministic("a"): "pass value",
        lambda: probtorch.sample("a"): "pass fn",
    }.items():
        with pytest.raises(ArgumentError) as info:
            call()
        assert fix in info.value.fix, (info.value, fix)
        assert "test_unknown_arguments.py" in info.value.location


def test_closest_name_is_found_through_case_and_underscores():
    assert closest("numSamples", ["num_chains", "num_samples"]) == "num_samples"
    assert closest("xyzzy", ["num_chains", "num_samples"]) is None


def test_statements_are_still_found_where_they_are_written():
    from probtorch.distributions import Normal

    def model():
        a = probtorch.sample("a", Normal(0.0, 1.0))
        probtorch.deterministic("d", a)
        probtorch.factor("f", a)
        with probtorch.plate("n", 3):
            probtorch.param("p", 1.0)

    trace = probtorch.handlers.trace(model).get_trace()
    first = model.__code__.co_firstlineno
    lines = {name: int(site.location.rpartition(":")[2]) - first for name, site in trace.items()}
    assert lines == {"a": 1, "d": 2, "f": 3, "n": 4, "p": 5}
    assert all(site.location.startswith(__file__) for _, site in trace.items())
