"""Gradients of an adaptive solver.

The discrete adjoint differentiates what was computed: it walks back over the accepted steps, runs
each again on the tape and pulls the gradient through it. Step sizes count as given numbers. It is
exact for the solution that was found, and needs memory for one state per step.

The continuous adjoint solves a differential equation for the gradient backwards in time, together
with the solution itself (Pontryagin et al. 1962; Chen et al. 2018, "Neural ordinary differential
equations", appendix B). It needs no memory for steps, and is exact only as far as both solutions
are.
"""

from probtorch.autograd.closures import another, cut_off, stand_in
from probtorch.autograd.function import Function
from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.core.dispatch import grad_enabled
from probtorch.errors import NotDifferentiableError
from probtorch.ode.solve import adaptive
from probtorch.ops.control import while_loop
from probtorch.ops.elementwise import maximum, where
from probtorch.ops.movement import cat, flip, reshape, stack
from probtorch.ops.reduction import sum as total

__all__ = ["Continuous", "Discrete"]


class _Adjoint(Function):
    """``apply(problem, closed_over, y, times, *closed_over)`` returns ``(outputs, reached)``."""

    @staticmethod
    def solve(ctx, problem, closed_over, y, times):
        path = adaptive(problem.method, problem.f, y, times, problem.tolerances)
        ctx.problem, ctx.closed_over = problem, closed_over
        ctx.mark_non_differentiable(path.reached)
        return path


class Discrete(_Adjoint):
    """The solver with its discrete adjoint."""

    @staticmethod
    def forward(ctx, problem, closed_over, y, times, *items):
        """Solve, and keep the steps."""
        path = _Adjoint.solve(ctx, problem, closed_over, y, times)
        ctx.save_for_backward(
            times, path.outputs, path.times, path.sizes, path.states, path.ends, path.count
        )
        return path.outputs, path.reached

    @staticmethod
    def backward(ctx, g, _):
        """Walk back over the steps."""
        times, outputs, begins, sizes, states, ends, count = ctx.saved_tensors
        problem, closed_over = ctx.problem, ctx.closed_over
        if grad_enabled():
            return None, None, *_on_tape(problem, closed_over, g, begins, sizes, ends, count)
        k = times._data.shape[0]

        def more(state):
            return state[0] >= 0

        def body(state):
            i, g_y, g_closed = state
            end = ends[i]
            g_y = g_y + where(end >= 0, g[maximum(end, 0)], 0.0)
            y = stand_in(states[i])
            with enable_grad(), cut_off(closed_over):
                after, _ = problem.method.step(problem.f, begins[i], y, sizes[i])
                found = _pulled(after, [y, *closed_over], g_y)
            return i - 1, found[0], [a + b for a, b in zip(g_closed, found[1:], strict=True)]

        zeros = [x.new_zeros(x.shape) for x in closed_over]
        _, g_first, g_closed = while_loop(more, body, (count - 1, g[0] * 0.0, zeros))
        g_times = None
        if ctx.needs_input_grad[3]:
            slopes = _slopes(problem, times, outputs)
            moved = total(g * slopes, -1)
            start = -total(g_first * slopes[0], -1)
            g_times = cat([reshape(start, (1,)), moved[1:]], 0) if k > 1 else reshape(start, (1,))
        return None, None, g_first + g[0], g_times, *g_closed


class Continuous(_Adjoint):
    """The solver with its continuous adjoint."""

    @staticmethod
    def forward(ctx, problem, closed_over, y, times, *items):
        """Solve, and keep the outputs."""
        path = _Adjoint.solve(ctx, problem, closed_over, y, times)
        ctx.save_for_backward(times, path.outputs)
        return path.outputs, path.reached

    @staticmethod
    def backward(ctx, g, _):
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
        k, n = outputs._data.shape
        sizes = [x._data.size for x in closed_over]

        def augmented(t, z):
            y, a = stand_in(z[:n]), z[n : 2 * n]
            with enable_grad(), cut_off(closed_over):
                slope = problem.f(t, y)
                found = _pulled(slope, [y, *closed_over], a)
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
            g_closed.append(reshape(rest[at : at + size], x._data.shape))
            at += size
        times_grad = None
        if ctx.needs_input_grad[3]:
            slopes = _slopes(problem, times, outputs)
            g_times = [-total(a * slopes[0], -1)]
            g_times += [total(g[i] * slopes[i], -1) for i in range(1, k)]
            times_grad = stack(g_times)
        return None, None, a + g[0], times_grad, *g_closed


def _on_tape(problem, closed_over, g, begins, sizes, ends, count):
    """Take the same steps on the tape, for derivatives of the gradient.

    The times of steps are constants here, so that second derivatives in `t` lack a part; they are
    refused.
    """
    if problem.times.requires_grad:
        raise NotDifferentiableError(
            "odeint",
            expected="second derivatives in y0 and what func closes over",
            got="second derivatives in t",
            fix="detach t, or scale time: dy/ds = T * func(s * T, y)",
        )
    # What is solved may close over the first state, too.
    y = another(problem.y)
    sources = [y, *closed_over]
    with cut_off(sources):
        rows = {0: y}
        for i in range(int(count)):
            y, _ = problem.method.step(problem.f, begins[i], y, sizes[i])
            if int(ends[i]) >= 0:
                rows[int(ends[i])] = y
        outputs = stack([rows[i] for i in range(g._data.shape[0])])
        wanted = [x for x in sources if x.requires_grad]
        found = iter(grad(outputs, wanted, g, create_graph=True, allow_unused=True))
        first, *rest = [next(found) if x.requires_grad else None for x in sources]
    return first, None, *rest


def _pulled(out, sources, g):
    """Gradients of ``out`` in `sources`, zeros where there is none."""
    found = [None] * len(sources)
    if out.requires_grad:
        found = grad(out, sources, g, allow_unused=True)
    return [s.new_zeros(s.shape) if x is None else x for s, x in zip(sources, found, strict=True)]


def _slopes(problem, times, outputs):
    return stack([problem.f(times[i], outputs[i]) for i in range(times._data.shape[0])])
