"""A step of SVI is a function from a state and a batch to a state, whichever way it is taken.

So keeping a state is a way back, saving one a way to go on, and nobody needs to reach inside.
"""

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.config import configure
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import (
    ELBO,
    SVI,
    AutoGuide,
    AutoNormal,
    Estimate,
    Objective,
    Trace_ELBO,
    TraceGraph_ELBO,
    guides,
    objectives,
)
from probtorch.infer.objectives.loss_function import as_objective
from probtorch.infer.objectives.runs import run_pair
from probtorch.infer.vi.fit import Fit
from probtorch.infer.vi.fit_memory import FitMemory
from probtorch.infer.vi.fit_state import FitState
from probtorch.nn import BatchNorm1d
from probtorch.optim import SGD, Adam
from probtorch.tensor import tensor

PACKAGE = Path(__file__).resolve().parents[2] / "probtorch"
RNG = np.random.default_rng(0)
X, Y = tensor(RNG.standard_normal((12, 3))), tensor(RNG.standard_normal(12) + 1.0)


# ------------------------------------------------------------------------------- who reaches in


def private_accesses(source, owners=("svi", "fit")):
    """Lines of `source` that use a private member of an object called `svi` or `fit`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            owner = node.value
            name = getattr(owner, "attr", None) or getattr(owner, "id", None)
            if name in owners and not node.attr.endswith("__"):
                found.append((node.lineno, node.attr))
    return found


def test_private_accesses_are_seen():
    source = "svi._a = 1\nx = self.svi._b\nself._c\nsvi.d\nfit.__dict__\nfit._e()"
    assert sorted(private_accesses(source)) == [(1, "_a"), (2, "_b"), (6, "_e")]


@pytest.fixture(scope="module")
def sources():
    return {path: path.read_text() for path in PACKAGE.rglob("*.py")}


def test_nobody_uses_a_private_member_of_svi(sources):
    found = {
        str(path): accesses
        for path, source in sources.items()
        if re.search(r"\b(svi|fit)\._", source) and (accesses := private_accesses(source))
    }
    assert found == {}


def test_a_private_member_of_svi_is_asked_of_nothing_but_self(sources):
    """Under another name than `svi` neither."""
    svi = SVI(line, line_guide, SGD({"lr": 0.1}))
    private = {n for kind in (FitMemory, Fit, SVI) for n in vars(kind)} | set(vars(svi))
    private = {n for n in private if n.startswith("_") and not n.endswith("__")}
    assert private
    for path, source in sources.items():
        if path.parent in (PACKAGE / "infer", PACKAGE / "infer" / "vi") and any(
            f".{name}" in source for name in private
        ):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Attribute) and node.attr in private:
                    assert getattr(node.value, "id", None) == "self", f"{path}:{node.lineno}"


def test_the_file_of_svi_has_what_users_call_and_no_more(sources):
    """The loop of a run, what a step is and the memory it works on have files of their own."""
    assert len(sources[PACKAGE / "infer" / "vi" / "svi.py"].splitlines()) < 250


# ---------------------------------------------------------------------------------------- programs


def line(x, y, broken=0.0):
    beta = probtorch.sample("beta", dist.Normal(probtorch.zeros(3), 1.0).to_event(1))
    with probtorch.plate("rows", len(y)):
        mean = x @ beta + broken
        probtorch.sample("y", dist.Normal(mean, 1.0, validate_args=False), obs=y)


def line_guide(x, y, broken=0.0):
    loc = probtorch.param("loc", probtorch.zeros(3, dtype=probtorch.float64))
    probtorch.sample("beta", dist.Normal(loc, 0.3).to_event(1))


def coin(x, y, broken=0.0):
    a = probtorch.sample("a", dist.Bernoulli(0.3))
    with probtorch.plate("rows", len(y)):
        probtorch.sample("y", dist.Normal(3.0 * a + broken, 1.0, validate_args=False), obs=y)


def coin_guide(x, y, broken=0.0):
    """Its baseline is a memory of the objective's."""
    logit = probtorch.param("logit", tensor(0.4, dtype=probtorch.float64))
    options = {"use_decaying_avg_baseline": True}
    probtorch.sample("a", dist.Bernoulli(logits=logit), infer={"baseline": options})


def normalised():
    """A model whose running means move at each step, and which counts its steps."""
    norm = BatchNorm1d(3, affine=False, dtype=probtorch.float64)

    def model(x, y, broken=0.0):
        net = probtorch.module("norm", norm)
        line(net(x), y, broken)

    return SVI(model, line_guide, Adam({"lr": 0.05}), seed=1)


FITS = {
    "automatic": lambda: SVI(line, AutoNormal(line), Adam({"lr": 0.05}), seed=1),
    "particles": lambda: SVI(line, line_guide, Adam, Trace_ELBO(num_particles=2), seed=1, lr=0.05),
    "momentum": lambda: SVI(line, line_guide, lambda p: SGD(p, lr=0.01, momentum=0.9), seed=1),
    "default generator": lambda: SVI(line, line_guide, Adam({"lr": 0.05})),
    "memory": lambda: SVI(coin, coin_guide, Adam({"lr": 0.05}), TraceGraph_ELBO(), seed=1),
    "buffers": normalised,
}
WAYS = {"compiled": True, "eager": False}
each = [
    pytest.mark.parametrize("make", FITS.values(), ids=FITS),
    pytest.mark.parametrize("jit", WAYS.values(), ids=WAYS),
]


def of_each(test):
    for mark in each:
        test = mark(test)
    return test


def plain(x):
    """A tree as plain values, which compare by `==`."""
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(value) for value in x]
    return x.tolist() if hasattr(x, "tolist") else x


def content(state, but=()):
    # `changes` tells how often Python values were changed ahead of the steps before, which is what
    # happened and not where the fit is: a state that is gone back to has such a change behind it.
    but = {*but, "changes"}
    return {name: plain(value) for name, value in vars(state).items() if name not in but}


# -------------------------------------------------------------------------------------------- laws


@pytest.mark.filterwarnings("ignore:SVI.step runs eagerly")
@of_each
def test_a_step_depends_on_state_and_batch_alone(make, jit):
    with configure(jit=jit, check_gradients=False):
        svi = make()
        states, infos = [svi.init(5, X, Y) if svi.generator else svi.init(None, X, Y)], []
        kept = [content(states[0])]
        for _ in range(4):
            state, info = svi.take_step(states[-1], (X, Y))
            states.append(state)
            infos.append(info)
            kept.append(content(state))
        assert [state.step for state in states] == [0, 1, 2, 3, 4]
        for i in (2, 0, 3):
            again, info = svi.take_step(states[i], (X, Y))
            assert info.loss == infos[i].loss and content(again) == kept[i + 1]
        # What came after has not changed what was kept.
        assert [content(state) for state in states] == kept


@of_each
def test_steps_of_states_are_those_of_step(make, jit):
    with configure(jit=jit, check_gradients=False):
        probtorch.manual_seed(3)
        one = make()
        losses = [one.step(X, Y) for _ in range(4)]
        probtorch.manual_seed(3)
        svi = make()
        state, found = svi.init(None, X, Y), []
        for _ in range(4):
            state, loss = svi.update(state, X, Y)
            found.append(loss)
    assert found == losses
    assert content(state) == content(one.take())


@pytest.mark.filterwarnings("ignore:SVI.step runs eagerly")
@of_each
def test_a_state_from_a_file_goes_on_bit_for_bit(make, jit, tmp_path):
    with configure(jit=jit, check_gradients=False):
        svi = make()
        for _ in range(3):
            svi.step(X, Y)
        state = svi.take()
        probtorch.save(state.to_dict(), tmp_path / "state")
        rest = [svi.step(X, Y) for _ in range(3)]
        found = FitState.of_dict(probtorch.load(tmp_path / "state"))
        assert content(found) == content(state)
        other, again = make(), []
        for _ in range(3):
            found, loss = other.update(found, X, Y)
            again.append(loss)
    assert again == rest


@of_each
def test_a_refused_step_uses_up_draws_and_nothing_else(make, jit):
    with configure(jit=jit, check_gradients=False):
        svi = make()
        svi.patience = None
        broken = tensor(0.0, dtype=probtorch.float64)
        for _ in range(3):
            svi.step(X, Y, broken)
        before = svi.take()
        broken.fill_(np.nan)
        assert not np.isfinite(svi.step(X, Y, broken))
        after = svi.take()
    counted = ("generators", "step", "failures")
    assert content(after, counted) == content(before, counted)
    assert (after.step, after.failures) == (4, 1)
    assert after.generators != before.generators


@pytest.mark.filterwarnings("ignore:SVI.step runs eagerly")
@of_each
def test_a_run_that_stops_is_at_the_state_before_its_last_good_step(make, jit):
    with configure(jit=jit, check_gradients=False):
        svi = make()
        broken = tensor(0.0, dtype=probtorch.float64)
        states = []
        for _ in range(4):
            states.append(svi.take())
            svi.step(X, Y, broken)
        broken.fill_(np.nan)
        with pytest.raises(InferenceError, match=r"stopped at step 4.*before step 3"):
            svi.step(X, Y, broken)
        assert content(svi.take()) == content(states[3])


def test_evaluating_at_a_state_leaves_the_fit_where_it_is():
    svi = FITS["automatic"]()
    states = [svi.init(2, X, Y)]
    for _ in range(3):
        states.append(svi.update(states[-1], X, Y)[0])
    now = content(svi.take())
    losses = [svi.evaluate(state, X, Y) for state in states]
    assert losses == [svi.evaluate(state, X, Y) for state in states]
    assert len(set(losses)) == 4
    early, late = svi.get_params(states[0]), svi.get_params()
    assert all(early[name].tolist() != late[name].tolist() for name in late)
    assert content(svi.take()) == now


def test_a_state_of_other_parameters_is_refused():
    state = FITS["automatic"]().init(0, X, Y)
    with pytest.raises(ArgumentError, match="'loc'"):
        FITS["momentum"]().update(state, X, Y)


# ------------------------------------------------------------------------- objectives and guides


class Plain:
    """An objective that is no `ELBO`: nothing but the protocol."""

    own_gradients = False

    def __init__(self):
        self.asked = []

    def estimates(self, model, guide, args, kwargs):
        for run in self.runs(model, guide, args, kwargs):
            value = run.log_model() - run.log_guide()
            yield Estimate(value, value)

    def runs(self, model, guide, args, kwargs):
        yield run_pair(model, guide, args, kwargs)

    def loss(self, *args, **kwargs):
        return Trace_ELBO().loss(*args, **kwargs)

    def loss_and_grads(self, *args, **kwargs):
        return Trace_ELBO().loss_and_grads(*args, **kwargs)

    def settled(self, model, guide):
        self.asked.append("settled")
        return True

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        self.asked.append("load")


def test_what_offers_the_protocol_is_an_objective_like_any_other():
    losses = {}
    for objective in (Plain(), Trace_ELBO()):
        svi = SVI(line, line_guide, Adam({"lr": 0.05}), objective, seed=1)
        losses[type(objective)] = [svi.step(X, Y) for _ in range(5)]
        assert svi.explain().startswith("SVI.step: 1 compiled path")
        svi.load_state_dict(svi.state_dict())
        if isinstance(objective, Plain):
            assert {"settled", "load"} <= set(objective.asked)
    np.testing.assert_allclose(losses[Plain], losses[Trace_ELBO], rtol=1e-12)


def test_objectives_offer_what_the_protocol_asks():
    public = (getattr(objectives, name) for name in objectives.__all__)
    found = [kind for kind in public if isinstance(kind, type)]
    found = [kind for kind in found if issubclass(kind, ELBO) and kind is not ELBO]
    assert len(found) >= 7
    for kind in found:
        assert isinstance(kind(), Objective)
        assert as_objective(made := kind()) is made
    assert not isinstance(lambda model, guide: 0.0, Objective)
    assert isinstance(as_objective(lambda model, guide: 0.0), Objective)


@pytest.mark.parametrize("room", [guides, objectives], ids=lambda room: room.__name__)
def test_a_guide_and_an_objective_are_named_in_their_file_and_in_one_list(room, sources):
    """Those that no other is made of; the recipes of docs/internals/svi.md run as tests."""
    base = AutoGuide if room is guides else ELBO
    kinds = [x for n in room.__all__ if issubclass(x := getattr(room, n), base) and x is not base]
    last = [k for k in kinds if not any(issubclass(x, k) for x in kinds if x is not k)]
    assert len(last) >= 4
    for kind in last:
        own = Path(sys.modules[kind.__module__].__file__)
        written = {
            path
            for path, source in sources.items()
            if (path == own or path.name == "__init__.py")
            and kind.__name__ in source
            and kind.__name__ in code_names(source)
        }
        assert written == {own, Path(room.__file__)}, kind.__name__
        assert getattr(probtorch.infer, kind.__name__) is kind


def code_names(source):
    """Names that code uses, and texts that are one: entries of `__all__`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Name, ast.alias, ast.Attribute, ast.ClassDef)):
            found |= {getattr(node, key, None) for key in ("id", "name", "attr")}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found
