"""PyTorch: eager operations, and densities and a training step under its compiler.

Densities are exported with their gradient and compiled ahead of time (AOTInductor): the loops that
`torch.compile` makes of them, without its guards, which cost more than a small density. Loops over
time are `scan`, a higher-order op, under `torch.compile`: unrolled, a chain of 20 steps
took 34 s to compile.
"""

import itertools
import math
import os
import tempfile

DISTRIBUTIONS = ("torch",)
LOOPS = ("hidden_markov", "autoregression")


def tensor_library():
    import torch

    torch.set_num_threads(1)
    return torch


def log_density_of(name, case):
    torch = tensor_library()
    values = torch.tensor(case.values)
    fixed = {n: torch.tensor(x) for n, x in case.fixed.items()}
    leaves = {n: torch.tensor(x, requires_grad=True) for n, x in case.parameters.items()}
    kind = getattr(torch.distributions, name)

    def call():
        value = kind(**fixed, **leaves).log_prob(values).sum()
        return value.detach(), *torch.autograd.grad(value, list(leaves.values()))

    return call


def compiler():
    """Return torch with one thread in its loops and in its compiler."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    return torch


def log_density(problem):
    """Return the log density of `problem` as a function of the unconstrained vector."""
    import torch
    from torch._higher_order_ops.scan import scan
    from torch.nn.functional import softplus

    data = {name: torch.as_tensor(value) for name, value in problem.data.items()}

    def normal(x, loc, scale):
        log_scale = torch.log(scale) if torch.is_tensor(scale) else math.log(scale)
        return -0.5 * ((x - loc) / scale) ** 2 - log_scale - 0.5 * math.log(2.0 * math.pi)

    def half_normal_of_log(log_value, scale):
        return normal(torch.exp(log_value), 0.0, scale) + math.log(2.0) + log_value

    def eight_schools(q):
        mu, log_tau, z = q[0], q[1], q[2:]
        tau = torch.exp(log_tau)
        prior = normal(mu, 0.0, 5.0) + normal(z, 0.0, 1.0).sum()
        prior = prior - torch.log1p((tau / 5.0) ** 2) + math.log(0.4 / math.pi) + log_tau
        return prior + normal(data["y"], mu + tau * z, data["sigma"]).sum()

    def logistic(q):
        logits = data["x"] @ q
        return normal(q, 0.0, 1.0).sum() + (data["y"] * logits - softplus(logits)).sum()

    def varying_intercepts(q):
        mu, log_tau, beta, log_sigma, z = q[0], q[1], q[2], q[3], q[4:]
        prior = normal(mu, 0.0, 5.0) + normal(beta, 0.0, 5.0) + normal(z, 0.0, 1.0).sum()
        prior = prior + half_normal_of_log(log_tau, 2.0) + half_normal_of_log(log_sigma, 2.0)
        loc = (mu + torch.exp(log_tau) * z)[data["group"]] + beta * data["x"]
        return prior + normal(data["y"], loc, torch.exp(log_sigma)).sum()

    def gaussian_process(q):
        rho, alpha, sigma = torch.exp(q)
        squares = (data["x"][:, None] - data["x"]) ** 2
        covariance = alpha**2 * torch.exp(-0.5 * squares / rho**2)
        covariance = covariance + (sigma**2 + 1e-6) * torch.eye(200, dtype=q.dtype)
        factor = torch.linalg.cholesky(covariance)
        white = torch.linalg.solve_triangular(factor, data["y"][:, None], upper=False)
        density = normal(white, 0.0, 1.0).sum() - torch.log(torch.diagonal(factor)).sum()
        return half_normal_of_log(q, 1.0).sum() + density

    def hidden_markov(q):
        logits, loc = q[:25].reshape(5, 5), q[25:]
        prior = normal(logits, 0.0, 1.0).sum() + normal(loc, 0.0, 5.0).sum()
        move = torch.log_softmax(logits, -1)

        def step(alpha, y):
            alpha = torch.logsumexp(alpha[:, None] + move, 0) + normal(y, loc, 1.0)
            return alpha, alpha.clone()  # `scan` wants an output, and no aliases

        first = normal(data["y"][0], loc, 1.0) - math.log(5.0)
        alpha, _ = scan(step, first, data["y"][1:], dim=0)
        return prior + torch.logsumexp(alpha, 0)

    def autoregression(q):
        alpha, beta, sigma = q[0].clone(), q[1:6].clone(), torch.exp(q[6])
        prior = normal(q[:6], 0.0, 1.0).sum() + half_normal_of_log(q[6], 1.0)

        def step(last, y):
            density = normal(y, alpha + (beta * last).sum(), sigma)
            return torch.cat([last[1:], y[None]]), density

        _, densities = scan(step, data["y"][:5].clone(), data["y"][5:], dim=0)
        return prior + densities.sum()

    def softmax_regression(q):
        scores = torch.log_softmax(data["x"] @ q.reshape(20, 5), -1)
        chosen = torch.gather(scores, -1, data["y"][:, None])
        return normal(q, 0.0, 1.0).sum() + chosen.sum()

    functions = {
        "eight_schools": eight_schools,
        "logistic": logistic,
        "varying_intercepts": varying_intercepts,
        "many_rows": varying_intercepts,
        "gaussian_process": gaussian_process,
        "hidden_markov": hidden_markov,
        "autoregression": autoregression,
        "softmax_regression": softmax_regression,
    }
    return functions[problem.name]


def density(problem):
    torch = compiler()
    fn, example = log_density(problem), torch.zeros(problem.dim, dtype=torch.float64)
    if problem.name in LOOPS:
        compiled = torch.compile(fn, fullgraph=True, dynamic=False)

        def value_and_grad(q):
            q = torch.from_numpy(q).requires_grad_()
            value = compiled(q)
            return value.detach(), torch.autograd.grad(value, q)[0]

        return value_and_grad

    from torch.fx.experimental.proxy_tensor import make_fx

    # Operators and their gradients, one list, in which nothing of Python is left.
    graph = make_fx(torch.func.grad_and_value(fn))(example)
    exported = torch.export.export(graph, (example,))
    with tempfile.TemporaryDirectory(prefix="probtorch-bench-") as folder:
        path = torch._inductor.aoti_compile_and_package(
            exported, package_path=f"{folder}/density.pt2"
        )
        run = torch._inductor.aoti_load_package(path)

    def ahead_of_time(q):
        grad, value = run(torch.from_numpy(q))
        return value, grad

    return ahead_of_time


def networks():
    """Return encoder and decoder of the svi suite, as modules."""
    from torch import nn

    from benchmarks.svi import HIDDEN, LATENT, PIXELS

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(PIXELS, HIDDEN), nn.Softplus(), nn.Linear(HIDDEN, HIDDEN), nn.Softplus()
            )
            self.loc, self.log_scale = nn.Linear(HIDDEN, LATENT), nn.Linear(HIDDEN, LATENT)

        def forward(self, x):
            h = self.body(x)
            return self.loc(h), self.log_scale(h).exp()

    decoder = nn.Sequential(
        *(nn.Linear(LATENT, HIDDEN), nn.Softplus(), nn.Linear(HIDDEN, HIDDEN), nn.Softplus()),
        nn.Linear(HIDDEN, PIXELS),
    )
    return Encoder(), decoder


def autoencoder(data):
    """Return the step of a user who compiles nothing."""
    return training_step(data, lambda update: update)


def compiled_autoencoder(data):
    """Return the same step under `torch.compile`: loss, backward pass and optimizer."""
    torch = compiler()
    return training_step(data, torch.compile(dynamic=False))


def training_step(data, prepare):
    """Return a function that takes a step with ``prepare(update)`` on the next of `data`."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    from benchmarks.svi import RATE

    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder, decoder = networks()
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=RATE)
    rows = itertools.cycle([torch.tensor(x) for x in data])

    def update(x):
        loc, scale = encoder(x)
        z = loc + scale * torch.randn_like(loc)
        divergence = 0.5 * (loc**2 + scale**2 - 1.0 - 2.0 * scale.log()).sum()
        loss = divergence + binary_cross_entropy_with_logits(decoder(z), x, reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    update = prepare(update)
    return lambda: update(next(rows)).item()
