"""States of all optimizers and schedules go through files, and training goes on bit for bit."""

import io

import numpy as np
import pytest

import probtorch
from probtorch import optim
from probtorch.nn import GRU, LSTM, BatchNorm2d, Conv2d, Embedding, MultiheadAttention, Sequential
from probtorch.optim import (
    ASGD,
    LBFGS,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    ClippedAdam,
    Muon,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
    SparseAdam,
)
from probtorch.optim import lr_scheduler as schedules
from probtorch.optim.swa_utils import SWALR
from probtorch.serialization import load, save
from probtorch.tensor import tensor


def again(tree):
    file = io.BytesIO()
    save(tree, file)
    file.seek(0)
    return load(file)


OPTIMIZERS = {
    "SGD": lambda p: SGD(p, lr=0.01),
    "SGD with momentum": lambda p: SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "Adam": lambda p: Adam(p, lr=0.01),
    "Adam with maximum": lambda p: Adam(p, lr=0.01, amsgrad=True),
    "Adam by a tensor": lambda p: Adam(p, lr=tensor(0.01)),
    "AdamW": lambda p: AdamW(p, lr=0.01),
    "Adamax": lambda p: Adamax(p, lr=0.01),
    "ClippedAdam": lambda p: ClippedAdam(p, lr=0.01, lrd=0.99),
    "RMSprop": lambda p: RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "RMSProp": lambda p: optim.RMSProp(p, lr=0.01),
    "RMSPropMomentum": lambda p: optim.RMSPropMomentum(p, lr=0.01, momentum=0.5),
    "Adagrad": lambda p: Adagrad(p, lr=0.01, lr_decay=0.1),
    "AdagradRMSProp": lambda p: optim.AdagradRMSProp(p, eta=0.1),
    "ASGD": lambda p: ASGD(p, lr=0.01, t0=2),
    "Adadelta": lambda p: Adadelta(p),
    "Adafactor": lambda p: Adafactor(p, lr=0.1),
    "Muon": lambda p: Muon([x for x in p if x.ndim == 2], lr=0.01),
    "NAdam": lambda p: NAdam(p, lr=0.01),
    "RAdam": lambda p: RAdam(p, lr=0.01, betas=(0.9, 0.9)),
    "Rprop": lambda p: Rprop(p, lr=0.01),
    "DoG": optim.DoG,
    "DoWG": optim.DoWG,
    "LDoG": optim.LDoG,
    "SM3": lambda p: optim.SM3(p, lr=0.01),
    "SparseAdam": lambda p: SparseAdam(p, lr=0.01),
    "LBFGS": lambda p: LBFGS(p, lr=0.5, max_iter=3, line_search_fn="strong_wolfe"),
}
SCHEDULES = {
    "step": lambda o: schedules.StepLR(o, 2),
    "steps": lambda o: schedules.MultiStepLR(o, [2, 5]),
    "exponential": lambda o: schedules.ExponentialLR(o, 0.9),
    "linear": lambda o: schedules.LinearLR(o),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 10),
    "restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 3),
    "one cycle": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=20),
    "plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=1),
    "function": lambda o: schedules.LambdaLR(o, lambda i: 0.9**i),
    "constant": lambda o: schedules.ConstantLR(o, 0.5, 6),
    "power": lambda o: schedules.PolynomialLR(o, 20, 2.0),
    "factors": lambda o: schedules.MultiplicativeLR(o, lambda i: 0.9),
    "cycles": lambda o: schedules.CyclicLR(o, 0.01, 0.05, 3, mode="exp_range", gamma=0.9),
    "chain": lambda o: schedules.ChainedScheduler(
        [schedules.ConstantLR(o, 0.5, 6), schedules.ExponentialLR(o, 0.9)]
    ),
    "to the average": lambda o: SWALR(o, 0.001, anneal_epochs=6),
    "sequence": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, total_iters=2), schedules.ExponentialLR(o, 0.9)], [2]
    ),
}


class Training:
    """A quadratic with two parameters, one of which rests in the first steps."""

    def __init__(self, make, schedule=None):
        probtorch.manual_seed(0)
        self.a = tensor([1.0, -2.0, 3.0], requires_grad=True)
        self.b = tensor(np.ones((2, 3), "f4"), requires_grad=True)
        self.optimizer = make([self.a, self.b])
        self.schedule = None if schedule is None else schedule(self.optimizer)
        self.count = 0

    def closure(self):
        self.optimizer.zero_grad()
        loss = ((self.a - 1.0) ** 4).sum()
        if self.count > 2:
            loss = loss + ((self.b * self.a) ** 2).sum()
        loss.backward()
        return loss

    def steps(self, n):
        for _ in range(n):
            loss = self.closure()
            if isinstance(self.optimizer, LBFGS):
                self.optimizer.step(self.closure)
            else:
                self.optimizer.step()
            self.count += 1
            if isinstance(self.schedule, schedules.ReduceLROnPlateau):
                self.schedule.step(loss.item())
            elif self.schedule is not None:
                self.schedule.step()

    def state(self):
        return {
            "leaves": [self.a, self.b],
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "count": self.count,
        }

    def go_to(self, state):
        for leaf, saved in zip((self.a, self.b), state["leaves"]):
            leaf.array[...] = saved.array
        self.optimizer.load_state_dict(state["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        self.count = state["count"]

    def leaves(self):
        return self.a.detach().numpy().tobytes(), self.b.detach().numpy().tobytes()


def goes_on(make, schedule=None):
    whole, part, rest = (Training(make, schedule) for _ in range(3))
    whole.steps(9)
    part.steps(5)
    rest.go_to(again(part.state()))
    rest.steps(4)
    return whole.leaves() == rest.leaves() != part.leaves()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_from_a_file(name):
    assert goes_on(OPTIMIZERS[name])


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_goes_on_from_a_file(name):
    assert goes_on(lambda p: SGD(p, lr=0.01, momentum=0.9), SCHEDULES[name])


def test_every_optimizer_and_schedule_was_tried():
    def all_of(cls):
        return {cls, *(c for sub in cls.__subclasses__() for c in all_of(sub))}

    leaf = tensor([[1.0]], requires_grad=True)
    tried = {type(make([leaf])) for make in OPTIMIZERS.values()}
    known = {c for c in all_of(Optimizer) if c.__module__.startswith("probtorch.")}
    bases = {"Optimizer", "ElementwiseOptimizer", "WholeOptimizer"}
    assert {c.__name__ for c in known - tried} <= bases
    tried = {type(make(SGD([leaf], lr=0.1))) for make in SCHEDULES.values()}
    known = {getattr(schedules, n) for n in schedules.__all__} - {schedules.LRScheduler}
    assert known <= tried


@pytest.mark.parametrize(
    "make",
    [
        lambda: LSTM(2, 3, num_layers=2, bidirectional=True),
        lambda: GRU(2, 3),
        lambda: MultiheadAttention(4, 2),
        lambda: Embedding(5, 3),
        lambda: Sequential(Conv2d(1, 2, 3), BatchNorm2d(2)),
    ],
)
def test_layers_go_through_a_file(make):
    net, other = make(), make()
    other.load_state_dict(again(net.state_dict()))
    found = other.state_dict()
    assert list(found) == list(net.state_dict())
    for name, x in net.state_dict().items():
        np.testing.assert_array_equal(found[name].numpy(), x.numpy())
