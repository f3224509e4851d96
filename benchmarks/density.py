"""Value and gradient of a model's log density, compiled, in float64; and a training step.

Loops over time are plain Python loops in ours, `lax.scan` in JAX, `scan` in PyTorch. Gradients at a
random point, and the difference in value between two points, must agree between systems
(to 1e-8) before any is timed. The last row is the step of the svi suite, in float32: what it
compares is compiled by the same compilers, and counts in the mean.
"""

import numpy as np

from benchmarks.peers import OURS, adapter
from benchmarks.problems import DENSITIES
from benchmarks.report import duration, table
from benchmarks.svi import TORCH_COMPILE, trained
from benchmarks.timing import race

__all__ = ["agree", "evaluate", "probes", "run"]

PEERS = ("jax", "torch")
LOOP, LOOPED = 200, "jax in a loop"
STEP = "vae step (float32)"
# Loops for which PyTorch has no native code: they would hide all else in its mean.
LEFT_OUT = {"torch": ("hidden_markov", "autoregression")}
METHOD = (
    "Time of one call from Python that returns value and gradient, best of {rounds} rounds of "
    "about 0.1 s, systems taking turns, one thread, float64. Loops over time are plain Python "
    "loops in ours, `lax.scan` in JAX. `jax in a loop` is one evaluation inside a "
    f"compiled loop of {LOOP}, which leaves out JAX's dispatch. `torch` is its compiler, the "
    "gradient compiled with the value: AOTInductor, whose calls are faster than those of "
    "`torch.compile` by the guards of the latter (eight schools: 16 us, 39 us). Loops over time "
    "are torch's `scan` under `torch.compile`, the backward pass called from Python (value and "
    "gradient as one program are refused; unrolled, 20 steps of the hidden Markov model took "
    "34 s to compile); these two rows are left out of torch's mean. The last row is the training "
    "step of the svi suite (rounds of 0.3 s): ours, JAX's by hand, torch's by hand under "
    "`torch.compile`."
)


def probes(problem):
    rng = np.random.default_rng(problem.dim)
    return [0.3 * rng.normal(size=problem.dim) for _ in range(2)]


def evaluate(value_and_grad, points):
    """Return (difference in value between the points, gradient at the first)."""
    values, grads = zip(*(value_and_grad(p) for p in points), strict=True)
    return float(values[0]) - float(values[1]), np.asarray(grads[0])


def ratio(quotient):
    """Return a quotient with two digits after the point, or two that count."""
    return f"{quotient:.2g}" if quotient < 0.1 else f"{quotient:.2f}"


def agree(found, reference):
    """Whether two results of `evaluate` are those of one density."""
    difference, grad = reference
    return np.allclose(found[0], difference, rtol=1e-8) and np.allclose(
        found[1], grad, rtol=1e-8, atol=1e-8 * np.abs(grad).max()
    )


def run(names, rounds=9):
    """Time the densities with the systems in `names`; returns (text, what went wrong)."""
    systems = [n for n in (OURS, *PEERS) if n in names]
    peers = [n for n in systems if n != OURS]
    columns = [*systems, *([LOOPED] if "jax" in systems else [])]
    rows, failures = [], []
    quotients: dict[str, list[float]] = {c: [] for c in columns}

    def add_row(name, label, timings):
        absent = dict.fromkeys(columns, "failed") | ({LOOPED: "-"} if name == STEP else {})
        row = [label, *(duration(timings[c]) if c in timings else absent[c] for c in columns)]
        for column in (c for c in columns if c != OURS):
            both = OURS in timings and column in timings
            row.append(ratio(timings[OURS] / timings[column]) if both else "-")
            if both and name not in LEFT_OUT.get(column, ()):
                quotients[column].append(timings[OURS] / timings[column])
        rows.append(row)

    for problem in DENSITIES.values():
        points, calls, reference = probes(problem), {}, None
        for name in [*peers, *([OURS] if OURS in systems else [])]:
            try:
                value_and_grad = adapter(name).density(problem)
                difference, grad = evaluate(value_and_grad, points)
            except Exception as error:
                failures.append(f"{name}, {problem.name}: {type(error).__name__}: {error}")
                continue
            if reference is None:
                reference = difference, grad
            if agree((difference, grad), reference):
                calls[name] = lambda f=value_and_grad, q=points[0]: f(q)
            else:
                failures.append(f"{name}, {problem.name}: another density than the first system's")
        timings = {name: t.best for name, t in race(calls, rounds=rounds).items()}
        if "jax" in calls:
            loop = adapter("jax").density_in_loop(problem, LOOP)
            looped = race({"loop": lambda f=loop, q=points[0]: f(q)}, rounds=rounds)["loop"]
            timings[LOOPED] = looped.best / LOOP
        add_row(problem.name, f"{problem.name} ({problem.dim})", timings)
    contestants = {TORCH_COMPILE if n == "torch" else n: n for n in systems}
    steps, _, wrong = trained(contestants)
    failures += [f"{STEP}: {failure}" for failure in wrong]
    steps = {contestants[name]: step for name, step in steps.items()}
    timings = {n: t.best for n, t in race(steps, rounds=rounds, round_seconds=0.3).items()}
    add_row(STEP, STEP, timings)
    means = [np.exp(np.mean(np.log(q))) if q else np.nan for q in quotients.values()]
    row = ["geometric mean", *("" for _ in columns)]
    rows.append(row + [ratio(m) for c, m in zip(columns, means, strict=True) if c != OURS])
    ratios = [f"{OURS} / {column}" for column in columns if column != OURS]
    header = ["model (parameters)", *columns, *ratios]
    return f"{table(header, rows)}\n\n{METHOD.format(rounds=rounds)}", failures
