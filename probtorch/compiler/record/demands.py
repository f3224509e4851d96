"""What a recording demands of values: the checks that eager execution makes, for each replay.

A check of what is the same at each replay is made once, here. Of others, one that holds becomes a
node `demand`, and one that fails a guard. That numbers must not be nan is only noted: most of them
need no test of their own, see `settle`. None of this ends the turns of a loop that are followed: of
what they make it is known whether it is a constant (`Following.is_constant`), and a number that
must not be nan is an event in a turn as its operations are.
"""

import threading

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.compiler.graph import GraphValue, Node
from probtorch.compiler.passes.nan import nan_reaches
from probtorch.compiler.record.recording import Recording
from probtorch.compiler.record.turns import NUMBER
from probtorch.core.dispatch import set_grad_enabled
from probtorch.core.op import REGISTRY
from probtorch.errors import user_frame
from probtorch.ops.comparisons import eq
from probtorch.ops.demands import demand
from probtorch.ops.reduction import all as every

__all__ = ["Demands"]


class Demands(Recording):
    """A recording that hears of the checks of parameters and values."""

    def is_constant(self, t):
        """Whether the elements of `t` are the same at every replay."""
        known = None if self._following is None else self._following.is_constant(t)
        return self.value_of(t).static if known is None else known

    def demand(self, inside, error):
        """Note a test that eager execution makes.

        At each replay it has to come out the same way. One that holds is part of a loop nest; one
        that fails is a guard, and raises the error each time.
        """
        if not self._demand(inside):
            raise self._failed(error())

    def _demand(self, inside):
        """Note a test; returns whether it holds, or is not known to fail."""
        fine = bool(inside.array.all())
        if threading.get_ident() != self.thread:
            return fine
        if self.is_constant(inside):
            return fine or not self.checks
        before = set_grad_enabled(False)
        try:
            if fine or not self.checks:
                demand(inside, inside)
                return True
            self._guard(every(inside), False)
            return False
        finally:
            set_grad_enabled(before)

    def _failed(self, error):
        """Return `error`, which is raised because of the demand that failed last."""
        self.failures.append(error)
        return error

    def demanded(self, t, constraint):
        """Whether the elements of `t` were tested for a constraint before; from now on they were,
        or the run has ended.
        """
        name = None if self._following is None else self._following.name(t)
        key = self.value_of(t).id if name is None else name, constraint
        known = key in self._demanded
        self._demanded.add(key)
        return known

    def without_nan(self, t):
        """Note that the elements of `t` must not be nan; False where one is, which ends the run.

        `settle` sees to it, if need be.
        """
        if t.array.dtype.kind == "f":
            if self.checks and np.isnan(to_host(t.array)).any():
                return False
            self._not_nan(t)
        return True

    def _not_nan(self, t):
        """Hear of a number that must not be nan."""
        line = user_frame(2)
        self._numbers.append((self.value_of(t), line))
        if self.watch is not None:
            self.watch.events.append((NUMBER, (t,), {"line": line}, (), None))

    def _demand_numbers(self, root):
        """Demand that what was noted by `without_nan` has none.

        Most of it needs no test: a nan there would reach a number that is tested anyway, such as
        the log density `root` (a 0-d tensor), or a loss that Python finds to be finite.
        """
        numbers, self._numbers = self._numbers, []
        turns, self.turns_of_numbers = self.turns_of_numbers, []
        if not numbers and not turns:
            return
        roots = [
            v.node.inputs[0]
            for v, value, _ in self.graph.guards
            if value is True and v.kind == "node" and v.node.name == "isfinite"
        ]
        if root is not None and not np.isnan(to_host(root.array)):
            roots.append(self.value_of(root))
            self._demand(eq(root, root))
        reached = nan_reaches(self.graph, roots)
        unseen = [(v, line) for v, line in numbers if v.id not in reached]
        if any(x.unreached for x in turns):
            self.expand()
            unseen += [number for x in turns for number in x.unreached_numbers()]
        places = {id(node): i for i, node in enumerate(self.graph.nodes)} if unseen else {}
        once = {v.id: (places.get(id(v.node), -1), v, line) for v, line in reversed(unseen)}
        for _, v, line in sorted(once.values(), key=lambda x: x[:1]):
            flag, out = (GraphValue(v.shape, np.dtype(bool), "node") for _ in range(2))
            self.graph.nodes += [
                Node(REGISTRY["eq"], "eq", (v, v), {}, (flag,), line),
                Node(REGISTRY["demand"], "demand", (flag, flag), {}, (out,), line),
            ]
