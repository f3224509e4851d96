"""Gradients of an adaptive solver.

The discrete adjoint differentiates what was computed: it walks back over all tries of the solver,
rejected ones too, runs each again on the tape and pulls the gradient through it, through the choice
of the next step's size as well. What was chosen between (whether a step counts) stays as it was. So
it is exact for the solution that was found, also where tolerances are coarse and that solution is a
poor one. It needs memory for one state per try.

The continuous adjoint solves a differential equation for the gradient backwards in time, together
with the solution itself (Pontryagin et al. 1962; Chen et al. 2018, "Neural ordinary differential
equations", appendix B). It needs no memory for steps, and is exact only as far as both solutions
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from probtorch.autograd.closures import cut_off, stand_in
from probtorch.autograd.function import Function, FunctionCtx
from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.core.dispatch import grad_enabled
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import NotDifferentiableError
from probtorch.ode.solve import (
    SHRINK,
    FlatProblem,
    SolutionPath,
    adaptive,
    attempt,
    direction_of,
    first_step,
)
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import logical_and
from probtorch.ops.control import cond, while_loop
from probtorch.ops.indexing import index_put
from probtorch.ops.movement import another, reshape
from probtorch.ops.pieces import cat, flip, stack
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["Continuous", "Discrete"]

# Gradients of the time, state, size and target of a try, and of what the slope closes over.
Pulled: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Sequence[Tensor]]


class _Adjoint(Function):
    """``apply(problem, closed_over, y, times, *closed_over)`` returns ``(outputs, reached)``."""

    @staticmethod
    def solve(
        ctx: FunctionCtx,
        problem: FlatProblem,
        closed_over: Sequence[Tensor],
        y: Tensor,
        times: Tensor,
    ) -> SolutionPath:
        path = adaptive(problem.method, problem.f, y, times, problem.tolerances)
        ctx.problem, ctx.closed_over = problem, closed_over
        ctx.mark_non_differentiable(path.reached)
        return path


class Discrete(_Adjoint):
    """The solver with its discrete adjoint."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        problem: FlatProblem,
        closed_over: Sequence[Tensor],
        y: Tensor,
        times: Tensor,
        *items: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Solve, and keep the tries."""
        path = _Adjoint.solve(ctx, problem, closed_over, y, times)
        ctx.save_for_backward(
            times, path.times, path.proposed, path.states, path.targets, path.choices, path.tries
        )
        ctx.start = y
        return path.outputs, path.reached

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """Walk back over the tries."""
        times, *path, tries = ctx.saved_tensors
        problem, closed_over = ctx.problem, ctx.closed_over
        if grad_enabled():
            return None, None, *_on_tape(problem, closed_over, g, path, tries)
        in_times = ctx.needs_input_grad[3]
        zeros = [x.new_zeros(x.shape) for x in closed_over]
        nothing = times.new_zeros(())

        def more(state: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, list[Tensor]]) -> Tensor:
            return state[0] >= 0

        def body(
            state: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, list[Tensor]],
        ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
            i, g_t, g_y, g_h, g_times, g_closed = state
            t, h, y, target, choices = (x[i] for x in path)
            ends, well, accepted, _ = choices

            def through(g_t: Tensor, g_y: Tensor, g_h: Tensor) -> Pulled:
                return _through(
                    problem, closed_over, times, (t, y, h, target, choices), g_t, g_y, g_h
                )

            def shrunk(g_t: Tensor, g_y: Tensor, g_h: Tensor) -> Pulled:
                """Where the error was no number the step was only made shorter."""
                own = where(ends, 0.0, g_h * SHRINK).to(g_h.array.dtype)
                rest = where(ends, g_h * SHRINK, 0.0).to(g_h.array.dtype)
                return g_t - rest, g_y, own, rest, zeros

            g_y = g_y + where(logical_and(ends, accepted), g[target], 0.0)
            g_t, g_y, g_h, g_target, found = cond(well, through, shrunk, g_t, g_y, g_h)
            if in_times:
                g_times = index_put(g_times, (target,), g_times[target] + g_target)
            return (
                i - 1,
                g_t,
                g_y,
                g_h,
                g_times,
                [a + b for a, b in zip(g_closed, found, strict=True)],
            )

        start = (tries - 1, nothing, g[0] * 0.0, nothing, times * 0.0, zeros)
        _, g_t, g_y, g_h, g_times, g_closed = while_loop(more, body, start)
        # The size of the first step depends on where it begins.
        y, at = stand_in(ctx.start), stand_in(times)
        with enable_grad(), cut_off(closed_over):
            h = first_step(problem.method, problem.f, y, at, problem.tolerances)
            first = _pulled([h], [y, at, *closed_over], [g_h])
        g_closed = [a + b for a, b in zip(g_closed, first[2:], strict=True)]
        if in_times:
            g_times = index_put(g_times, (0,), g_times[0] + g_t) + first[1]
        return None, None, g_y + first[0] + g[0], g_times if in_times else None, *g_closed


def _through(
    problem: FlatProblem,
    closed_over: Sequence[Tensor],
    times: Tensor,
    given: Sequence[Tensor],
    g_t: Tensor,
    g_y: Tensor,
    g_h: Tensor,
) -> Pulled:
    """Pull the gradient of what a try led to back to what it began with.

    Returns
    -------
    tuple
        Gradients of its time, state, proposed size and output time, and of `closed_over`.
    """
    *begin, target, choices = given
    direction = direction_of(times)
    t, y, h = begin = [stand_in(x) for x in begin]
    end = stand_in(times[target])
    with enable_grad(), cut_off(closed_over):
        tried = attempt(
            problem.method, problem.f, t, y, h, end, direction, problem.tolerances, choices
        )
        found = _pulled([tried.t, tried.y, tried.h], [*begin, end, *closed_over], [g_t, g_y, g_h])
    return found[0], found[1], found[2], found[3], found[4:]


class Continuous(_Adjoint):
    """The solver with its continuous adjoint."""

    # The gradient is that of the exact solution, to within the tolerances.
    approximate = True

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        problem: FlatProblem,
        closed_over: Sequence[Tensor],
        y: Tensor,
        times: Tensor,
        *items: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Solve, and keep the outputs."""
        path = _Adjoint.solve(ctx, problem, closed_over, y, times)
        ctx.save_for_backward(times, path.outputs)
        return path.outputs, path.reached

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """Solve for the gradient, from each output time back to the one before."""
        times, outputs = ctx.saved_tensors
        problem, closed_over = ctx.problem, ctx.closed_over
        if grad_enabled():
            raise NotDifferentiableError(
                "odeint(adjoint='continuous')",
                expected="a first derivative",
                got="a derivative of the gradient",
                fix="use the discrete adjoint, which has derivatives of all orders",
            )
        k, n = outputs.array.shape
        sizes = [x.array.size for x in closed_over]

        def augmented(t: Tensor, z: Tensor) -> Tensor:
            y, a = stand_in(z[:n]), z[n : 2 * n]
            with enable_grad(), cut_off(closed_over):
                slope = problem.f(t, y)
                found = _pulled([slope], [y, *closed_over], [a])
            parts = [slope.detach(), -found[0], *(-reshape(x, (-1,)) for x in found[1:])]
            return cat(parts, 0)

        a = g[0] * 0.0
        rest = a.new_zeros(sum(sizes))
        g_times = []
        for i in range(k - 1, 0, -1):
            a = a + g[i]
            z = cat([outputs[i], a, rest], 0)
            back = flip(times[i - 1 : i + 1], [0])
            z = adaptive(problem.method, augmented, z, back, problem.tolerances).outputs[1]
            a, rest = z[n : 2 * n], z[2 * n :]
        g_closed, at = [], 0
        for x, size in zip(closed_over, sizes, strict=True):
            g_closed.append(reshape(rest[at : at + size], x.array.shape))
            at += size
        times_grad = None
        if ctx.needs_input_grad[3]:
            slopes = _slopes(problem, times, outputs)
            g_times = [-total(a * slopes[0], -1)]
            g_times += [total(g[i] * slopes[i], -1) for i in range(1, k)]
            times_grad = stack(g_times)
        return None, None, a + g[0], times_grad, *g_closed


def _on_tape(
    problem: FlatProblem,
    closed_over: Sequence[Tensor],
    g: Tensor,
    path: Sequence[Tensor],
    tries: Tensor,
) -> list[Tensor | None]:
    """Make the same tries on the tape, for derivatives of the gradient."""
    # What is solved may close over the first state and the times, too.
    y, times = another(problem.y), another(problem.times)
    sources = [y, times, *closed_over]
    direction = direction_of(times.detach())
    with cut_off(sources):
        rows = {0: y}
        t, at, h = times[0], y, first_step(problem.method, problem.f, y, times, problem.tolerances)
        for i in range(int(tries)):
            target, choices = int(path[3][i]), path[4][i]
            ends, well, accepted, _ = (bool(x) for x in choices)
            if not well:
                h = (times[target] - t if ends else h) * SHRINK
                continue
            tried = attempt(
                problem.method, problem.f, t, at, h, times[target], direction,
                problem.tolerances, choices,
            )  # fmt: skip
            t, at, h = tried.t, tried.y, tried.h
            if ends and accepted:
                rows[target] = at
        outputs = stack([rows[i] for i in range(g.array.shape[0])])
        wanted = [x for x in sources if x.requires_grad]
        found = iter(grad(outputs, wanted, g, create_graph=True, allow_unused=True))
        return [next(found) if x.requires_grad else None for x in sources]


def _pulled(
    outs: Sequence[Tensor], sources: Sequence[Tensor], gs: Sequence[Tensor]
) -> list[Tensor]:
    """Gradients of ``outs`` in `sources`, zeros where there is none."""
    found: Sequence[TensorBase | None] = [None] * len(sources)
    taped = [(out, g) for out, g in zip(outs, gs, strict=True) if out.requires_grad]
    if taped:
        out, g = zip(*taped, strict=True)
        found = grad(out, sources, g, allow_unused=True)
    return [s.new_zeros(s.shape) if x is None else x for s, x in zip(sources, found, strict=True)]


def _slopes(problem: FlatProblem, times: Tensor, outputs: Tensor) -> Tensor:
    return stack([problem.f(times[i], outputs[i]) for i in range(times.array.shape[0])])
