"""Errors: what survives a trip to another process."""

import copy
import pickle

import pytest

import probtorch
from probtorch import errors, linalg
from probtorch.errors import FileError, ProbtorchError, ShapeError

CLASSES = [
    found
    for found in (getattr(errors, name) for name in errors.__all__)
    if isinstance(found, type) and issubclass(found, ProbtorchError)
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("passed_on", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_an_error_is_the_same_after_pickling_and_copying(cls, passed_on):
    error = cls("matmul", expected="3", got="4", fix="transpose", at="model.py:12")
    error.add_note("in worker 3")
    found = passed_on(error)
    assert type(found) is cls
    assert str(found) == str(error)
    assert str(found).count("at:") == 1
    assert (found.subject, found.expected, found.got) == ("matmul", "3", "4")
    assert (found.fix, found.location) == ("transpose", "model.py:12")
    assert found.__notes__ == ["in worker 3"]


def test_an_error_pickled_twice_still_has_one_place():
    error = ShapeError("x", expected="a", got="b", fix="c")
    twice = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))
    assert str(twice) == str(error)
    assert twice.location.rsplit(":", 1)[0] == __file__


def test_a_file_error_is_what_callers_catch_for_files():
    error = FileError("x.pt", expected="a checkpoint", got="a pickle", fix="save it again")
    assert isinstance(error, OSError)
    assert str(error).startswith("x.pt\n  expected: a checkpoint")


@pytest.mark.parametrize(
    "call",
    [
        lambda x: probtorch.arange(float("nan")),
        lambda x: x.clamp(),
        lambda x: probtorch.bernoulli(x - 2.0),
        lambda x: x.chunk(0),
        lambda x: x.gather(0, probtorch.tensor([3])),
        lambda x: linalg.cholesky(-x.diag()),
        lambda x: probtorch.multinomial(-x, 1),
        lambda x: x.normal_(0.0, -1.0),
    ],
)
def test_what_scripts_catch_as_a_runtime_error_is_one(call):
    # PyTorch's class for nearly all that it refuses, bad numbers and places among them.
    with pytest.raises(RuntimeError) as caught:
        call(probtorch.ones(3))
    assert isinstance(caught.value, ProbtorchError)
