"""Transformations of functions, transforms of Fourier, indexing."""

import copy

from tests.interop.scripts.common import data, fill, script


@script
def func_transforms(torch, comp):
    f = torch.func
    x = data(torch, 5)
    out = []

    def g(x, a=1.0):
        return torch.stack([torch.sin(x).sum() * a, (x**3).sum(), x.prod()])

    out += (
        f.jacrev(g)(x).flatten().tolist()
        + f.jacfwd(g)(x).flatten().tolist()
        + f.hessian(lambda x: (x**2).sum() ** 2)(x).flatten().tolist()
    )
    out += (
        f.vmap(f.grad(lambda w, x: torch.tanh(w @ x).sum()), in_dims=(None, 0))(
            data(torch, 3, 4), data(torch, 6, 4, seed=2)
        )
        .flatten()
        .tolist()
    )
    _, vjp = f.vjp(g, x)
    out += vjp(torch.ones(3))[0].tolist()
    _, t = f.jvp(g, (x,), (torch.ones(5),))
    out += t.tolist()
    (gr, aux) = f.grad_and_value(lambda x: (x**2).sum())(x)
    out += gr.tolist() + [float(aux)]
    gr, aux = f.grad(lambda x: ((x**2).sum(), x * 2), has_aux=True)(x)
    out += aux.tolist()
    out += f.vmap(lambda x, y: torch.dot(x, y), in_dims=(0, 1), out_dims=0)(
        data(torch, 3, 4), data(torch, 4, 3, seed=3)
    ).tolist()
    out += f.linearize(g, x)[1](torch.ones(5)).tolist()
    out += (
        f.vmap(lambda x: torch.where(x > 0, x, x.exp()).cumsum(-1), in_dims=1, out_dims=1)(
            data(torch, 3, 4)
        )
        .flatten()
        .tolist()
    )
    out += (
        f.vmap(f.hessian(lambda x: torch.logsumexp(x, 0)), chunk_size=2)(data(torch, 4, 3))
        .flatten()
        .tolist()
    )
    return out


@script
def ensembling_functional_call(torch, comp):
    nn = torch.nn
    f = torch.func
    ms = [
        fill(torch, nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), i) for i in range(4)
    ]
    params, buffers = f.stack_module_state(ms)
    base = copy.deepcopy(ms[0])

    def fm(p, b, x):
        return f.functional_call(base, (p, b), (x,))

    x, y = data(torch, 9, 3), data(torch, 9, 2, seed=4)
    out = f.vmap(fm, in_dims=(0, 0, None))(params, buffers, x).flatten().tolist()

    def loss(p, b, x, y):
        return nn.functional.mse_loss(
            f.functional_call(base, (p, b), (x.unsqueeze(0),)), y.unsqueeze(0)
        )

    p = {k: v.detach() for k, v in ms[1].named_parameters()}
    g = f.vmap(f.grad(loss), in_dims=(None, None, 0, 0), randomness="different")(p, {}, x, y)
    for k in g:
        out += g[k].pow(2).sum(tuple(range(1, g[k].dim()))).tolist()
    for _ in range(10):  # inner SGD, MAML
        gp = f.grad(loss)(p, {}, x[0], y[0])
        p = {k: v - 0.1 * gp[k] for k, v in p.items()}
        out.append(float(loss(p, {}, x[0], y[0])))
    return out


@script
def ntk_maml_outer(torch, comp):
    nn = torch.nn
    f = torch.func
    net = fill(torch, nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    x, y = data(torch, 8, 2), data(torch, 8, 1, seed=2)

    def task(x, y):
        p = dict(net.named_parameters())
        l = nn.functional.mse_loss(f.functional_call(net, p, x), y)
        g = torch.autograd.grad(l, p.values(), create_graph=True)
        fast = {k: v - 0.1 * gg for (k, v), gg in zip(p.items(), g)}
        return nn.functional.mse_loss(f.functional_call(net, fast, x), y)

    def step(x, y):
        loss = task(x[:4], y[:4]) + task(x[4:], y[4:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [float(step(x, y)) for _ in range(20)]


@script
def fft_conv(torch, comp):
    nn = torch.nn
    w = nn.Parameter(data(torch, 3, 9, 2) * 0.3)
    opt = torch.optim.Adam([w], lr=0.02)
    x, y = data(torch, 4, 3, 16), data(torch, 4, 3, 16, seed=4)

    def step(x, y):
        X = torch.fft.rfft(x, norm="ortho")
        o = torch.fft.irfft(X * torch.view_as_complex(w), n=16, norm="ortho")
        sp = (
            torch.fft.fft2(o[0]).abs().pow(2).mean()
            + torch.fft.fftshift(torch.fft.fft(y)).angle().mean()
        )
        loss = (o - y).pow(2).mean() + 1e-3 * sp
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [float(step(x, y)) for _ in range(20)]


@script
def stft_audio(torch, comp):
    x = data(torch, 2, 400)
    win = torch.hann_window(64)
    w = torch.nn.Parameter(torch.ones(33, 1))
    opt = torch.optim.SGD([w], lr=0.5)
    out = []
    for _ in range(5):
        s = torch.stft(x, 64, hop_length=16, window=win, return_complex=True, center=True)
        m = torch.log1p((s.abs() * w).pow(2))
        r = torch.istft(s * w, 64, hop_length=16, window=win, length=400)
        loss = m.mean() + (r - x * 0.5).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        out.append(loss.item())
    return out


@script
def lbfgs_closure(torch, comp):
    p = torch.nn.Parameter(data(torch, 6))
    A = data(torch, 6, 6)
    opt = torch.optim.LBFGS([p], lr=1, max_iter=6, history_size=5, line_search_fn="strong_wolfe")
    out = []

    def closure():
        opt.zero_grad()
        l = ((A @ p).pow(2).sum() - p.sum()) + (p**4).sum()
        l.backward()
        return l

    for _ in range(5):
        out.append(float(opt.step(closure)))
    q = torch.nn.Parameter(data(torch, 6))
    o2 = torch.optim.LBFGS([q], lr=0.1)
    for _ in range(3):

        def c2():
            o2.zero_grad()
            l = (q**2).sum() + q.sin().sum()
            l.backward()
            return l

        out.append(float(o2.step(c2)))
    return out + p.tolist()


@script
def in_place_indexing(torch, comp):
    w = torch.nn.Parameter(data(torch, 5, 5))
    opt = torch.optim.SGD([w], lr=0.05)
    idx = torch.tensor([0, 2, 2])

    def step(w_):
        a = w.clone()
        a[idx] *= 2
        a[:, 1] = a[:, 0].exp().clamp(max=3)
        a[a > 1] -= 0.5
        a[torch.arange(5), torch.arange(5).flip(0)] = 0.3 * w.diagonal()
        a.index_put_(
            (torch.tensor([1, 1]), torch.tensor([2, 2])), torch.tensor([1.0, 1.0]), accumulate=True
        )
        b = a.view(-1)[3:].unfold(0, 4, 3)
        c = torch.cat(
            [
                b.mean(1),
                a.sort(0).values[0],
                a.cumsum(1)[:, -1],
                a.kthvalue(2, 1).values,
                torch.tril(a, -1).sum(0),
                a.roll(1, 0)[0],
                a.median(1)[0],
                a.flip(1)[:, 0],
            ]
        )
        loss = c.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [float(step(None)) for _ in range(20)]
