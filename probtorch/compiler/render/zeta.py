"""The Hurwitz zeta function for native code, from which polygamma functions follow.

SciPy has it, but does not export it to native code, and every second derivative of a log-gamma
needs it: polygamma(n, q) = (-1)**(n + 1) n! zeta(n + 1, q). One scalar function, ``pt_zeta_f64(s,
q)``: the sum over k of (q + k)**-s, added up to q + k >= s + 10 and completed by the
Euler-Maclaurin formula (Johansson 2015, eq. 1). Relative error below 2e-15 for polygamma orders
to 20. `mathlib` puts it into the runtime.
"""

from __future__ import annotations

import functools
import struct
from fractions import Fraction
from math import comb, factorial

__all__ = ["bernoulli_terms", "zeta_ir"]

# With a = q + N >= s + 10, each correction is less than 1/15 of the last: 12 of them reach 2**-53.
_CORRECTIONS = 12

# More negative arguments than this would mean that many calls of pow; they give nan.
_LOWEST = -1e5


def zeta_ir(attributes: str) -> str:
    """Return the definition of ``double @pt_zeta_f64(double %s, double %q)``.

    Values: inf for s = 1 and at the poles q = 0, -1, ...; nan for s < 1, and for negative q
    unless s is a whole number; 0 for q = inf.
    """
    lines = [
        f"define double @pt_zeta_f64(double %s, double %q) {attributes} {{",
        "entry:",
        "  %minus = fneg double %s",
        "  %limit = fadd double %s, 10.0",
        "  br label %test",
        "test:",
        "  %a = phi double [ %q, %entry ], [ %a.next, %add ]",
        "  %sum = phi double [ 0.0, %entry ], [ %sum.next, %add ]",
        "  %more = fcmp olt double %a, %limit",
        f"  %reachable = fcmp oge double %q, {_text(_LOWEST)}",
        "  %go = and i1 %more, %reachable",
        "  br i1 %go, label %add, label %tail",
        "add:",
        "  %term = call double @llvm.pow.f64(double %a, double %minus)",
        "  %sum.next = fadd double %sum, %term",
        "  %a.next = fadd double %a, 1.0",
        # A term that no longer counts ends the sum: with large s the limit may be far away.
        f"  %small = fmul double %sum.next, {_text(2.0**-60)}",
        "  %positive = fcmp ogt double %a, 0.0",
        "  %tiny = fcmp ole double %term, %small",
        "  %done = and i1 %positive, %tiny",
        "  br i1 %done, label %tail, label %test",
        "tail:",
        "  %b = phi double [ %a, %test ], [ %a.next, %add ]",
        "  %head = phi double [ %sum, %test ], [ %sum.next, %add ]",
        # All relative to b**(1 - s), which is there where b**-s has underflowed already.
        "  %rise = fsub double 1.0, %s",
        "  %p = call double @llvm.pow.f64(double %b, double %rise)",
        "  %before = fsub double %s, 1.0",
        "  %integral = fdiv double 1.0, %before",
        "  %half = fdiv double 0.5, %b",
        "  %square = fmul double %b, %b",
        "  %t1 = fdiv double %s, %square",
    ]
    # t_j = s (s + 1) ... (s + 2 j - 2) b**(-2 j); summed from the smallest on.
    for j in range(1, _CORRECTIONS):
        lines += [
            f"  %f{j} = fadd double %s, {_text(2 * j - 1)}",
            f"  %g{j} = fadd double %s, {_text(2 * j)}",
            f"  %fg{j} = fmul double %f{j}, %g{j}",
            f"  %r{j} = fdiv double %fg{j}, %square",
            f"  %t{j + 1} = fmul double %t{j}, %r{j}",
        ]
    total = "0.0"
    for j in range(_CORRECTIONS, 0, -1):
        lines += [
            f"  %c{j} = fmul double %t{j}, {_text(bernoulli_terms()[j - 1])}",
            f"  %u{j} = fadd double {total}, %c{j}",
        ]
        total = f"%u{j}"
    lines += [
        f"  %v = fadd double {total}, %half",
        "  %relative = fadd double %v, %integral",
        "  %x = fmul double %relative, %p",
        # Where b**(1 - s) underflows so does the rest, though its factors may overflow on the way.
        "  %none = fcmp oeq double %p, 0.0",
        f"  %s.finite = fcmp one double %s, {_text(float('inf'))}",
        "  %gone = and i1 %none, %s.finite",
        "  %rest = select i1 %gone, double 0.0, double %x",
        "  %y = fadd double %rest, %head",
        f"  %y1 = select i1 %reachable, double %y, double {_text(float('nan'))}",
        f"  %far = fcmp oeq double %q, {_text(float('inf'))}",
        "  %y2 = select i1 %far, double 0.0, double %y1",
        # SciPy's limits at an infinite s; nan stays nan.
        "  %s.nan = fcmp uno double %s, %s",
        f"  %l1 = select i1 %s.nan, double {_text(float('nan'))}, double %y2",
        f"  %s.inf = fcmp oeq double %s, {_text(float('inf'))}",
        "  %q.small = fcmp olt double %q, 1.0",
        "  %q.one = fcmp oeq double %q, 1.0",
        "  %grows = and i1 %s.inf, %q.small",
        "  %stays = and i1 %s.inf, %q.one",
        f"  %l2 = select i1 %grows, double {_text(float('inf'))}, double %l1",
        "  %l3 = select i1 %stays, double 1.0, double %l2",
        "  %floor = call double @llvm.floor.f64(double %q)",
        "  %whole = fcmp oeq double %floor, %q",
        "  %left = fcmp ole double %q, 0.0",
        "  %pole = and i1 %whole, %left",
        "  %one = fcmp oeq double %s, 1.0",
        "  %infinite = or i1 %pole, %one",
        f"  %y3 = select i1 %infinite, double {_text(float('inf'))}, double %l3",
        "  %below = fcmp olt double %s, 1.0",
        f"  %y4 = select i1 %below, double {_text(float('nan'))}, double %y3",
        "  ret double %y4",
        "}",
    ]
    return "\n".join(lines) + "\n"


@functools.cache
def bernoulli_terms() -> tuple[float, ...]:
    """Return B_2j / (2j)! for j = 1, 2, ..., the factors of the Euler-Maclaurin corrections."""
    return tuple(float(_bernoulli(2 * j) / factorial(2 * j)) for j in range(1, _CORRECTIONS + 1))


def _bernoulli(n: int) -> Fraction:
    """Return the Bernoulli number B_n; the sum over k <= n of comb(n + 1, k) B_k is 0."""
    numbers = [Fraction(1)]
    for m in range(1, n + 1):
        total = sum((comb(m + 1, k) * numbers[k] for k in range(m)), Fraction(0))
        numbers.append(-total / (m + 1))
    return numbers[n]


def _text(x: float) -> str:
    return f"0x{struct.unpack('<Q', struct.pack('<d', x))[0]:016X}"
