"""Nonlinear state space models: against the Kalman filter, Särkkä's algorithm, and particles."""

import numpy as np
import pytest

import probtorch
from probtorch import stack, tensor
from probtorch.contrib.tracking import NonlinearGaussianHMM
from probtorch.distributions import GaussianHMM, Laplace, MultivariateNormal, Normal
from probtorch.errors import ArgumentError, ShapeError
from probtorch.infer import ParticleFilter
from probtorch.testing import assert_close

RNG = np.random.default_rng(0)
STEPS, DT, PULL = 12, 0.1, 9.8
F = tensor(np.array([[0.9, 0.2], [-0.1, 0.8]]))
H = tensor(np.array([[1.0, 0.3, 0.0], [0.5, -1.0, 0.2]]))
COV = np.array([[0.3, 0.1], [0.1, 0.2]])
# Särkkä's pendulum: the noise of a speed that is driven by white noise.
Q = 0.1 * np.array([[DT**3 / 3.0, DT**2 / 2.0], [DT**2 / 2.0, DT]])
START, SPREAD, NOISE = np.array([1.2, 0.0]), 0.1 * np.eye(2), 0.3


def normal(loc, cov):
    return MultivariateNormal(tensor(np.asarray(loc)), tensor(np.asarray(cov)))


def linear(moves, noise, steps=STEPS):
    first = normal([0.5, -0.5], COV)
    exact = GaussianHMM(first, F, moves, H, noise, duration=steps)
    return exact, NonlinearGaussianHMM(
        first, lambda z: z @ F, moves, lambda z: z @ H, noise, duration=steps
    )


def swing(z, pull=PULL):
    angle, speed = z[..., 0], z[..., 1]
    return stack([angle + DT * speed, speed - DT * pull * angle.sin()], -1)


def of_one_state(z):
    """Right for a state of shape (2,), and for no other."""
    return stack([z[0] + DT * z[1], z[1] - DT * PULL * z[0].sin()])


def pendulum(pull=PULL, narrower=1.0, **settings):
    return NonlinearGaussianHMM(
        normal(START, SPREAD / narrower),
        lambda z: swing(z, pull),
        normal(np.zeros(2), Q / narrower),
        lambda z: z[..., :1].sin(),
        normal([0.0], [[NOISE**2]]),
        duration=STEPS,
        **settings,
    )


def extended(x, pull=PULL):
    """Särkkä's algorithm 5.4, with slopes by hand; returns the log density and the last state."""
    m, P, total = START, SPREAD, 0.0
    for y in x[:, 0]:
        A = np.array([[1.0, DT], [-DT * pull * np.cos(m[0]), 1.0]])
        m = np.array([m[0] + DT * m[1], m[1] - DT * pull * np.sin(m[0])])
        P = A @ P @ A.T + Q
        slope = np.array([np.cos(m[0]), 0.0])
        v, S = y - np.sin(m[0]), slope @ P @ slope + NOISE**2
        gain = P @ slope / S
        m, P = m + gain * v, P - np.outer(gain, gain) * S
        total -= 0.5 * (v**2 / S + np.log(2.0 * np.pi * S))
    return total, m, P


@pytest.fixture(scope="module")
def seen():
    probtorch.manual_seed(3)
    return pendulum().sample()


@pytest.mark.parametrize("steps_of_noise", [False, True])
@pytest.mark.parametrize("batch", [(), (4,)], ids=str)
def test_linear_functions_have_the_kalman_filter(batch, steps_of_noise):
    moves = normal(np.zeros(2), 0.2 * COV)
    scales = 0.5 + RNG.random((STEPS, 3)) if steps_of_noise else 0.5 + np.zeros(3)
    exact, found = linear(moves, Normal(0.1, tensor(scales)).to_event(1))
    assert (found.batch_shape, found.event_shape) == (exact.batch_shape, exact.event_shape)
    x = RNG.normal(size=(*batch, STEPS, 3))
    x[..., 3, 1] = x[..., 5, :] = np.nan
    for value in (tensor(x), tensor(np.nan_to_num(x))):
        assert_close(found.log_prob(value), exact.log_prob(value))
        ours, theirs = found.filter(value), exact.filter(value)
        assert_close(ours.loc, theirs.loc)
        assert_close(
            ours.covariance_matrix, theirs.covariance_matrix.expand(*batch, 2, 2).contiguous()
        )


def test_states_of_all_steps_end_with_the_last(seen):
    model = pendulum()
    every, last = model.filter_states(seen), model.filter(seen)
    assert every.batch_shape == (STEPS,) and every.event_shape == (2,)
    assert_close(every.loc[-1], last.loc)
    assert_close(every.covariance_matrix[-1], last.covariance_matrix)
    first = pendulum(validate_args=False).filter(seen[:5])
    assert_close(every.loc[4], first.loc)


def test_density_and_states_are_those_of_the_algorithm(seen):
    expected, m, P = extended(seen.numpy())
    model = pendulum()
    assert float(model.log_prob(seen)) == pytest.approx(expected, rel=1e-10)
    assert_close(model.filter(seen).loc, m)
    assert_close(model.filter(seen).covariance_matrix, P)


def test_density_is_that_of_particles_where_slopes_change_little(seen):
    """A state known to 0.03; four standard errors of 4000 particles, and 0.02 nats for slopes."""
    model, cov = pendulum(narrower=100.0), tensor(Q / 100.0)
    # The filter of particles begins with the first state that is seen.
    probtorch.manual_seed(0)
    z = swing(model.initial_dist.sample((20_000,))).numpy()
    found = ParticleFilter(
        initial=normal(z.mean(0), np.cov(z.T) + Q / 100.0),
        transition=lambda z, t: MultivariateNormal(swing(z), cov),
        observation=lambda z, t: Normal(z[..., :1].sin(), NOISE).to_event(1),
        num_particles=4000,
        seed=0,
    ).run(seen)
    error = 4.0 * found.log_evidence_error + 0.02
    assert error < 0.2
    assert abs(float(model.log_prob(seen)) - found.log_evidence) < error
    assert np.abs(model.filter(seen).loc.numpy() - found.mean[-1]).max() < 0.01


def test_gradients_reach_what_the_functions_use(seen):
    """Slopes are differentiated, too; compiled as eagerly."""
    pull = tensor(PULL, dtype=probtorch.float64, requires_grad=True)

    def value(pull):
        return pendulum(pull).log_prob(seen)

    (slope,) = probtorch.autograd.grad(value(pull), [pull])
    x = seen.numpy()
    difference = (extended(x, PULL + 1e-5)[0] - extended(x, PULL - 1e-5)[0]) / 2e-5
    assert float(slope) == pytest.approx(difference, rel=1e-6)

    @probtorch.compile
    def compiled(pull):
        pull = pull.detach().requires_grad_()
        return probtorch.autograd.grad(value(pull), [pull])[0]

    for _ in range(3):
        assert_close(compiled(pull.detach()), slope)
    assert compiled.reason is None


def test_draws_are_those_of_the_functions():
    """With hardly any noise they are the path itself."""
    tiny = 1e-8 * np.eye(2) ** 2
    model = NonlinearGaussianHMM(
        normal(START, tiny), swing, normal(np.zeros(2), tiny), lambda z: z[..., :1].sin(),
        normal([0.0], [[1e-8]]), duration=STEPS,
    )  # fmt: skip
    z, path = START, []
    for _ in range(STEPS):
        z = np.array([z[0] + DT * z[1], z[1] - DT * PULL * np.sin(z[0])])
        path.append(np.sin(z[0]))
    x = model.sample((5,))
    assert x.shape == (5, STEPS, 1)
    assert np.abs(x.numpy()[..., 0] - path).max() < 0.01


def test_draws_have_the_moments_of_the_linear_model():
    """36 means and 36 variances of 4000 draws: beyond 5 errors once in 20 000 runs."""
    exact, found = linear(normal(np.zeros(2), 0.2 * COV), Normal(0.1, 0.5 + 0.0 * H[0]).to_event(1))
    probtorch.manual_seed(0)
    x = found.sample((4000,)).numpy()
    mean, variance = exact.mean.numpy(), exact.variance.numpy()
    assert np.all(abs(x.mean(0) - mean) < 5.0 * np.sqrt(variance / 4000))
    assert np.all(abs(x.var(0) / variance - 1.0) < 5.0 * np.sqrt(2.0 / 4000))


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"observation": H}, ArgumentError, r"(?s)observation.*function.*take GaussianHMM"),
        ({"observation_dist": Laplace(0.0, 1.0)}, ArgumentError, "noise that is Multivariate"),
        ({"transition_dist": normal(np.zeros(3), np.eye(3))}, ShapeError, r"\(2,\)"),
        ({"transition": lambda z: z.sum(-1)}, ShapeError, r"(?s)transition.*last dim alone"),
        ({"transition": of_one_state}, ShapeError, r"(?s)transition.*\(3, 2\).*last dim alone"),
        ({"observation": lambda z: z}, ShapeError, r"(?s)observation.*last dim alone"),
        ({"duration": None}, ArgumentError, "duration=10"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_does_not_go_together_is_refused(settings, error, words):
    parts = {
        "initial_dist": normal(START, SPREAD),
        "transition": swing,
        "transition_dist": normal(np.zeros(2), Q),
        "observation": lambda z: z[..., :1],
        "observation_dist": normal([0.0], [[1.0]]),
        "duration": 4,
    }

    def use():
        made = NonlinearGaussianHMM(**{**parts, **settings})
        made.log_prob(made.sample())

    with pytest.raises(error, match=words):
        use()


@pytest.mark.parametrize("name", ["transition", "observation"])
@pytest.mark.parametrize("use", ["log_prob", "sample"])
def test_a_matrix_on_the_left_is_refused_where_there_are_as_many_states_as_elements(name, use):
    parts = {"transition": lambda z: z @ F, "observation": lambda z: z @ F}
    noise = MultivariateNormal(probtorch.zeros(2, 1, 2), covariance_matrix=tensor(COV))
    # Of each series another push, which is right however many states there are beside them.
    push = tensor(np.arange(4.0).reshape(2, 2))
    parts[name] = lambda z: F @ z if z.ndim == 2 or name == "observation" else z @ F
    first = normal([0.5, -0.5], COV)

    def made(**parts):
        return NonlinearGaussianHMM(
            first, parts["transition"], noise, parts["observation"], noise, duration=2
        )

    right = made(transition=lambda z: z @ F + push, observation=lambda z: z @ F)
    x = right.sample()
    assert x.shape == (2, 2, 2) and right.log_prob(x).shape == (2,)
    with pytest.raises(ShapeError, match=r"(?s)last dim alone: z @ matrix\.T"):
        made(**parts).log_prob(x) if use == "log_prob" else made(**parts).sample()
