"""The functions users call: arguments, refusals, training of control variates, the table."""

import numpy as np
import pytest

from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.distributions import Bernoulli, Categorical, Normal
from probtorch.errors import ArgumentError, ShapeError
from probtorch.estimators import (
    ARM,
    REBAR,
    RELAX,
    DisARM,
    Enumerate,
    ScoreFunction,
    SumAndSample,
    UnorderedSet,
    control_loss,
    expectation,
    gradient_variance,
    log_mean_exp_bound,
)
from probtorch.tensor import tensor

DOUBLE = np.dtype("f8")


def leaf(values):
    return tensor(np.asarray(values, DOUBLE), requires_grad=True)


def cost(z):
    return (z - 0.45) ** 2


@pytest.mark.parametrize(
    "options, match",
    [
        ({"num_samples": 0}, "a number of at least 1"),
        ({"num_samples": 1.5}, "a number of at least 1"),
        ({"estimator": "disram"}, "did you mean 'disarm'"),
        ({"estimator": DisARM}, r"write DisARM\(\)"),
        ({"estimator": 3}, "an estimator, or one of"),
        ({"estimator": ScoreFunction("leave_one_out")}, "at least 2"),
        ({"estimator": ScoreFunction("moving_avrage")}, "'leave_one_out', 'moving_average'"),
        ({"estimator": ScoreFunction("moving_average")}, "a memory that is kept"),
        ({"estimator": RELAX()}, "a function as control_variate"),
        ({"estimator": UnorderedSet(1)}, "a set_size from 2 to 8"),
        ({"estimator": UnorderedSet(3)}, "the number of possible outcomes"),
        ({"estimator": "vimco", "num_samples": 2}, "log_mean_exp_bound"),
    ],
)
def test_wrong_arguments_are_refused_with_a_cure(options, match):
    with pytest.raises(ArgumentError, match=match):
        expectation(Bernoulli(0.3), cost, **options)


@pytest.mark.parametrize("estimator", [None, "disarm"])
def test_what_is_no_distribution_is_refused(estimator):
    with pytest.raises(ArgumentError, match="a distribution"):
        expectation(0.3, cost, estimator=estimator)


def test_a_cost_of_another_shape_is_refused():
    q = Bernoulli(tensor([0.3, 0.4]))
    with pytest.raises(ShapeError, match=r"broadcasts to the batch shape \(2,\)"):
        expectation(q, lambda z: tensor([1.0, 2.0, 3.0]), estimator="disarm")
    with pytest.raises(ShapeError, match="sum the cost"):
        expectation(Bernoulli(0.3), lambda z: tensor([1.0, 2.0]), estimator="disarm")
    with pytest.raises(ShapeError, match="3 costs along the first dim"):
        expectation(q, lambda z: z.sum(), num_samples=3, vectorized=True, estimator="dice")


def test_too_many_joint_outcomes_are_refused_and_rows_are_not():
    q = Bernoulli(tensor(np.full(40, 0.3)))
    with pytest.raises(ArgumentError, match=r"2\*\*40"):
        expectation(q, lambda z: z.sum() ** 2, estimator=Enumerate())
    assert expectation(q, cost, estimator=Enumerate()).shape == (40,)


def test_a_baseline_or_control_variate_that_would_count_several_times_is_refused():
    q = Bernoulli(tensor([0.3, 0.4, 0.5]))
    joint = lambda z: z.sum()
    for estimator in (ScoreFunction(tensor([1.0, 2.0, 3.0])), RELAX(lambda z: z * 0.1)):
        with pytest.raises(ShapeError, match="one number"):
            expectation(q, joint, estimator=estimator)
        assert expectation(q, cost, estimator=estimator).shape == (3,)


def test_two_particles_are_the_least_of_a_bound():
    with pytest.raises(ArgumentError, match="at least 2"):
        log_mean_exp_bound(Bernoulli(0.3), cost, num_samples=1)


def test_a_moving_average_remembers_in_the_memory_it_is_given():
    memory, estimator = {}, ScoreFunction("moving_average", decay=0.5)
    q = Bernoulli(tensor(1.0))
    for _ in range(3):
        expectation(q, lambda z: z * 8.0, estimator=estimator, memory=memory)
    # 8 at each call, half of what was there kept.
    assert memory["average"].item() == pytest.approx(7.0)
    logit = leaf(40.0)
    value = expectation(
        Bernoulli(logits=logit), lambda z: z * 8.0, estimator=estimator, memory=memory
    )
    assert value.item() == 8.0


def test_enumeration_has_the_gradient_of_outcomes_that_are_impossible():
    for p in (0.0, 1.0):
        probs = leaf(p)
        for estimator in (Enumerate(), SumAndSample(2)):
            value = expectation(Bernoulli(probs), cost, estimator=estimator)
            (slope,) = grad(value, [probs])
            assert slope.item() == pytest.approx(0.55**2 - 0.45**2)
    weights = leaf([0.5, 0.0, 0.5])
    (slope,) = grad(expectation(Categorical(weights), cost_of, estimator="enumerate"), [weights])
    assert np.isfinite(slope.numpy()).all()


def cost_of(k):
    return (k.double() * 1.3).cos()


# ------------------------------------------------------------------------------- control variates


def exact_variance(estimator, logit, f, n=4000):
    """Variance of the gradient over independent rows."""
    theta = leaf(np.full(n, logit))
    value = expectation(
        Bernoulli(logits=theta), f, estimator=estimator, rng=Generator(9), vectorized=True
    )
    return grad(value.sum(), [theta])[0].numpy().var()


def test_training_a_control_variate_takes_variance_away():
    slope, level = leaf(0.0), leaf(0.0)
    f = lambda z: z * 3.0 + 1.0
    estimator = RELAX(lambda z: slope * z.sigmoid() + level)
    before = exact_variance(estimator, 0.4, f)
    rng = Generator(2)
    for _ in range(150):
        loss = control_loss(
            Bernoulli(logits=leaf(np.full(20, 0.4))),
            f,
            estimator=estimator,
            rng=rng,
            vectorized=True,
        )
        for p, g in zip((slope, level), grad(loss, [slope, level])):
            p.array[()] -= 0.02 * g.item()
    assert exact_variance(estimator, 0.4, f) < 0.5 * before


def test_the_control_loss_is_the_mean_squared_gradient():
    for estimator in (REBAR(leaf(0.7), leaf(0.9)), RELAX(lambda z: leaf(0.5) * z.tanh())):
        theta = leaf(np.full(6, 0.4))
        value = expectation(
            Bernoulli(logits=theta), cost, estimator=estimator, rng=Generator(4), vectorized=True
        )
        (slopes,) = grad(value.sum(), [theta])
        loss = control_loss(
            Bernoulli(logits=theta), cost, estimator=estimator, rng=Generator(4), vectorized=True
        )
        assert loss.item() == pytest.approx((slopes.numpy() ** 2).sum(), rel=1e-12)


def test_the_slope_of_the_control_loss_is_that_of_finite_differences():
    def loss(temperature, scale):
        return control_loss(
            Bernoulli(logits=leaf([0.4, -0.3])),
            cost,
            estimator=REBAR(temperature, scale),
            rng=Generator(4),
            vectorized=True,
        )

    t, s = leaf(0.7), leaf(0.9)
    slopes = [g.item() for g in grad(loss(t, s), [t, s])]
    h = 1e-6
    numbers = [
        (loss(leaf(0.7 + h), s).item() - loss(leaf(0.7 - h), s).item()) / (2 * h),
        (loss(t, leaf(0.9 + h)).item() - loss(t, leaf(0.9 - h)).item()) / (2 * h),
    ]
    np.testing.assert_allclose(slopes, numbers, rtol=1e-7)


def test_the_estimate_proper_leaves_the_control_variate_alone():
    slope, logit = leaf(0.5), leaf(0.4)
    value = expectation(
        Bernoulli(logits=logit), cost, estimator=RELAX(lambda z: slope * z), rng=Generator(1)
    )
    assert grad(value, [slope], allow_unused=True)[0] is None


def test_nothing_to_train_is_said():
    with pytest.raises(ArgumentError, match="REBAR, RELAX, or a baseline"):
        control_loss(Bernoulli(0.3), cost, estimator=DisARM())


# ---------------------------------------------------------------------------------------- the table


def test_the_table_has_the_variances_of_independent_estimates():
    logits = leaf([0.4, -0.6])
    f = lambda z: ((z - 0.45) ** 2).sum() + z.prod()
    table = gradient_variance(
        lambda: Bernoulli(logits=logits),
        f,
        {"logits": logits},
        estimators=["score_function", ARM(), DisARM(), Enumerate()],
        samples_per_estimate=1,
        num_samples=400,
        rng=Generator(0),
    )
    assert len(table) == 4 and logits.grad is None
    exact = table["Enumerate(max_outcomes=4096)"]
    assert exact.total < 1e-25
    for row in table:
        error = np.sqrt(row.variances["logits"] / 400)
        # A false alarm in 1e6 per number.
        assert (np.abs(row.means["logits"] - exact.means["logits"]) <= 5.0 * error + 1e-12).all()
    assert table["DisARM()"].total < table["ARM()"].total < table["score_function"].total
    assert table["score_function"].evaluations == 1 and table["DisARM()"].evaluations == 2
    with pytest.raises(KeyError):
        table["pathwise"]
    lines = repr(table).splitlines()
    assert len(lines) == 6 and "evaluations" in lines[1] and len({len(x) for x in lines[1:]}) == 1


def test_all_that_applies_is_compared_unless_told():
    loc = leaf(0.3)
    table = gradient_variance(
        lambda: Normal(loc, 1.0), lambda z: z.sin(), {"loc": loc}, num_samples=3
    )
    assert {row.estimator for row in table} == {
        "pathwise",
        "score_function",
        "dice",
        "measure_valued",
    }
