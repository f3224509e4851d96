"""Chains under `TraceEnum_ELBO`: the forward algorithm, Viterbi paths, and spellings of markov."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from probtorch.distributions import Bernoulli, Categorical, Normal
from probtorch.effects import handlers, markov, plate, sample
from probtorch.effects.enumeration import Enumeration, enumerate_sites
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import TraceEnum_ELBO, config_enumerate, infer_discrete
from probtorch.infer.enumeration.factors import axes_of, marginal_terms
from probtorch.ops.exponentials import sigmoid
from probtorch.ops.indexing import Vindex
from probtorch.tensor import tensor

F8 = np.dtype("f8")
PARALLEL = {"enumerate": "parallel"}


def f8(x):
    return tensor(x, dtype=F8)


def no_guide(*args):
    pass


# ----------------------------------------------------------------------------- hidden Markov models

RNG = np.random.default_rng(7)
K = 3
START = RNG.dirichlet(np.ones(K))
MOVE = RNG.dirichlet(np.ones(K), K)
LOCS = np.array([-2.0, 0.0, 1.5])


def hmm(y, start=START, move=MOVE, locs=LOCS):
    start, move, locs = (x if hasattr(x, "requires_grad") else f8(x) for x in (start, move, locs))
    x, path = None, []
    for t in markov(range(len(y))):
        x = sample(f"x_{t}", Categorical(start if t == 0 else move[x]))
        sample(f"y_{t}", Normal(locs[x], 1.0), obs=y[t])
        path.append(x)
    return path


def forward(y, start=START, move=MOVE, locs=LOCS):
    """Log probabilities of the data up to each time and the state then."""
    a = np.log(start) + stats.norm.logpdf(y[0], locs)
    rows = [a]
    for value in y[1:]:
        a = logsumexp(a[:, None] + np.log(move), axis=0) + stats.norm.logpdf(value, locs)
        rows.append(a)
    return np.array(rows)


def smoothed(y):
    """Posterior of the state at each time, by forward and backward recursions."""
    a, b = forward(y), np.zeros((len(y), K))
    for t in range(len(y) - 2, -1, -1):
        b[t] = logsumexp(np.log(MOVE) + stats.norm.logpdf(y[t + 1], LOCS) + b[t + 1], axis=1)
    logs = a + b
    return np.exp(logs - logsumexp(logs, axis=1, keepdims=True))


def viterbi(y):
    score, back = np.log(START) + stats.norm.logpdf(y[0], LOCS), []
    for value in y[1:]:
        step = score[:, None] + np.log(MOVE)
        back.append(step.argmax(0))
        score = step.max(0) + stats.norm.logpdf(value, LOCS)
    path = [int(score.argmax())]
    for pointers in reversed(back):
        path.append(int(pointers[path[-1]]))
    return path[::-1]


@pytest.mark.parametrize("length", [1, 2, 30, 1000])
def test_evidence_of_a_hidden_chain_is_that_of_the_forward_algorithm(length):
    y = np.random.default_rng(length).normal(size=length)
    loss = TraceEnum_ELBO().loss(hmm, no_guide, f8(y))
    assert loss == pytest.approx(-logsumexp(forward(y)[-1]), rel=1e-12)


def test_gradients_of_a_hidden_chain_are_expected_counts():
    """d log Z / d log a[i, j] is the expected number of moves; Baum's identity."""
    y = np.random.default_rng(0).normal(size=25)
    move, locs = f8(np.log(MOVE)), f8(LOCS)
    move.requires_grad = locs.requires_grad = True
    TraceEnum_ELBO().differentiable_loss(
        hmm, no_guide, f8(y), START, move.softmax(-1), locs
    ).backward()
    posterior = smoothed(y)
    a = forward(y)
    b = np.zeros(K)
    moves = np.zeros((K, K))
    for t in range(len(y) - 2, -1, -1):
        ahead = stats.norm.logpdf(y[t + 1], LOCS) + b
        joint = a[t][:, None] + np.log(MOVE) + ahead
        moves += np.exp(joint - logsumexp(joint))
        b = logsumexp(np.log(MOVE) + ahead, axis=1)
    # Through the softmax: counts less what the row would give to each on average.
    slope = moves - moves.sum(1, keepdims=True) * MOVE
    np.testing.assert_allclose(-move.grad.numpy(), slope, atol=1e-11)
    pull = (posterior * (y[:, None] - LOCS)).sum(0)
    np.testing.assert_allclose(-locs.grad.numpy(), pull, atol=1e-11)


def enumerated(fn, *args, first_dim=-1):
    """Trace of a run in which every annotated site has all its values."""
    variables = Enumeration(first_dim)
    with handlers.trace() as found, enumerate_sites(None, variables):
        config_enumerate(fn)(*args)
    return found, variables


def test_a_long_chain_needs_three_dims_and_one_small_table_per_step():
    found, variables = enumerated(hmm, f8(np.zeros(200)))
    assert len({v.dim for v in variables.variables.values()}) == 3
    tables = []
    axes = axes_of(variables, found)
    marginal_terms(found, set(variables.variables), axes, tables=tables)
    assert len(tables) == 200
    assert max(table.table.numel() for table in tables) == K * K


def test_impossible_moves_leave_gradients_finite():
    y = f8([0.1, -0.4, 1.0])
    move = f8([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.0, 0.0, 1.0]])
    start = f8([1.0, 0.0, 0.0])
    move.requires_grad = start.requires_grad = True
    loss = TraceEnum_ELBO().differentiable_loss(hmm, no_guide, y, start, move)
    expected = -logsumexp(
        forward(y.numpy(), [1.0, 1e-300, 1e-300], move.detach().numpy() + 1e-300)[-1]
    )
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    loss.backward()
    assert np.isfinite(move.grad.numpy()).all() and np.isfinite(start.grad.numpy()).all()


def test_marginals_of_a_hidden_chain_are_smoothed_probabilities():
    y = np.random.default_rng(1).normal(size=40)
    marginals = TraceEnum_ELBO().compute_marginals(hmm, no_guide, f8(y))
    found = np.array([marginals[f"x_{t}"].probs.numpy() for t in range(40)])
    np.testing.assert_allclose(found, smoothed(y), atol=1e-12)


def test_most_probable_path_is_viterbis():
    y = np.random.default_rng(2).normal(size=60)
    path = infer_discrete(hmm, temperature=0)(f8(y))
    assert [int(x) for x in path] == viterbi(y)


@pytest.mark.parametrize("how", ["infer_discrete", "sample_posterior"])
def test_posterior_paths_have_the_smoothed_frequencies(how):
    y = np.random.default_rng(3).normal(size=5)
    objective = TraceEnum_ELBO()

    def draw(y):
        if how == "infer_discrete":
            return infer_discrete(hmm)(y)
        return objective.sample_posterior(hmm, no_guide, y)

    with handlers.seed(rng_seed=0):
        paths = np.array([[int(x) for x in draw(f8(y))] for _ in range(250)])
    exact, joint = smoothed(y), np.zeros((K, K))
    for t in range(5):
        share = np.bincount(paths[:, t], minlength=K) / 250
        # Six standard errors: a false alarm once in ten million runs.
        assert np.abs(share - exact[t]).max() < 6 * np.sqrt(0.25 / 250)
    # Neighbours are drawn jointly: the first two against their joint posterior.
    a, back = forward(y)[0], np.zeros(K)
    for t in range(4, 1, -1):
        back = logsumexp(np.log(MOVE) + stats.norm.logpdf(y[t], LOCS) + back, axis=1)
    logs = a[:, None] + np.log(MOVE) + stats.norm.logpdf(y[1], LOCS) + back
    exact = np.exp(logs - logsumexp(logs))
    np.add.at(joint, (paths[:, 0], paths[:, 1]), 1 / 250)
    assert np.abs(joint - exact).max() < 6 * np.sqrt(0.25 / 250)


def test_a_model_of_the_posterior_is_traced_like_any_other():
    y = f8(np.zeros(3))
    found = handlers.trace(handlers.seed(infer_discrete(hmm), 0)).get_trace(y)
    assert list(found) == ["x_0", "y_0", "x_1", "y_1", "x_2", "y_2"]
    assert all(site.value.shape == () for site in found.values())


def test_chains_of_several_sequences_side_by_side():
    """Rows of different lengths under a mask have the evidence of each row alone."""
    y = np.random.default_rng(4).normal(size=(4, 6))
    lengths = np.array([6, 3, 1, 5])

    def model():
        x = None
        with plate("rows", 4):
            for t in markov(range(6)):
                with handlers.mask(mask=tensor(t < lengths)):
                    p = f8(START) if x is None else Vindex(f8(MOVE))[x, :]
                    x = sample(f"x_{t}", Categorical(p), infer=PARALLEL)
                    sample(f"y_{t}", Normal(f8(LOCS)[x], 1.0), obs=f8(y[:, t]))

    exact = sum(logsumexp(forward(row[:n])[-1]) for row, n in zip(y, lengths))
    assert TraceEnum_ELBO().loss(model, no_guide) == pytest.approx(-exact, rel=1e-12)


def test_a_loop_of_chains_uses_few_dims():
    y = np.random.default_rng(5).normal(size=(30, 4))

    def model():
        for i in plate("rows", 30):
            x = None
            for t in markov(range(4)):
                x = sample(f"x_{i}_{t}", Categorical(f8(START) if x is None else f8(MOVE)[x]))
                sample(f"y_{i}_{t}", Normal(f8(LOCS)[x], 1.0), obs=y[i, t])

    exact = sum(logsumexp(forward(row)[-1]) for row in y)
    assert TraceEnum_ELBO().loss(model, no_guide) == pytest.approx(-exact, rel=1e-12)


# ----------------------------------------------------------------------------- spellings of markov


def coupled(history):
    """A chain of coins, each depending on `history` coins before it, by recursion."""

    def step(t, before):
        p = sigmoid(sum((0.3 + i) * x for i, x in enumerate(before)) - 0.5)
        x = sample(f"x_{t}", Bernoulli(p))
        sample(f"y_{t}", Normal(x, 0.7), obs=f8(np.cos(t)))
        return (*before, x)[-history:]

    return step


def as_iterator(step, history):
    before = (f8(0.3),) * history
    for t in markov(range(7), history=history):
        before = step(t, before)


def as_context(step, history):
    chain, before = markov(history=history), (f8(0.3),) * history
    depth = 0
    for t in range(7):
        chain.__enter__()
        depth += 1
        before = step(t, before)
    for _ in range(depth):
        chain.__exit__(None, None, None)


def as_decorator(step, history):
    @markov(history=history)
    def run(t, before):
        before = step(t, before)
        if t < 6:
            run(t + 1, before)

    run(0, (f8(0.3),) * history)


@pytest.mark.parametrize("history", [1, 2, 3])
@pytest.mark.parametrize("spelling", [as_iterator, as_context, as_decorator])
def test_spellings_of_markov_agree_with_no_markov(spelling, history):
    def plain():
        before = (f8(0.3),) * history
        for t in range(7):
            before = coupled(history)(t, before)

    objective = TraceEnum_ELBO()
    expected = objective.loss(plain, no_guide)
    found = objective.loss(lambda: spelling(coupled(history), history), no_guide)
    assert found == pytest.approx(expected, rel=1e-13)
    _, variables = enumerated(lambda: spelling(coupled(history), history))
    assert len({v.dim for v in variables.variables.values()}) == history + 2


def test_grid_whose_cells_see_the_cell_above_and_the_one_before():
    def grid(outer, inner):
        x = {}
        for i in outer:
            for j in inner:
                left, above = x.get((i, j - 1), 0.0), x.get((i - 1, j), 0.0)
                x[i, j] = sample(f"x_{i}_{j}", Bernoulli(sigmoid(0.8 * left - 1.1 * above + 0.2)))
                sample(f"y_{i}_{j}", Normal(x[i, j], 0.5), obs=f8(np.sin(i + 2 * j)))

    objective = TraceEnum_ELBO()
    expected = objective.loss(lambda: grid(range(3), range(4)), no_guide)
    found = objective.loss(lambda: grid(markov(range(3)), markov(range(4), keep=True)), no_guide)
    assert found == pytest.approx(expected, rel=1e-13)


def test_nested_chains_and_what_follows_them():
    """A slow chain with a fast one in each of its steps; the end depends on both."""

    def model(outer, inner):
        slow = fast = 0.0
        for i in outer(range(3)):
            slow = sample(f"s_{i}", Bernoulli(sigmoid(slow - 0.3)))
            fast = 0.0
            for j in inner(range(3)):
                fast = sample(f"f_{i}_{j}", Bernoulli(sigmoid(0.5 * fast + slow - 0.6)))
                sample(f"y_{i}_{j}", Normal(fast, 0.8), obs=f8(0.3 * j))
        last = sample("last", Bernoulli(sigmoid(slow - fast)))
        sample("end", Normal(last + fast, 1.0), obs=1.2)

    objective = TraceEnum_ELBO()
    expected = objective.loss(lambda: model(list, list), no_guide)
    found = objective.loss(lambda: model(markov, markov), no_guide)
    assert found == pytest.approx(expected, rel=1e-13)


def test_looking_too_far_back_is_refused():
    def model():
        x = [0, 0]
        for t in markov(range(4)):
            x.append(sample(f"x_{t}", Categorical(f8(MOVE)[x[-2]])))

    with pytest.raises(InferenceError, match=r"'x_2' .* out of its sight(.|\n)*raise history"):
        TraceEnum_ELBO().loss(model, no_guide)


def test_a_chain_in_the_guide_and_none_in_the_model_is_refused():
    def chain(loop, infer):
        x = 0
        for t in loop(range(5)):
            x = sample(f"x_{t}", Categorical(f8(MOVE)[x]), infer=infer)

    with pytest.raises(InferenceError, match=r"is in sight too(.|\n)*markov"):
        TraceEnum_ELBO().loss(lambda: chain(list, None), lambda: chain(markov, PARALLEL))


def test_markov_refuses_a_history_that_is_no_count():
    for history in (-1, 0.5, "all"):
        with pytest.raises(ArgumentError, match="history"):
            markov(range(3), history=history)
