"""Autoregressive flows whose elementwise map is an increasing network or polynomial.

`NeuralAutoregressive` sends each number through a small network with positive weights, whose
weights depend on the numbers before it (Huang, Krueger, Lacoste and Courville 2018); `Polynomial`
through the integral of a sum of squared polynomials (Jaini, Selby and Yu 2019). Neither has an
inverse in closed form: it is the root of one increasing equation per number (`increasing_root`).
"""

from __future__ import annotations

from collections.abc import Sequence

from probtorch.core.signatures import explain_calls
from probtorch.distributions.transforms.flows.autoregressive import Autoregressive, InContext
from probtorch.distributions.transforms.flows.module import (
    ConditionalTransformModule,
    hidden_sizes,
)
from probtorch.distributions.transforms.flows.roots import increasing_root
from probtorch.distributions.transforms.transform import Transform
from probtorch.errors import ArgumentError
from probtorch.nn import init
from probtorch.nn.arguments import whole
from probtorch.nn.autoregressive import AutoRegressiveNN, ConditionalAutoRegressiveNN
from probtorch.nn.module import Module
from probtorch.ops.arithmetic import maximum, minimum, neg, where
from probtorch.ops.exponential_sums import log_softmax, logsumexp
from probtorch.ops.exponentials import exp, expm1, log, log1p, softplus
from probtorch.ops.movement import reshape, unsqueeze
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "ConditionalNeuralAutoregressive",
    "ConditionalPolynomial",
    "NeuralAutoregressive",
    "Polynomial",
    "conditional_neural_autoregressive",
    "conditional_polynomial",
    "neural_autoregressive",
    "polynomial",
]

ACTIVATIONS = ("ELU", "LeakyReLU", "sigmoid", "tanh")
# Slope of the leaky ReLU below 0.
LEAK = 0.01
# Pyro's polynomials: their degree, and how many squares are added.
DEGREE, COUNT = 4, 3


class _Monotone(Autoregressive):
    """Base of autoregressive flows whose elementwise inverse is a root."""

    def _backward(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        return increasing_root(lambda x: self._forward(parameters, x), y)


class NeuralAutoregressive(_Monotone):
    """``y = s^-1(sum_k w_k s(a_k x + b_k))`` with autoregressive a > 0, b and weights w.

    Parameters
    ----------
    autoregressive_nn : callable
        An `AutoRegressiveNN` with ``param_dims=[hidden_units] * 3``.
    hidden_units : int
        How many terms the sum has.
    activation : {"sigmoid", "tanh", "ELU", "LeakyReLU"}
        The function s.

    Raises
    ------
    ArgumentError
        If the activation is another.

    References
    ----------
    Huang, Krueger, Lacoste and Courville (2018), "Neural autoregressive flows".
    """

    def __init__(
        self, autoregressive_nn: Module, hidden_units: int = 16, activation: str = "sigmoid"
    ) -> None:
        super().__init__(autoregressive_nn)
        whole("NeuralAutoregressive", hidden_units=hidden_units)
        if activation not in ACTIVATIONS:
            raise ArgumentError(
                "NeuralAutoregressive(activation=...)",
                expected=f"one of {', '.join(map(repr, ACTIVATIONS))}",
                got=repr(activation),
                fix="leave it out for 'sigmoid'",
            )
        self.hidden_units, self.activation = hidden_units, activation

    def _forward(self, parameters: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        raw, bias, logits = parameters
        log_weights, log_a = log_softmax(logits, -2), log(softplus(raw))
        z = exp(log_a) * unsqueeze(x, -2) + bias
        if self.activation in ("sigmoid", "tanh"):
            return self._logits(log_weights, log_a, z)
        above = z > 0.0
        if self.activation == "ELU":
            # One more than the mixture, in logarithms: far below 0 the mixture is nearly -1.
            low, high = minimum(z, 0.0), log1p(maximum(z, 0.0))
            log_more = logsumexp(log_weights + where(above, high, low), -2)
            log_slope = logsumexp(log_weights + low + log_a, -2)
            value = where(log_more > 0.0, expm1(maximum(log_more, 0.0)), log_more)
            return value, log_slope - minimum(log_more, 0.0)
        weights = exp(log_weights)
        mixed = total(weights * where(above, z, LEAK * z), -2)
        slopes = where(above, z * 0.0 + 1.0, LEAK)
        back = where(mixed > 0.0, mixed * 0.0 + 1.0, 1.0 / LEAK)
        return mixed * back, log(total(weights * slopes * exp(log_a), -2)) + log(back)

    def _logits(self, log_weights: Tensor, log_a: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """The logit of a mean of sigmoids, all in logarithms; tanh(z) is 2 sigmoid(2 z) - 1."""
        double = 2.0 if self.activation == "tanh" else 1.0
        log_one, log_zero = neg(softplus(-double * z)), neg(softplus(double * z))
        above = logsumexp(log_weights + log_one, -2)
        below = logsumexp(log_weights + log_zero, -2)
        slopes = logsumexp(log_weights + log_one + log_zero + log_a, -2)
        return (above - below) / double, slopes - above - below


class ConditionalNeuralAutoregressive(ConditionalTransformModule):
    """`NeuralAutoregressive` whose network also sees a context.

    Parameters
    ----------
    autoregressive_nn : ConditionalAutoRegressiveNN
    hidden_units, activation
        Settings of `NeuralAutoregressive`.
    """

    def __init__(
        self, autoregressive_nn: Module, hidden_units: int = 16, activation: str = "sigmoid"
    ) -> None:
        super().__init__()
        self.nn, self.hidden_units, self.activation = autoregressive_nn, hidden_units, activation

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        network = InContext(self.nn, context)
        return NeuralAutoregressive(network, self.hidden_units, self.activation)  # type: ignore[arg-type]  # called like one


class ConditionedPolynomial(_Monotone):
    """The map of a `Polynomial`, with a given constant.

    Parameters
    ----------
    autoregressive_nn : callable
    c : Tensor, shape (..., input_dim)
    count_degree, count_sum : int
    """

    def __init__(
        self, autoregressive_nn: Module, c: Tensor | None, count_degree: int, count_sum: int
    ) -> None:
        super().__init__(autoregressive_nn)
        self.count_degree, self.count_sum = count_degree, count_sum
        if c is not None:
            self.c = c

    def _forward(self, parameters: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        coefficients = parameters
        assert isinstance(coefficients, Tensor)  # of one parameter the network gives the tensor
        shape, degree = x.array.shape, self.count_degree
        a = reshape(coefficients, (*shape[:-1], self.count_sum, degree + 1, shape[-1]))
        powers = [x * 0.0 + 1.0]
        for _ in range(2 * degree + 1):
            powers.append(powers[-1] * x)
        polynomials = total(a * unsqueeze(stack(powers[: degree + 1], -2), -3), -2)
        # The product of two terms has degree r + s; its integral one more.
        value = self.c + x * 0.0
        for r in range(degree + 1):
            for s in range(r + 1):
                pair = total(a[..., r, :] * a[..., s, :], -2) * (1.0 if r == s else 2.0)
                value = value + pair * powers[r + s + 1] / float(r + s + 1)
        return value, log(total(polynomials * polynomials, -2))


class Polynomial(ConditionedPolynomial):
    """``y = c + integral from 0 to x of sum_k p_k(u)^2 du``, with autoregressive polynomials p_k.

    Parameters
    ----------
    autoregressive_nn : callable
        An `AutoRegressiveNN` with ``param_dims=[(count_degree + 1) * count_sum]``.
    input_dim, count_degree, count_sum : int
        Of the vectors, of each polynomial, and how many there are.

    References
    ----------
    Jaini, Selby and Yu (2019), "Sum-of-squares polynomial flow".
    """

    def __init__(
        self, autoregressive_nn: Module, input_dim: int, count_degree: int, count_sum: int
    ) -> None:
        super().__init__(autoregressive_nn, None, count_degree, count_sum)
        whole("Polynomial", input_dim=input_dim, count_degree=count_degree, count_sum=count_sum)
        self.input_dim = input_dim
        bound = input_dim**-0.5
        self.parameter("c", (input_dim,), init=init.uniform(-bound, bound))


class ConditionalPolynomial(ConditionalTransformModule):
    """`Polynomial` whose network also sees a context.

    Parameters
    ----------
    autoregressive_nn : ConditionalAutoRegressiveNN
    input_dim, count_degree, count_sum : int
        As for `Polynomial`; the constant c is the same in all contexts.
    """

    def __init__(
        self, autoregressive_nn: Module, input_dim: int, count_degree: int, count_sum: int
    ) -> None:
        super().__init__()
        sizes = {"input_dim": input_dim, "count_degree": count_degree, "count_sum": count_sum}
        whole("ConditionalPolynomial", **sizes)
        self.nn, self.input_dim = autoregressive_nn, input_dim
        self.count_degree, self.count_sum = count_degree, count_sum
        bound = input_dim**-0.5
        self.parameter("c", (input_dim,), init=init.uniform(-bound, bound))

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        network = InContext(self.nn, context)
        sizes = self.count_degree, self.count_sum
        return ConditionedPolynomial(network, self.c + 0.0, *sizes)  # type: ignore[arg-type]  # called like one


def neural_autoregressive(
    input_dim: int,
    hidden_dims: Sequence[int] | None = None,
    activation: str = "sigmoid",
    width: int = 16,
) -> NeuralAutoregressive:
    """Return a new neural autoregressive flow.

    Parameters
    ----------
    input_dim : int
    hidden_dims : sequence of int, optional
        Of the network; ``[3 * input_dim + 1]`` if None.
    activation, width
        As `activation` and `hidden_units` of `NeuralAutoregressive`.

    Returns
    -------
    NeuralAutoregressive
    """
    hidden_dims = [3 * input_dim + 1] if hidden_dims is None else hidden_dims
    network = AutoRegressiveNN(input_dim, hidden_dims, param_dims=[width] * 3)
    return NeuralAutoregressive(network, width, activation)


def conditional_neural_autoregressive(
    input_dim: int,
    context_dim: int,
    hidden_dims: Sequence[int] | None = None,
    activation: str = "sigmoid",
    width: int = 16,
) -> ConditionalNeuralAutoregressive:
    """Return a new neural autoregressive flow with a context.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; ``[3 * input_dim + 1]`` if None.
    activation, width
        As `activation` and `hidden_units` of `NeuralAutoregressive`.

    Returns
    -------
    ConditionalNeuralAutoregressive
    """
    hidden_dims = [3 * input_dim + 1] if hidden_dims is None else hidden_dims
    network = ConditionalAutoRegressiveNN(
        input_dim, context_dim, hidden_dims, param_dims=[width] * 3
    )
    return ConditionalNeuralAutoregressive(network, width, activation)


def polynomial(input_dim: int, hidden_dims: Sequence[int] | None = None) -> Polynomial:
    """Return a new polynomial flow: three squares of polynomials of degree 4.

    Parameters
    ----------
    input_dim : int
    hidden_dims : sequence of int, optional
        Of the network; ``[10 * input_dim]`` if None.

    Returns
    -------
    Polynomial
    """
    layers = hidden_sizes(hidden_dims, input_dim, 1)
    network = AutoRegressiveNN(input_dim, layers, param_dims=[(DEGREE + 1) * COUNT])
    return Polynomial(network, input_dim, DEGREE, COUNT)


def conditional_polynomial(
    input_dim: int, context_dim: int, hidden_dims: Sequence[int] | None = None
) -> ConditionalPolynomial:
    """Return a new polynomial flow with a context: three squares of polynomials of degree 4.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; ``[10 * input_dim]`` if None.

    Returns
    -------
    ConditionalPolynomial
    """
    layers = hidden_sizes(hidden_dims, input_dim, 1)
    network = ConditionalAutoRegressiveNN(
        input_dim, context_dim, layers, param_dims=[(DEGREE + 1) * COUNT]
    )
    return ConditionalPolynomial(network, input_dim, DEGREE, COUNT)


explain_calls(globals())
