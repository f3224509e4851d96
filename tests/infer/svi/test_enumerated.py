"""`TraceEnum_ELBO` and its kin against the forward algorithm, and against sums over all draws."""

import itertools
from functools import partial

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

import probtorch
from probtorch.distributions import (
    Bernoulli,
    BetaBinomial,
    Binomial,
    Categorical,
    Normal,
    OneHotCategorical,
    Poisson,
    constraints,
)
from probtorch.effects import handlers, markov, param, plate, sample
from probtorch.effects.enumeration import Enumeration, enumerate_sites
from probtorch.effects.params import get_param_store
from probtorch.effects.runtime import Handler
from probtorch.errors import ArgumentError, InferenceError, ModelError
from probtorch.infer import (
    SVI,
    Predictive,
    Trace_ELBO,
    TraceEnum_ELBO,
    config_enumerate,
    infer_discrete,
)
from probtorch.infer.factors import axes_of, marginal_terms
from probtorch.ops.elementwise import sigmoid
from probtorch.ops.indexing import Vindex
from probtorch.optim import Adam
from probtorch.tensor import tensor
from tests.infer.svi.programs import DATA, gradients, normal_guide, normal_model

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


# ------------------------------------------------------------------------ draws that are left over


class Choices(Handler):
    """Give drawn coins the values of a path of choices; `weight` is its probability."""

    def __init__(self, path):
        super().__init__()
        self.path, self.used, self.weight = path, 0, 1.0

    def on_sample(self, site):
        drawn = "num_samples" in site.infer or not site.infer.get("enumerate")
        if site.observed or site.value is not None or not drawn:
            return
        p = np.broadcast_to(site.fn.probs.detach().numpy(), site.fn.batch_shape)
        path = self.path or (0,) * (self.used + p.size)
        bits = path[self.used : self.used + p.size]
        self.used += p.size
        x = np.array(bits, F8).reshape(p.shape)
        self.weight *= float(np.prod(np.where(x == 1.0, p, 1.0 - p)))
        site.value = tensor(x, dtype=F8)


def expectation(objective, model, guide):
    """Mean loss and gradients over all draws."""
    objective.loss(model, guide)
    gradients()
    value, slopes = 0.0, {}
    probe = Choices(())
    with probe:
        objective.loss(model, guide)
    count = probe.used
    total = 0.0
    for path in itertools.product((0, 1), repeat=count):
        with Choices(path) as choices:
            loss = objective.loss_and_grads(model, guide)
        value += choices.weight * loss
        total += choices.weight
        for name, slope in gradients().items():
            slopes[name] = slopes.get(name, 0.0) + choices.weight * slope
    assert total == pytest.approx(1.0)
    return value, slopes


Y = np.array([0.4, 1.7])


def mixed_model(split=False):
    u = sample("u", Bernoulli(0.35))
    rows = plate("rows", 2)
    with rows:
        z = sample("z", Categorical(f8([[0.3, 0.7], [0.6, 0.4]])[u.long()]))
        if not split:
            w = sample("w", Bernoulli(sigmoid(f8(0.8) * z - u - 0.3)))
            s = sample("s", Bernoulli(sigmoid(w - f8(0.4) * z)))
            sample("y", Normal(f8(0.7) * z - 0.5 * w + s + u, 0.8), obs=f8(Y))
    if split:
        with rows:
            w = sample("w", Bernoulli(sigmoid(f8(0.8) * z - u - 0.3)))
        with rows:
            s = sample("s", Bernoulli(sigmoid(w - f8(0.4) * z)))
            sample("y", Normal(f8(0.7) * z - 0.5 * w + s + u, 0.8), obs=f8(Y))
    sample("v", Normal(2.0 * u, 1.0), obs=0.3)


def mixed_guide(enumerated, split=False):
    """A guide for u, z and w that enumerates some of them; s is summed out in the model."""

    def infer(name):
        return PARALLEL if name in enumerated else {}

    def guide():
        a = param("a", f8([0.2, -0.3]))
        b = param("b", f8([[0.1, 0.4], [-0.3, 0.2]]))
        c = param("c", f8([0.3, -0.6]))
        u = sample("u", Bernoulli(logits=a[0]), infer=infer("u"))
        rows = plate("rows", 2)
        with rows:
            z = sample("z", Categorical(logits=b[u.long()]), infer=infer("z"))
            if not split:
                sample("w", Bernoulli(logits=c[z] + a[1] * u), infer=infer("w"))
        if split:
            with rows:
                sample("w", Bernoulli(logits=c[z] + a[1] * u), infer=infer("w"))

    return guide


@pytest.mark.parametrize("split", [False, True], ids=["one block", "several blocks"])
@pytest.mark.parametrize("enumerated", ["zu", "z"])
def test_scores_of_draws_beside_enumerated_sites_are_unbiased(enumerated, split):
    """Where z is enumerated w is drawn for each of its values; u is a draw for all rows."""
    model = partial(mixed_model, split)
    exact = TraceEnum_ELBO().loss_and_grads(model, mixed_guide("uzw", split))
    slopes = gradients()
    value, found = expectation(TraceEnum_ELBO(), model, mixed_guide(enumerated, split))
    assert value == pytest.approx(exact, rel=1e-12)
    for name, slope in slopes.items():
        np.testing.assert_allclose(found[name], slope, atol=1e-12)


@pytest.mark.parametrize("split", [False, True], ids=["one block", "several blocks"])
def test_scores_reach_what_depends_on_all_rows(split):
    """w is drawn per row and per value of u outside; the second block sees the rows together."""

    def guide(infer):
        def run():
            a, b = param("a", f8(0.2)), param("b", f8([0.4, -0.3]))
            u = sample("u", Bernoulli(logits=a), infer=PARALLEL)
            with plate("rows", 2):
                sample("w", Bernoulli(logits=b[u.long()]), infer=infer)

        return run

    def model():
        u = sample("u", Bernoulli(0.35))
        rows = plate("rows", 2)
        with rows:
            w = sample("w", Bernoulli(sigmoid(0.3 - u)))
        both = w.sum(-1, keepdim=True)
        if split:
            with rows:
                sample("y", Normal(both + w, 1.0), obs=f8(Y))
        else:
            sample("y", Normal(both, 1.0), obs=f8([1.2]))

    # With w enumerated its rows could not be added up: the exact bound is a sum over u and rows.
    def exact():
        a, b = param("a", f8(0.2)), param("b", f8([0.4, -0.3]))
        bound = 0.0
        for u in (0, 1):
            log_u = Bernoulli(logits=a).log_prob(f8(u))
            for w in itertools.product((0.0, 1.0), repeat=2):
                w = f8(w)
                log_q = log_u + Bernoulli(logits=b[u]).log_prob(w).sum()
                log_p = Bernoulli(0.35).log_prob(f8(u))
                log_p = log_p + Bernoulli(sigmoid(f8(0.3 - u))).log_prob(w).sum()
                if split:
                    log_p = log_p + Normal(w.sum() + w, 1.0).log_prob(f8(Y)).sum()
                else:
                    log_p = log_p + Normal(w.sum(), 1.0).log_prob(f8(1.2))
                bound = bound + log_q.exp() * (log_p - log_q)
        return -bound

    loss = exact()
    loss.backward()
    slopes = gradients()
    value, found = expectation(TraceEnum_ELBO(), model, guide({}))
    assert value == pytest.approx(loss.item(), rel=1e-12)
    for name, slope in slopes.items():
        np.testing.assert_allclose(found[name], slope, atol=1e-12)


def test_several_draws_in_place_of_all_values_are_unbiased():
    def guide():
        a, b = param("a", f8(0.4)), param("b", f8([0.3, -0.8]))
        u = sample("u", Bernoulli(logits=a), infer={**PARALLEL, "num_samples": 3})
        with plate("rows", 2):
            sample("w", Bernoulli(logits=b[0] + b[1] * u), infer=PARALLEL)

    def model():
        u = sample("u", Bernoulli(0.3))
        with plate("rows", 2):
            w = sample("w", Bernoulli(sigmoid(u - 0.2)))
            sample("y", Normal(w - u, 1.0), obs=f8(Y))

    exact = TraceEnum_ELBO().loss_and_grads(model, config_enumerate(guide_without_draws(guide)))
    slopes = gradients()
    value, found = expectation(TraceEnum_ELBO(), model, guide)
    assert value == pytest.approx(exact, rel=1e-12)
    for name, slope in slopes.items():
        np.testing.assert_allclose(found[name], slope, atol=1e-12)


def guide_without_draws(guide):
    """The guide, with all values in place of several draws."""

    class Whole(Handler):
        def on_sample(self, site):
            site.infer.pop("num_samples", None)

    return Whole(guide)


def test_nothing_enumerated_is_the_plain_bound_with_its_gradient():
    found = {}
    for objective in (Trace_ELBO(), TraceEnum_ELBO()):
        with handlers.seed(rng_seed=3):
            loss = objective.loss_and_grads(normal_model, normal_guide, DATA)
        found[type(objective).__name__] = loss, gradients()
    (a, slopes), (b, others) = found.values()
    assert a == b
    for name, slope in slopes.items():
        np.testing.assert_allclose(others[name], slope, rtol=1e-12)


def test_score_terms_without_enumeration_are_those_of_the_plain_bound():
    guide = mixed_guide("")
    found = []

    def model():
        u = sample("u", Bernoulli(0.35))
        with plate("rows", 2):
            z = sample("z", Categorical(f8([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])[u.long()]))
            w = sample("w", Bernoulli(sigmoid(0.8 * z - u - 0.3)))
            sample("y", Normal(0.7 * z - 0.5 * w + u, 0.8), obs=f8(Y))

    for objective in (Trace_ELBO(), TraceEnum_ELBO()):
        with handlers.seed(rng_seed=5):
            loss = objective.loss_and_grads(model, guide)
        found.append((loss, gradients()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-13)
    for name, slope in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], slope, rtol=1e-11, atol=1e-13)


# ----------------------------------------------------------------------- sequential enumeration


def test_one_run_per_value_is_the_sum_over_all_values_at_once():
    def guide(how):
        def run():
            a, b = param("a", f8([0.1, 0.5, -0.4])), param("b", f8([0.2, -0.3, 0.4]))
            z = sample("z", Categorical(logits=a), infer={"enumerate": how})
            u = sample("u", Bernoulli(logits=b[z]), infer=PARALLEL)
            with plate("rows", 2):
                sample("w", Bernoulli(logits=b[0] * u + a[z]), infer=PARALLEL)

        return run

    def model():
        z = sample("z", Categorical(f8([0.3, 0.3, 0.4])))
        u = sample("u", Bernoulli(0.4))
        with plate("rows", 2):
            w = sample("w", Bernoulli(sigmoid(z - 1.0)))
            sample("y", Normal(w + u - 0.3 * z, 1.0), obs=f8(Y))

    found = []
    for how in ("parallel", "sequential"):
        objective = TraceEnum_ELBO()
        found.append((objective.loss_and_grads(model, guide(how)), gradients()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-13)
    for name, slope in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], slope, atol=1e-13)


def test_weight_of_a_chosen_value_may_depend_on_all_values_of_another_site():
    def guide(how):
        def run():
            a, b = param("a", f8(0.3)), param("b", f8([0.2, -0.7]))
            u = sample("u", Bernoulli(logits=a), infer=PARALLEL)
            sample("z", Bernoulli(logits=b[u.long()]), infer={"enumerate": how})

        return run

    def model():
        u = sample("u", Bernoulli(0.4))
        z = sample("z", Bernoulli(sigmoid(u - 1.0)))
        sample("y", Normal(u - 2 * z, 1.0), obs=0.4)

    found = []
    for how in ("parallel", "sequential"):
        found.append((TraceEnum_ELBO().loss_and_grads(model, guide(how)), gradients()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-13)
    for name, slope in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], slope, atol=1e-13)


def test_control_flow_may_follow_a_chosen_value():
    q, p, inner = np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.3, 0.2]), (0.3, 0.7)

    def guide():
        z = sample("z", Categorical(f8(q)), infer={"enumerate": "sequential"})
        if int(z) == 1:
            sample("w", Bernoulli(inner[0]), infer=PARALLEL)

    def model():
        z = sample("z", Categorical(f8(p)))
        w = sample("w", Bernoulli(inner[1])) if int(z) == 1 else 0.0
        sample("y", Normal(z + w, 1.0), obs=1.5)

    log = stats.norm(0.0, 1.0).logpdf
    terms = np.log(p / q) + log(1.5 - np.arange(3))
    coins = np.array([0.7, 0.3]) @ (
        np.log(np.array([0.3, 0.7]) / np.array([0.7, 0.3])) + log(np.array([0.5, -0.5]))
    )
    terms[1] = np.log(p[1] / q[1]) + coins
    assert TraceEnum_ELBO().loss(model, guide) == pytest.approx(-(q @ terms), rel=1e-13)


def test_choosing_values_in_a_plate_or_in_the_model_is_refused():
    def site():
        return sample("z", Bernoulli(0.3), infer={"enumerate": "sequential"})

    def in_plate():
        with plate("rows", 2):
            site()

    with pytest.raises(InferenceError, match=r"sequentially in plate 'rows'"):
        TraceEnum_ELBO().loss(in_plate, in_plate)
    with pytest.raises(InferenceError, match=r"of the model: sequential(.|\n)*parallel"):
        TraceEnum_ELBO().loss(site, no_guide)


# ------------------------------------------------------------------ supports, masks, scales, plates


@pytest.mark.parametrize(
    "fn",
    [
        Bernoulli(0.3),
        Bernoulli(logits=-0.4),
        Categorical(tensor([0.2, 0.5, 0.3], dtype=F8)),
        Categorical(logits=tensor([0.2, -np.inf, 0.3], dtype=F8)),
        Binomial(4, 0.3),
        BetaBinomial(1.5, 0.7, 3),
    ],
    ids=lambda fn: type(fn).__name__,
)
def test_finite_distributions_are_summed_out(fn):
    def model():
        sample("y", Normal(f8(0.5) * sample("z", fn), 1.0), obs=0.8)

    values = fn.enumerate_support()
    logs = fn.log_prob(values).numpy() + stats.norm.logpdf(0.8, 0.5 * values.numpy(), 1.0)
    assert TraceEnum_ELBO().loss(model, no_guide) == pytest.approx(-logsumexp(logs), rel=1e-12)
    marginal = TraceEnum_ELBO().compute_marginals(model, no_guide)["z"]
    share = np.exp(logs - logsumexp(logs))
    found = marginal.log_prob(marginal.enumerate_support()).exp().numpy()
    np.testing.assert_allclose(found, share, atol=1e-12)
    with handlers.trace() as found:
        infer_discrete(model, temperature=0)()
    assert found["z"].value.item() == values.numpy()[logs.argmax()]


def test_indicator_vectors_are_summed_out_in_plates():
    p, locs = f8([0.2, 0.5, 0.3]), f8([0.0, 1.0, -1.0])

    def model():
        with plate("rows", 2):
            z = sample("z", OneHotCategorical(p))
            sample("y", Normal((z * locs).sum(-1), 1.0), obs=f8(Y))

    logs = np.log(p.numpy()) + stats.norm.logpdf(Y[:, None], locs.numpy())
    loss = TraceEnum_ELBO().loss(model, no_guide)
    assert loss == pytest.approx(-logsumexp(logs, axis=1).sum(), rel=1e-13)
    marginal = TraceEnum_ELBO().compute_marginals(model, no_guide)["z"]
    share = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    np.testing.assert_allclose(marginal.probs.numpy(), share, atol=1e-13)


def test_masked_elements_add_nothing():
    y = f8([0.0, np.nan, 2.0])

    def model(rows, mask):
        with plate("rows", len(rows)), handlers.mask(mask=mask):
            z = sample("z", Categorical(f8([0.2, 0.3, 0.5])))
            sample("y", Normal(1.0 * z, 1.0), obs=y[rows])

    whole = TraceEnum_ELBO().loss(lambda: model([0, 2], True), no_guide)
    masked = TraceEnum_ELBO().loss(lambda: model([0, 1, 2], tensor([True, False, True])), no_guide)
    assert masked == pytest.approx(whole, rel=1e-13)
    assert TraceEnum_ELBO().loss(lambda: model([0], False), no_guide) == pytest.approx(0.0)


def test_masked_elements_of_the_guide_add_nothing():
    def guide(rows, mask):
        with plate("rows", rows), handlers.mask(mask=mask):
            sample("z", Bernoulli(logits=param("a", f8(0.4))), infer=PARALLEL)

    def model(rows, mask):
        with plate("rows", rows), handlers.mask(mask=mask):
            z = sample("z", Bernoulli(0.3))
            sample("y", Normal(z, 1.0), obs=f8(Y[:rows]))

    whole = TraceEnum_ELBO().loss(lambda: model(1, True), lambda: guide(1, True))
    mask = tensor([True, False])
    masked = TraceEnum_ELBO().loss(lambda: model(2, mask), lambda: guide(2, mask))
    assert masked == pytest.approx(whole, rel=1e-13)


@pytest.mark.parametrize("guided", [False, True], ids=["model", "guide"])
def test_subsampled_rows_are_scaled_up_after_the_sum(guided):
    y = np.array([0.1, 1.4, -0.3, 2.0])

    def model(rows):
        with plate("rows", 4, subsample=tensor(rows)):
            z = sample("z", Bernoulli(0.3))
            sample("y", Normal(z, 1.0), obs=f8(y[rows]))

    def guide(rows):
        if guided:
            with plate("rows", 4, subsample=tensor(rows)):
                sample("z", Bernoulli(0.6), infer=PARALLEL)

    def loss(rows):
        return TraceEnum_ELBO().loss(model, guide, rows)

    mean = np.mean([loss([i, j]) for i, j in itertools.combinations(range(4), 2)])
    assert mean == pytest.approx(loss([0, 1, 2, 3]), rel=1e-12)


def test_a_sum_outside_of_subsampled_rows_is_refused():
    def model():
        z = sample("z", Bernoulli(0.3))
        with plate("rows", 4, subsample_size=2) as rows:
            sample("y", Normal(z, 1.0), obs=f8(np.zeros(4))[rows])

    with pytest.raises(InferenceError, match=r"different scales(.|\n)*without bias"):
        TraceEnum_ELBO().loss(model, no_guide)


def test_scales_per_row_count_after_the_sum():
    weights = f8([0.5, 2.0])

    def model(scale):
        with plate("rows", 2), handlers.scale(scale=scale):
            z = sample("z", Bernoulli(0.3))
            sample("y", Normal(z, 1.0), obs=f8(Y))

    logs = np.log([0.7, 0.3]) + stats.norm.logpdf(Y[:, None], [0.0, 1.0])
    rows = logsumexp(logs, axis=1)
    found = TraceEnum_ELBO().loss(lambda: model(weights), no_guide)
    assert found == pytest.approx(-(weights.numpy() @ rows), rel=1e-13)


def test_plates_that_a_branch_adds_later_are_made_room_for():
    deep = [False]

    def model():
        z = sample("z", Bernoulli(0.3))
        if not deep[0]:
            sample("y", Normal(z, 1.0), obs=0.3)
            return
        with plate("a", 2), plate("b", 3):
            w = sample("w", Bernoulli(sigmoid(z - 0.3)))
            sample("y", Normal(w, 1.0), obs=f8(np.zeros((3, 2))))

    objective = TraceEnum_ELBO()
    objective.loss(model, no_guide)
    deep[0] = True
    assert objective.loss(model, no_guide) == TraceEnum_ELBO().loss(model, no_guide)


def test_an_empty_plate_adds_nothing():
    def model():
        with plate("rows", 0):
            z = sample("z", Bernoulli(0.3))
            sample("y", Normal(z, 1.0), obs=f8(np.zeros(0)))

    with pytest.warns(UserWarning, match="no rows"):
        assert TraceEnum_ELBO().loss(model, no_guide) == 0.0


def test_impossible_data_have_evidence_zero():
    def model():
        z = sample("z", Categorical(f8([0.5, 0.5, 0.0])))
        sample("y", Categorical(f8([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]])[z]), obs=1)

    assert TraceEnum_ELBO().loss(model, no_guide) == np.inf
    with pytest.raises(InferenceError, match="no value of site 'z' is possible"):
        infer_discrete(model)()


# ------------------------------------------------------------------------------------ refusals


def crossing():
    p, q = plate("p", 2, dim=-1), plate("q", 3, dim=-2)
    with p:
        a = sample("a", Bernoulli(0.3))
    with q:
        b = sample("b", Bernoulli(0.3))
    with p, q:
        sample("y", Normal(a + b, 1.0), obs=f8(np.zeros((3, 2))))


def test_crossing_plates_are_refused_by_name():
    with pytest.raises(InferenceError, match=r"'a', 'b' .* plates 'p', 'q'"):
        TraceEnum_ELBO().loss(crossing, no_guide)


@pytest.mark.parametrize(
    "fn, got",
    [
        (Poisson(3.0), "Poisson, whose support"),
        (Normal(0.0, 1.0), "Normal, which is continuous"),
        (Bernoulli(0.2).expand((3,)).to_event(1), "product of supports"),
    ],
    ids=["Poisson", "Normal", "to_event"],
)
def test_sites_that_cannot_be_enumerated_say_why(fn, got):
    with pytest.raises(InferenceError, match=rf"'z' cannot be enumerated(.|\n)*{got}"):
        TraceEnum_ELBO().loss(lambda: sample("z", fn, infer=PARALLEL), no_guide)


def test_an_infinite_site_that_nobody_draws_is_missing():
    with pytest.raises(ModelError, match="guide has no site 'z'"):
        TraceEnum_ELBO().loss(lambda: sample("z", Poisson(3.0)), no_guide)


def test_too_many_variables_in_sight_are_refused():
    def model():
        for i in range(70):
            sample(f"z_{i}", Bernoulli(0.3))

    with pytest.raises(InferenceError, match=r"no dim is left(.|\n)*markov"):
        TraceEnum_ELBO().loss(model, no_guide)


def test_a_site_outside_of_a_plate_cannot_see_its_rows():
    def model():
        with plate("rows", 2):
            z = sample("z", Bernoulli(0.3))
        sample("y", Normal(z.sum(-1, keepdim=True), 1.0), obs=[0.3])

    with pytest.raises(InferenceError, match="'y' depends on 'z', and is outside of plate 'rows'"):
        TraceEnum_ELBO().loss(model, no_guide)


def test_unknown_annotation_is_refused():
    with pytest.raises(ArgumentError, match="'parallel' or 'sequential'"):
        TraceEnum_ELBO().loss(
            lambda: sample("z", Bernoulli(0.3), infer={"enumerate": "both"}), no_guide
        )


def test_marginals_and_draws_are_not_for_guides_that_enumerate():
    site = lambda: sample("z", Bernoulli(0.3), infer=PARALLEL)
    for method in ("compute_marginals", "sample_posterior"):
        with pytest.raises(InferenceError, match="enumerated in the guide"):
            getattr(TraceEnum_ELBO(), method)(site, site)
        with pytest.raises(InferenceError, match="one particle"):
            getattr(TraceEnum_ELBO(num_particles=2), method)(site, no_guide)


def test_estimators_of_sites_are_for_other_objectives():
    site = lambda: sample("z", Bernoulli(0.3), infer={"estimator": "enumerate"})
    with pytest.raises(InferenceError, match=r"'z': estimator(.|\n)*parallel"):
        TraceEnum_ELBO().loss(site, site)


def test_temperature_is_zero_or_one():
    with pytest.raises(ArgumentError, match="temperature"):
        infer_discrete(hmm, temperature=0.5)


# -------------------------------------------------------------------------------- config_enumerate


def test_config_enumerate_annotates_what_can_be_enumerated():
    @config_enumerate(default="sequential")
    def fn():
        sample("a", Bernoulli(0.3))
        sample("b", Normal(0.0, 1.0))
        sample("c", Bernoulli(0.3), infer=PARALLEL)
        sample("d", Bernoulli(0.3), infer={"enumerate": None})
        sample("e", Bernoulli(0.3), obs=1.0)

    found = handlers.trace(fn).get_trace()
    how = [site.infer.get("enumerate") for site in found.values()]
    assert how == ["sequential", None, "parallel", None, None]


@pytest.mark.parametrize(
    "options", [{"default": "all"}, {"num_samples": 0}, {"tmc": "mixture"}], ids=str
)
def test_config_enumerate_refuses_unknown_options(options):
    with pytest.raises(ArgumentError, match="config_enumerate"):
        config_enumerate(hmm, **options)


def test_expanded_values_have_the_shape_of_their_plates():
    def model():
        with plate("rows", 2):
            z = sample("z", Bernoulli(0.3))
            sample("y", Normal(z, 1.0), obs=f8(Y))
            return z.shape

    _, variables = enumerated(model, first_dim=-2)
    assert variables.dims["z"] == {-2: 0}
    objective = TraceEnum_ELBO()
    plain = objective.loss(model, no_guide)
    assert objective.loss(config_enumerate(model, expand=True), no_guide) == plain
    with enumerate_sites(None, Enumeration(-2)):
        assert config_enumerate(model)() == (2, 1)
    with enumerate_sites(None, Enumeration(-2)):
        assert config_enumerate(model, expand=True)() == (2, 2)


# ------------------------------------------------------------------------------------- optimisation


def test_a_mixture_is_learned():
    y = np.concatenate([np.linspace(-3.2, -2.8, 30), np.linspace(1.9, 2.1, 70)])

    def model(y):
        weights = param("weights", f8([0.5, 0.5]), constraint=constraints.simplex)
        locs = param("locs", f8([-1.0, 1.0]))
        with plate("data", len(y)):
            z = sample("z", Categorical(weights), infer=PARALLEL)
            sample("y", Normal(locs[z], 0.5), obs=y)

    svi = SVI(model, no_guide, Adam({"lr": 0.1}), TraceEnum_ELBO(), seed=0)
    result = svi.run(200, f8(y), progress_bar=False)
    np.testing.assert_allclose(result.params["weights"].numpy(), [0.3, 0.7], atol=0.01)
    np.testing.assert_allclose(result.params["locs"].numpy(), [-3.0, 2.0], atol=0.02)
    z = infer_discrete(handlers.substitute(model, result.params), temperature=0)
    with handlers.trace() as found:
        z(f8(y))
    assert found["z"].value.numpy().tolist() == [0] * 30 + [1] * 70
    assert get_param_store() is not None
    assert probtorch.markov is markov


# --------------------------------------------------------------------------- with other machinery


def two_kinds(y):
    centre = sample("centre", Normal(4.0, 0.1))
    with plate("rows", len(y)):
        z = sample("z", Bernoulli(0.5))
        sample("y", Normal(centre * z, 1.0), obs=y)


def guide_of_centre(y):
    sample("centre", Normal(param("loc", f8(3.8)), 0.1))


KINDS = f8([0.3, 4.1, 3.8, -0.2])


def test_predictive_draws_discrete_sites_for_each_draw_of_the_others():
    draws = {"centre": np.random.default_rng(0).normal(4.0, 0.1, size=20)}
    found = Predictive(infer_discrete(two_kinds), draws, return_sites=["z"])(KINDS)
    np.testing.assert_array_equal(found["z"].numpy().mean(0).round(), [0.0, 1.0, 1.0, 0.0])


@pytest.mark.parametrize("draw", ["infer_discrete", "sample_posterior"])
def test_a_posterior_draw_sees_the_rows_that_it_was_made_for(draw):
    def model(y):
        with plate("rows", 4, subsample_size=2) as rows:
            z = sample("z", Bernoulli(0.5))
            sample("y", Normal(8.0 * z - 2.0, 1.0), obs=y[rows])
        return rows, z

    for _ in range(6):
        if draw == "infer_discrete":
            rows, z = infer_discrete(model, temperature=0)(KINDS)
        else:
            rows, z = TraceEnum_ELBO().sample_posterior(model, no_guide, KINDS)
        np.testing.assert_array_equal(z.numpy() == 1.0, KINDS[rows].numpy() > 2.0)


def test_particles_are_averaged():
    one = TraceEnum_ELBO()
    with handlers.seed(rng_seed=0):
        singles = [one.loss(two_kinds, guide_of_centre, KINDS) for _ in range(5)]
    # The first run of a pair takes draws of its own for the comparison, and gives them back.
    for vectorised in (False, True):
        several = TraceEnum_ELBO(num_particles=5, vectorize_particles=vectorised)
        with handlers.seed(rng_seed=0):
            found = several.loss(two_kinds, guide_of_centre, KINDS)
        assert found == pytest.approx(np.mean(singles), rel=1e-12)


def test_a_bound_loss_is_differentiable():
    loss = TraceEnum_ELBO()(two_kinds, guide_of_centre)
    loss(KINDS).backward()
    (leaf,) = loss.parameters()
    assert np.isfinite(leaf.grad.numpy()).all() and leaf.grad.numpy() != 0.0


# ----------------------------------------------------------------------- wrong in a batch of values


def counts_wrongly(n):
    z = sample("z", Bernoulli(0.3))
    with plate("rows", 2):
        w = sample("w", Bernoulli(0.6))
        # The mean is over all values of z too.
        sample("y", Normal((z + w).mean(), 1.0), obs=f8(Y))


def reads_from_the_left(n):
    table = f8([[0.1, 0.9], [0.6, 0.4]])
    with plate("rows", 2):
        z = sample("z", Bernoulli(0.3))
        sample("y", Bernoulli(table[:, 0] * (z[0] + z[1]) / 2.0), obs=f8([0.0, 1.0]))


@pytest.mark.parametrize("model", [counts_wrongly, reads_from_the_left])
def test_a_model_that_means_something_else_for_many_values_is_refused(model):
    with pytest.raises(InferenceError, match=r"'y' cannot be run for all values(.|\n)*Vindex"):
        TraceEnum_ELBO().loss(partial(model, 0), no_guide)


def test_a_model_that_is_random_beside_its_sites_is_not_refused():
    def model():
        z = sample("z", Bernoulli(0.3))
        noise = f8(np.random.default_rng().normal())
        sample("y", Normal(z + noise, 1.0), obs=0.3)

    assert np.isfinite(TraceEnum_ELBO().loss(model, no_guide))


def test_differentiable_draws_are_made_for_each_value():
    """x is drawn once for each value of z; its gradient is pathwise."""
    mu = f8([-1.0, 0.5, 2.0])
    noise = np.array([0.3, -1.2, 0.8])

    class Noise(Handler):
        def on_sample(self, site):
            if site.name == "x" and site.value is None:
                # Runs without enumeration have one value of z at a time.
                draw = noise if site.fn.loc.ndim else noise[0]
                site.value = site.fn.loc + site.fn.scale * f8(draw)

    def model():
        z = sample("z", Categorical(f8([0.2, 0.5, 0.3])))
        x = sample("x", Normal(mu[z], 1.0))
        sample("y", Normal(x, 0.7), obs=0.4)

    def guide():
        z = sample("z", Categorical(logits=param("a", f8([0.1, -0.4, 0.3]))), infer=PARALLEL)
        sample("x", Normal(param("loc", f8([0.2, 0.1, -0.3]))[z], param("s", f8(0.6))))

    def by_hand():
        a, loc, s = (
            param("a", f8([0.1, -0.4, 0.3])),
            param("loc", f8(np.zeros(3))),
            param("s", f8(1)),
        )
        x = loc + s * f8(noise)
        log_q = a.log_softmax(-1)
        terms = f8([0.2, 0.5, 0.3]).log() + Normal(mu, 1.0).log_prob(x)
        terms = terms + Normal(x, 0.7).log_prob(f8(0.4)) - log_q - Normal(loc, s).log_prob(x)
        return -(log_q.exp() * terms).sum()

    with Noise():
        loss = TraceEnum_ELBO().loss_and_grads(model, guide)
    found = gradients()
    exact = by_hand()
    exact.backward()
    assert loss == pytest.approx(exact.item(), rel=1e-13)
    for name, slope in gradients().items():
        np.testing.assert_allclose(found[name], slope, atol=1e-13)


def test_parts_in_single_precision_are_no_reason_to_refuse():
    def model():
        z = sample("z", Categorical(f8([0.2, 0.3, 0.5])))
        sample("y", Normal(0.7 * z, f8(1.0)), obs=f8(100.3))

    assert np.isfinite(TraceEnum_ELBO().loss(model, no_guide))
