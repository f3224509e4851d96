"""`NetworkLaplace`: a trained network with a normal posterior of its weights around where they are.

The precision is the curvature of the log likelihood (network_curvature.py) plus that of a normal
prior. Predictions linearise the network in its weights, so that outputs are normal with a variance;
the evidence chooses the precision of the prior and the noise [mackay1992]_, after training and
without data held out [immer2021]_. Names are those of the laplace package [daxberger2021]_.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.core.arguments import choice_of, count_of
from probtorch.core.dispatch import wrap
from probtorch.core.late import special
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.func.stateless import functional_call
from probtorch.infer.approximations.network_curvature import (
    CurvatureSpectrum,
    add_factors,
    jacobians,
    kronecker_spectrum,
    layers_of,
    matrix_spectrum,
)
from probtorch.infer.starts.path_starts import normal_numbers
from probtorch.nn.linear import Linear
from probtorch.nn.module import Module

if TYPE_CHECKING:
    from probtorch.utils.data.loader import DataLoader

__all__ = ["NetworkLaplace"]

LIKELIHOODS = ("classification", "regression")
SUBSETS = ("last_layer", "all")
STRUCTURES = ("kron", "diag", "full")
# The fixed point of the evidence: steps, and the change of a precision at which they end.
STEPS, CHANGE = 1000, 1e-8
# Precisions stay in this range: weights that the data say nothing of have none.
SMALLEST, LARGEST = 1e-10, 1e10


class NetworkLaplace:
    """Laplace's approximation for the weights of a trained network.

    Parameters
    ----------
    net : Module
        From inputs (samples, ...) to outputs (samples, outputs), in evaluation mode; trained to a
        mode of the posterior: by the log likelihood with weight decay.
    likelihood : {"classification", "regression"}
        Outputs are logits of a category, or means of normals with one noise.
    subset_of_weights : {"last_layer", "all"}
        The last `Linear`, or all parameters with ``requires_grad``.
    hessian_structure : {"kron", "diag", "full"}
        A Kronecker product for each layer (`Linear`, `Conv2d`), a diagonal, or all.
    prior_precision : float
        Of the normal prior of each weight.
    sigma_noise : float
        Standard deviation of the noise, for regression.

    Attributes
    ----------
    prior_precision : ndarray, shape (groups,)
        By layer ("kron"), by parameter ("diag"), or one number ("full").
    sigma_noise : float
    groups : tuple of str
        Their names, once fitted.

    Raises
    ------
    ArgumentError
        For another likelihood, subset or structure, a precision or noise that is not positive, or
        weights of a layer without a Kronecker form.

    Notes
    -----
    The curvature is that of Gauss and Newton. Memory is quadratic in the number of weights for
    "full"; predictions hold the Jacobian of a batch, samples times outputs times weights.

    References
    ----------
    [daxberger2021]_, [immer2021]_, [mackay1992]_.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch import nn
    >>> from probtorch.infer import NetworkLaplace
    >>> x = probtorch.linspace(-1.0, 1.0, 20).unsqueeze(1)
    >>> net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> laplace = NetworkLaplace(net, "regression", "all", sigma_noise=0.1).fit(x, 2.0 * x)
    >>> mean, variance = laplace(x)
    >>> mean.shape, variance.shape
    (Size([20, 1]), Size([20, 1, 1]))
    """

    def __init__(
        self,
        net: Module,
        likelihood: str,
        subset_of_weights: str = "last_layer",
        hessian_structure: str = "kron",
        *,
        prior_precision: float = 1.0,
        sigma_noise: float = 1.0,
    ) -> None:
        for name, value, known in (
            ("likelihood", likelihood, LIKELIHOODS),
            ("subset_of_weights", subset_of_weights, SUBSETS),
            ("hessian_structure", hessian_structure, STRUCTURES),
        ):
            choice_of("NetworkLaplace", name, value, known, f"for example {name}={known[0]!r}")
        if not isinstance(net, Module):
            raise ArgumentError(
                "NetworkLaplace(net)",
                expected="a module",
                got=f"{type(net).__name__} {net!r:.60}",
                fix="pass the trained network itself",
            )
        self.net, self.likelihood, self.hessian_structure = net, likelihood, hessian_structure
        self.subset_of_weights = subset_of_weights
        self.names = _names(net, subset_of_weights)
        if hessian_structure == "kron":
            layers_of(net, self.names)  # refuses what it has no form for
        self.prior_precision = np.array([_positive("prior_precision", prior_precision)])
        self.sigma_noise = _positive("sigma_noise", sigma_noise)
        self.groups: tuple[str, ...] = ()
        self._spectrum: CurvatureSpectrum | None = None
        self._mean = np.empty(0)
        self._log_likelihood = self._squares = 0.0
        self._count = 0

    # ----------------------------------------------------------------------------------- fitting

    def fit(
        self,
        data: DataLoader | Iterable[tuple[TensorLike, TensorLike]] | TensorLike,
        y: TensorLike | None = None,
    ) -> NetworkLaplace:
        """Take the curvature at the present weights, over all data.

        Parameters
        ----------
        data : DataLoader, iterable of (x, y), or tensor of inputs
        y : tensor, optional
            Targets, if `data` are inputs: class numbers (samples,) or values (samples, outputs).

        Returns
        -------
        NetworkLaplace
            Itself.

        Raises
        ------
        ShapeError
            If outputs are no matrix, or targets do not fit them.
        """
        batches = data if y is None else [(data, y)]
        weights = self._weights()
        sizes = {name: int(w.array.size) for name, w in weights.items()}
        width = sum(sizes.values())
        layers = layers_of(self.net, self.names) if self.hessian_structure == "kron" else []
        matrix = np.zeros((width, width) if self.hessian_structure == "full" else width)
        self._log_likelihood = self._squares = 0.0
        self._count = 0
        training = self.net.training
        self.net.eval()
        try:
            for inputs, targets in batches:  # type: ignore[union-attr]  # of pairs, if y is None
                x = as_tensor(inputs)
                if layers:
                    outputs = add_factors(self.net, layers, x, self._root)
                else:
                    outputs, jacobian = jacobians(self.net, weights, x)
                    rows = np.einsum("nkc,nkp->ncp", self._root(outputs), jacobian)
                    rows = rows.reshape(-1, width)
                    matrix += rows.T @ rows if matrix.ndim == 2 else (rows * rows).sum(axis=0)
                self._add_likelihood(outputs, to_host(as_tensor(targets).array))
        finally:
            self.net.train(training)
        self._spectrum = (
            kronecker_spectrum(layers, sizes) if layers else matrix_spectrum(matrix, sizes)
        )
        self.groups = self._spectrum.groups
        if self.prior_precision.size != len(self.groups):
            self.prior_precision = np.full(len(self.groups), self.prior_precision[0])
        parts = [to_host(w.array).astype(np.float64).reshape(-1) for w in weights.values()]
        self._mean = np.concatenate(parts)
        return self

    def _root(self, outputs: np.ndarray) -> np.ndarray:
        """R with R R' minus the second derivative of the log likelihood, for a noise of 1."""
        samples, width = outputs.shape
        if self.likelihood == "regression":
            return np.broadcast_to(np.eye(width), (samples, width, width))
        p = special.softmax(outputs, axis=-1)
        return np.sqrt(p)[:, None, :] * (np.eye(width) - p[:, :, None])

    def _add_likelihood(self, outputs: np.ndarray, targets: np.ndarray) -> None:
        if self.likelihood == "regression":
            if targets.shape != outputs.shape:
                raise ShapeError(
                    "NetworkLaplace.fit",
                    expected=f"targets of the shape of the outputs, {outputs.shape}",
                    got=f"shape {targets.shape}",
                    fix="give one row of values for each sample",
                )
            self._squares += float(((targets - outputs) ** 2).sum())
            self._count += outputs.size
            return
        width = outputs.shape[1]
        fits = targets.shape == outputs.shape[:1] and targets.dtype.kind in "iu" and width > 1
        if not fits or targets.min(initial=0) < 0 or targets.max(initial=0) >= width:
            raise ShapeError(
                "NetworkLaplace.fit",
                expected=f"a whole number from 0 to {max(width - 1, 1)} for each of "
                f"{len(outputs)} samples, and an output for each class",
                got=f"{targets.dtype} of shape {targets.shape} for {width} outputs",
                fix="give class numbers, and two outputs for two classes",
            )
        rows = special.log_softmax(outputs, axis=-1)
        self._log_likelihood += float(rows[np.arange(len(rows)), targets].sum())

    # ---------------------------------------------------------------------------------- evidence

    def log_marginal_likelihood(
        self,
        prior_precision: float | Iterable[float] | None = None,
        sigma_noise: float | None = None,
    ) -> float:
        """Return Laplace's estimate of the log evidence, in nats.

        Parameters
        ----------
        prior_precision : float or one per group, optional
            The present one if None.
        sigma_noise : float, optional
            The present one if None.

        Raises
        ------
        InferenceError
            Before `fit`.
        """
        spectrum = self._fitted()
        delta = self.prior_precision if prior_precision is None else _checked(
            prior_precision, len(self.groups)
        )  # fmt: skip
        sigma = self.sigma_noise if sigma_noise is None else _positive("sigma_noise", sigma_noise)
        each = delta[spectrum.group]
        squares = spectrum.rotate(self._mean) ** 2
        log_det = np.log(spectrum.values * self._scale(sigma) + each) - np.log(each)
        return self._fit_of(sigma) - 0.5 * float((each * squares).sum() + log_det.sum())

    def optimize_prior_precision(
        self, prior_structure: str = "scalar", *, fit_noise: bool = False
    ) -> NetworkLaplace:
        """Choose the prior's precision, and the noise, with the highest evidence.

        Parameters
        ----------
        prior_structure : {"scalar", "layerwise"}
            One number, or one for each group.
        fit_noise : bool
            Choose `sigma_noise` too, for regression.

        Returns
        -------
        NetworkLaplace
            Itself.

        Raises
        ------
        ArgumentError
            For another structure, or a noise to be chosen where there is none.
        InferenceError
            Before `fit`.

        Notes
        -----
        MacKay's fixed point: the precision is the number of well-determined weights over their sum
        of squares. The weights stay where they are.
        """
        if prior_structure not in ("scalar", "layerwise"):
            raise ArgumentError(
                "NetworkLaplace.optimize_prior_precision(prior_structure=...)",
                expected="'scalar' or 'layerwise'",
                got=repr(prior_structure),
                fix="leave it out for 'scalar'",
            )
        if fit_noise and self.likelihood != "regression":
            raise ArgumentError(
                "NetworkLaplace.optimize_prior_precision(fit_noise=True)",
                expected='likelihood="regression"',
                got=repr(self.likelihood),
                fix="leave fit_noise out",
            )
        spectrum = self._fitted()
        count = len(self.groups) if prior_structure == "layerwise" else 1
        group = spectrum.group if count > 1 else np.zeros_like(spectrum.group)
        squares = np.bincount(group, spectrum.rotate(self._mean) ** 2, minlength=count)
        delta = np.full(count, float(np.exp(np.log(self.prior_precision).mean())))
        sigma = self.sigma_noise
        for _ in range(STEPS):
            values = spectrum.values * self._scale(sigma)
            determined = values / (values + delta[group])
            known = np.bincount(group, determined, minlength=count)
            after = np.clip(known / np.maximum(squares, 1e-300), SMALLEST, LARGEST)
            noise = sigma
            if fit_noise:
                free = max(self._count - float(known.sum()), 1e-300)
                noise = math.sqrt(max(self._squares / free, SMALLEST))
            change = max(np.abs(np.log(after / delta)).max(), abs(math.log(noise / sigma)))
            delta, sigma = after, noise
            if change < CHANGE:
                break
        self.prior_precision = delta if count > 1 else np.full(len(self.groups), delta[0])
        self.sigma_noise = sigma
        return self

    def _scale(self, sigma: float) -> float:
        return sigma**-2 if self.likelihood == "regression" else 1.0

    def _fit_of(self, sigma: float) -> float:
        """The log likelihood at the weights."""
        if self.likelihood == "classification":
            return self._log_likelihood
        constant = 0.5 * self._count * math.log(2.0 * math.pi * sigma**2)
        return -0.5 * self._squares / sigma**2 - constant

    # -------------------------------------------------------------------------------- predictions

    def __call__(
        self,
        x: TensorLike,
        link_approx: str = "probit",
        n_samples: int = 100,
        *,
        seed: int | Generator | None = 0,
    ) -> TensorBase | tuple[TensorBase, TensorBase]:
        """Predict, with the network linearised in its weights.

        Parameters
        ----------
        x : tensor, shape (samples, ...)
        link_approx : {"probit", "mc"}
            How probabilities come of normal logits: in closed form, or by `n_samples` draws.
        n_samples : int
        seed : int or Generator, optional
            Of these draws.

        Returns
        -------
        mean : Tensor, shape (samples, outputs)
            Of the outputs, for regression; for classification the probabilities, alone.
        variance : Tensor, shape (samples, outputs, outputs)
            Covariance of the outputs, without the noise, for regression.

        Raises
        ------
        ArgumentError
            For another `link_approx`.
        InferenceError
            Before `fit`.
        """
        if link_approx not in ("probit", "mc"):
            raise ArgumentError(
                "NetworkLaplace(...)(link_approx=...)",
                expected="'probit' or 'mc'",
                got=repr(link_approx),
                fix="leave it out for 'probit'",
            )
        mean, variance = self._outputs(x)
        if self.likelihood == "regression":
            return wrap(mean), wrap(variance)
        if link_approx == "probit":
            spread = np.diagonal(variance, axis1=1, axis2=2)
            return wrap(special.softmax(mean / np.sqrt(1.0 + math.pi / 8.0 * spread), axis=-1))
        count = count_of("NetworkLaplace(...)", "n_samples", n_samples)
        values, vectors = np.linalg.eigh(variance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        normals = normal_numbers(generator_of(seed), (count, *mean.shape))
        return wrap(
            special.softmax(mean + np.einsum("nkj,snj->snk", root, normals), axis=-1).mean(axis=0)
        )

    def _outputs(self, x: TensorLike) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of the linearised outputs."""
        spectrum = self._fitted()
        training = self.net.training
        self.net.eval()
        try:
            mean, jacobian = jacobians(self.net, self._at(self._mean), as_tensor(x))
        finally:
            self.net.train(training)
        turned = spectrum.rotate(jacobian)
        return mean, np.einsum("nkp,p,njp->nkj", turned, 1.0 / self._precision(), turned)

    def sample(
        self, n_samples: int = 100, *, seed: int | Generator | None = 0
    ) -> dict[str, TensorBase]:
        """Return draws of the weights by name, each (n_samples, *shape), for `functional_call`.

        Raises
        ------
        InferenceError
            Before `fit`.
        """
        count = count_of("NetworkLaplace.sample", "n_samples", n_samples)
        spectrum = self._fitted()
        normals = normal_numbers(generator_of(seed), (count, self._mean.size))
        draws = self._mean + spectrum.unrotate(normals / np.sqrt(self._precision()))
        return self._at(draws)

    def predictive_samples(
        self, x: TensorLike, n_samples: int = 100, *, seed: int | Generator | None = 0
    ) -> TensorBase:
        """Return outputs of the network itself at draws of its weights.

        Parameters
        ----------
        x : tensor, shape (samples, ...)
        n_samples : int
        seed : int or Generator, optional

        Returns
        -------
        Tensor, shape (n_samples, samples, outputs)
            Means for regression, probabilities for classification.
        """
        draws = self.sample(n_samples, seed=seed)
        inputs, found = as_tensor(x), []
        training = self.net.training
        self.net.eval()
        try:
            with no_grad():
                for i in range(n_samples):
                    one = {name: w[i] for name, w in draws.items()}
                    found.append(to_host(functional_call(self.net, one, (inputs,)).array))
        finally:
            self.net.train(training)
        outputs = np.stack(found)
        return wrap(
            outputs if self.likelihood == "regression" else special.softmax(outputs, axis=-1)
        )

    # ------------------------------------------------------------------------------------ helpers

    def _precision(self) -> np.ndarray:
        """Along the eigenvectors."""
        spectrum = self._fitted()
        values = spectrum.values * self._scale(self.sigma_noise)
        return np.asarray(values + self.prior_precision[spectrum.group])

    def _fitted(self) -> CurvatureSpectrum:
        if self._spectrum is None:
            raise InferenceError(
                "NetworkLaplace",
                expected="a curvature: fit comes first",
                got="none yet",
                fix="write NetworkLaplace(net, ...).fit(loader)",
            )
        return self._spectrum

    def _weights(self) -> dict[str, TensorBase]:
        found: Mapping[str, TensorBase] = dict(self.net.named_parameters())
        return {name: found[name] for name in self.names}

    def _at(self, vectors: np.ndarray) -> dict[str, TensorBase]:
        """Weights by name at the last dim of an array, in their dtypes."""
        found, start = {}, 0
        for name, weight in self._weights().items():
            array, lead = to_host(weight.array), vectors.shape[:-1]
            part = vectors[..., start : start + array.size]
            start += array.size
            found[name] = wrap(part.reshape(*lead, *array.shape).astype(array.dtype))
        return found

    def __repr__(self) -> str:
        parts = (type(self.net).__name__, self.likelihood, self.subset_of_weights)
        return f"NetworkLaplace({', '.join(parts)}, {self.hessian_structure})"


def _names(net: Module, subset: str) -> list[str]:
    """Names of the parameters that count."""
    names = [name for name, p in net.named_parameters() if p.requires_grad]
    if subset == "last_layer":
        last = [prefix for prefix, m in net.named_modules() if isinstance(m, Linear)][-1:]
        start = f"{last[0]}." if last and last[0] else ""
        names = [n for n in names if last and n in (f"{start}weight", f"{start}bias")]
    if not names:
        raise ArgumentError(
            f"NetworkLaplace(net, subset_of_weights={subset!r})",
            expected="weights with requires_grad" + ("" if subset == "all" else " in a Linear"),
            got="none",
            fix="switch requires_grad on, or choose the other subset",
        )
    return names


def _positive(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]  # a number, as a rule
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 < number < math.inf:
        raise ArgumentError(
            f"NetworkLaplace({name}=...)",
            expected="a positive number",
            got=f"{value!r:.60}",
            fix="leave it out for 1",
        )
    return number


def _checked(value: float | Iterable[float], count: int) -> np.ndarray:
    given = np.atleast_1d(np.asarray(value, np.float64))
    if given.shape not in ((1,), (count,)) or not (given > 0.0).all():
        raise ArgumentError(
            "NetworkLaplace.log_marginal_likelihood(prior_precision=...)",
            expected=f"a positive number, or {count} of them",
            got=f"{value!r:.60}",
            fix="leave it out for the present one",
        )
    return np.broadcast_to(given, (count,))


explain_calls(globals())
