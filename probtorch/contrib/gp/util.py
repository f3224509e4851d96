"""Training of Gaussian processes in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from probtorch.contrib.gp.conditional import conditional
from probtorch.contrib.gp.models.latent_variables import GPLVM
from probtorch.contrib.gp.models.model import GPModel
from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError
from probtorch.infer.objectives.elbo import ELBO, Trace_ELBO
from probtorch.infer.vi.svi import SVI
from probtorch.optim import Adam
from probtorch.optim.optimizer import Optimizer
from probtorch.optim.pyro import PyroOptim
from probtorch.tensor import Tensor

__all__ = ["conditional", "train"]

Loss = Callable[[Callable[..., object], Callable[..., object]], Tensor]


def train(
    gpmodule: GPModel | GPLVM,
    optimizer: Optimizer | PyroOptim | None = None,
    loss_fn: ELBO | Loss | None = None,
    num_steps: int = 1000,
) -> list[float]:
    """Learn the parameters of a process, and those of its guide.

    Parameters
    ----------
    gpmodule : GPModel or GPLVM
    optimizer : optional
        One over ``gpmodule.parameters()``, such as ``optim.LBFGS``, or one by name as `SVI` takes
        it; Adam with a learning rate of 0.01 without it.
    loss_fn : ELBO or callable, optional
        An objective, or ``ELBO().differentiable_loss``, which is given model and guide; the
        `Trace_ELBO` without it.
    num_steps : int

    Returns
    -------
    list of float
        The loss of each step, in nats.
    """
    loss = Trace_ELBO() if loss_fn is None else loss_fn
    if not isinstance(optimizer, Optimizer):
        by_name = Adam({"lr": 0.01}) if optimizer is None else optimizer
        svi = SVI(gpmodule.model, gpmodule.guide, by_name, loss)
        return [svi.step() for _ in range(num_steps)]
    objective = cast(Loss, loss.differentiable_loss if isinstance(loss, ELBO) else loss)
    known = {id(p) for p in gpmodule.parameters()}
    gpmodule.complete_guides()
    late = [name for name, p in gpmodule.named_parameters() if id(p) not in known]
    if late:
        raise ArgumentError(
            "gp.util.train",
            expected="an optimizer over all parameters",
            got=f"one made before there were {late}, the guides of priors that functions return",
            fix="call gpmodule.complete_guides(), then make the optimizer",
        )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective(gpmodule.model, gpmodule.guide)
        value.backward()
        return value

    return [float(optimizer.step(closure)) for _ in range(num_steps)]


explain_calls(globals())
