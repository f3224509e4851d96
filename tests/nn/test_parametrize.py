"""Tensors computed from others: what a module shows, assigning, removing, copies, compiling."""

import copy
import io
import pickle

import numpy as np
import pytest

import probtorch
from probtorch import nn, optim
from probtorch.errors import ArgumentError, DTypeError, ModelError, ShapeError
from probtorch.nn.utils import functional_call, parametrize
from probtorch.nn.utils.parametrizations import orthogonal, stiefel, symmetric, weight_norm
from probtorch.nn.utils.parametrize import (
    is_parametrized,
    register_parametrization,
    remove_parametrizations,
)
from probtorch.testing.compare import assert_close


class Upper(nn.Module):
    """A symmetric matrix from an upper triangle."""

    def forward(self, x):
        return x.triu() + x.triu(1).mT

    def right_inverse(self, value):
        return value.triu()


class Doubled(nn.Module):
    def forward(self, x):
        return x * 2.0


class RankOne(nn.Module):
    def forward(self, x, y):
        return x[:, None] * y[None, :]

    def right_inverse(self, value):
        return value[:, 0].clone(), value[0].clone() / value[0, 0]


def layer(*parametrizations):
    made = nn.Linear(3, 3).double()
    for each in parametrizations:
        register_parametrization(made, "weight", each)
    return made


# --------------------------------------------------------------------------- what a module shows


def test_weight_is_computed_and_its_original_is_what_is_learned():
    made = layer(Upper())
    original = made.parametrizations.weight.original
    assert [name for name, _ in made.named_parameters()] == [
        "bias",
        "parametrizations.weight.original",
    ]
    assert list(made.state_dict()) == ["bias", "parametrizations.weight.original"]
    assert_close(made.weight, np.triu(original.array) + np.triu(original.array, 1).T)
    x = probtorch.randn(5, 3).double()
    made(x).sum().backward()
    # The gradient of W has the row x.sum(0) for each output; its lower triangle folds up.
    g = np.tile(x.array.sum(0), (3, 1))
    assert_close(original.grad, np.triu(g) + np.tril(g, -1).T)
    assert isinstance(made, nn.Linear)
    assert type(made).__name__ == "ParametrizedLinear"
    assert parametrize.type_before_parametrizations(made) is nn.Linear
    assert "(parametrizations): ModuleDict(" in repr(made)


def test_original_is_the_parameter_an_optimizer_already_has():
    made = nn.Linear(3, 3)
    before = made.weight
    optimizer = optim.SGD(made.parameters(), lr=0.5)
    register_parametrization(made, "weight", Upper())
    assert made.parametrizations.weight.original is before
    made.weight.sum().backward()
    optimizer.step()
    assert_close(made.weight, made.weight.mT)
    assert remove_parametrizations(made, "weight").weight is before


def test_parametrizations_apply_one_after_the_other():
    made = layer(Upper(), Doubled())
    original = made.parametrizations.weight.original
    assert_close(made.weight, 2 * (np.triu(original.array) + np.triu(original.array, 1).T))
    assert len(made.parametrizations.weight) == 2


def test_original_may_be_several_tensors():
    made = layer(RankOne())
    assert [n for n, _ in made.named_parameters()][1:] == [
        "parametrizations.weight.original0",
        "parametrizations.weight.original1",
    ]
    assert np.linalg.matrix_rank(made.weight.detach().array) == 1


def test_buffer_may_be_parametrized():
    norm = nn.BatchNorm1d(3)
    register_parametrization(norm, "running_var", Doubled())
    assert_close(norm.running_var, np.full(3, 2.0, np.float32))
    assert "parametrizations.running_var.original" in dict(norm.named_buffers())


# -------------------------------------------------------------------------- assigning and removing


def test_assigned_value_is_found_again():
    made = layer(Upper())
    value = np.arange(9.0).reshape(3, 3)
    made.weight = probtorch.tensor(value + value.T)
    assert_close(made.weight, value + value.T)
    made = layer(RankOne())
    value = np.outer([1.0, 2.0, 3.0], [1.0, -1.0, 0.5])
    made.weight = probtorch.tensor(value)
    assert_close(made.weight, value)


@pytest.mark.parametrize("kept", [True, False])
def test_removal_leaves_the_value_or_the_original(kept):
    made = layer(Doubled())
    value, original = made.weight.detach().clone(), made.parametrizations.weight.original
    before = original.detach().clone()
    remove_parametrizations(made, "weight", leave_parametrized=kept)
    assert type(made) is nn.Linear and not is_parametrized(made)
    assert made.weight is original
    assert_close(made.weight, value if kept else before)
    assert "parametrizations" not in made._modules
    made.reset_parameters()
    assert made.weight.abs().max().item() <= 1 / np.sqrt(3)


def test_other_tensors_stay_parametrized_when_one_is_not_any_more():
    made = layer(Upper())
    register_parametrization(made, "bias", Doubled())
    remove_parametrizations(made, "weight")
    assert is_parametrized(made, "bias") and not is_parametrized(made, "weight")
    assert_close(made.bias, 2 * made.parametrizations.bias.original.detach())


def test_several_originals_become_one_parameter():
    made = layer(RankOne())
    value = made.weight.detach().clone()
    remove_parametrizations(made, "weight")
    assert isinstance(made.weight, nn.Parameter)
    assert_close(made.weight, value)


def test_parametrizations_are_handed_to_another_module():
    first, second = layer(Upper()), nn.Linear(3, 3).double()
    parametrize.transfer_parametrizations_and_params(first, second)
    assert_close(second.weight, first.weight.detach())
    assert second.parametrizations.weight[0] is first.parametrizations.weight[0]
    assert second.parametrizations.weight.original is not first.parametrizations.weight.original


# ------------------------------------------------------------------------------- caches and copies


def test_cache_holds_while_it_is_on_and_no_longer():
    made = layer(Upper())
    with parametrize.cached():
        first = made.weight
        with parametrize.cached():
            assert made.weight is first
        assert made.weight is first
        (made(probtorch.ones(2, 3).double()).sum() + made.weight.sum()).backward()
    assert made.weight is not first
    assert made.parametrizations.weight.original.grad is not None
    with probtorch.no_grad():
        made.parametrizations.weight.original.fill_(2.0)
    assert_close(made.weight, np.full((3, 3), 2.0))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_copy_stands_alone(copied):
    made = stiefel(nn.Linear(3, 3).double())
    twin = copied(made)
    x = probtorch.randn(2, 3).double()
    assert_close(twin(x), made(x))
    remove_parametrizations(made, "weight")
    assert is_parametrized(twin, "weight")
    with probtorch.no_grad():
        made.weight.fill_(0.0)
    assert_close(twin.weight.mT @ twin.weight, np.eye(3), rtol=1e-10, atol=1e-12)


def test_saved_state_is_loaded_into_a_like_module():
    first, second = orthogonal(nn.Linear(3, 3)), orthogonal(nn.Linear(3, 3))
    file = io.BytesIO()
    probtorch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(probtorch.load(file))
    assert_close(second.weight, first.weight)


# ------------------------------------------------------------------------- compiled, functional


def test_training_step_of_a_parametrized_network_is_compiled():
    def train(made):
        net = nn.Sequential(made, nn.Tanh(), weight_norm(nn.Linear(3, 1).double()))
        net.load_state_dict({k: v.clone() for k, v in saved.items()})
        optimizer = optim.SGD(net.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = (net(x) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return net, step

    start = nn.Sequential(
        symmetric(nn.Linear(3, 3).double()), nn.Tanh(), weight_norm(nn.Linear(3, 1).double())
    )
    saved = {k: v.clone() for k, v in start.state_dict().items()}
    x = probtorch.randn(4, 3).double()
    net, step = train(symmetric(nn.Linear(3, 3).double()))
    other, eager = train(symmetric(nn.Linear(3, 3).double()))
    compiled = probtorch.compile(step)
    for _ in range(3):
        assert_close(compiled(x), eager(x))
    for a, b in zip(net.parameters(), other.parameters()):
        assert_close(a, b)


def test_gradients_of_each_sample_are_those_of_a_loop():
    made = symmetric(nn.Linear(2, 2).double())
    parameters = {k: v.detach() for k, v in made.named_parameters()}
    x = probtorch.randn(4, 2).double()

    def loss(p, row):
        return (functional_call(made, p, row) ** 2).sum()

    batched = probtorch.func.vmap(probtorch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for name, g in batched.items():
        single = [probtorch.func.grad(loss)(parameters, row)[name] for row in x]
        assert_close(g, probtorch.stack(single))


# ------------------------------------------------------------------------------------------- errors


class Cut(nn.Module):
    def forward(self, x):
        return x[:2]


class Single(nn.Module):
    def forward(self, x):
        return x.float()


def assigned(made):
    made.weight = probtorch.ones(3, 3).double()


@pytest.mark.parametrize(
    "make, error, text",
    [
        (
            lambda: register_parametrization(nn.Linear(3, 3), "wait", Upper()),
            ArgumentError,
            "weight, bias",
        ),
        (lambda: layer(Cut()), ShapeError, r"shape \(3, 3\)"),
        (lambda: layer(Upper(), Cut()), ShapeError, r"shape \(3, 3\)"),
        (lambda: layer(Single()), DTypeError, "float64"),
        (lambda: assigned(layer(Doubled())), ModelError, "define right_inverse"),
        (
            lambda: setattr(layer(Upper()), "weight", probtorch.ones(2, 2).double()),
            ShapeError,
            "original",
        ),
        (lambda: setattr(layer(Upper()), "weight", probtorch.ones(3, 3)), DTypeError, "float64"),
        (lambda: remove_parametrizations(layer(Upper()), "bias"), ArgumentError, "one of weight"),
        (
            lambda: remove_parametrizations(layer(RankOne()), "weight", False),
            ArgumentError,
            "more than one",
        ),
        (
            lambda: parametrize.ParametrizationList([], probtorch.ones(2)),
            ArgumentError,
            "one or more",
        ),
        (lambda: parametrize.log_abs_det_jacobian(layer(), "weight"), ArgumentError, "register"),
        (
            lambda: parametrize.log_abs_det_jacobian(layer(RankOne()), "weight"),
            ModelError,
            "bijections",
        ),
        (
            lambda: parametrize.transfer_parametrizations_and_params(layer(), layer(), "weight"),
            ArgumentError,
            "of from_module",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_shape_may_change_where_that_is_said_to_be_safe():
    made = register_parametrization(nn.Linear(3, 3), "weight", Cut(), unsafe=True)
    assert tuple(made.weight.shape) == (2, 3)
