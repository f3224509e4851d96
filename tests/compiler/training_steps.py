"""Random training steps as people write them: small networks, optimizers, and what goes with them.

`made(seed)` returns one: a function of `(x, y)` that clears gradients, goes backwards and steps,
and all that it changes. Two of the same seed begin alike; one is then run eagerly.
"""

import random

import numpy as np

import probtorch
from probtorch import nn, optim
from probtorch.nn.utils import clip_grad_norm_, clip_grad_value_
from probtorch.optim import lr_scheduler

OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "dampened": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "adam": lambda p: optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, maximize=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "adamax": lambda p: optim.Adamax(p, lr=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "rmsprop of numpyro": lambda p: optim.RMSProp(p, lr=0.01),
    "rmsprop with momentum": lambda p: optim.RMSPropMomentum(p, lr=0.01, momentum=0.5),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.05, lr_decay=0.1),
    "adagrad and rmsprop": lambda p: optim.AdagradRMSProp(p, eta=0.1),
    "clipped": lambda p: optim.ClippedAdam(p, lr=0.01, lrd=0.9),
    "adadelta": lambda p: optim.Adadelta(p, lr=0.5),
    "asgd": lambda p: optim.ASGD(p, lr=0.1, t0=2),
    "radam": lambda p: optim.RAdam(p, lr=0.01),
    "nadam": lambda p: optim.NAdam(p, lr=0.01),
    "rprop": lambda p: optim.Rprop(p, lr=0.01),
    "adafactor": lambda p: optim.Adafactor(p, lr=0.01),
    "sparse adam": lambda p: optim.SparseAdam(p, lr=0.01),
    "muon": lambda p: optim.Muon([x for x in p if x.ndim == 2], lr=0.01),
    "dog": lambda p: optim.DoG(p, reps_rel=1e-2),
    "dog by layers": lambda p: optim.LDoG(p, reps_rel=1e-2, weight_decay=0.01),
    "dowg": lambda p: optim.DoWG(p, reps_rel=1e-2),
    "sm3": lambda p: optim.SM3(p, lr=0.05),
}
ACTIVATIONS = nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU
CLIPPING = {
    "none": lambda net: None,
    "norm": lambda net: clip_grad_norm_(net.parameters(), 0.5),
    "inf": lambda net: clip_grad_norm_(list(net.parameters()), 0.1, float("inf")),
    "value": lambda net: clip_grad_value_(net.parameters(), 0.01),
}
SCHEDULES = {
    "none": lambda opt: None,
    "decay": lambda opt: lr_scheduler.ExponentialLR(opt, 0.8),
    "own": lambda opt: lr_scheduler.LambdaLR(opt, lambda k: 1.0 / (1.0 + k)),
    "parts": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, 0.1, 1.0, 2), lr_scheduler.StepLR(opt, 2, 0.5)], [2]
    ),
    "plateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=0.3),
    # Where there is a momentum, it goes up and down with the rate.
    "cycle": lambda opt: lr_scheduler.OneCycleLR(
        opt, 0.1, total_steps=40, cycle_momentum="momentum" in opt.defaults
    ),
}
ROWS, INPUTS, CLASSES = 6, 3, 3


class Training:
    """A network, what trains it, and an average of its weights.

    Attributes
    ----------
    step : callable
        From `(x, y)` to the loss.
    features : dict
        What it is made of.
    """

    def __init__(self, seed, optimizer=None):
        rng = random.Random(seed)
        probtorch.manual_seed(seed)
        self.features = {
            "optimizer": optimizer or rng.choice(list(OPTIMIZERS)),
            "clip": rng.choice(list(CLIPPING)),
            "parts": rng.choice([1, 1, 2, 3]),
            "cleared": rng.choice(["before", "after", "zeros", "outside"]),
            "schedule": rng.choice(list(SCHEDULES)),
            "scheduled": rng.choice(["inside", "outside"]),
            "average": rng.random() < 0.3,
            "result": rng.choice(["loss", "detached", "output"]),
            "frozen": rng.random() < 0.3,
        }
        self.net = self._network(rng).double()
        if self.features["frozen"]:
            next(self.net.parameters()).requires_grad_(False)
        self.average = [p.detach().clone() for p in self.net.parameters()]
        self.optimizer = OPTIMIZERS[self.features["optimizer"]](self.net.parameters())
        self.schedule = SCHEDULES[self.features["schedule"]](self.optimizer)
        self.loss = nn.CrossEntropyLoss()

    def _network(self, rng):
        width = rng.choice([2, 5])
        layers = [nn.Linear(INPUTS, width, bias=False)]
        # Without a bias: a gradient that is 0 but for rounding means another step for Adam.
        layers += [nn.BatchNorm1d(width)] * rng.choice([0, 1])
        layers += [rng.choice(ACTIVATIONS)()]
        layers += [nn.Dropout(0.3)] * rng.choice([0, 1])
        layers += [nn.LayerNorm(width)] * rng.choice([0, 1])
        return nn.Sequential(*layers, nn.Linear(width, CLASSES))

    def step(self, x, y):
        """Take one step."""
        has, optimizer = self.features, self.optimizer
        if has["cleared"] in ("before", "zeros"):
            optimizer.zero_grad(set_to_none=has["cleared"] == "before")
        k = has["parts"]
        for i in range(k):
            out = self.net(x[i::k])
            loss = self.loss(out, y[i::k])
            (loss / k).backward()
        CLIPPING[has["clip"]](self.net)
        optimizer.step()
        if has["cleared"] == "after":
            self.net.zero_grad()
        if has["scheduled"] == "inside":
            self.scheduled(loss)
        if has["average"]:
            with probtorch.no_grad():
                for a, p in zip(self.average, self.net.parameters(), strict=True):
                    a.mul_(0.9).add_(0.1 * p)
        return {"loss": loss, "detached": loss.detach(), "output": (loss, out)}[has["result"]]

    def scheduled(self, loss):
        """Go on to the next step of the schedule."""
        if isinstance(self.schedule, lr_scheduler.ReduceLROnPlateau):
            self.schedule.step(loss)
        elif self.schedule is not None:
            self.schedule.step()

    def state(self):
        """Return copies of all that a step may change, by name."""
        found = {**self.net.state_dict()}
        for i, p in enumerate(self.net.parameters()):
            found |= {f"slot {i} {k}": v for k, v in self.optimizer.state[p].items()}
            found |= {} if p.grad is None else {f"gradient {i}": p.grad}
            found[f"average {i}"] = self.average[i]
        return {name: np.array(t.detach().tolist()) for name, t in found.items()}


def trained(training, step, steps=6):
    """Return the state after some steps on random data, and the results of all."""
    results = []
    for k in range(steps):
        probtorch.manual_seed(1000 + k)
        x = probtorch.randn(ROWS, INPUTS, dtype=probtorch.float64)
        y = probtorch.randint(0, CLASSES, (ROWS,))
        if training.features["cleared"] == "outside":
            training.optimizer.zero_grad()
        found = step(x, y)
        found = found if isinstance(found, tuple) else (found,)
        if training.features["scheduled"] == "outside":
            training.scheduled(found[0])
        results += [group["lr"] for group in training.optimizer.param_groups]
        results += [np.array(t.detach().tolist()) for t in found]
        results += [t.requires_grad for t in found]
    return training.state(), results
