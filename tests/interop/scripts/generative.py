"""Generative models, and learning by reward."""

import collections
import copy
import itertools
import math

import numpy as np

from tests.interop.scripts.common import data, fill, ints, script


@script
def vae(torch, comp):
    nn = torch.nn
    F = nn.functional

    class V(nn.Module):
        def __init__(s):
            super().__init__()
            s.e = nn.Linear(10, 8)
            s.m = nn.Linear(8, 3)
            s.v = nn.Linear(8, 3)
            s.d = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 10))

        def forward(s, x, eps):
            h = F.relu(s.e(x))
            mu, lv = s.m(h), s.v(h)
            return torch.sigmoid(s.d(mu + eps * torch.exp(0.5 * lv))), mu, lv

    net = fill(torch, V())
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    x = torch.sigmoid(data(torch, 16, 10))
    eps = data(torch, 16, 3, seed=6)

    def step(x, e):
        r, mu, lv = net(x, e)
        loss = F.binary_cross_entropy(r, x, reduction="sum") - 0.5 * torch.sum(
            1 + lv - mu.pow(2) - lv.exp()
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [step(x, eps).item() for _ in range(20)]


@script
def gan(torch, comp):
    nn = torch.nn
    G = fill(
        torch,
        nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 5), nn.Tanh()),
    )
    D = fill(
        torch,
        nn.Sequential(
            nn.Linear(5, 8),
            nn.LeakyReLU(0.2),
            nn.Linear(8, 1),
        ),
        3,
    )
    oG = torch.optim.Adam(G.parameters(), lr=2e-2, betas=(0.5, 0.999))
    oD = torch.optim.Adam(D.parameters(), lr=2e-2, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()
    real, z = data(torch, 16, 5), data(torch, 16, 3, seed=6)
    one, zero = torch.ones(16, 1), torch.zeros(16, 1)

    def step(real, z):
        oD.zero_grad()
        fake = G(z)
        lD = bce(D(real), one) + bce(D(fake.detach()), zero)
        lD.backward()
        oD.step()
        oG.zero_grad()
        lG = bce(D(fake), one)
        lG.backward()
        oG.step()
        return lD, lG

    step = comp(step)
    out = []
    for _ in range(20):
        a, b = step(real, z)
        out += [float(a), float(b)]
    return out


@script
def wgan_gp(torch, comp):
    nn = torch.nn
    D = fill(torch, nn.Sequential(nn.Linear(5, 8), nn.Softplus(), nn.Linear(8, 1)))
    opt = torch.optim.RMSprop(D.parameters(), lr=1e-2)
    real, fake = data(torch, 16, 5), data(torch, 16, 5, seed=6)
    a = torch.sigmoid(data(torch, 16, 1, seed=9))

    def step(real, fake):
        mix = (a * real + (1 - a) * fake).requires_grad_(True)
        o = D(mix)
        g = torch.autograd.grad(
            outputs=o,
            inputs=mix,
            grad_outputs=torch.ones_like(o),
            create_graph=True,
            retain_graph=True,
        )[0]
        gp = ((g.view(g.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()
        loss = D(fake).mean() - D(real).mean() + 10 * gp
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [float(step(real, fake)) for _ in range(20)]


@script
def diffusion(torch, comp):
    nn = torch.nn
    T = 20
    betas = torch.linspace(1e-4, 0.2, T)
    al = 1 - betas
    ab = torch.cumprod(al, 0)

    def emb(t, d=8):
        h = d // 2
        f = torch.exp(torch.arange(h) * -(math.log(10000) / (h - 1)))
        e = t[:, None] * f[None, :]
        return torch.cat((e.sin(), e.cos()), dim=-1)

    net = fill(torch, nn.Sequential(nn.Linear(12, 16), nn.SiLU(), nn.Linear(16, 4)))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    x0, n, t = data(torch, 16, 4), data(torch, 16, 4, seed=5), ints(torch, T, 16)

    def step(x0, n, t):
        a = ab.gather(-1, t).reshape(t.shape[0], *((1,) * (len(x0.shape) - 1)))
        xt = a.sqrt() * x0 + (1 - a).sqrt() * n
        loss = nn.functional.mse_loss(net(torch.cat([xt, emb(t)], 1)), n)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    out = [float(step(x0, n, t)) for _ in range(20)]
    x = n.clone()
    with torch.no_grad():
        for k in reversed(range(T)):
            tt = torch.full((16,), k, dtype=torch.long)
            e = net(torch.cat([x, emb(tt)], 1))
            x = (x - betas[k] / torch.sqrt(1 - ab[k]) * e) / torch.sqrt(al[k])
    return out + [float(x.sum())]


@script
def realnvp(torch, comp):
    nn = torch.nn
    D = torch.distributions

    class C(nn.Module):
        def __init__(s, m):
            super().__init__()
            s.register_buffer("m", m)
            s.s = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh())
            s.t = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))

        def forward(s, x):
            xm = x * s.m
            sc, t = s.s(xm) * (1 - s.m), s.t(xm) * (1 - s.m)
            return xm + (1 - s.m) * (x * torch.exp(sc) + t), sc.sum(-1)

    fl = nn.ModuleList([C(torch.tensor([1.0, 0, 1, 0])), C(torch.tensor([0.0, 1, 0, 1]))])
    fill(torch, fl)
    base = D.MultivariateNormal(torch.zeros(4), torch.eye(4))
    opt = torch.optim.Adam(fl.parameters(), lr=1e-2)
    x = data(torch, 32, 4) * 2 + 1

    def step(x):
        ld = 0
        z = x
        for f in fl:
            z, l = f(z)
            ld = ld + l
        loss = -(base.log_prob(z) + ld).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [float(step(x)) for _ in range(20)]


@script
def neural_ode(torch, comp):
    nn = torch.nn
    net = fill(torch, nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)))
    opt = torch.optim.Adam(net.parameters(), lr=0.02)
    y0, ts, tgt = data(torch, 5, 2), torch.linspace(0, 1, 6), data(torch, 6, 5, 2, seed=3) * 0.5

    def rk4(f, y, t, h):
        k1 = f(t, y)
        k2 = f(t + h / 2, y + h / 2 * k1)
        k3 = f(t + h / 2, y + h / 2 * k2)
        k4 = f(t + h, y + h * k3)
        return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def step(y0, tgt):
        ys = [y0]
        for a, b in itertools.pairwise(ts):
            ys.append(rk4(lambda t, y: net(y**3) * (1 + t), ys[-1], a, b - a))
        loss = (torch.stack(ys) - tgt).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [float(step(y0, tgt)) for _ in range(20)]


@script
def gp_cholesky(torch, comp):
    x, y = data(torch, 12, 1), data(torch, 12, seed=3)
    ls, s, n = (torch.nn.Parameter(torch.tensor(v)) for v in (0.0, 0.0, -1.0))
    opt = torch.optim.Adam([ls, s, n], lr=0.05)

    def step(x, y):
        d = (x - x.T) / ls.exp()
        K = s.exp() * torch.exp(-0.5 * d**2) + (n.exp() + 1e-4) * torch.eye(12)
        L = torch.linalg.cholesky(K)
        al = torch.cholesky_solve(y[:, None], L)
        loss = 0.5 * (y @ al).squeeze() + L.diagonal().log().sum() + 6 * math.log(2 * math.pi)
        m = torch.distributions.MultivariateNormal(torch.zeros(12), K)
        loss = (
            loss
            - m.log_prob(y) * 0.5
            + torch.linalg.slogdet(K)[1] * 0.1
            + torch.linalg.solve(K, y).sum() * 0.01
            + torch.linalg.eigvalsh(K)[-1] * 0.01
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [float(step(x, y)) for _ in range(20)]


@script
def reinforce(torch, comp):
    nn = torch.nn
    D = torch.distributions
    pol = fill(torch, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    opt = torch.optim.Adam(pol.parameters(), lr=1e-2)
    s, a = data(torch, 12, 4), ints(torch, 3, 12)
    out = []
    eps = np.finfo(np.float32).eps.item()
    for k in range(20):
        R = 0
        rets = collections.deque()
        for r in [math.sin(i + k) for i in range(12)][::-1]:
            R = r + 0.99 * R
            rets.appendleft(R)
        rets = torch.tensor(rets)
        rets = (rets - rets.mean()) / (rets.std() + eps)
        d = D.Categorical(logits=pol(s))
        lp = d.log_prob(a)
        loss = torch.stack([-l * r for l, r in zip(lp, rets)]).sum() - 0.01 * d.entropy().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        out.append(loss.item())
    return out


@script
def ppo(torch, comp):
    nn = torch.nn
    D = torch.distributions

    class AC(nn.Module):
        def __init__(s):
            super().__init__()
            s.b = nn.Linear(4, 8)
            s.mu = nn.Linear(8, 2)
            s.ls = nn.Parameter(torch.zeros(2))
            s.v = nn.Linear(8, 1)

        def forward(s, x):
            h = torch.tanh(s.b(x))
            return D.Independent(D.Normal(s.mu(h), s.ls.exp().expand_as(s.mu(h))), 1), s.v(
                h
            ).squeeze(-1)

    net = fill(torch, AC())
    opt = torch.optim.Adam(net.parameters(), lr=1e-2, eps=1e-5)
    x, a, ret = data(torch, 20, 4), data(torch, 20, 2, seed=3), data(torch, 20, seed=5)
    with torch.no_grad():
        d, v = net(x)
        old = d.log_prob(a)
        adv = ret - v
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)

    def step(x, a, old, adv, ret):
        d, v = net(x)
        ratio = (d.log_prob(a) - old).exp()
        s1, s2 = ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv
        loss = -torch.min(s1, s2).mean() + 0.5 * (ret - v).pow(2).mean() - 0.01 * d.entropy().mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        return loss

    step = comp(step)
    return [float(step(x, a, old, adv, ret)) for _ in range(20)]


@script
def dqn(torch, comp):
    nn = torch.nn
    q = fill(torch, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    tgt = copy.deepcopy(q)
    opt = torch.optim.AdamW(q.parameters(), lr=1e-2, amsgrad=True)
    s, s2, a, r = (
        data(torch, 16, 4),
        data(torch, 16, 4, seed=3),
        ints(torch, 2, 16, 1),
        data(torch, 16, seed=6),
    )
    nonf = torch.tensor([i % 3 != 0 for i in range(16)], dtype=torch.bool)
    out = []
    for _i in range(20):
        qa = q(s).gather(1, a)
        nv = torch.zeros(16)
        with torch.no_grad():
            nv[nonf] = tgt(s2[nonf]).max(1).values
        loss = nn.SmoothL1Loss()(qa, (nv * 0.99 + r).unsqueeze(1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(q.parameters(), 100)
        opt.step()
        ts, qs = tgt.state_dict(), q.state_dict()
        for k in qs:
            ts[k] = qs[k] * 0.05 + ts[k] * 0.95
        tgt.load_state_dict(ts)
        out.append(loss.item())
    return out


@script
def evolution_vector(torch, comp):
    nn = torch.nn
    net = fill(torch, nn.Linear(4, 2))
    x, y = data(torch, 12, 4), data(torch, 12, 2, seed=3)
    v = nn.utils.parameters_to_vector(net.parameters()).detach()
    out = []
    r = np.random.default_rng(3)
    for _k in range(20):
        n = torch.tensor(r.normal(size=(10, v.numel())).astype(np.float32))
        R = torch.zeros(10)
        with torch.inference_mode():
            for i in range(10):
                nn.utils.vector_to_parameters(v + 0.1 * n[i], net.parameters())
                R[i] = -nn.functional.mse_loss(net(x), y)
        A = (R - R.mean()) / R.std()
        v = v + 0.05 / (10 * 0.1) * torch.mv(n.t(), A)
        out.append(R.max().item())
    return out
