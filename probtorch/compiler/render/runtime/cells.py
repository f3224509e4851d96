"""One step of recurrent layers for the rows of a batch: gates, states, and derivatives.

A row of gates has one stretch for each gate, as the layers order them. What the products with
weights contribute comes in two parts, that of the input and that of the state before.
"""

from __future__ import annotations

from collections.abc import Callable

from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.render.runtime.passes import Row

__all__ = ["BODIES"]


def _gates(r: Row, place: Value, count: int) -> list[Value]:
    """Where the stretches of a row of gates begin."""
    return [r.w.offset(place, r.n * k, r.ty) for k in range(count)]


def _lstm(r: Row, of_input: Value, of_state: Value, c: Value, *made_and_size: Value) -> None:
    """Write output, cell, its tanh and the gates: input, forget, cell, output."""
    h, cell, bent, gates, _ = made_and_size

    def step(*values: Value) -> list[Value]:
        a = [x + y for x, y in zip(values[:4], values[4:8], strict=True)]
        i, f, o = (r.by_parts("sigmoid", a[k]) for k in (0, 1, 3))
        g = r.by_parts("tanh", a[2])
        now = f * values[8] + i * g
        tanh = r.by_parts("tanh", now)
        return [o * tanh, now, tanh, i, f, g, o]

    inputs = [*_gates(r, of_input, 4), *_gates(r, of_state, 4), c]
    r.written(inputs, step, [h, cell, bent, *_gates(r, gates, 4)])


def _lstm_slope(
    r: Row, of_h: Value, of_cell: Value, gates: Value, bent: Value, c: Value, *made_and_size: Value
) -> None:
    """Write derivatives in what goes into the gates, and in the cell before."""
    into, before, _ = made_and_size
    one = r.all(1.0)

    def step(*values: Value) -> list[Value]:
        gh, gc, i, f, g, o, tanh, last = values
        of_now = gc + gh * o * (one - tanh * tanh)
        return [
            of_now * g * i * (one - i),
            of_now * last * f * (one - f),
            of_now * i * (one - g * g),
            gh * tanh * o * (one - o),
            of_now * f,
        ]

    r.written([of_h, of_cell, *_gates(r, gates, 4), bent, c], step, [*_gates(r, into, 4), before])


def _gru(r: Row, of_input: Value, of_state: Value, h: Value, *made_and_size: Value) -> None:
    """Write the state and the gates: reset, update, new."""
    now, gates, _ = made_and_size

    def step(*values: Value) -> list[Value]:
        xr, xz, xn, hr, hz, hn, last = values
        reset, update = r.by_parts("sigmoid", xr + hr), r.by_parts("sigmoid", xz + hz)
        new = r.by_parts("tanh", xn + reset * hn)
        return [new + update * (last - new), reset, update, new]

    inputs = [*_gates(r, of_input, 3), *_gates(r, of_state, 3), h]
    r.written(inputs, step, [now, *_gates(r, gates, 3)])


def _gru_slope(
    r: Row, of_h: Value, gates: Value, of_state: Value, h: Value, *made_and_size: Value
) -> None:
    """Write derivatives in what input and state contribute, and in the state beside that."""
    into_input, into_state, before, _ = made_and_size
    one = r.all(1.0)

    def step(*values: Value) -> list[Value]:
        g, reset, update, new, hn, last = values
        bent = g * (one - update) * (one - new * new)
        of_reset = bent * hn * reset * (one - reset)
        of_update = g * (last - new) * update * (one - update)
        return [of_reset, of_update, bent, of_reset, of_update, bent * reset, g * update]

    inputs = [of_h, *_gates(r, gates, 3), _gates(r, of_state, 3)[2], h]
    r.written(inputs, step, [*_gates(r, into_input, 3), *_gates(r, into_state, 3), before])


BODIES: dict[str, Callable[..., None]] = {
    "lstm": _lstm,
    "lstm_slope": _lstm_slope,
    "gru": _gru,
    "gru_slope": _gru_slope,
}
