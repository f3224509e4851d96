"""Networks of all kinds, trained for some steps."""

import math

from tests.interop.scripts.common import data, fill, ints, script


@script
def transformer_encdec(torch, comp):
    nn = torch.nn
    tr = nn.Transformer(
        d_model=8,
        nhead=2,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dim_feedforward=16,
        dropout=0.0,
        batch_first=True,
        activation="gelu",
    )

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.e = nn.Embedding(11, 8, padding_idx=0)
            s.pos = nn.Parameter(torch.zeros(1, 10, 8))
            s.tr = tr
            s.o = nn.Linear(8, 11)

        def forward(s, src, tgt):
            m = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
            a = s.e(src) * math.sqrt(8) + s.pos[:, : src.size(1)]
            b = s.e(tgt) * math.sqrt(8) + s.pos[:, : tgt.size(1)]
            return s.o(
                s.tr(
                    a,
                    b,
                    tgt_mask=m,
                    src_key_padding_mask=src == 0,
                    tgt_key_padding_mask=tgt == 0,
                    memory_key_padding_mask=src == 0,
                    tgt_is_causal=False,
                )
            )

    net = fill(torch, Net())
    src, tgt = ints(torch, 10, 4, 7) + 1, ints(torch, 10, 4, 6, seed=5) + 1
    src[1, 5:] = 0
    src[3, 3:] = 0
    tgt[2, 4:] = 0
    opt = torch.optim.Adam(net.parameters(), lr=1e-2, betas=(0.9, 0.98), eps=1e-9)
    crit = nn.CrossEntropyLoss(ignore_index=0)

    def step(src, tgt):
        logits = net(src, tgt[:, :-1])
        loss = crit(logits.reshape(-1, 11), tgt[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [step(src, tgt).item() for _ in range(20)] + [float(net.e.weight.grad[0].abs().sum())]


@script
def gpt_scratch(torch, comp):
    nn = torch.nn
    F = nn.functional

    class Block(nn.Module):
        def __init__(s, d, h):
            super().__init__()
            s.h = h
            s.qkv = nn.Linear(d, 3 * d, bias=False)
            s.p = nn.Linear(d, d)
            s.l1 = nn.LayerNorm(d)
            s.l2 = nn.LayerNorm(d)
            s.m = nn.Sequential(
                nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d)
            )
            s.register_buffer("mask", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

        def forward(s, x):
            B, T, C = x.size()
            q, k, v = s.qkv(s.l1(x)).split(C, dim=2)
            q, k, v = (t.view(B, T, s.h, C // s.h).transpose(1, 2) for t in (q, k, v))
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(s.mask[:, :, :T, :T] == 0, float("-inf"))
            y = F.softmax(att, -1) @ v
            y2 = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            y = (0.5 * y + 0.5 * y2).transpose(1, 2).contiguous().view(B, T, C)
            x = x + s.p(y)
            return x + s.m(s.l2(x))

    class GPT(nn.Module):
        def __init__(s):
            super().__init__()
            s.t = nn.ModuleDict(
                {
                    "wte": nn.Embedding(13, 8),
                    "wpe": nn.Embedding(16, 8),
                    "h": nn.ModuleList([Block(8, 2) for _ in range(2)]),
                    "f": nn.LayerNorm(8),
                }
            )
            s.head = nn.Linear(8, 13, bias=False)
            s.t.wte.weight = s.head.weight

        def forward(s, i):
            x = s.t.wte(i) + s.t.wpe(torch.arange(0, i.size(1), dtype=torch.long, device=i.device))
            for b in s.t.h:
                x = b(x)
            return s.head(s.t.f(x))

    net = fill(torch, GPT())
    i = ints(torch, 13, 4, 12)
    dec = [p for p in net.parameters() if p.dim() >= 2]
    nod = [p for p in net.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW(
        [{"params": dec, "weight_decay": 0.1}, {"params": nod, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.9, 0.95),
    )

    def step(i):
        lo = net(i[:, :-1])
        loss = F.cross_entropy(lo.view(-1, lo.size(-1)), i[:, 1:].contiguous().view(-1))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    step = comp(step)
    out = [step(i).item() for _ in range(20)]
    lo = net(i)[:, -1, :]
    v, _ = torch.topk(lo, 3)
    lo[lo < v[:, [-1]]] = -float("inf")
    return out + [float(F.softmax(lo, -1).max())]


@script
def lstm_lm_tbptt(torch, comp):
    nn = torch.nn

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.e = nn.Embedding(12, 6)
            s.l = nn.LSTM(6, 8, 2, proj_size=0)
            s.d = nn.Linear(8, 12)

        def forward(s, x, h):
            o, h = s.l(s.e(x), h)
            return s.d(o), h

    net = fill(torch, M())
    opt = torch.optim.SGD(net.parameters(), lr=1.0)
    tok = ints(torch, 12, 60)
    src = tok[:56].view(4, -1).t().contiguous()
    h = (torch.zeros(2, 4, 8), torch.zeros(2, 4, 8))
    out = []
    for _ep in range(4):
        for i in range(0, 12, 4):
            h = tuple(v.detach() for v in h)
            o, h = net(src[i : i + 4], h)
            loss = nn.functional.cross_entropy(o.view(-1, 12), src[i + 1 : i + 5].reshape(-1))
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.25)
            opt.step()
            out.append(loss.item())
    return out


@script
def seq2seq_attention(torch, comp):
    nn = torch.nn
    enc, dec, em, o = (
        fill(torch, nn.GRU(5, 6)),
        fill(torch, nn.GRUCell(11, 6), 2),
        fill(torch, nn.Embedding(9, 5), 3),
        fill(torch, nn.Linear(12, 9), 4),
    )
    ps = [p for m in (enc, dec, em, o) for p in m.parameters()]
    opt = torch.optim.Adamax(ps, lr=0.02)
    s, t = ints(torch, 9, 6, 3), ints(torch, 9, 5, 3, seed=6)

    def step(s, t):
        H, h = enc(em(s))
        h = h[0]
        inp = torch.zeros(3, dtype=torch.long)
        loss = 0
        for k in range(t.size(0)):
            a = torch.bmm(H.permute(1, 0, 2), h.unsqueeze(2)).squeeze(2).softmax(1)
            c = torch.bmm(a.unsqueeze(1), H.transpose(0, 1)).squeeze(1)
            h = dec(torch.cat((em(inp), c), 1), h)
            lg = o(torch.cat([h, c], 1))
            loss += nn.functional.cross_entropy(lg, t[k])
            inp = t[k] if k % 2 == 0 else lg.argmax(1).detach()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss / t.size(0)

    step = comp(step)
    return [float(step(s, t)) for _ in range(20)]


@script
def ctc_crf(torch, comp):
    nn = torch.nn
    w = nn.Parameter(data(torch, 12, 3, 6) * 0.3)
    tr = nn.Parameter(data(torch, 6, 6, seed=3) * 0.1)
    opt = torch.optim.Adam([w, tr], lr=0.05)
    tg = ints(torch, 5, 3, 4) + 1
    il = torch.tensor([12, 10, 9])
    tl = torch.tensor([4, 3, 2])

    def step(tg):
        lp = w.log_softmax(2)
        a = lp[0]
        for t in range(1, 12):
            a = torch.logsumexp(a.unsqueeze(2) + tr + lp[t].unsqueeze(1), dim=1)
        loss = (
            nn.functional.ctc_loss(lp, tg, il, tl, blank=0, reduction="mean", zero_infinity=True)
            + 0.1 * a.logsumexp(1).mean()
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [float(step(tg)) for _ in range(20)]


@script
def unet_conv(torch, comp):
    nn = torch.nn
    F = nn.functional

    class U(nn.Module):
        def __init__(s):
            super().__init__()
            s.c1 = nn.Conv2d(2, 4, 3, padding="same")
            s.c2 = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2)
            s.g = nn.GroupNorm(2, 8)
            s.u = nn.ConvTranspose2d(8, 4, 2, stride=2)
            s.c3 = nn.Conv2d(8, 1, 3, padding=1, padding_mode="reflect")

        def forward(s, x):
            a = F.relu(s.c1(x))
            b = F.mish(s.g(s.c2(a)))
            return s.c3(torch.cat([a, s.u(b)], 1)) + F.interpolate(
                F.avg_pool2d(x[:, :1], 2), scale_factor=2, mode="bilinear", align_corners=False
            )

    net = fill(torch, U())
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    x, y = data(torch, 2, 2, 8, 8), (data(torch, 2, 1, 8, 8, seed=4) > 0).float()

    def step(x, y):
        lo = net(x)
        p = lo.sigmoid()
        dice = 1 - (2 * (p * y).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + 1)
        loss = (
            F.binary_cross_entropy_with_logits(lo, y, pos_weight=torch.tensor([2.0])) + dice.mean()
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [float(step(x, y)) for _ in range(20)]


@script
def stn_gridsample_pool(torch, comp):
    nn = torch.nn
    F = nn.functional
    th = nn.Parameter(torch.tensor([[1.0, 0.1, 0], [0.1, 1, 0.05]]))
    b = nn.Parameter(data(torch, 3))
    opt = torch.optim.Rprop([th, b], lr=0.01)
    x = data(torch, 2, 3, 9, 9)
    y = data(torch, 2, 3, 3, 3, seed=4)
    out = []
    for _ in range(20):
        g = F.affine_grid(th.expand(2, 2, 3), x.size(), align_corners=False)
        z = F.grid_sample(x, g, mode="bilinear", padding_mode="border", align_corners=False)
        v, i = F.max_pool2d(z, 3, return_indices=True)
        loss = (
            (v + b.view(1, -1, 1, 1) - y).abs().mean()
            + F.max_unpool2d(v, i, 3).pow(2).mean()
            + F.adaptive_avg_pool2d(
                F.pixel_unshuffle(F.pad(z, (0, 1, 0, 1), mode="replicate"), 2), 1
            )
            .pow(2)
            .mean()
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        out.append(loss.item())
    return out


@script
def metric_triplet(torch, comp):
    nn = torch.nn
    F = nn.functional
    net = fill(torch, nn.Sequential(nn.Linear(5, 8), nn.PReLU(), nn.Linear(8, 4)))
    opt = torch.optim.RAdam(net.parameters(), lr=0.02)
    x, lab = data(torch, 12, 5), ints(torch, 3, 12)

    def step(x):
        e = F.normalize(net(x), dim=1)
        d = torch.cdist(e, e)
        same = lab[:, None].eq(lab[None, :])
        eye = torch.eye(12, dtype=torch.bool)
        hp = d.masked_fill(~same | eye, 0).amax(1)
        hn = d.masked_fill(same, 10.0).amin(1)
        tl = F.relu(hp - hn + 0.3).mean()
        sim = e @ e.T / 0.1
        nce = -(sim.masked_fill(eye, -1e4).log_softmax(1)[same & ~eye]).mean()
        loss = (
            tl
            + nce
            + nn.CosineEmbeddingLoss(margin=0.1)(e[:6], e[6:], torch.ones(6))
            + nn.TripletMarginLoss()(e[:4], e[4:8], e[8:])
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [float(step(x)) for _ in range(20)]


@script
def gnn_scatter(torch, comp):
    nn = torch.nn
    N, E = 10, 30
    src, dst = ints(torch, N, E), ints(torch, N, E, seed=4)
    lin, att, out_ = (
        fill(torch, nn.Linear(4, 6, bias=False)),
        fill(torch, nn.Linear(12, 1), 2),
        fill(torch, nn.Linear(6, 3), 3),
    )
    ps = list(lin.parameters()) + list(att.parameters()) + list(out_.parameters())
    opt = torch.optim.Adam(ps, lr=0.02, weight_decay=5e-4)
    x, y = data(torch, N, 4), ints(torch, 3, N, seed=5)
    mask = torch.zeros(N, dtype=torch.bool)
    mask[:6] = True

    def step(x, y):
        h = lin(x)
        e = nn.functional.leaky_relu(att(torch.cat([h[src], h[dst]], -1)).squeeze(-1), 0.2)
        mx = torch.full((N,), -1e9).scatter_reduce(0, dst, e, reduce="amax", include_self=True)
        a = torch.exp(e - mx[dst])
        z = torch.zeros(N).scatter_add_(0, dst, a)
        a = a / (z[dst] + 1e-16)
        agg = torch.zeros(N, 6).index_add_(0, dst, a[:, None] * h[src])
        deg = torch.bincount(dst, minlength=N).clamp(min=1).to(x.dtype)
        h2 = agg / deg.sqrt().unsqueeze(1)
        mean = torch.zeros(N, 6).scatter_reduce_(
            0, dst[:, None].expand(-1, 6), h[src], "mean", include_self=False
        )
        loss = nn.functional.nll_loss(nn.functional.log_softmax(out_(h2 + mean), 1)[mask], y[mask])
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [float(step(x, y)) for _ in range(20)]


@script
def einsum_moe(torch, comp):
    nn = torch.nn
    W = torch.nn.Parameter(data(torch, 4, 5, 5) * 0.3)
    g = fill(torch, nn.Linear(5, 4))
    opt = torch.optim.Adam([{"params": [W]}, {"params": g.parameters()}], lr=0.02)
    x, y = data(torch, 16, 5), data(torch, 16, 5, seed=4)

    def step(x, y):
        p = g(x).softmax(-1)
        v, i = p.topk(2, dim=-1)
        v = v / v.sum(-1, keepdim=True)
        onehot = nn.functional.one_hot(i, 4).float()
        gate = torch.einsum("bk,bke->be", v, onehot)
        o = torch.einsum("bd,edf,be->bf", x, W, gate)
        load = onehot.sum(1).mean(0) @ p.mean(0)
        loss = (o - y).square().mean() + 0.1 * load
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = comp(step)
    return [float(step(x, y)) for _ in range(20)]
