"""Training steps as people write them, eager and compiled: what `probtorch.compile` gains.

Each case is a step from `zero_grad()` to `optimizer.step()`, on a batch that is new each time. Both
forms of it are first checked to move the parameters alike.
"""

import time

import numpy as np

from benchmarks.peers import OURS, adapter
from benchmarks.report import duration, table
from benchmarks.timing import race

__all__ = ["run"]

METHOD = (
    "Best of {rounds} rounds of about 0.2 s each, eager and compiled in turns; processor time, one "
    "thread; float32, a new batch every time. First calls: until the step is native, that is the "
    "one which makes the optimizer's state and the one which is recorded and compiled, with "
    "whatever the compiler's cache knows."
)


class Case:
    """A network and how it is trained.

    Parameters
    ----------
    torch : module
        Ours, by the name that people call it.
    layers : list of Module
    optimizer : callable
        From parameters to an optimizer.
    shape : tuple of int
        Of a batch.
    parts : int
        Micro-batches whose gradients add up.
    clip : float, optional
        Norm of all gradients.
    schedule : callable, optional
        From the optimizer to a schedule, stepped inside.
    """

    def __init__(self, torch, layers, optimizer, shape, *, parts=1, clip=None, schedule=None):
        self.torch, self.shape = torch, shape
        self.net = torch.nn.Sequential(*layers)
        self.optimizer = optimizer(self.net.parameters())
        self.parts, self.clip = parts, clip
        self.schedule = None if schedule is None else schedule(self.optimizer)
        self.loss = torch.nn.CrossEntropyLoss()

    def step(self, x, y):
        """Take one step."""
        self.optimizer.zero_grad()
        for i in range(self.parts):
            loss = self.loss(self.net(x[i :: self.parts]), y[i :: self.parts]) / self.parts
            loss.backward()
        if self.clip is not None:
            self.torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        return loss

    def batches(self):
        """Return eight batches, to be gone through in turns."""
        rng = np.random.default_rng(0)
        sizes = (8, *self.shape)
        x = self.torch.tensor(rng.normal(size=sizes).astype(np.float32))
        y = self.torch.tensor(rng.integers(0, 10, sizes[:2]))
        return [(x[i].clone(), y[i].clone()) for i in range(8)]


def small(torch):
    layers = [torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10)]
    return Case(torch, layers, lambda p: torch.optim.Adam(p, lr=1e-3), (32, 8))


def digits(torch):
    nn = torch.nn
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return Case(torch, layers, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), (128, 64))


def normalised(torch):
    nn = torch.nn
    block = [nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2)]
    layers = [*block, nn.Linear(128, 10)]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR
    return Case(
        torch,
        layers,
        lambda p: torch.optim.AdamW(p, lr=1e-3),
        (128, 64),
        clip=1.0,
        schedule=lambda optimizer: schedule(optimizer, 1000),
    )


def accumulated(torch):
    layers = [torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 10)]
    return Case(torch, layers, lambda p: torch.optim.Adam(p, lr=1e-3), (64, 64), parts=4)


def convolutional(torch):
    nn = torch.nn
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    layers += [nn.Linear(8 * 4 * 4, 10)]
    return Case(torch, layers, lambda p: torch.optim.Adam(p, lr=1e-3), (64, 1, 8, 8))


CASES = {
    "8-32-10, batch 32, Adam": small,
    "64-128-128-10, batch 128, SGD with momentum": digits,
    "64-128-10, batch norm, dropout, clipped, AdamW, schedule": normalised,
    "64-64-10, 4 micro-batches of 16, Adam": accumulated,
    "convolution of 8 x 8 digits, batch 64, Adam": convolutional,
}


def _steps(torch, make, compiled):
    """Return a function that takes the next step, the case, and seconds of the first calls."""
    torch.manual_seed(0)
    case = make(torch)
    step = torch.compile(case.step, verify=False) if compiled else case.step
    batches, count = case.batches(), iter(range(10**12))

    def go():
        return step(*batches[next(count) % len(batches)])

    start = time.process_time()
    for _ in range(3):
        go()
    return go, case, time.process_time() - start


def _weights(case):
    return np.concatenate([p.detach().numpy().ravel() for p in case.net.parameters()])


def run(names, rounds=9):
    """Time the cases; returns (text for people, what went wrong)."""
    torch, problems, rows = adapter(OURS).tensor_library(), [], []
    for title, make in CASES.items():
        steps, weights, first = {}, {}, 0.0
        for form in ("eager", "compiled"):
            go, case, first = _steps(torch, make, form == "compiled")
            steps[form], weights[form] = go, _weights(case)
        # Adam divides by the size of each gradient, which makes much of a last digit.
        if not np.allclose(weights["eager"], weights["compiled"], rtol=1e-3, atol=1e-3):
            problems.append(f"{title}: compiled steps go elsewhere")
        timings = race(steps, rounds=rounds, round_seconds=0.2, clock=time.process_time)
        eager, compiled = timings["eager"], timings["compiled"]
        ratio = f"{eager.best / compiled.best:.1f}"
        spread = f"{max(eager.spread, compiled.spread):.2f}"
        row = [title, duration(eager.best), duration(compiled.best), ratio, duration(first), spread]
        rows.append(row)
    header = ["training step", "eager", "compiled", "eager / compiled", "first calls", "spread"]
    return f"{table(header, rows)}\n\n{METHOD.format(rounds=rounds)}", problems
