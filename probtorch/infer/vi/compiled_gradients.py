"""`CompiledGradients`: loss and gradients of one rank as one native call.

A step that processes take together is cut in two where gradients are averaged over them: what is
before is compiled here, as `CompiledStep` compiles a whole step; the mean and the optimizer's
update stay in Python (shared_steps.py, eager_step.py). A rank that cannot call compiled code
computes the same numbers, but for rounding, in Python: its sums are the same messages.
"""

from __future__ import annotations

from collections.abc import Callable

from probtorch.autograd.modes import enable_grad
from probtorch.compiler.native.host import InternalCompilerError
from probtorch.core.rng import used
from probtorch.core.tensor_base import TensorBase
from probtorch.effects.minibatches import Batch
from probtorch.infer.objectives.loss_function import as_objective
from probtorch.infer.vi.compiled_step import CompiledStep
from probtorch.infer.vi.fit_memory import number

__all__ = ["CompiledGradients"]


class CompiledGradients(CompiledStep):
    """The compiled form of what a rank does in a step before gradients are averaged."""

    def _obstacle(self) -> str | None:
        # Which optimizer there is does not matter: it is not part of this.
        return self.fit.own_gradients()

    def estimate(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Callable[[], float]:
        """Return what computes the loss and adds gradients, for arguments of a step."""

        def own() -> float:
            found = self._natively(args, kwargs)
            if found is None:
                fit = self.fit
                with enable_grad(), fit.active():
                    compute = as_objective(fit.objective).loss_and_grads
                    return number(compute(fit.model, fit.guide, *args, **kwargs))
            loss, gradients = found
            fit = self.fit
            for p, g in zip(fit.updater.parameters.values(), gradients, strict=True):
                if g is not None:
                    p.grad = g if p.grad is None else p.grad + g
            return float(loss.item())

        return own

    def _natively(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[TensorBase, list[TensorBase | None]] | None:
        """Loss and gradients; None where Python has to compute them."""
        fit, function = self.fit, self._function
        assert function is not None  # made by ready()
        inputs = (args, kwargs, fit.feed.batches())
        start = fit.generator_states()
        self._before, self._used = None, {}
        try:
            with enable_grad():
                found = function(*inputs)
                if function.recorded is not None:
                    # Native numbers from the first call on, as in a run that is resumed.
                    if function.recorded.updates:  # buffers of modules, say
                        function.recorded.restore()
                    self._rewind(start)
                    found = function(*inputs)
        except InternalCompilerError:
            raise
        except Exception as error:
            # What is wrong with the model the run in Python says, with all that it knows.
            if self._before is not None:
                fit.restore(self._before)
            self._rewind(start)
            self.reason = f"recording raised {type(error).__name__}: {error}".split("\n")[0]
            return None
        if function.reason is not None and not function.paths:
            reason, place = function.reason
            self.reason = reason + (f" (at {place})" if place else "")
        return found

    def _step(  # type: ignore[override]  # of a step the loss alone is wanted
        self, args: tuple[object, ...], kwargs: dict[str, object], batches: dict[int, Batch]
    ) -> tuple[TensorBase, list[TensorBase | None]]:
        """Loss and gradients in Tensor operations."""
        fit = self.fit
        self._before = fit.take()
        with used(self._used), fit.active(), fit.feed.lending(batches):
            return self._loss_and_gradients(args, kwargs)
