"""Floats of Python's that change between calls become inputs, and nobody can tell."""

import json
import math
import numbers
import warnings
from collections.abc import Iterable

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
import probtorch.nn.functional as F
from probtorch import compile, tensor
from probtorch.compiler.paths import CompileWarning
from probtorch.nn.utils import clip_grad_norm_, clip_grad_value_
from tests.compiler.varying_places import PLACES, VALUES, Holder, X, attribute, outcome, the_same

# Of which some ask how large the number is.
BRANCHING = ("branch", "larger", "dropout", "softplus")


def clipped(x, clip):
    w = x.clone()
    w.grad = x.clone()
    clip(w)
    return w.grad


# What takes a number for what a tensor of no dims is, too.
ALIKE = {
    "product": lambda x, b: (x * b).sum(),
    "arithmetic": lambda x, b: x * (b * 2 + 1) ** 2 / 3 - b // 0.2 + b % 0.2,
    "branch": lambda x, b: x * b if b > 0.45 else x - b,
    "larger": lambda x, b: x * max(b, 0.22),
    "clamp": lambda x, b: x.clamp(-b, b),
    "power": lambda x, b: x.abs() ** b,
    "alpha": lambda x, b: x.clone().add_(x, alpha=b),
    "where": lambda x, b: probtorch.where(x > b, x, b),
    "numpy": lambda x, b: x * np.sqrt(b) + tensor(np.arange(6) * b),
    "dropout": lambda x, b: F.dropout(x, b, True),
    "softplus": lambda x, b: F.softplus(x, beta=b),
    "clipped norm": lambda x, b: clipped(x, lambda w: clip_grad_norm_([w], b)),
    "clipped values": lambda x, b: clipped(x, lambda w: clip_grad_value_([w], b)),
    "location": lambda x, b: dist.Normal(b, 1.0).log_prob(x),
    "temperature": lambda x, b: F.gumbel_softmax(x, tau=b),
    "variance": lambda x, b: F.gaussian_nll_loss(x, X, b),
    "draws": lambda x, b: dist.RelaxedBernoulli(b, logits=x).sample() * dist.Normal(0, b).sample(),
}


def tried(x, b):
    try:
        return x * b.ndim
    except AttributeError:
        return x * 10 if b < 0.15 else x


def matched(x, b):
    match b:
        case float() if b < 0.15:
            return x * 10
    return x


# What does not: each value is a constant, and Python has the last word.
OTHERWISE = {
    "exponential": lambda x, b: x * math.exp(-b),
    "type": lambda x, b: x * b if isinstance(b, float) else x * 3,
    "format": lambda x, b: x * len(f"{b:g}"),
    "shown": lambda x, b: x * len(repr(dist.Normal(b, 1.0))),
    "lookup": lambda x, b: x * {0.1: 1.0, 0.4: 2.0}.get(b, 5.0),
    "text": lambda x, b: x * len(json.dumps(b)),
    "range": lambda x, b: sum((x * i for i in range(int(10 * min(b, 9)))), X),
    "integers": lambda x, b: probtorch.arange(3) * b,
    "returned": lambda x, b: {"x": x * b, "b": b},
    "array": lambda x, b: x[:3] * tensor(np.full(3, b)),
    "method": lambda x, b: x * b.is_integer() + b.as_integer_ratio()[0] % 7,
}
# What another path is for.
STRANGE = [-0.0, 2, -0.5, float("nan"), 0.6, 1e300, 0.5]


@pytest.mark.parametrize(
    ("place", "name"),
    [*((attribute, name) for name in ALIKE), *((place, "arithmetic") for place in PLACES[1:])],
)
def test_a_float_that_changes_is_an_input(place, name):
    fn, change = place(ALIKE[name])
    compiled = compile(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for value in VALUES * 2:
            change(value)
            assert the_same(outcome(compiled, X), outcome(fn, X)), value
    assert len(compiled.paths) <= 2 + (name in BRANCHING)


@pytest.mark.parametrize("name", ALIKE)
def test_a_float_among_the_arguments_that_changes_is_an_input(name):
    compiled = compile(ALIKE[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for value in VALUES * 2:
            assert the_same(outcome(compiled, X, value), outcome(ALIKE[name], X, value)), value
    assert len(compiled.paths) <= 2 + (name in BRANCHING)


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
@pytest.mark.parametrize(
    ("place", "name"),
    [
        *((attribute, name) for name in (*ALIKE, *OTHERWISE)),
        *((place, name) for place in PLACES[1:] for name in ("arithmetic", "type", "lookup")),
    ],
)
def test_values_of_any_kind_mean_what_they_mean_to_python(place, name):
    fn, change = place((ALIKE | OTHERWISE)[name])
    compiled = compile(fn)
    for value in [*VALUES[:4], *STRANGE]:
        change(value)
        assert the_same(outcome(compiled, X), outcome(fn, X)), value


# Whether Python tells a float from a tensor shows at some values alone, after it became an input.
LATER = {
    "isinstance": lambda x, b: x * 10 if isinstance(b, float) and b < 0.15 else x,
    "type": lambda x, b: x * 10 if type(b) is float and b < 0.15 else x,
    "class": lambda x, b: x * 10 if b.__class__ is float and b < 0.15 else x,
    "number": lambda x, b: x * 10 if isinstance(b, numbers.Real) and b < 0.15 else x,
    "lookup": lambda x, b: x * {0.1: 10}.get(b, 1),
    "member": lambda x, b: x * 10 if b in {0.1, 0.2} else x,
    "match": matched,
    "tensor": lambda x, b: x * 10 if not isinstance(b, probtorch.Tensor) and b < 0.15 else x,
    "is_tensor": lambda x, b: x * 10 if not probtorch.is_tensor(b) and b < 0.15 else x,
    "array": lambda x, b: x * 10 if not hasattr(b, "shape") and b < 0.15 else x,
    "attribute": lambda x, b: x * 10 if getattr(b, "ndim", None) is None and b < 0.15 else x,
    "float's": lambda x, b: x * 10 if b.hex() == (0.1).hex() and b.real is not None else x,
    "iterable": lambda x, b: x * 10 if not isinstance(b, Iterable) and b < 0.15 else x,
    "bool": lambda x, b: x * 10 if (b < 0.15) is True else x,
    "equal": lambda x, b: x * 10 if (b == 0.1) is True and (b == "no") is False else x,
    "tried": tried,
}
# What is the same for all floats: they are inputs in spite of it.
ALIKE_FOR_ALL = {
    "tensor": lambda x, b: x * (b if isinstance(b, probtorch.Tensor) else tensor(b)),
    "is_tensor": lambda x, b: x * b.exp() if probtorch.is_tensor(b) else x * b,
    "float": lambda x, b: x * b if isinstance(b, (int, float)) else x,
    "real": lambda x, b: x * b if isinstance(b, numbers.Real) else x,
    "array": lambda x, b: x * b if not hasattr(b, "shape") else x,
    "shape": lambda x, b: x * b * len(getattr(b, "shape", (1, 2))),
    "tried": lambda x, b: tried(x, b) + x * b,
    "iterable": lambda x, b: sum((x * v for v in (b if isinstance(b, Iterable) else [b])), x),
}


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
@pytest.mark.parametrize("how", ["attribute", "argument"])
@pytest.mark.parametrize("name", LATER)
def test_what_tells_a_float_from_a_tensor_is_heard_wherever_it_matters(name, how):
    fn, change = attribute(LATER[name]) if how == "attribute" else (LATER[name], lambda v: None)
    compiled = compile(fn, verify=False)
    for value in [0.9, 0.8, 0.7, 0.6, 0.1, 0.5, 0.1]:
        change(value)
        args = (X,) if how == "attribute" else (X, value)
        assert the_same(compiled(*args), fn(*args)), value


@pytest.mark.parametrize("how", ["attribute", "argument"])
@pytest.mark.parametrize("name", ALIKE_FOR_ALL)
def test_questions_that_all_floats_answer_alike_leave_inputs(name, how):
    body = ALIKE_FOR_ALL[name]
    fn, change = attribute(body) if how == "attribute" else (body, lambda v: None)
    compiled = compile(fn)
    for value in VALUES * 2:
        change(value)
        args = (X,) if how == "attribute" else (X, value)
        assert the_same(compiled(*args), fn(*args)), value
    assert len(compiled.paths) <= 2 + (name == "tried")


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
@pytest.mark.parametrize("name", ["arithmetic", "draws", "type", "format", "lookup", "integers"])
def test_arguments_of_any_kind_mean_what_they_mean_to_python(name):
    fn = (ALIKE | OTHERWISE)[name]
    compiled = compile(fn)
    for value in [*VALUES[:4], *STRANGE]:
        assert the_same(outcome(compiled, X, value), outcome(fn, X, value)), value


LISTS = {
    "a sum of terms": lambda x, w: sum(x * v for v in w),
    "a tensor": lambda x, w: x[:3] * tensor(w),
    "rows": lambda x, w: x[:2] * tensor([w[:2], [0.5, 1]]).sum(0),
    "a sum": lambda x, w: x * sum(w),
    "the largest": lambda x, w: x * max(w),
    "pairs": lambda x, w: sum(a * b for a, b in zip(x, w, strict=False)),
    "unpacked": lambda x, w: (lambda a, b, c: x * a + b - c)(*w),
    "squares": lambda x, w: x * [v**2 for v in w][-3],
}


@pytest.mark.parametrize("name", LISTS)
def test_floats_in_a_list_are_inputs(name):
    weights, body = [0.1, 0.2, 0.3], LISTS[name]
    fn = lambda x: body(x, weights)
    compiled = compile(fn)
    for value in VALUES:
        weights[:] = [value, value * 0.9, 0.3]
        assert the_same(compiled(X), fn(X)), value
        assert list(map(type, weights)) == [float] * 3
    assert compiled.reason is None and len(compiled.paths) <= 3


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_long_lists_and_lists_that_grow_are_what_they_are_at_each_call():
    data, losses = [float(i) for i in range(1, 40)], []
    fn = lambda x: x * tensor(data).sum() + sum(losses)
    compiled = compile(fn)
    for value in VALUES:
        data[:] = [value * v for v in range(1, 40)]
        losses.append(value)
        assert the_same(compiled(X), fn(X)), value


def test_the_user_finds_a_float_where_a_float_was():
    holder = Holder()
    compiled = compile(lambda x: x * holder.number)
    for value in VALUES:
        holder.number = value
        compiled(X)
        assert type(holder.number) is float and holder.number == value


def test_what_is_put_into_an_argument_behind_a_branch_is_put_there_once():
    holder, found = Holder(), []

    def fn(x, seen):
        if holder.number > 0.25:
            seen.append(holder.number)
        return x * holder.number

    compiled = compile(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for holder.number in VALUES:
            compiled(X, found)
    assert found == [v for v in VALUES if v > 0.25] and {*map(type, found)} == {float}
