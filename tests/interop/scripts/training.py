"""How networks are trained: data, hooks, precision, schedules, optimizers of one's own."""

import collections
import io

import numpy as np

from tests.interop.scripts.common import data, fill, ints, script


@script
def mlp_sgd_momentum(torch, comp):
    nn = torch.nn
    F = nn.functional
    net = fill(torch, nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    x, y = data(torch, 32, 8), ints(torch, 4, 32)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [step(x, y).item() for _ in range(20)]


@script
def dataset_collate_samplers(torch, comp):
    from importlib import import_module

    D = import_module(torch.__name__ + ".utils.data")
    nn = torch.nn

    class Var(D.Dataset):
        def __init__(s):
            s.rows = [
                np.random.default_rng(i).normal(size=(3 + i % 4, 5)).astype(np.float32)
                for i in range(24)
            ]

        def __len__(s):
            return len(s.rows)

        def __getitem__(s, i):
            return {"x": torch.from_numpy(s.rows[i]), "y": i % 3, "len": len(s.rows[i])}

    def collate(batch):
        batch.sort(key=lambda b: -b["len"])
        xs = nn.utils.rnn.pad_sequence([b["x"] for b in batch], batch_first=True)
        return xs, torch.tensor([b["y"] for b in batch]), torch.tensor([b["len"] for b in batch])

    samp = D.BatchSampler(D.SequentialSampler(Var()), batch_size=6, drop_last=True)
    loader = D.DataLoader(Var(), batch_sampler=samp, collate_fn=collate, num_workers=0)
    gru = fill(torch, nn.GRU(5, 7, batch_first=True, bidirectional=True, num_layers=2))
    head = fill(torch, nn.Linear(14, 3), 5)
    opt = torch.optim.AdamW(
        [{"params": gru.parameters()}, {"params": head.parameters(), "lr": 0.02}], lr=0.01
    )
    out = []
    for _e in range(5):
        for xs, ys, lens in loader:
            packed = nn.utils.rnn.pack_padded_sequence(xs, lens, batch_first=True)
            _, h = gru(packed)
            loss = nn.CrossEntropyLoss()(head(torch.cat([h[-2], h[-1]], 1)), ys)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(list(gru.parameters()) + list(head.parameters()), 0.5)
            opt.step()
            out.append(loss.item())
    return out


@script
def transfer_frozen_state_dict(torch, comp):
    nn = torch.nn

    def make():
        return nn.Sequential(
            collections.OrderedDict(
                body=nn.Sequential(
                    nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
                ),
                flat=nn.Flatten(),
                head=nn.Linear(4 * 16, 5),
            )
        )

    src = fill(torch, make())
    net = fill(torch, make(), 9)
    sd = {k: v for k, v in src.state_dict().items() if not k.startswith("head")}
    r = net.load_state_dict(sd, strict=False)
    assert sorted(r.missing_keys) == ["head.bias", "head.weight"], r
    for p in net.body.parameters():
        p.requires_grad = False
    opt = torch.optim.Adam(filter(lambda p: p.requires_grad, net.parameters()), lr=0.01)
    x, y = data(torch, 12, 1, 8, 8), ints(torch, 5, 12)
    net.train()
    net.body.eval()

    def step(x, y):
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    step = comp(step)
    out = [float(step(x, y)) for _ in range(15)]
    net.body.train()
    out += [float(step(x, y)) for _ in range(5)]
    buf = io.BytesIO()
    torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "epoch": 3}, buf)
    buf.seek(0)
    ck = torch.load(buf)
    net2 = make()
    net2.load_state_dict(ck["net"])
    net2.eval()
    out.append(float(net2(x).sum()))
    out.append(float(net2.body[1].running_var.sum()))
    out.append(int(net2.body[1].num_batches_tracked))
    return out


@script
def custom_function(torch, comp):
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, lo, hi):
            ctx.save_for_backward(x)
            ctx.lims = lo, hi
            return x.clamp(lo, hi)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            lo, hi = ctx.lims
            return g * ((x > lo * 2) & (x < hi * 2)).to(g.dtype), None, None

    class STE(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return (x > 0).float()

        @staticmethod
        def backward(ctx, g):
            return torch.nn.functional.hardtanh(g)

    nn = torch.nn
    net = fill(torch, nn.Linear(6, 6))
    opt = torch.optim.RMSprop(net.parameters(), lr=0.01, momentum=0.5, centered=True)
    x, y = data(torch, 10, 6), data(torch, 10, 6, seed=4)

    def step(x, y):
        h = Clip.apply(net(x), -0.5, 0.5)
        loss = ((h + 0.3 * STE.apply(net(x) - 0.1) - y) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [float(step(x, y)) for _ in range(20)]


@script
def hooks(torch, comp):
    nn = torch.nn
    net = fill(torch, nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    out = []
    seen = {}
    net[1].register_forward_hook(lambda m, i, o: seen.__setitem__("act", o.detach()))
    net[0].register_forward_pre_hook(lambda m, i: (i[0] * 1.1,))
    net[2].register_full_backward_hook(
        lambda m, gi, go: seen.__setitem__("gi", gi[0]) or (gi[0] * 0.9,)
    )
    h = net[0].weight.register_hook(lambda g: g * 0.5)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = data(torch, 16, 4), data(torch, 16, 1, seed=3)
    for i in range(20):
        if i == 10:
            h.remove()
        loss = nn.functional.smooth_l1_loss(net(x), y, beta=0.5)
        opt.zero_grad()
        loss.backward()
        opt.step()
        out += [loss.item(), float(seen["act"].std()), float(seen["gi"].abs().sum())]
    return out


@script
def amp_gradscaler_cpu(torch, comp):
    nn = torch.nn
    net = fill(torch, nn.Sequential(nn.Linear(5, 9), nn.GELU(), nn.LayerNorm(9), nn.Linear(9, 2)))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3, amsgrad=True)
    sc = torch.amp.GradScaler("cpu", enabled=True, init_scale=256.0, growth_interval=5)
    x, y = data(torch, 20, 5), data(torch, 20, 2, seed=7)
    out = []
    for _i in range(20):
        opt.zero_grad()
        with torch.autocast("cpu", enabled=False):
            loss = nn.functional.mse_loss(net(x), y)
        sc.scale(loss).backward()
        sc.unscale_(opt)
        n = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        sc.step(opt)
        sc.update()
        out += [loss.item(), float(n), sc.get_scale()]
    return out


@script
def schedulers(torch, comp):
    nn = torch.nn
    L = torch.optim.lr_scheduler
    out = []
    mk = {
        "one": lambda o: L.OneCycleLR(o, max_lr=0.2, total_steps=25),
        "oneb": lambda o: L.OneCycleLR(
            o, max_lr=[0.2], epochs=5, steps_per_epoch=5, anneal_strategy="linear", three_phase=True
        ),
        "cos": lambda o: L.CosineAnnealingLR(o, 8, eta_min=1e-3),
        "warm": lambda o: L.CosineAnnealingWarmRestarts(o, 4, 2),
        "poly": lambda o: L.PolynomialLR(o, 15, 2.0),
        "seq": lambda o: L.SequentialLR(
            o, [L.LinearLR(o, 0.1, total_iters=4), L.ExponentialLR(o, 0.9)], milestones=[4]
        ),
        "chain": lambda o: L.ChainedScheduler([L.ConstantLR(o, 0.3, 3), L.StepLR(o, 4, 0.5)]),
        "lam": lambda o: L.LambdaLR(o, lambda e: 1 / (e + 1)),
        "mul": lambda o: L.MultiplicativeLR(o, lambda e: 0.95),
        "multi": lambda o: L.MultiStepLR(o, [3, 9, 9], 0.3),
        "cyc": lambda o: L.CyclicLR(o, 0.01, 0.2, 3, mode="triangular2", cycle_momentum=False),
    }
    for _k, m in mk.items():
        net = fill(torch, nn.Linear(3, 1))
        opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        sch = m(opt)
        x, y = data(torch, 9, 3), data(torch, 9, 1, seed=8)
        for _i in range(20):
            loss = nn.functional.mse_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sch.step()
            out += [loss.item(), sch.get_last_lr()[0], opt.param_groups[0]["momentum"]]
    return out


@script
def plateau_earlystop(torch, comp):
    nn = torch.nn
    net = fill(torch, nn.Linear(3, 1))
    opt = torch.optim.Adagrad(net.parameters(), lr=0.5, lr_decay=0.01)
    sch = torch.optim.lr_scheduler.ReduceLROnPlateau(
        opt, mode="min", factor=0.3, patience=1, threshold=0.05, cooldown=1, min_lr=1e-3
    )
    x, y = data(torch, 9, 3), data(torch, 9, 1, seed=8)
    out = []
    for _i in range(25):
        loss = nn.functional.huber_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sch.step(loss.item())
        out += [loss.item(), opt.param_groups[0]["lr"]]
    return out


@script
def ema_swa(torch, comp):
    nn = torch.nn
    U = torch.optim.swa_utils
    net = fill(torch, nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1)))
    ema = U.AveragedModel(net, multi_avg_fn=U.get_ema_multi_avg_fn(0.9))
    swa = U.AveragedModel(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    ss = U.SWALR(opt, swa_lr=0.01, anneal_epochs=3)
    x, y = data(torch, 16, 4), data(torch, 16, 1, seed=3)
    out = []
    for i in range(20):
        loss = nn.functional.l1_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update_parameters(net)
        if i > 5:
            swa.update_parameters(net)
            ss.step()
        out.append(loss.item())
    U.update_bn([x[:8], x[8:]], swa)
    swa.eval()
    ema.eval()
    return out + [float(swa(x).sum()), float(ema(x).sum()), int(swa.n_averaged)]


@script
def accumulation(torch, comp):
    nn = torch.nn
    net = fill(torch, nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 3)))
    opt = torch.optim.NAdam(
        net.parameters(), lr=0.01, weight_decay=1e-2, decoupled_weight_decay=True
    )
    x, y = data(torch, 32, 6), ints(torch, 3, 32)
    out = []
    for _i in range(20):
        opt.zero_grad()
        for xb, yb in zip(x.chunk(4), y.split(8)):
            (nn.functional.cross_entropy(net(xb), yb, reduction="sum") / 32).backward()
        total = sum(p.grad.detach().pow(2).sum() for p in net.parameters()) ** 0.5
        nn.utils.clip_grad_value_(net.parameters(), 0.05)
        opt.step()
        out.append(float(total))
    return out


@script
def checkpointing(torch, comp):
    import importlib

    ck = importlib.import_module(torch.__name__ + ".utils.checkpoint")
    nn = torch.nn
    net = fill(torch, nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.ELU()) for _ in range(4)]))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = data(torch, 8, 6), data(torch, 8, 6, seed=3)

    def step(x, y):
        h = x
        for i, b in enumerate(net):
            h = ck.checkpoint(b, h, use_reentrant=False) if i % 2 else b(h)
        h = ck.checkpoint_sequential(nn.Sequential(*net), 2, h, use_reentrant=False)
        loss = nn.functional.mse_loss(h, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [float(step(x, y)) for _ in range(20)]


@script
def custom_optimizer_module_api(torch, comp):
    nn = torch.nn

    class Lion(torch.optim.Optimizer):
        def __init__(s, params, lr=1e-2, betas=(0.9, 0.99), wd=0.0):
            super().__init__(params, {"lr": lr, "betas": betas, "wd": wd})

        @torch.no_grad()
        def step(s, closure=None):
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            for g in s.param_groups:
                for p in filter(lambda p: p.grad is not None, g["params"]):
                    st = s.state[p]
                    if len(st) == 0:
                        st["m"] = torch.zeros_like(p)
                    b1, b2 = g["betas"]
                    p.mul_(1 - g["lr"] * g["wd"])
                    u = st["m"].clone().mul_(b1).add(p.grad, alpha=1 - b1).sign_()
                    p.add_(u, alpha=-g["lr"])
                    st["m"].mul_(b2).add_(p.grad, alpha=1 - b2)
            return loss

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            s.sc = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(3)])
            s.register_buffer("m", torch.zeros(4))
            s.apply(s.ini)

        def ini(s, m):
            if isinstance(m, nn.Linear):
                nn.init.zeros_(m.bias)

        def forward(s, x):
            for b, c in zip(s.blocks, s.sc):
                x = x + c * torch.tanh(b(x))
            if s.training:
                s.m.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            return x - s.m

    net = fill(torch, Net())
    opt = Lion(net.parameters(), wd=0.1)
    x, y = data(torch, 8, 4), data(torch, 8, 4, seed=3)
    sch = torch.optim.lr_scheduler.StepLR(opt, 5, 0.5)

    def step(x, y):
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    out = []
    for _ in range(20):
        out.append(float(step(x, y)))
        sch.step()
    return out + [
        sum(p.numel() for p in net.parameters()),
        len(list(net.named_modules())),
        len(list(net.children())),
        float(net.m.sum()),
    ]


@script
def parametrizations(torch, comp):
    nn = torch.nn
    P = nn.utils.parametrize

    class Sym(nn.Module):
        def forward(s, X):
            return X.triu() + X.triu(1).transpose(-1, -2)

        def right_inverse(s, A):
            return A.triu()

    class Exp(nn.Module):
        def forward(s, X):
            return torch.matrix_exp(X - X.T)

    l = fill(torch, nn.Linear(4, 4))
    P.register_parametrization(l, "weight", Sym())
    m = fill(torch, nn.Linear(4, 4), 3)
    P.register_parametrization(m, "weight", Exp(), unsafe=True)
    w = nn.utils.parametrizations.weight_norm(fill(torch, nn.Linear(4, 3), 4), dim=0)
    net = nn.Sequential(l, m, w)
    opt = torch.optim.Adam(net.parameters(), lr=0.02)
    x, y = data(torch, 8, 4), data(torch, 8, 3, seed=3)
    assert P.is_parametrized(l, "weight")
    out = []

    def step(x, y):
        with P.cached():
            loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    out = [float(step(x, y)) for _ in range(20)]
    l.weight = torch.eye(4)
    P.remove_parametrizations(l, "weight", leave_parametrized=True)
    return out + l.weight.flatten().tolist() + [float(net(x).sum())] + [len(net.state_dict())]
