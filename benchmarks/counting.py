"""Counts how often a compiled density is called, whoever calls it; the same density for peers.

A few native lines stand between a sampler and the density: they add one to a count and call it.
`CountedTarget` hands its own samplers such contexts, and `address_for` gives peers a function of
the signature that they expect. So every system samples the identical native code, and gradients
spent in searches and starts are counted with the rest.
"""

import numpy as np

from probtorch.compiler.machine.engine import compile_module
from probtorch.infer import Target

__all__ = ["CountedDensity"]

# A table is [function, context, count]. The density is ``double f(q, grad, context)``.
_IR = """
define double @bench_density(ptr %q, ptr %grad, ptr %table) {
  %context.p = getelementptr i64, ptr %table, i64 1
  %count.p = getelementptr i64, ptr %table, i64 2
  %function = load ptr, ptr %table
  %context = load ptr, ptr %context.p
  %count = load i64, ptr %count.p
  %more = add i64 %count, 1
  store i64 %more, ptr %count.p
  %value = call double %function(ptr %q, ptr %grad, ptr %context)
  ret double %value
}

; nutpie: 0, or another number at a point without a finite density and gradient.
define i32 @bench_nutpie(i64 %dim, ptr %q, ptr %grad, ptr %out, ptr %table) {
entry:
  %value = call double @bench_density(ptr %q, ptr %grad, ptr %table)
  store double %value, ptr %out
  %start = fsub double %value, %value
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %sum = phi double [ %start, %entry ], [ %summed, %loop ]
  %g.p = getelementptr double, ptr %grad, i64 %i
  %g = load double, ptr %g.p
  %zero = fsub double %g, %g
  %summed = fadd double %sum, %zero
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %dim
  br i1 %more, label %loop, label %done
done:
  %bad = fcmp uno double %summed, 0.0
  %status = select i1 %bad, i32 4, i32 0
  ret i32 %status
}

; nutpie's map from a point to what it stores: the point.
define i32 @bench_identity(i64 %dim, i64 %same, ptr %q, ptr %out, ptr %nothing) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %from = getelementptr double, ptr %q, i64 %i
  %to = getelementptr double, ptr %out, i64 %i
  %x = load double, ptr %from
  store double %x, ptr %to
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %dim
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}

; XLA's custom call: outputs (minus the density, minus its gradient), inputs (q, [table, dim]).
define void @bench_xla(ptr %out, ptr %in) {
entry:
  %numbers.p = getelementptr ptr, ptr %in, i64 1
  %grad.p = getelementptr ptr, ptr %out, i64 1
  %q = load ptr, ptr %in
  %numbers = load ptr, ptr %numbers.p
  %dim.p = getelementptr i64, ptr %numbers, i64 1
  %table = load ptr, ptr %numbers
  %dim = load i64, ptr %dim.p
  %potential = load ptr, ptr %out
  %grad = load ptr, ptr %grad.p
  %value = call double @bench_density(ptr %q, ptr %grad, ptr %table)
  %minus = fneg double %value
  store double %minus, ptr %potential
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %g.p = getelementptr double, ptr %grad, i64 %i
  %g = load double, ptr %g.p
  %minus.g = fneg double %g
  store double %minus.g, ptr %g.p
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %dim
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


class CountedDensity:
    """A target whose density is counted.

    Not for more than one thread at a time.

    Parameters
    ----------
    target : Target
        Its contexts are counted from now on.

    Attributes
    ----------
    target : Target
    dim : int
    """

    def __init__(self, target: Target) -> None:
        self.target, self.dim = target, target.dim
        self._module = compile_module(_IR)
        self._tables: list[np.ndarray] = []
        self._from_python = 0
        density = target.density
        self._context, self._many = density.context, density.value_and_grad_many
        density.context = self._counted_context
        density.value_and_grad_many = self._counted_many
        # Peers share one context.
        self.native = density.context()
        self.native.value_and_grad(target.initial(1)[0])  # compiles the first path

    @property
    def calls(self) -> int:
        """Evaluations so far of density and gradient."""
        return sum(int(table[2]) for table in self._tables) + self._from_python

    def address_of(self, name: str) -> int:
        """Return the address of a function above, for which `native.address` is the table."""
        return self._module.address(name)

    def start(self, seed: int) -> np.ndarray:
        """Return a point of finite density, uniform on (-2, 2) in each coordinate, for peers."""
        from probtorch.core.rng import Generator

        return self.target.initial(1, Generator(seed))[0]

    def _counted_context(self):
        context = self._context()
        table = np.array([context.function, context.address, 0], np.uint64)
        self._tables.append(table)
        return _CountedContext(self, context, self.address_of("bench_density"), table)

    def _counted_many(self, q):
        before = self.calls
        result = self._many(q)
        # Rows that were evaluated one by one are counted already.
        self._from_python += max(0, len(q) - (self.calls - before))
        return result

    def count(self) -> None:
        """Add a call from Python, which does not pass through the native lines."""
        self._from_python += 1


class _CountedContext:
    """A density's context with another function and address; all else is that context's."""

    def __init__(self, owner, context, function, table):
        self._owner, self._context, self._table = owner, context, table
        self.function, self.address = function, table.ctypes.data

    def __getattr__(self, name):
        return getattr(self._context, name)

    def value_and_grad(self, q):
        self._owner.count()
        return self._context.value_and_grad(q)

    def native(self, q):
        self._owner.count()
        return self._context.native(q)
