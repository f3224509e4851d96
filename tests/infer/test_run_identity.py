"""What a run belongs to is told by the types of its arguments, whatever these call themselves."""

from unittest import mock

import numpy as np
import pytest

from probtorch import nn
from probtorch.core.tensor_base import TensorBase
from probtorch.infer.many.data_sets import calls_of
from probtorch.infer.run_identity import digests
from probtorch.tensor import tensor


class Proxy:
    """Says that it is what it stands for, and has its elements."""

    def __init__(self, target):
        self.target = target

    __class__ = property(lambda self: type(self.target))

    def __getattr__(self, name):
        return getattr(self.target, name)


@pytest.mark.parametrize(
    "kind", [np.ndarray, TensorBase, dict, list, tuple, str, nn.Linear], ids=lambda k: k.__name__
)
def test_a_double_of_a_test_has_the_same_digest_in_every_run(kind):
    one, other = (digests((mock.Mock(spec=kind),), {}) for _ in range(2))
    assert one == other


@pytest.mark.parametrize("make", [np.array, tensor], ids=["array", "tensor"])
def test_a_proxy_has_the_digest_of_its_elements(make):
    first, again, other = (digests((Proxy(make(x)),), {}) for x in ([1.0], [1.0], [2.0]))
    assert first == again != other


def test_a_double_of_a_mapping_is_no_mapping_of_data_sets():
    data = mock.Mock(spec=dict)
    assert calls_of([data])[0].args == (data,)
