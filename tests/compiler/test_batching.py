"""Recorded graphs on many points at once, against the points one by one."""

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import probtorch as pt
from probtorch.autograd.modes import no_grad
from probtorch.compiler.batching import BatchedDensity, batch_graph
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.record.record import record
from probtorch.core.dispatch import wrap
from probtorch.errors import AutogradError, ShapeError
from probtorch.func import vmap
from probtorch.infer import Target
from tests.compiler.agreement import differences, spread
from tests.compiler.program_strategy import programs
from tests.posteriordb.models import MODELS, as_arguments
from tests.posteriordb.references import made_up

QUICK = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=35,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


def tensors(values):
    return [wrap(np.array(a)) for a in values]


def arrays(found):
    return [np.asarray(x.array) for x in found]


def check_program(program):
    """Record on one set of inputs, run on both at once, compare with both alone."""
    captured = tensors(program.captured)
    rec, _ = record(lambda *xs: program.with_gradients(xs, captured), tensors(program.inputs[0]))
    if rec.unsupported:
        return
    both = [wrap(np.stack(pair)) for pair in zip(*program.inputs, strict=True)]
    with no_grad():
        outs, fits = batch_graph(rec.graph, [True] * len(both), 2)(*both)
    fits = [True, True] if fits is None else fits.array.tolist()
    assert fits[0]
    for k in (0, 1):
        if fits[k]:

            def run(k=k):
                found = program.with_gradients(
                    tensors(program.inputs[k]), tensors(program.captured)
                )
                return arrays(found)

            expected = spread(run)
            wrong = differences([x[k] for x in arrays(outs)], expected)
            assert not wrong, f"inputs {k}: {wrong}\n{program!r}"


def check_vmap(program):
    """Run under vmap on both sets of inputs, gradients taken inside; compare with both alone."""
    captured = tensors(program.captured)
    both = [wrap(np.stack(pair)) for pair in zip(*program.inputs, strict=True)]
    try:
        outs = vmap(lambda *xs: program.with_gradients(xs, captured))(*both)
    except AutogradError as error:
        if error.subject != "vmap":
            raise
        return
    for k in (0, 1):

        def run(k=k):
            found = program.with_gradients(tensors(program.inputs[k]), tensors(program.captured))
            return arrays(found)

        wrong = differences([x[k] for x in arrays(outs)], spread(run))
        assert not wrong, f"inputs {k}: {wrong}\n{program!r}"


@QUICK
@given(programs())
def test_random_programs_under_vmap(program):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        check_vmap(program)


@QUICK
@given(programs())
def test_random_programs_on_both_sets_of_inputs_at_once(program):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        check_program(program)


@pytest.mark.slow
@settings(QUICK, max_examples=2000)
@given(programs())
def test_many_random_programs_on_both_sets_of_inputs_at_once(program):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        check_program(program)
        check_vmap(program)


def check_density(density, points, rtol=1e-10):
    values, gradients = density.value_and_grad_many(points)
    for value, gradient, q in zip(values, gradients, points, strict=True):
        expected, slope = density.value_and_grad(q)
        np.testing.assert_allclose(value, expected, rtol=rtol)
        np.testing.assert_allclose(gradient, slope, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    "name",
    [name for name in MODELS if name.split("-")[0] in ("eight_schools", "arK", "earnings", "arma")],
    ids=lambda name: name.split("-")[0],
)
def test_posterior_at_many_points(name):
    rng = np.random.default_rng(4)
    target = Target.from_model(MODELS[name], **as_arguments(made_up(name, rng)))
    points = rng.uniform(-0.5, 0.5, (9, target.dim))
    check_density(target.density, points)
    assert target.density._many.reason is None


def test_points_on_different_paths_find_theirs():
    seen = []

    def density(q):
        seen.append(1)
        if q[0] > 0.0:
            return -(q**2).sum()
        return -(q**4).sum() if q[1] > 0.0 else q.sum()

    points = np.random.default_rng(0).standard_normal((300, 2))
    native = NativeDensity(density, 2)
    check_density(native, points)
    count = len(seen)
    native.value_and_grad_many(points[::-1])
    assert len(seen) == count, "a known path was evaluated in Python"
    assert len(native._many.paths.of(256)) == 3


def with_uneven_loop(q):
    n, total = pt.while_loop(
        lambda s: s[0] < q[0] * 3.0,
        lambda s: (s[0] + 1.0, s[1] + SERIES[s[0].long()] * q[1]),
        (0.0, pt.tensor(0.0, dtype=pt.float64)),
    )
    return -(q**2).sum() + total * q[0] + n.double()


SERIES = pt.tensor(np.random.default_rng(8).standard_normal(9))


def test_loop_runs_until_it_is_done_at_each_point():
    points = np.random.default_rng(1).uniform(-1, 3, (20, 2))
    points[0] = 0.5, 1.0
    rec, _ = record(with_uneven_loop, [wrap(points[0])])
    (out,), fits = batch_graph(rec.graph, (True,), 20)(wrap(points))
    assert fits is None
    np.testing.assert_allclose(out.array, [with_uneven_loop(wrap(q)).item() for q in points])


def test_density_with_an_uneven_loop_is_evaluated_point_by_point():
    native = NativeDensity(lambda q: with_uneven_loop(q.detach()) - (q**2).sum(), 2)
    check_density(native, np.random.default_rng(1).uniform(-1, 3, (20, 2)))
    what, where = native._many.reason
    assert "turns" in what and "test_batching.py" in where


def test_branch_of_its_own_for_each_point():
    def density(q):
        pick = pt.cond(q.detach()[0] > 0.0, lambda x: x * 2.0, lambda x: x.exp(), q.detach())
        return -(q * pick).sum()

    native = NativeDensity(density, 3)
    check_density(native, np.random.default_rng(2).standard_normal((20, 3)))
    assert native._many.reason is None


def test_long_python_loop_is_rolled_and_batched():
    y = np.random.default_rng(5).standard_normal(400)

    def density(q):
        level, total = q[0], -(q**2).sum()
        for t in range(400):
            level = pt.tanh(q[1]) * level + q[2]
            total = total - (level - y[t]) ** 2
        return total

    native = NativeDensity(density, 3)
    check_density(native, np.random.default_rng(6).standard_normal((9, 3)))
    assert native._many.reason is None
    assert len(native._many.paths.of(16)[0].program.graph.nodes) < 200


def test_point_where_the_model_cannot_be_evaluated_does_not_spoil_the_others():
    def density(q):
        a = pt.stack([pt.stack([q[0], q[1]]), pt.stack([q[1], q[0]])])
        return -pt.linalg.cholesky(a).sum()

    points = np.array([[2.0, 1.0], [1.0, 2.0], *[[3.0, 0.5]] * 8])
    values, gradients = NativeDensity(density, 2).value_and_grad_many(points)
    assert values[1] == -np.inf
    values, gradients = np.delete(values, 1), np.delete(gradients, 1, 0)
    assert np.isfinite(values).all() and np.isfinite(gradients).all()


def test_several_blocks_and_threads_give_the_same():
    def density(q):
        return -(q**2).sum() + pt.sin(q).prod()

    points = np.random.default_rng(3).standard_normal((1100, 3))
    native = NativeDensity(density, 3)
    with no_grad():
        native.value_and_grad_many(points)
    check_density(native, points)


def test_density_that_runs_in_python_is_evaluated_point_by_point():
    native = NativeDensity.from_python(lambda q: (float(-(q @ q)), -2.0 * q), 2)
    points = np.random.default_rng(3).standard_normal((5, 2))
    values, gradients = BatchedDensity(native).value_and_grad(points)
    np.testing.assert_allclose(values, -(points**2).sum(-1))
    np.testing.assert_allclose(gradients, -2.0 * points)


def test_points_of_a_wrong_shape_are_refused():
    native = NativeDensity(lambda q: -(q**2).sum(), 2)
    with pytest.raises(ShapeError, match=r"\(points, 2\)"):
        native.value_and_grad_many(np.zeros((3, 4)))


def test_no_points_give_no_values():
    values, gradients = NativeDensity(lambda q: -(q**2).sum(), 2).value_and_grad_many(
        np.zeros((0, 2))
    )
    assert values.shape == (0,) and gradients.shape == (0, 2)
