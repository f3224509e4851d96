"""DoG, DoWG, L-DoG and SM3: their recursions in NumPy, recording, resume, and SVI."""

import copy

import numpy as np
import pytest

import probtorch
from probtorch import optim
from probtorch.distributions import Normal
from probtorch.errors import ArgumentError
from probtorch.infer import SVI, AutoNormal, Trace_ELBO
from probtorch.testing.compare import assert_close
from tests.optim.test_whole import leaves, problem, run

SHAPES = [(3, 4), (5,), (), (2, 3, 2)]


def dog(starts, grads, *, reps_rel=1e-6, eps=1e-8, lr=1.0, decay=0.0):
    """Ivgi, Hinder and Carmon's equation (DoG), of all parameters as one vector."""
    shapes = [np.shape(p) for p in starts]
    first = x = np.concatenate([np.ravel(p) for p in starts])
    farthest, squares = 0.0, 0.0
    for step in grads:
        g = np.concatenate([np.ravel(g) for g in step]) + decay * x
        farthest = max(
            farthest, reps_rel * (1.0 + np.linalg.norm(first)), np.linalg.norm(x - first)
        )
        squares += g @ g
        x = x - lr * farthest / np.sqrt(squares + eps) * g
    parts = np.split(x, np.cumsum([int(np.prod(s)) for s in shapes])[:-1])
    return [p.reshape(s) for p, s in zip(parts, shapes)]


def dowg(starts, grads, *, reps_rel=1e-6, eps=1e-8, lr=1.0, decay=0.0):
    """Algorithm 1 of Khaled, Mishchenko and Jin, of all parameters as one vector."""
    shapes = [np.shape(p) for p in starts]
    first = x = np.concatenate([np.ravel(p) for p in starts])
    radius, v = reps_rel * (1.0 + np.linalg.norm(first)), 0.0
    for step in grads:
        g = np.concatenate([np.ravel(g) for g in step]) + decay * x
        radius = max(radius, np.linalg.norm(x - first))
        v += radius**2 * (g @ g)
        x = x - lr * radius**2 / np.sqrt(v + eps * radius**2) * g
    parts = np.split(x, np.cumsum([int(np.prod(s)) for s in shapes])[:-1])
    return [p.reshape(s) for p, s in zip(parts, shapes)]


def layered(starts, grads, **options):
    each = [dog([p], [[g[i]] for g in grads], **options) for i, p in enumerate(starts)]
    return [p for (p,) in each]


def sm3(starts, grads, *, lr=0.1, momentum=0.9):
    """Anil et al.'s SM3-II element by element, with loops over all indices."""
    ends = []
    for i, p in enumerate(starts):
        p = np.array(p)
        bounds = [np.zeros(n) for n in p.shape] or [np.zeros(())]
        mean = np.zeros(p.shape)
        for step in grads:
            g = np.asarray(step[i])
            now = np.zeros(p.shape)
            for index in np.ndindex(p.shape):
                least = min((b[j] for b, j in zip(bounds, index)), default=float(bounds[0].sum()))
                now[index] = least + g[index] ** 2
            with np.errstate(divide="ignore", invalid="ignore"):
                direction = np.where(now > 0.0, g / np.sqrt(now), 0.0)
            mean = momentum * mean + (1.0 - momentum) * direction
            p = p - lr * mean
            for axis in range(p.ndim):
                bounds[axis] = now.max(axis=tuple(a for a in range(p.ndim) if a != axis))
            if not p.ndim:
                bounds = [now]
        ends.append(p)
    return ends


CASES = {
    "dog": (optim.DoG, {"reps_rel": 1e-2}, dog),
    "dog, decay": (optim.DoG, {"reps_rel": 1e-2, "lr": 0.5, "weight_decay": 0.1}, dog),
    "dowg": (optim.DoWG, {"reps_rel": 1e-2}, dowg),
    "dowg, decay": (optim.DoWG, {"reps_rel": 1e-2, "lr": 0.5, "weight_decay": 0.1}, dowg),
    "layered dog": (optim.LDoG, {"reps_rel": 1e-2}, layered),
    "sm3": (optim.SM3, {"lr": 0.3}, sm3),
    "sm3, no momentum": (optim.SM3, {"lr": 0.3, "momentum": 0.0}, sm3),
}


def expected_of(name, starts, grads):
    _, options, reference = CASES[name]
    named = {"decay" if k == "weight_decay" else k: v for k, v in options.items()}
    return reference(starts, grads, **named)


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_paper(name):
    kind, options, _ = CASES[name]
    starts, grads = problem(SHAPES)
    params = leaves(starts)
    run(kind(params, **options), params, grads)
    for p, expected in zip(params, expected_of(name, starts, grads)):
        np.testing.assert_allclose(p.array, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", CASES)
def test_compiled_steps_are_eager_steps(name):
    kind, options, _ = CASES[name]
    starts, _ = problem(SHAPES)
    ends = []
    for compiled in (False, True):
        params = leaves(starts)
        optimizer = kind(params, **options)
        optimizer.init_state()

        def step(params=params, optimizer=optimizer):
            optimizer.zero_grad()
            loss = sum((p**2).sum() + p.sum().sin() for p in params)
            loss.backward()
            optimizer.step()
            return loss

        fn = probtorch.compile(step) if compiled else step
        for _ in range(6):
            fn()
        if compiled:
            assert fn.reason is None
        ends.append(params)
    for eager, replayed in zip(*ends):
        np.testing.assert_allclose(replayed.array, eager.array, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_saved_state_resumes_exactly(name):
    kind, options, _ = CASES[name]
    starts, grads = problem(SHAPES)
    whole, parts = leaves(starts), leaves(starts)
    run(kind(whole, **options), whole, grads)
    first = kind(parts, **options)
    run(first, parts, grads[:3])
    second = kind(parts, **options)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    run(second, parts, grads[3:])
    for a, b in zip(whole, parts):
        assert_close(a, b, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("kind", [optim.DoG, optim.DoWG, optim.LDoG])
def test_squares_beyond_single_precision_are_summed_in_double(kind):
    ends = []
    for dtype in (np.float32, np.float64):
        p = probtorch.tensor(np.full(3, 1e20, dtype), requires_grad=True)
        run(kind([p]), [p], [[np.full(3, 1e20, dtype)]] * 3)
        ends.append(p.detach().numpy())
    np.testing.assert_allclose(*ends, rtol=1e-6)
    assert np.all(ends[0] < 1e20)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)], ids=str)
@pytest.mark.parametrize("kind", [optim.DoG, optim.DoWG, optim.LDoG, optim.SM3])
def test_parameters_without_elements_are_stepped_beside_others(kind, shape):
    parts, alone = leaves([np.ones(shape), np.ones((2, 3))]), leaves([np.ones((2, 3))])
    both, single = kind(parts), kind(alone)
    for _ in range(3):
        run(both, parts, [[np.ones(shape), np.full((2, 3), 2.0)]])
        run(single, alone, [[np.full((2, 3), 2.0)]])
    assert parts[0].shape == shape
    assert_close(parts[1], alone[0], rtol=0.0, atol=0.0)


def coin(data):
    loc = probtorch.sample("loc", Normal(0.0, 1.0))
    scale = probtorch.sample("scale", Normal(0.0, 1.0))
    with probtorch.plate("rows", len(data)):
        probtorch.sample("y", Normal(loc, (0.3 * scale).exp()), obs=data)


@pytest.mark.parametrize("kind", [optim.DoG, optim.DoWG, optim.LDoG, optim.SM3])
def test_svi_takes_them_by_options(kind):
    """The posterior mean of `loc` is 1.9 or so; nothing has to be set but SM3's step."""
    data = probtorch.tensor(np.random.default_rng(0).normal(2.0, 1.0, size=50))
    guide = AutoNormal(coin)
    svi = SVI(coin, guide, kind({"lr": 0.1 if kind is optim.SM3 else 1.0}),
              Trace_ELBO(num_particles=10), seed=0)  # fmt: skip
    svi.run(1500, data, progress_bar=False)
    assert abs(guide.median()["loc"].item() - data.mean().item()) < 0.2


def test_all_parameters_of_svi_share_the_distance_of_dog():
    data = probtorch.tensor(np.ones(5))
    svi = SVI(coin, AutoNormal(coin), optim.DoG({"reps_rel": 0.1}), Trace_ELBO(), seed=0)
    for _ in range(3):
        svi.step(data)
    states = [s for o in svi.optim.optim_objs.values() for s in o.state.values()]
    assert len(states) > 2
    assert len({s["farthest"].item() for s in states}) == 1
    assert len({s["squares"].item() for s in states}) == 1


@pytest.mark.parametrize(
    "make, word",
    [
        (lambda p: optim.DoG(p, reps_rel=0.0), "reps_rel"),
        (lambda p: optim.DoG(p, eps=-1.0), "epsilon"),
        (lambda p: optim.LDoG(p, weight_decay=-1.0), "weight_decay"),
        (lambda p: optim.SM3(p, momentum=1.0), "momentum"),
    ],
)
def test_options_out_of_range_are_refused(make, word):
    with pytest.raises(ArgumentError, match=word):
        make(leaves([np.ones(2)]))


@pytest.mark.parametrize("make", [optim.DoG, optim.DoWG, optim.LDoG])
def test_maximising_is_minimising_what_is_turned_around(make):
    ends = []
    for sign, maximize in ((1.0, False), (-1.0, True)):
        p = probtorch.tensor([5.0, -3.0], requires_grad=True)
        optimizer = make([p], weight_decay=1.0, maximize=maximize)
        for _ in range(50):
            optimizer.zero_grad()
            (sign * ((p - 1.0) ** 2).sum()).backward()
            optimizer.step()
        ends.append(p.detach().numpy().copy())
    assert_close(ends[1], ends[0])


def test_dowg_comes_closer_than_dog_on_a_function_that_is_smooth():
    """On ``x**2`` from 100 off, 60 steps; Khaled et al. show this ordering in their figure 1."""
    ends = {}
    for kind in (optim.DoG, optim.DoWG):
        p = probtorch.tensor(100.0, dtype=probtorch.float64, requires_grad=True)
        optimizer = kind([p], reps_rel=1e-3)
        for _ in range(60):
            optimizer.zero_grad()
            (p**2).backward()
            optimizer.step()
        ends[kind] = abs(p.item())
    assert ends[optim.DoWG] < ends[optim.DoG]


def test_dowg_stays_where_nothing_has_a_slope():
    p = probtorch.tensor([1.0, 2.0], requires_grad=True)
    run(optim.DoWG([p]), [p], [[np.zeros(2)]] * 3)
    assert_close(p.detach(), probtorch.tensor([1.0, 2.0]))
