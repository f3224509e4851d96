"""What is carried from step to step: optimizers, schedules, modules, gradients."""

import copy
import io
import math

import numpy as np

from tests.interop.scripts.common import data, fill, script


@script
def resume_mid_training(torch, comp):
    nn = torch.nn
    L = torch.optim.lr_scheduler
    out = []

    def make():
        net = fill(
            torch,
            nn.Sequential(
                nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=None), nn.ReLU(), nn.Linear(6, 2)
            ),
        )
        opt = torch.optim.Adam(
            [
                {"params": net[0].parameters(), "lr": 0.02},
                {"params": list(net[1].parameters()) + list(net[3].parameters())},
            ],
            lr=0.01,
            weight_decay=0.01,
            maximize=False,
        )
        sch = L.SequentialLR(
            opt, [L.LinearLR(opt, 0.1, total_iters=3), L.CosineAnnealingLR(opt, 10)], milestones=[3]
        )
        return net, opt, sch

    net, opt, sch = make()
    x, y = data(torch, 12, 4), data(torch, 12, 2, seed=3)

    def run(net, opt, sch, k):
        for _ in range(k):
            l = nn.functional.mse_loss(net(x), y)
            opt.zero_grad()
            l.backward()
            opt.step()
            sch.step()
            out.extend([l.item()] + [g["lr"] for g in opt.param_groups])

    run(net, opt, sch, 5)
    b = io.BytesIO()
    torch.save([net.state_dict(), opt.state_dict(), sch.state_dict()], b)
    run(net, opt, sch, 5)
    b.seek(0)
    st = torch.load(b)
    n2, o2, s2 = make()
    n2.load_state_dict(st[0])
    o2.load_state_dict(st[1])
    s2.load_state_dict(st[2])
    run(n2, o2, s2, 5)
    o2.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 0.5})
    out.append(len(o2.param_groups))
    out.append(float(next(iter(o2.state.values()))["step"]))
    return out


@script
def optim_variants(torch, comp):
    nn = torch.nn
    O = torch.optim
    out = []
    x, y = data(torch, 9, 3), data(torch, 9, 1, seed=8)
    for mk in (
        lambda p: O.SGD(p, 0.1, momentum=0.9, dampening=0.3, maximize=True),
        lambda p: O.Adadelta(p, lr=1.0, rho=0.8),
        lambda p: O.ASGD(p, lr=0.05, t0=2),
        lambda p: O.Rprop(p, lr=0.02, etas=(0.4, 1.3)),
        lambda p: O.RMSprop(p, lr=0.02, alpha=0.9, weight_decay=0.1),
        lambda p: O.Adagrad(p, lr=0.1, initial_accumulator_value=0.2),
        lambda p: O.RAdam(p, lr=0.05, decoupled_weight_decay=True, weight_decay=0.1),
        lambda p: O.Adamax(p, lr=0.1),
        lambda p: O.NAdam(p, lr=0.05, momentum_decay=0.01),
        lambda p: O.AdamW(p, lr=0.05, foreach=False),
        lambda p: O.Adam(p, lr=torch.tensor(0.05)),
        lambda p: O.Adafactor(p, lr=0.1),
    ):
        net = fill(torch, nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
        opt = mk(net.parameters())
        for _ in range(12):
            l = nn.functional.mse_loss(net(x), y)
            opt.zero_grad()
            l.backward()
            opt.step()
            out.append(l.item())
    return out


@script
def module_api(torch, comp):
    nn = torch.nn
    out = []

    class A(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.ModuleList([nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))])
            s.register_buffer("b", torch.ones(3), persistent=False)
            s.register_parameter("n", None)
            s.d = nn.ParameterDict({"x": nn.Parameter(torch.ones(2))})
            s.tied = s.l[0]

        def forward(s, x):
            return s.l[1](s.l[0](x)) * s.d["x"]

    a = fill(torch, A())
    names = [n for n, _ in a.named_parameters()]
    out += [
        len(names),
        len(list(a.named_parameters(remove_duplicate=False))),
        len(a.state_dict()),
        len(list(a.named_buffers())),
        len(list(a.modules())),
        len(list(a.named_children())),
        sum(len(n) for n in names),
    ]
    assert a.get_submodule("l.1.0") is a.l[1][0] and a.get_parameter("l.0.weight") is a.l[0].weight
    a.eval()
    out += [float(a.l[1][1].training), a(data(torch, 3, 2)).sum().item()]
    a.requires_grad_(False)
    out += [sum(p.requires_grad for p in a.parameters())]
    b = copy.deepcopy(a).double()
    out += [b.d["x"].dtype == torch.float64, b.tied is b.l[0]]
    try:
        a.load_state_dict({"zzz": torch.ones(1)})
        out.append(0)
    except RuntimeError as e:
        out.append(len(str(e)) > 10)
    r = a.load_state_dict({k: v * 2 for k, v in a.state_dict().items()}, strict=True)
    out += [len(r.missing_keys), a.l[0].weight.sum().item()]
    s = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    out += [len(s[:2]), len(s)]
    s.append(nn.Sigmoid())
    s.insert(1, nn.Identity())
    del s[2]
    out += [len(s)]
    s.extend([nn.Tanh()])
    out += [len(s)]
    a.apply(lambda m: nn.init.constant_(m.weight, 0.1) if isinstance(m, nn.Linear) else None)
    out += [a.l[0].weight.sum().item()]
    out += [len(repr(a).splitlines())]
    return [float(v) for v in out]


@script
def grad_modes(torch, comp):
    out = []
    x = data(torch, 4).requires_grad_()
    y = x**2
    with torch.no_grad():
        z = y * 2
    out += [z.requires_grad, y.requires_grad]
    with torch.set_grad_enabled(False):
        out += [(x * 2).requires_grad]
    with torch.inference_mode():
        out += [(x * 2).requires_grad]

    @torch.no_grad()
    def f(x):
        return x * 2

    out += [f(x).requires_grad]
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    out += x.grad.tolist()
    x.grad.zero_()
    (x.detach() * x).sum().backward()
    out += x.grad.tolist()
    x.grad = None
    u = x * 3
    u.retain_grad()
    (u**2).sum().backward()
    out += u.grad.tolist()
    v = x.clone()
    v[1:3] = 0
    v.sum().backward()
    out += x.grad.tolist()
    w = data(torch, 3, 3).requires_grad_()
    g = torch.autograd.grad((w @ w).sum(), w, create_graph=True)[0]
    gg = torch.autograd.grad(g.pow(2).sum(), w)[0]
    out += gg.flatten().tolist()
    a = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    (torch.where(a > 0, torch.log(a.clamp(min=1e-6)), torch.zeros(3)).sum()).backward()
    out += a.grad.tolist()
    a.grad = None
    torch.sqrt(a).sum().backward()
    out += [float(np.isinf(a.grad[0].item()))]
    a.grad = None
    a.abs().sum().backward()
    out += a.grad.tolist()
    a.grad = None
    torch.max(a, torch.tensor([0.0, 3.0, 2.0])).sum().backward()
    out += a.grad.tolist()
    a.grad = None
    a.max().backward()
    out += a.grad.tolist()
    a.grad = None
    torch.relu(a).sum().backward()
    out += a.grad.tolist()
    a.grad = None
    a.norm().backward()
    out += a.grad.tolist()
    a.grad = None
    (a - a).norm().backward()
    out += a.grad.tolist()
    a.grad = None
    a.prod().backward()
    out += a.grad.tolist()
    a.grad = None
    a.std().backward()
    out += a.grad.tolist()
    a.grad = None
    a.median().backward()
    out += a.grad.tolist()
    return [float(v) for v in out]


@script
def sde_langevin_stateful(torch, comp):
    r = np.random.default_rng(5)
    noise = torch.tensor(r.normal(size=(20, 3)).astype(np.float32))
    w = torch.zeros(3, requires_grad=True)
    A = torch.tensor([[2.0, 0.5, 0], [0.5, 1, 0.2], [0, 0.2, 1.5]])
    out = []
    avg = torch.zeros(3)
    for t in range(20):
        e = 0.5 * w @ A @ w - w.sum()
        e.backward()
        with torch.no_grad():
            w -= 0.05 * w.grad
            w += math.sqrt(0.1) * noise[t] * 0.1
            w.grad.zero_()
            avg = avg * t / (t + 1) + w / (t + 1)
        out += [e.item(), float(avg.norm())]
    w2 = torch.nn.Parameter(torch.ones(2))
    w2.data.mul_(3)
    w2.data = w2.data / 2
    w2.data[0] = 7
    out += w2.tolist()
    w2.data.clamp_(0, 2)
    out += w2.tolist()
    return out
