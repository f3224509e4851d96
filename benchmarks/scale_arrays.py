"""More of what grows (scale_cases.py): arrays, single operations and draws, training steps."""

from collections.abc import Callable

import numpy as np

from benchmarks.scale_cases import CASES, Work, case, numbers

__all__ = ["CASES"]


@case("regression on {} rows, gradient", 10_000, 100_000, 1_000_000, 10_000_000)
class Rows:
    """Two covariates and the outcome: 24 bytes a row."""

    @staticmethod
    def _data(size: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = np.empty((size, 2)), np.empty(size)
        rng = np.random.default_rng(0)
        for at in range(0, size, 10**6):
            x[at : at + 10**6] = rng.normal(size=x[at : at + 10**6].shape)
            y[at : at + 10**6] = rng.normal(size=len(y[at : at + 10**6]))
        return x, y

    @staticmethod
    def probtorch(size: int) -> Work:
        import probtorch
        import probtorch.distributions as dist
        from probtorch.infer import Target

        x, y = map(probtorch.from_numpy, Rows._data(size))

        def model() -> None:
            b = probtorch.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
            s = probtorch.sample("s", dist.HalfNormal(1.0))
            with probtorch.plate("row", size):
                probtorch.sample("y", dist.Normal(x @ b, s), obs=y)

        made = []

        def work() -> object:
            if not made:
                made.append(Target.from_model(model))
            return made[0].value_and_grad(np.zeros(3))

        return work

    @staticmethod
    def jax(size: int) -> Work:
        import jax
        from jax.scipy.stats import norm

        x, y = map(jax.numpy.asarray, Rows._data(size))

        def density(q: object, x: object, y: object) -> object:
            b, s = q[:2], jax.numpy.exp(q[2])
            prior = norm.logpdf(b).sum() + norm.logpdf(s) + q[2]
            return prior + norm.logpdf(y, x @ b, s).sum()

        fn, q = jax.jit(jax.value_and_grad(density)), np.zeros(3)
        return lambda: jax.block_until_ready(fn(q, x, y))


@case("Gaussian process of {} points, gradient", 200, 500, 1000)
class Process:
    """Squared exponentials, three parameters; scipy is LAPACK's dpotrf alone."""

    @staticmethod
    def _data(size: int) -> tuple[np.ndarray, np.ndarray]:
        x = np.sort(numbers(size))
        return (x[:, None] - x) ** 2, np.sin(2.0 * x) + 0.3 * numbers(size, seed=1)

    @staticmethod
    def probtorch(size: int) -> Work:
        import probtorch
        import probtorch.distributions as dist
        from probtorch.infer import Target

        squares, y = map(probtorch.from_numpy, Process._data(size))
        eye = probtorch.eye(size, dtype=probtorch.float64)

        def density(q: object) -> object:
            rho, alpha, sigma = q.exp()
            k = alpha**2 * (squares * (-0.5 / rho**2)).exp() + (sigma**2 + 1e-6) * eye
            zeros = probtorch.zeros(size).double()
            return dist.MultivariateNormal(zeros, covariance_matrix=k).log_prob(y)

        target, q = Target.from_density(density, 3), np.array([-0.5, 0.0, -1.0])
        return lambda: target.value_and_grad(q)

    @staticmethod
    def torch(size: int) -> Work:
        import torch

        squares, y = map(torch.from_numpy, Process._data(size))
        eye, zeros = torch.eye(size).double(), torch.zeros(size).double()

        def work() -> object:
            q = torch.tensor([-0.5, 0.0, -1.0], dtype=torch.float64, requires_grad=True)
            rho, alpha, sigma = q.exp()
            k = alpha**2 * (squares * (-0.5 / rho**2)).exp() + (sigma**2 + 1e-6) * eye
            normal = torch.distributions.MultivariateNormal(zeros, k, validate_args=False)
            normal.log_prob(y).backward()
            return q.grad

        return work

    @staticmethod
    def jax(size: int) -> Work:
        import jax
        from jax.scipy.stats import multivariate_normal

        squares, y = map(jax.numpy.asarray, Process._data(size))

        def density(q: object) -> object:
            rho, alpha, sigma = jax.numpy.exp(q)
            k = alpha**2 * jax.numpy.exp(squares * (-0.5 / rho**2))
            k += (sigma**2 + 1e-6) * jax.numpy.eye(size)
            return multivariate_normal.logpdf(y, jax.numpy.zeros(size), k)

        fn, q = jax.jit(jax.value_and_grad(density)), np.array([-0.5, 0.0, -1.0])
        return lambda: jax.block_until_ready(fn(q))

    @staticmethod
    def scipy(size: int) -> Work:
        from scipy.linalg.lapack import dpotrf

        k = np.asfortranarray(np.exp(-0.5 * Process._data(size)[0]) + 0.1 * np.eye(size))
        return lambda: dpotrf(k, lower=1)


# ------------------------------------------------------------------------------- elementwise, draws

FUNCTIONS = ("sin", "pow", "erf", "lgamma", "digamma")


def _functions(make: Callable[[str, int], Work]) -> dict[str, Callable[[int], Work]]:
    return {name: lambda size, name=name: make(name, size) for name in FUNCTIONS}


def _compiled(name: str, size: int) -> Work:
    import probtorch

    x = probtorch.from_numpy(np.random.default_rng(0).uniform(0.5, 3.0, size))
    named = {"pow": lambda x: x**1.7}
    fn = probtorch.compile(named.get(name) or getattr(probtorch, name))
    return lambda: fn(x)


def _jitted(name: str, size: int) -> Work:
    import jax
    from jax.scipy import special

    x = jax.numpy.asarray(np.random.default_rng(0).uniform(0.5, 3.0, size))
    named = {"sin": jax.numpy.sin, "pow": lambda x: x**1.7, "lgamma": special.gammaln}
    fn = jax.jit(named.get(name) or getattr(special, name))
    return lambda: jax.block_until_ready(fn(x))


for _name in FUNCTIONS:
    case(f"compiled {_name} of {{}} numbers", 10_000)(
        type(
            _name,
            (),
            {
                "probtorch": staticmethod(_functions(_compiled)[_name]),
                "jax": staticmethod(_functions(_jitted)[_name]),
            },
        )
    )

# Draws: of our distributions and PyTorch's by the same names.
DISTRIBUTIONS: dict[str, tuple[tuple[object, ...], str]] = {
    "Uniform": ((0.0, 1.0), "uniform"),
    "Normal": ((0.0, 1.0), "normal"),
    "Gamma": ((2.0, 1.0), "gamma"),
    "Beta": ((2.0, 3.0), "beta"),
    "StudentT": ((5.0,), "standard_t"),
    "Poisson": ((4.0,), "poisson"),
    "Dirichlet": (([1.0, 2.0, 3.0],), "dirichlet"),
    "Categorical": (([0.2, 0.3, 0.5],), "choice"),
}


def _draws(library: str, name: str) -> Callable[[int], Work]:
    def make(size: int) -> Work:
        if library == "numpy":
            arguments, method = DISTRIBUTIONS[name]
            rng, numbers_of = np.random.default_rng(0), (np.array(x) for x in arguments)
            if name == "Categorical":
                return lambda: rng.choice(3, size, p=arguments[0])
            given = [x.tolist() for x in numbers_of]
            return lambda: getattr(rng, method)(*given, size=size)
        torch, kinds = _library(library)
        given = [torch.tensor(x, dtype=torch.float64) for x in DISTRIBUTIONS[name][0]]
        if size == 1:  # with what it costs to make it
            return lambda: getattr(kinds, name)(*given).sample()
        made = getattr(kinds, name)(*given)
        return lambda: made.sample((size,))

    return make


def _library(name: str) -> tuple[object, object]:
    """A library with PyTorch's names, and its distributions."""
    if name == "torch":
        import torch

        return torch, torch.distributions
    import probtorch

    return probtorch, probtorch.distributions


for _name in DISTRIBUTIONS:
    _makers = {n: staticmethod(_draws(n, _name)) for n in ("probtorch", "torch", "numpy")}
    case(f"{{}} draws of {_name}", 1_000_000)(type(f"{_name}Draws", (), _makers))
    if _name in ("Gamma", "Beta", "Poisson", "StudentT"):
        del _makers["numpy"]
        case(f"{{}} draw of {_name}, made and drawn", 1)(type(f"{_name}Draw", (), _makers))


# ------------------------------------------------------------------------- single operations, eager


def _eager(operation: Callable[[object, object], Work]) -> dict[str, Callable[[int], Work]]:
    def of(library: str) -> Callable[[int], Work]:
        def make(size: int) -> Work:
            torch = _library(library)[0]
            return operation(torch, torch.from_numpy(np.random.default_rng(0).normal(size=size)))

        return make

    return {n: staticmethod(of(n)) for n in ("probtorch", "torch")}


def _gradient(torch: object, x: object, value: Callable[[object], object]) -> Work:
    x = x.requires_grad_()

    def work() -> None:
        x.grad = None
        value(x).backward()

    return work


OPERATIONS: dict[str, tuple[int, Callable[[object, object], Work]]] = {
    "randn": (8, lambda t, x: lambda: t.randn(8)),
    "add": (8, lambda t, x: lambda: x + 1.0),
    "index": (8, lambda t, x: lambda: x[3]),
    "expand": (8, lambda t, x: lambda: x.expand(4, 8)),
    "max": (8, lambda t, x: lambda: x.max()),
    "topk": (10_000, lambda t, x: lambda: t.topk(x, 10)),
    "sort": (10_000, lambda t, x: lambda: t.sort(x)),
    "softplus": (10_000, lambda t, x: lambda: t.nn.functional.softplus(x)),
    "logsumexp, gradient": (
        919 * 85,
        lambda t, x: _gradient(t, x, lambda x: x.reshape(919, 85).logsumexp(-1).sum()),
    ),
    "normal log density, gradient": (
        1000,
        lambda t, x: _gradient(
            t, x, lambda x: t.distributions.Normal(x, 1.5, validate_args=False).log_prob(0.5).sum()
        ),
    ),
}
for _name, (_size, _operation) in OPERATIONS.items():
    case(f"eager {_name}, {{}} numbers", _size)(type(f"eager {_name}", (), _eager(_operation)))


@case("compiled x + 1 of {} numbers", 8)
class Call:
    """What a call costs."""

    @staticmethod
    def probtorch(size: int) -> Work:
        import probtorch

        x, fn = probtorch.from_numpy(np.ones(size)), probtorch.compile(lambda x: x + 1.0)
        return lambda: fn(x)

    @staticmethod
    def jax(size: int) -> Work:
        import jax

        x, fn = jax.numpy.ones(size), jax.jit(lambda x: x + 1.0)
        return lambda: jax.block_until_ready(fn(x))


# ----------------------------------------------------------------------------------- training steps


def _step(library: str, net: Callable[[object], object], shape: tuple[int, ...]) -> Work:
    """A step of Adam on ten classes, compiled where it is ours; PyTorch is eager."""
    torch = _library(library)[0]
    made, rng = net(torch), np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=shape).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 10, shape[0]))
    # So slowly that one batch is not learnt by heart.
    adam, loss = torch.optim.Adam(made.parameters(), 1e-6), torch.nn.CrossEntropyLoss()

    def step(x: object, y: object) -> object:
        adam.zero_grad()
        value = loss(made(x), y)
        value.backward()
        adam.step()
        return value

    fn = step if library == "torch" else torch.compile(step)
    return lambda: fn(x, y)


def _dense(torch: object) -> object:
    nn = torch.nn
    return nn.Sequential(
        *(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10))
    )


def _convolution(torch: object) -> object:
    nn = torch.nn
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5)),
        *(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def _recurrent(torch: object) -> object:
    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = torch.nn.LSTM(32, 64, batch_first=True)
            self.out = torch.nn.Linear(64, 10)

        def forward(self, x: object) -> object:
            return self.out(self.cells(x)[0][:, -1])

    return Last()


NETWORKS: dict[str, tuple[Callable[[object], object], tuple[int, ...], Callable]] = {
    "784-1000-1000-10, batch of {}": (_dense, (128,), lambda n: (n, 784)),
    "LeNet, batch of {}": (_convolution, (64,), lambda n: (n, 1, 28, 28)),
    "LSTM of 64, batch of 32, {} steps": (_recurrent, (50, 100, 200), lambda n: (32, n, 32)),
}
for _name, (_net, _sizes, _shape) in NETWORKS.items():
    _makers = {
        n: staticmethod(lambda size, n=n, net=_net, shape=_shape: _step(n, net, shape(size)))
        for n in ("probtorch", "torch")
    }
    case(f"training step, {_name}", *_sizes)(type(_name.split(",")[0], (), _makers))
