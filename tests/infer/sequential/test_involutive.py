"""`InvolutiveMCMC`: reversible jumps against enumeration, and moves that are wrong."""

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch import distributions as dist
from probtorch.diagnostics.convergence import ess_mean
from probtorch.effects import factor, sample
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import Involution, InvolutiveMCMC
from probtorch.infer.sequential import involutive

# Seeds are fixed; of a sound mean one in 15,000 is further off than so many standard errors.
SIGMAS = 4.0
Y = 2.6
KINDS = np.array([0.3, 0.3, 0.2, 0.1, 0.1])


def components(y):
    """Up to four components whose sum is observed."""
    k = sample("k", dist.Categorical(probtorch.tensor(KINDS)))
    total = sum((sample(f"x_{i}", dist.Normal(0.5, 1.5)) for i in range(int(k))), 0.0)
    sample("y", dist.Normal(total, 0.8), obs=y)


def exact():
    """Posterior of the number of components: given it, y is normal."""
    k = np.arange(5)
    joint = KINDS * stats.norm.pdf(Y, 0.5 * k, np.sqrt(0.64 + 2.25 * k))
    return joint / joint.sum()


def up_or_down(run):
    if sample("up", dist.Bernoulli(0.5)):
        sample("new", dist.Normal(1.0, 1.0))


def birth_or_death(run, draws):
    run, k = dict(run), int(run["k"])
    if draws["up"]:
        return {**run, "k": k + 1, f"x_{k}": draws["new"]}, {"up": 0}
    if not k:
        return None
    last = run.pop(f"x_{k - 1}")
    return {**run, "k": k - 1}, {"up": 1, "new": last}


def split_or_merge(run, draws):
    """The last component to two around it; the Jacobian is 2."""
    run, k = dict(run), int(run["k"])
    if not k or (k == 1 and not draws["up"]):
        return None
    if draws["up"]:
        x, step = run[f"x_{k - 1}"], draws["new"]
        return {**run, "k": k + 1, f"x_{k - 1}": x - step, f"x_{k}": x + step}, {"up": 0}
    high, low = run.pop(f"x_{k - 1}"), run[f"x_{k - 2}"]
    merged = {**run, "k": k - 1, f"x_{k - 2}": 0.5 * (low + high)}
    return merged, {"up": 1, "new": 0.5 * (high - low)}


BIRTH, SPLIT = (Involution(up_or_down, move) for move in (birth_or_death, split_or_merge))
DRIFT = Involution.drift(0.8, of=lambda name: name.startswith("x_"))


def quiet(model, moves, num_samples, **options):
    return InvolutiveMCMC(model, moves, num_samples, progress_bar=False, **{"seed": 1, **options})


def assert_numbers(k, probabilities):
    for i, p in enumerate(probabilities):
        if p > 0.01:
            hits = (k == i).astype(float)
            assert abs(hits.mean() - p) < SIGMAS * np.sqrt(p * (1 - p) / ess_mean(hits)), i


def numbers_by(moves, num_samples, **options):
    return quiet(components, moves, num_samples, **options).run(probtorch.tensor(Y))


@pytest.mark.parametrize(
    "moves, num_samples",
    [
        ([BIRTH, DRIFT], 400),
        pytest.param([BIRTH, DRIFT], 4000, marks=pytest.mark.slow),
        pytest.param([SPLIT, BIRTH, DRIFT], 4000, marks=pytest.mark.slow),
    ],
    ids=["births, short", "births", "splits and births"],
)
def test_numbers_of_components_are_those_of_enumeration(moves, num_samples):
    draws = numbers_by(moves, num_samples)
    assert_numbers(draws["k"], exact())
    for values in draws.values[0][:50]:
        assert values.keys() == {"k", *(f"x_{i}" for i in range(int(values["k"])))}
    # Given one component, its posterior is normal.
    one = np.array([float(v["x_0"]) for v in draws.values[0] if v["k"] == 1])
    precision = 1 / 2.25 + 1 / 0.64
    mean = (0.5 / 2.25 + Y / 0.64) / precision
    assert abs(one.mean() - mean) < SIGMAS * np.sqrt(1.0 / precision / ess_mean(one[None]))
    assert all(0.05 < rate < 1.0 for rate in draws.attrs["acceptance_rates"])
    stayed = ~draws.sample_stats["moved"][0, 1:]
    assert 0.0 < stayed.mean() < 1.0
    assert (np.diff(draws.sample_stats["lp"][0])[stayed] == 0.0).all()


def splits_alone(num_samples, seed):
    """Splits never lead to no component, nor away from it: of one or more, from such a start."""
    draws = numbers_by([SPLIT, DRIFT], num_samples, seed=seed)
    assert draws["k"].min() > 0
    p = exact()[1:]
    return draws["k"] - 1, p / p.sum()


@pytest.mark.parametrize("num_samples", [400, pytest.param(4000, marks=pytest.mark.slow)])
def test_splits_have_the_jacobian_of_their_map(num_samples):
    assert_numbers(*splits_alone(num_samples, seed=1))


@pytest.mark.slow
def test_splits_without_their_jacobian_are_noticed(monkeypatch):
    """The test of the test: a determinant of 1 in place of 2."""
    monkeypatch.setattr(involutive, "log_det", lambda sides: 0.0)
    with pytest.raises(AssertionError):
        assert_numbers(*splits_alone(4000, seed=1))


def test_a_change_of_scale_has_the_determinant_that_numpy_finds():
    matrix = np.array([[2.0, 1.0], [0.5, -1.5]])

    def two():
        sample("a", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        sample("kept", dist.Normal(0.0, 1.0))

    seen = []

    def mapped(run, draws):
        inverse = probtorch.tensor(matrix) if draws["way"] else probtorch.linalg.inv(
            probtorch.tensor(matrix)
        )  # fmt: skip
        return {**run, "a": inverse @ run["a"] + 0.0 * run["kept"]}, {"way": 1 - draws["way"]}

    move = Involution(lambda run: sample("way", dist.Bernoulli(0.5)), mapped)
    log_det = involutive.log_det

    def kept(sides):
        seen.append((int(sides[1][0]["way"]), log_det(sides)))
        return seen[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(involutive, "log_det", kept)
        quiet(two, move, 20).run()
    expected = np.log(abs(np.linalg.det(matrix)))
    for way, value in seen:
        assert value == pytest.approx(expected if way else -expected)
    assert {way for way, _ in seen} == {0, 1}


# ------------------------------------------------------------------------------ what is refused


def run_of(move, model=components):
    return quiet(model, move, 50, warmup_steps=0).run(probtorch.tensor(Y))


def test_a_move_that_does_not_lead_back_is_caught():
    def wrong(run, draws):
        found = split_or_merge(run, draws)
        if found is not None and "new" in found[1]:
            found[1]["new"] = -found[1]["new"]  # the other way round
        return found

    with pytest.raises(InferenceError, match="does not lead back"):
        run_of([BIRTH, Involution(up_or_down, wrong)])


def test_a_move_that_leads_nowhere_the_second_time_is_caught():
    def there(run, draws):
        return None if run["k"] == 2 else ({**run, "k": 2}, {})

    with pytest.raises(InferenceError, match="None the second time"):
        run_of(Involution(lambda run: None, there))


def test_a_move_that_loses_a_dimension_is_caught():
    def pair():
        sample("a", dist.Normal(0.0, 1.0))
        if sample("b", dist.Bernoulli(0.5)):
            sample("c", dist.Normal(0.0, 1.0))

    def forget(run, draws):
        # A number for which there is a draw on neither side.
        if run["b"]:
            return {"a": run["a"], "b": 0}, {}
        return {"a": run["a"], "b": 1, "c": 0.0}, {}

    with pytest.raises(InferenceError, match=r"dimensions of a move|does not lead back"):
        quiet(pair, Involution(lambda run: None, forget), 50).run()


def test_sites_that_were_not_given_are_told():
    def no_value(run, draws):
        return {**run, "k": 4 - run["k"]}, {}

    with pytest.raises(InferenceError, match="no value for 'x_"):
        run_of(Involution(lambda run: None, no_value))


def test_a_simplex_is_not_changed_number_by_number():
    def shares():
        sample("p", dist.Dirichlet(probtorch.ones(3)))

    turn = Involution(lambda run: None, lambda run, draws: ({"p": run["p"].flip(0)}, {}))
    with pytest.raises(InferenceError, match="2 dimensions"):
        quiet(shares, turn, 5).run()


def test_an_auxiliary_model_has_no_data():
    with pytest.raises(InferenceError, match="latent sites only"):
        run_of(Involution(lambda run: factor("f", 1.0), lambda run, draws: (run, draws)))


def test_a_run_broken_off_goes_on_bit_for_bit(tmp_path, monkeypatch):
    whole = quiet(components, [BIRTH, DRIFT], 30, warmup_steps=5).run(probtorch.tensor(Y))
    sweep, made = involutive._Moving.sweep, []

    def broken(*args):
        made.append(1)
        if len(made) == 18:
            raise RuntimeError("killed")
        return sweep(*args)

    monkeypatch.setattr(involutive._Moving, "sweep", broken)
    for _ in range(2):
        try:
            parts = quiet(components, [BIRTH, DRIFT], 30, warmup_steps=5).run(
                probtorch.tensor(Y), checkpoint=tmp_path, checkpoint_every=0.0
            )
        except RuntimeError:
            continue
    assert len(made) == 36  # the one that was broken off was made again
    assert parts["k"].tobytes() == whole["k"].tobytes()
    np.testing.assert_array_equal(parts.sample_stats["lp"], whole.sample_stats["lp"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: InvolutiveMCMC(components, []), "moves"),
        (lambda: InvolutiveMCMC(components, birth_or_death), "moves"),
        (lambda: InvolutiveMCMC(components, BIRTH, 0), "num_samples"),
        (lambda: Involution.drift(0.0, of=["x"]), "scale"),
    ],
)
def test_settings_out_of_range_are_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()
