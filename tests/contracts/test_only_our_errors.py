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
from tests.contracts.calls import FUNCTIONS, random_call

_ABOUT_ARGUMENTS = re.compile(r"positional argument|keyword argument|multiple values")


def refusals(names, count, seed):
    """Return the foreign errors of random calls, and how many calls were answered."""
    out, answered = [], 0
    for name in names:
        rng = np.random.default_rng([seed, *name.encode()])
        for _ in range(count):
            args, options = random_call(name, rng)
            try:
                FUNCTIONS[name](*args, **options)
                answered += 1
            except ProbtorchError as e:
                if None in (e.expected, e.got, e.fix):
                    out.append(f"{name}: {e!r} lacks a part")
            except Exception as e:
                if type(e) is not TypeError or not _ABOUT_ARGUMENTS.search(str(e)):
                    out.append(f"{name}(*{args}, **{options}): {e!r}")
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
