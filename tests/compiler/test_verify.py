"""Replays are verified: what no guard sees raises, names what differs, and is eager after that."""

import contextlib
import io
import logging
import math

import numpy as np
import pytest

import probtorch
from probtorch.compiler import compiled_function, verify
from probtorch.compiler.compile import compile
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.guards.environment import Environment
from probtorch.compiler.record.record import record
from probtorch.compiler.rounding import OtherRounding, moved
from probtorch.compiler.verify import ReplayError, difference, next_due, wavers
from probtorch.core.dispatch import wrap
from probtorch.distributions import Normal
from probtorch.effects.primitives import param, sample
from probtorch.infer import MCMC, NUTS, SVI, Target, Trace_ELBO
from probtorch.nn import functional
from probtorch.ops.sampling import rand
from probtorch.optim import Adam
from probtorch.tensor import tensor

x = tensor([1.0, 2.0])


def call(fn, times, *arguments):
    for _ in range(times):
        fn(*arguments)


@pytest.fixture
def blind(monkeypatch):
    """No guard sees what Python values change."""
    monkeypatch.setattr(Environment, "changed", lambda self: None)


def test_calls_2_3_5_9_and_17_are_verified():
    # The first call is the recording.
    verified = [1, 2, 4, 8, 16, 64, 256, 1024]  # native calls
    for n in range(300):
        assert next_due(n) == next(m for m in verified if m > n)
    # As often as Python's side effects are met: here what is logged, which nobody watches.
    log, lines = logging.Logger("runs"), io.StringIO()
    log.addHandler(logging.StreamHandler(lines))

    def fn(v):
        log.warning("run")
        return v * 2.0

    compiled = compile(fn)
    met = []
    for _ in range(20):
        compiled(x)
        met.append(lines.getvalue().count("run"))
    assert [n + 1 for n in range(20) if n == 0 or met[n] > met[n - 1]] == [1, 2, 3, 5, 9, 17]


def test_comparisons_that_would_take_long_wait_for_native_runs(monkeypatch, blind):
    monkeypatch.setattr(verify, "FREE", 0.0)
    log, lines = logging.Logger("runs"), io.StringIO()
    log.addHandler(logging.StreamHandler(lines))
    factor = [1.0]

    def fn(v):
        log.warning("run")
        return v * factor[0]

    compiled = compile(fn)
    compiled(x)
    (path,) = compiled.paths
    path.costs.eager = 10.0  # seconds: as if Python were that slow
    call(compiled, 20, x)
    assert lines.getvalue().count("run") == 1
    assert path.until_due() > 0
    # Once native runs took a hundred times as long as Python, it is their turn.
    path.costs.eager, path.due = 0.0, path.count + 1
    factor[0] = 2.0
    with pytest.raises(ReplayError):
        compiled(x)


def test_what_was_recorded_is_compared_where_calls_wait_and_a_difference_waits_no_longer(
    monkeypatch,
):
    monkeypatch.setattr(verify, "FREE", 0.0)
    compiled = compile(lambda v: v * 3.0)
    compiled(x)
    (path,) = compiled.paths
    path.compare_recorded([x * 3.0], [x])
    assert not path.affords_comparison()
    path.compare_recorded([x * 4.0], [x])
    assert path.affords_comparison()


def test_a_value_that_no_guard_saw_raises_at_the_next_verified_call_and_is_right_after_it(blind):
    state = [2.0]
    compiled = compile(lambda v: v * state[0])
    assert [compiled(x).tolist() for _ in range(5)] == [[2.0, 4.0]] * 5
    state[0] = 3.0
    with pytest.raises(ReplayError) as caught:
        call(compiled, 4, x)
    message = str(caught.value)
    assert "result 0 at [1] is 4.0, where Python computes 6.0" in message
    assert "since native call 5" in message and "eager from now on" in message
    assert compiled(x).tolist() == [3.0, 6.0]
    assert "a replay was wrong" in str(compiled.explain())


def test_a_wrong_update_is_found_and_python_s_is_kept(blind):
    state, w = [2.0], tensor([0.0, 0.0])

    def step(v):
        w.add_(v * state[0])
        return v.sum()

    compiled = compile(step)
    for _ in range(5):
        compiled(x)
    state[0] = 3.0
    with pytest.raises(ReplayError, match="updated tensor 0"):
        call(compiled, 4, x)
    # Five calls by 2, three wrong ones that nobody saw, and Python's.
    assert w.tolist() == [8 * 2.0 + 3.0, 2 * (8 * 2.0 + 3.0)]


def test_results_draws_and_updates_do_not_depend_on_being_verified():
    def run(verify):
        w = tensor([0.0, 0.0])

        def step(v):
            w.add_(v * rand(2))
            return w, (w * v).sum()

        compiled = compile(step, verify=verify)
        probtorch.manual_seed(3)
        found = [[y.tolist() for y in compiled(x)] for _ in range(20)]
        return found, w.tolist(), rand(2).tolist()

    assert run(True) == run(False)


def test_an_error_of_python_s_that_a_replay_did_not_raise_is_named(blind):
    state = [False]

    def fn(v):
        if state[0]:
            raise KeyError("gone")
        return v * 2.0

    compiled = compile(fn)
    for _ in range(5):
        compiled(x)
    state[0] = True
    with pytest.raises(ReplayError, match="where Python raises KeyError"):
        call(compiled, 4, x)
    with pytest.raises(KeyError):
        compiled(x)


def test_a_density_that_python_changes_its_mind_about_raises():
    state = [1.0]
    density = NativeDensity(lambda q: -state[0] * (q * q).sum(), 2)
    q = np.array([1.0, 2.0])
    for _ in range(5):
        density.value_and_grad(q)
    state[0] = 2.0
    with pytest.raises(ReplayError, match=r"the log density is -5\.0, where Python computes -10"):
        call(density.value_and_grad, 6, q)
    assert density.value_and_grad(q)[0] == -10.0


def test_chains_compare_their_density_with_python_s():
    state = [1.0]

    def model():
        sample("a", Normal(0.0, state[0]))

    target = Target.from_model(model)
    target.value_and_grad(np.zeros(1))
    state[0] = 5.0
    with pytest.raises(ReplayError):
        MCMC(NUTS(target), num_samples=50, warmup_steps=50, num_chains=1).run()


def test_steps_of_svi_are_verified(blind):
    state = [1.0]

    def model():
        sample("a", Normal(state[0], 1.0))

    def guide():
        sample("a", Normal(param("loc", tensor(0.0)), 1.0))

    svi = SVI(model, guide, Adam({"lr": 0.01}), Trace_ELBO(), seed=0)
    for _ in range(5):
        svi.step()
    state[0] = 30.0
    with pytest.raises(ReplayError):
        call(svi.step, 10)
    assert svi.step() > 100.0


def test_verifying_can_be_switched_off(blind):
    state = [2.0]
    for switch, options in ((probtorch.configure, {"verify": False}), (contextlib.nullcontext, {})):
        compiled = compile(lambda v: v * state[0], verify=bool(options))
        with switch(**options):
            for i in range(20):
                state[0] = 2.0 if i < 5 else 3.0
                assert compiled(x).tolist() == [2.0, 4.0]


def test_rounding_is_no_difference_and_more_is_one():
    b = np.linspace(1.0, 2.0, 5)
    named = lambda a: [("y", a)]
    assert difference(named(b * (1 + 1e-12)), named(b)) is None
    assert difference(named(b * (1 + 1e-6)), named(b)) is not None
    assert difference(named(b * (1 + 1e-6)), named(b), size=4) is None
    assert difference(named(b.astype(np.float32)), named(b)) is not None
    assert difference(named(np.array([np.nan, np.inf])), named(np.array([np.nan, np.inf]))) is None
    assert difference(named(np.array([np.nan])), named(np.array([1.0]))) is not None
    assert difference(named(np.array([1.0])), named(np.array([np.inf]))) is not None
    assert difference(named(np.array([1e10 + 1j])), named(np.array([1e10 + 99j]))) is not None
    assert difference(named(np.array([True])), named(np.array([False]))) is not None
    assert difference(named(np.array([1])), named(np.array([2]))) == (
        "y at [0] is 1, where Python computes 2"
    )
    assert difference(named(np.zeros((0, 2))), named(np.zeros((0, 2)))) is None


def test_what_answers_rounding_with_large_changes_gets_no_verdict():
    def iterate(v):
        for _ in range(200):
            v = 3.9 * v * (1 - v)
        return v

    q = np.array([0.3])
    native, eager = iterate(q + 2e-16), iterate(q)
    assert difference([("y", native)], [("y", eager)]) is not None
    assert difference([("y", native)], [("y", eager)], lambda: [iterate(moved(q, 1))]) is None


def test_at_a_jump_other_rounding_falls_to_both_sides_and_changes_nothing_of_the_users():
    tenths = tensor(np.full(10, 0.1))

    def fn():
        kept = tenths.reshape(2, 5)
        return (kept.sum() / 1.0).floor(), kept.max(), tenths[3]

    found = set()
    for seed in range(8):
        with OtherRounding(seed):
            jump, *exact = fn()
        found.add(jump.item())
        assert [v.item() for v in exact] == [0.1, 0.1]
    assert found == {0.0, 1.0}
    assert tenths.tolist() == [0.1] * 10
    named = [("y", np.array(1.0))]

    def again(seed):
        with OtherRounding(seed):
            return [fn()[0].numpy()]

    assert difference([("y", np.array(0.0))], named, again) is None
    assert difference([("y", np.array(5000.0))], named, again) is not None


def test_random_bits_and_whole_numbers_are_not_rounded_otherwise():
    with OtherRounding(0):
        probtorch.manual_seed(0)
        moved_draws = rand(3)
        whole = (tensor([1.0, 2.0]) * 3.0).tolist()
    probtorch.manual_seed(0)
    np.testing.assert_allclose(moved_draws.numpy(), rand(3).numpy(), rtol=1e-6)
    assert whole == [3.0, 6.0]


def test_both_parts_of_a_complex_number_are_moved_by_units_of_its_size():
    x = np.array([1.5 + 1e-9j, 3.0 + 2.0j])
    change = moved(x, 0) - x
    eps = np.finfo(float).eps
    assert 1e-17 < abs(change[0].imag) <= 4 * eps * abs(x[0]) and change[0].real != 0.0
    assert change[1] == 0.0  # whole
    assert moved(x, 0, whole=True)[1] != x[1]


def test_rounding_explains_no_state_that_changes_at_each_run():
    state = [0.0]

    def again(seed):
        state[0] += 1.0
        return [np.array(state[0])]

    assert difference([("y", np.array(-1.0))], [("y", np.array(0.0))], again) is not None
    assert not wavers(lambda seed: float(again(seed)[0]), 0.0)


def cancelling(x):
    return x.sum() > x.flip(0).sum()


def turns(x):
    count, far = 0, x.abs().max()
    while far > 1e-6 and count < 200:
        before, x = x, x.cos() * 0.999
        far, count = (x - before).abs().max(), count + 1
    return x, count


def singular(x):
    return probtorch.linalg.slogdet(x[:18].reshape(6, 3) @ x[:18].reshape(6, 3).T)[1]


def sign_of_nan(x):
    far = x[:3].double() + np.inf
    return [probtorch.signbit(f(far)) for f in (probtorch.acos, probtorch.sin, probtorch.asin)]


@pytest.mark.parametrize(
    "fn", [cancelling, turns, singular, sign_of_nan], ids=lambda fn: fn.__name__
)
def test_what_rounding_decides_is_no_fault_of_a_replay(fn):
    rng = np.random.default_rng(0)
    compiled = probtorch.compile(fn)
    for _ in range(34):
        compiled(tensor(rng.standard_normal(501).astype(np.float32)))
    assert compiled.reason is None


OF_MATRICES = {
    "slogdet": lambda a: probtorch.linalg.slogdet(a)[1],
    "eigh": lambda a: probtorch.linalg.eigh(a)[1],
    "svd": lambda a: probtorch.linalg.svd(a)[0],
    "qr": lambda a: probtorch.linalg.qr(a)[0],
    "cond": lambda a: probtorch.linalg.cond(a),
    "inv": probtorch.linalg.inv,
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
@pytest.mark.parametrize("name", OF_MATRICES)
def test_singular_matrices_of_whole_numbers_are_no_fault_of_a_replay(name, dtype):
    # Their elements are exact, so that no other rounding of them shows how little is known.
    of, rng = OF_MATRICES[name], np.random.default_rng(0)

    def fn(x):
        # What is added leaves no trace in either dtype, or it leaves little more than rounding.
        return [of(x @ x.mT + jitter * probtorch.eye(9, dtype=x.dtype)) for jitter in jitters]

    jitters = (1e-14, 1e-10) if name == "inv" else (0.0, 1e-10, 1e-6)
    for _ in range(4):
        compiled, answered = probtorch.compile(fn), 0
        for _ in range(17):
            x = tensor(rng.integers(-3, 4, (9, rng.integers(2, 7))).astype(dtype))
            with contextlib.suppress(probtorch.linalg.LinAlgError):
                answered += len(compiled(x)) == len(jitters)
        # A replay that was accused would have raised, or left the function to Python.
        assert answered and compiled.reason is None


def in_other_roundings(fn):
    def again(seed):
        with OtherRounding(seed):
            return [fn().numpy()]

    return again


GRADED = np.diag([1.0, 1e-20, 1e10]) + np.triu(np.full((3, 3), 1e-30), 1)


@pytest.mark.parametrize(
    ("of", "matrix", "wrong"),
    [
        ("inv", np.array([[2.0, 1.0], [1.0, 3.0]]), 1e-8),
        ("eigh", np.array([[2.0, 1.0], [1.0, 5.0]]), 1e-8),
        ("slogdet", np.array([[2.0, 1.0], [1.0, 3.0]]), 1e-8),
        # Scales far apart are no lack of digits.
        ("inv", GRADED, 1e-7),
        ("slogdet", GRADED, 1e-7),
        ("cholesky", GRADED + np.triu(GRADED, 1).T, 1e-7),
        ("inv", np.diag([1.0, 2.0, 4.0]) + 1.0 - 1e-5 * np.eye(3), 1e-6),
    ],
)
def test_wrong_results_of_matrices_are_named_whatever_their_scales(of, matrix, wrong):
    of = {"cholesky": probtorch.linalg.cholesky, **OF_MATRICES}[of]
    found = of(tensor(matrix)).numpy()
    again = in_other_roundings(lambda: of(tensor(matrix)))
    named = lambda a: [("y", a)]
    assert difference(named(found * (1.0 + 1e-13)), named(found), again) is None
    assert difference(named(found * (1.0 + wrong)), named(found), again) is not None


def test_rounding_decides_whether_a_singular_matrix_has_an_inverse():
    singular = tensor(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]))
    zeros = tensor(np.zeros((3, 3)))

    def again(a):
        def run(seed):
            with OtherRounding(seed):
                return probtorch.linalg.inv(a).shape

        return run

    assert wavers(again(singular), None)
    assert not wavers(again(zeros), None)


def test_later_comparisons_wait_until_all_are_a_hundredth_of_the_time(blind):
    factor = [1.0]
    compiled = compile(lambda v: v * factor[0])
    call(compiled, 17, x)  # the recording, and 16 native calls
    (path,) = compiled.paths
    assert path.due == 64
    path.costs.compared, path.due = 1e6, path.count + 1
    factor[0] = 2.0
    call(compiled, 20, x)  # nothing is compared
    path.costs.compared, path.due = 0.0, path.count + 1
    path.costs.eager = 0.0
    with pytest.raises(ReplayError):
        compiled(x)


def model_of(state):
    def model():
        sample("a", Normal(state[0], 1.0))

    def guide():
        sample("a", Normal(param("loc", tensor(0.0)), 1.0))

    return SVI(model, guide, Adam({"lr": 0.01}), Trace_ELBO(), seed=0)


def test_the_end_of_a_run_of_svi_is_compared_where_it_lies_far_behind_the_last_step_that_was(blind):
    state = [1.0]
    svi = model_of(state)
    svi.run(30, progress_bar=False)
    (path,) = svi.compiled._function.paths
    path.due = 10**9  # no step in between
    path.costs.eager = 0.0  # whatever else the machine has to do
    state[0] = 30.0
    svi.run(1, progress_bar=False)  # the last step that was compared is not far away
    with pytest.raises(ReplayError):
        svi.run(100, progress_bar=False)


def test_a_run_of_svi_is_the_same_whether_or_not_its_end_is_compared():
    def run(verify):
        with probtorch.configure(verify=verify):
            svi = model_of([1.0])
            found = [svi.run(n, progress_bar=False).losses.tolist() for n in (100, 50)]
        return found, svi.get_params()["loc"].item(), svi.num_steps

    assert run(True) == run(False)


def test_a_recorded_step_of_svi_is_compared_with_itself_taken_natively(monkeypatch):
    state = [1.0]
    svi = model_of(state)
    svi.step()
    seen = []
    made_again = compiled_function.made_again

    def noted(path, *rest):
        seen.append(made_again(path, *rest))
        return seen[-1]

    monkeypatch.setattr(compiled_function, "made_again", noted)
    svi.step()
    (path,) = svi.compiled._function.paths
    assert path.count == 1 and path.due == 2 and seen[0] is not None
    # What differs is compared once more, with a run of Python's own.
    fresh = model_of(state)
    fresh.step()
    monkeypatch.setattr(compiled_function, "made_again", lambda path, result, *rest: None)
    assert fresh.step() == seen[0][0].item()


CANCELLING = {
    "sum": lambda x: x.sum(-1),
    "matmul": lambda x: x @ tensor([[1.0], [1.0], [1.0]]),
    "affine": lambda x: functional.linear(x, tensor([[1.0, 1.0, 1.0]]), tensor([0.125])),
    "cumsum": lambda x: x.cumsum(-1)[:, -1],
    "variance": lambda x: (x * 1e-5 + 7.0).var(-1),
    "logsumexp": lambda x: (x * 0.0 - math.log(3.0)).logsumexp(-1),
    "log_softmax": lambda x: functional.log_softmax(x * 100.0, -1)[:, 0],
    "cross_entropy": lambda x: functional.cross_entropy(x * 100.0, tensor([0, 0])),
}


@pytest.mark.parametrize("name", CANCELLING)
def test_what_terms_leave_that_cancel_is_moved_by_units_of_the_terms(name):
    # Of numbers that cancel to 1e-7, or to nothing, no digit is right: replays are not accused.
    x = tensor([[3.1, -1.7, -1.4], [2.3, -1.1, -1.2]])
    plain, moves = CANCELLING[name](x).numpy(), []
    for seed in range(8):
        with OtherRounding(seed):
            moves.append(np.abs(CANCELLING[name](x).numpy() - plain).max())
    terms = 1e-5 if name == "variance" else 1.0  # of what is squared
    assert max(moves) > 2e-8 * terms
    assert max(moves) < 1e-3


@pytest.mark.parametrize(
    ("fn", "size"),
    [
        (lambda x: x * 2.0, 8),
        (lambda x: (x > 0.0).sum(), 8),
        (lambda x: x.float().double() * 2.0, 4),
        (lambda x: x.half().double() * x.float(), 2),
        (lambda x: probtorch.scan(lambda c, y: (c + y.float().double(), c), x[0], x)[0], 4),
        (lambda x: probtorch.scan(lambda c, y: (c + y, c), x[0], x)[0], 8),
    ],
)
def test_the_coarsest_floats_are_found_in_loops_too(fn, size):
    rec, _ = record(fn, [wrap(np.arange(3.0))])
    assert verify.coarsest(rec.graph) == size
