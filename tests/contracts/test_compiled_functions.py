"""Every public function, compiled or batched, follows its operands, whatever it read of them.

Each call of `fitting_calls.py` is compiled as a function of its tensors and met with other elements
in them, of the same shapes and dtypes: results, and what is refused, are those of eager execution.
"""

import re
import warnings

import numpy as np
import pytest

import probtorch
from probtorch.compiler.compile import compile
from probtorch.errors import AutogradError, ProbtorchError
from probtorch.func import vmap
from tests.compiler.agreement import differences, spread
from tests.contracts import fitting_calls, further_calls
from tests.contracts.fitting_arguments import Data

# Random inside, beside those that say so in their results.
RANDOM = {*fitting_calls.RANDOM, "functional.rrelu", "svd_lowrank", "pca_lowrank"}
NAMES = sorted(set(fitting_calls.RECIPES) - RANDOM)
# Those that the slow tests sweep as well.
MORE = sorted(set(further_calls.RECIPES) - {*NAMES, *RANDOM})
ROOMS = {
    "": probtorch,
    "special": probtorch.special,
    "linalg": probtorch.linalg,
    "functional": probtorch.nn.functional,
    "Tensor": probtorch.Tensor,
}


def as_function(call):
    """Return a call as a function of its tensors."""
    room, _, last = call.name.rpartition(".")
    fn = getattr(ROOMS[room], last)

    def run(*tensors):
        left = iter(tensors)

        def filled(a):
            if isinstance(a, Data):
                return next(left)
            if isinstance(a, (list, tuple)):
                return type(a)(filled(v) for v in a)
            return getattr(probtorch, a.name) if hasattr(a, "name") else a

        args = [filled(a) for a in call.args]
        return fn(*args, **{k: filled(v) for k, v in call.options.items()})

    return run


def other_elements(call, rng):
    """Return the arrays of a call, and others: their elements in another order, some new."""
    arrays = [leaf.array for leaf in call.leaves()]
    others = []
    for a in arrays:
        b = rng.permutation(a.ravel()).reshape(a.shape)
        if a.dtype.kind == "b":
            b = rng.integers(0, 2, a.shape).astype(bool)
        elif a.dtype.kind == "f" and np.isfinite(a).all() and ((a >= 0) & (a <= 1)).all():
            b = rng.uniform(0, 1, a.shape).astype(a.dtype)
        others.append(np.asarray(b, a.dtype))
    return arrays, others


def flat(out):
    """Return the arrays and numbers of a result."""
    if isinstance(out, (list, tuple)):
        return [v for part in out for v in flat(part)]
    return [np.asarray(out.array if isinstance(out, probtorch.Tensor) else out)]


def outcome(fn, arrays):
    try:
        return flat(fn(*(probtorch.from_numpy(np.array(a)) for a in arrays)))
    except (ProbtorchError, TypeError, ValueError, IndexError) as e:
        return type(e)


def disagreements(name, seed):
    """Return how a compiled call differs from the eager one, met with two sets of elements."""
    call = further_calls.draw_call(name, seed)
    fn = as_function(call)
    native = compile(fn)
    first, second = other_elements(call, np.random.default_rng(seed))
    for number, arrays in enumerate((first, first, second, first, second)):
        got, expected = outcome(native, arrays), outcome(fn, arrays)
        if isinstance(got, type) or isinstance(expected, type):
            # Of two mistakes in a call, either may be met first.
            if not (isinstance(got, type) and isinstance(expected, type)):
                yield f"call {number} of {call} with {arrays}: {got}, eager {expected}"
        else:
            wrong = differences(got, spread(lambda a=arrays: outcome(fn, a)))
            if wrong:
                yield f"call {number} of {call} with {arrays}: {wrong}"


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", NAMES)
def test_compiled_functions_follow_the_elements_of_their_operands(name):
    found = list(disagreements(name, 0))
    assert not found, "\n".join(found[:2])


# They change an argument, give numbers of Python, or results whose shape depends on values.
ONE_BY_ONE = re.compile(
    r".*_$|.*__(bool|float|int|index|contains|setitem|len)__$|Tensor\.(item|tolist|numpy|size|stride)$"
    r"|allclose$|equal$|bincount$|histc$|masked_select$|nonzero$|unique$|.*\.multilabel_margin_loss$"
    r"|.*(batch|instance)_norm$|argwhere$|is_nonzero$|result_type$"
    r"|geqrf$|histogram(dd)?$|isin$|linalg.lstsq$|.*lu_solve$|lu(_unpack)?$|nonzero_static$"
    r"|segment_reduce$|unique_consecutive$"
)
REFUSED_FOR_SOME = ("functional.embedding", "functional.one_hot", "where", "Tensor.__getitem__")


def batched_disagreements(name, seed):
    """Return how a call of two slices at once differs from one call for each."""
    call = further_calls.draw_call(name, seed)
    fn = as_function(call)
    slices = other_elements(call, np.random.default_rng(seed))
    if not slices[0] or any(isinstance(outcome(fn, arrays), type) for arrays in slices):
        return
    stacked = (probtorch.from_numpy(np.stack(pair)) for pair in zip(*slices, strict=True))
    try:
        got = flat(vmap(fn)(*stacked))
    except AutogradError as e:
        if name not in REFUSED_FOR_SOME or "the same on every slice" not in str(e):
            yield f"{call}: {e}"
        return
    for k, arrays in enumerate(slices):
        wrong = differences([g[k] for g in got], spread(lambda a=arrays: outcome(fn, a)))
        if wrong:
            yield f"slice {k} of {call} with {arrays}: {wrong}"


@pytest.mark.parametrize("name", [n for n in NAMES if not ONE_BY_ONE.match(n)])
def test_batched_functions_give_what_each_slice_gives(name):
    found = list(batched_disagreements(name, 0))
    assert not found, "\n".join(found[:2])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 13))
def test_batched_functions_give_what_each_slice_gives_in_many_calls(seed):
    names = [n for n in (*NAMES, *MORE) if not ONE_BY_ONE.match(n)]
    found = [text for name in names for text in batched_disagreements(name, seed)]
    assert not found, "\n".join(found[:10])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 13))
def test_compiled_functions_follow_their_operands_in_many_calls(seed):
    found = [text for name in (*NAMES, *MORE) for text in disagreements(name, seed)]
    assert not found, "\n".join(found[:10])
