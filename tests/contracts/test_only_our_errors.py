"""Whatever a public function is given, it answers or raises an error of ours.

Raw errors of NumPy and SciPy say nothing about what was expected and how to go on. The calls are
random, from `calls.py`; what Python itself says about a wrong number of arguments is plain enough.
"""

import re
import warnings

import numpy as np
import pytest

import probtorch
from probtorch.errors import ProbtorchError
from tests.contracts.calls import FUNCTIONS, MISFITS, misfit_call, random_call

_ABOUT_ARGUMENTS = re.compile(r"positional argument|keyword argument|multiple values")


def odd_call(name, rng, i):
    return random_call(name, rng)


def call_of_a_wrong_kind(name, rng, i):
    return misfit_call(name, rng, MISFITS[(i + rng.integers(len(MISFITS))) % len(MISFITS)])


def written(x):
    """Numbers that Python does not write in decimal are cut off."""
    return hex(x)[:20] if type(x) is int else x


def refusals(names, count, seed, call=odd_call):
    """Return the foreign errors of random calls, and how many calls were answered."""
    out, answered = [], 0
    for name in names:
        rng = np.random.default_rng([seed, *name.encode()])
        for i in range(count):
            args, options = call(name, rng, i)
            try:
                FUNCTIONS[name](*args, **options)
                answered += 1
            except ProbtorchError as e:
                if None in (e.expected, e.got, e.fix):
                    out.append(f"{name}: {e!r} lacks a part")
            except Exception as e:
                if type(e) is not TypeError or not _ABOUT_ARGUMENTS.search(str(e)):
                    given = [written(a) for a in args]
                    named = {k: written(v) for k, v in options.items()}
                    out.append(f"{name}(*{given}, **{named}): {e!r}")
    return out, answered


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("initial", sorted({n.split(".")[-1][0] for n in FUNCTIONS}))
def test_odd_arguments_give_answers_or_our_errors(initial):
    names = [n for n in FUNCTIONS if n.split(".")[-1][0] == initial]
    found, answered = refusals(names, 12, 0)
    assert not found, "\n".join(found[:5])
    assert answered > len(names)


def test_arguments_of_a_wrong_kind_give_answers_or_our_errors():
    found, answered = refusals(FUNCTIONS, 5, 0, call_of_a_wrong_kind)
    assert not found, "\n".join(found[:5])
    assert answered > len(FUNCTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_arguments_of_a_wrong_kind_give_answers_or_our_errors(seed):
    found, _ = refusals(FUNCTIONS, 100, seed, call_of_a_wrong_kind)
    assert not found, "\n".join(found[:20])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_odd_arguments_give_answers_or_our_errors(seed):
    found, _ = refusals(FUNCTIONS, 200, seed)
    assert not found, "\n".join(found[:20])


def test_what_the_array_library_refuses_is_an_error_of_ours():
    with pytest.raises(ProbtorchError, match=r"(?s)expected: exponents >= 0.*int64 and -1.*fix:"):
        probtorch.tensor([1, 2]) ** -1
    with pytest.raises(ProbtorchError, match="bool and bool"):
        probtorch.tensor([True]) - probtorch.tensor([True])
    with pytest.raises(ProbtorchError, match="real numbers"):
        probtorch.tensor([1.0]).lt(1j)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: probtorch.topk(t, 2.0), "topk: k.*a whole number.*float 2.0.*write k=2"),
        (lambda t: probtorch.topk(t, "2"), "topk: k.*a whole number.*str '2'"),
        (lambda t: probtorch.cat(3), "cat: tensors.*a list or tuple of tensors.*got: +3"),
        (lambda t: probtorch.fmod(t, 10**400), "fmod.*about 400 digits.*1e20"),
        (lambda t: t + 10**5000, "add.*about 5000 digits"),
        (lambda t: t.long() + 2**63, "add.*int64 up to 9.2e18.*9223372036854775808.*1e20"),
        (lambda t: t.long().clamp(max=2**63), "int64 up to 9.2e18.*9223372036854775808"),
        (lambda t: t.sum(keepdim=10**400), "sum: keepdim.*about 400 digits"),
        (lambda t: probtorch.split(t, 1.5), "split: split_size.*whole number.*float 1.5"),
        (lambda t: t.unsqueeze(1.0), "unsqueeze.*dim: an integer"),
        (lambda t: probtorch.detach(2.5), "detach.*a tensor.*float"),
    ],
)
def test_the_argument_of_a_wrong_kind_is_named(call, said):
    with pytest.raises(ProbtorchError, match="(?s)" + said):
        call(probtorch.ones(3))


def test_errors_of_the_users_own_functions_stay_theirs():
    def mine(x):
        raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine$"):
        probtorch.func.vmap(mine, in_dims=0)(probtorch.ones(3))
    with pytest.raises(TypeError, match=r"^mine$"):
        probtorch.func.grad(mine)(probtorch.ones(()))
