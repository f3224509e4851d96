"""Options of layers, losses and indexing."""

import numpy as np

from tests.interop.scripts.common import data, fill, ints, script


@script
def losses_modules(torch, comp):
    nn = torch.nn
    out = []
    x, y = data(torch, 6, 5), data(torch, 6, 5, seed=4)
    lab = ints(torch, 5, 6)
    x.requires_grad_()
    w = torch.tensor([1.0, 2, 0.5, 1, 3])
    soft = torch.softmax(y, 1)
    for l in (
        nn.CrossEntropyLoss(weight=w, ignore_index=2)(x, lab),
        nn.CrossEntropyLoss(label_smoothing=0.1, weight=w)(x, lab),
        nn.CrossEntropyLoss()(x, soft),
        nn.NLLLoss(weight=w)(x.log_softmax(1), lab),
        nn.KLDivLoss(reduction="batchmean")(x.log_softmax(1), soft),
        nn.KLDivLoss(log_target=True)(x.log_softmax(1), soft.log()),
        nn.GaussianNLLLoss(full=True)(x, y, torch.ones(6, 5) * 0.5),
        nn.PoissonNLLLoss(full=True, log_input=True)(x, y.abs() * 3),
        nn.MultiMarginLoss(p=2, weight=w)(x, lab),
        nn.MultiLabelSoftMarginLoss()(x, (y > 0).float()),
        nn.HingeEmbeddingLoss()(x, (y > 0).float() * 2 - 1),
        nn.SoftMarginLoss()(x, (y > 0).float() * 2 - 1),
        nn.MarginRankingLoss(0.1)(x[:, 0], x[:, 1], torch.ones(6)),
        nn.BCEWithLogitsLoss(weight=w, pos_weight=w)(x, (y > 0).float()),
        nn.SmoothL1Loss(beta=0.3)(x, y),
        nn.HuberLoss(delta=0.5)(x, y),
        nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance())(x, y, y.flip(0)),
        nn.CosineEmbeddingLoss()(x, y, torch.tensor([1.0, -1, 1, 1, -1, 1])),
        nn.MultiLabelMarginLoss()(x, torch.tensor([[0, 2, -1, 1, 3]] * 6)),
    ):
        (g,) = torch.autograd.grad(l, x, retain_graph=True)
        out += [l.item()] + g.flatten().tolist()
    return out


@script
def recurrent_variants(torch, comp):
    nn = torch.nn
    out = []
    x = data(torch, 6, 3, 4)
    for m in (
        nn.LSTM(4, 6, 2, proj_size=3),
        nn.LSTM(4, 5, bidirectional=True, batch_first=True, bias=False),
        nn.GRU(4, 5, 2),
        nn.RNN(4, 5, nonlinearity="relu", num_layers=2),
        nn.RNN(4, 5, bidirectional=True),
    ):
        fill(torch, m)
        o, h = m(x)
        s = o.pow(2).sum() + (h[0] if isinstance(h, tuple) else h).sum()
        gs = torch.autograd.grad(s, list(m.parameters()))
        out += [s.item()] + [g.abs().sum().item() for g in gs] + list(o.shape)
    lens = torch.tensor([2, 6, 4])
    p = nn.utils.rnn.pack_padded_sequence(x, lens, enforce_sorted=False)
    m = fill(torch, nn.LSTM(4, 5, bidirectional=True))
    o, (h, c) = m(p)
    pad, ln = nn.utils.rnn.pad_packed_sequence(o, padding_value=-1.0)
    return (
        out
        + [pad.sum().item(), h.sum().item(), c.sum().item()]
        + ln.tolist()
        + p.batch_sizes.tolist()
        + p.sorted_indices.tolist()
    )


@script
def attention_variants(torch, comp):
    nn = torch.nn
    F = nn.functional
    out = []
    q, k = data(torch, 5, 2, 8), data(torch, 7, 2, 8, seed=3)
    m = fill(
        torch, nn.MultiheadAttention(8, 2, kdim=8, vdim=8, add_bias_kv=True, add_zero_attn=True)
    )
    kp = torch.tensor([[0] * 5 + [1] * 2, [0] * 7]).bool()
    am = torch.zeros(5, 7)
    am[:, 0] = -1.0
    o, w = m(q, k, k, key_padding_mask=kp, attn_mask=am < 0)
    out += [o.sum().item(), w.sum().item()] + list(w.shape)
    o, w = m(q, k, k, average_attn_weights=False)
    out += [o.sum().item()] + list(w.shape)
    enc = fill(
        torch,
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, norm_first=True, batch_first=True),
            2,
            norm=nn.LayerNorm(8),
        ),
    )
    z = data(torch, 2, 5, 8)
    pm = torch.tensor([[False] * 5, [False, False, False, True, True]])
    o = enc(z, src_key_padding_mask=pm, mask=nn.Transformer.generate_square_subsequent_mask(5))
    out += [o[~pm].sum().item(), o[~pm].pow(2).sum().item()]
    enc.eval()
    with torch.no_grad():
        o = enc(z, src_key_padding_mask=pm)
        out += [o[~pm].pow(2).sum().item()]
    Q = data(torch, 2, 4, 5, 8)
    K = data(torch, 2, 2, 7, 8, seed=5)
    out += [
        F.scaled_dot_product_attention(Q, K, K, enable_gqa=True, scale=0.3).sum().item(),
        F.scaled_dot_product_attention(Q, Q, Q, attn_mask=torch.tril(torch.ones(5, 5)).bool())
        .sum()
        .item(),
        F.scaled_dot_product_attention(Q, Q, Q, attn_mask=data(torch, 5, 5)).sum().item(),
    ]
    return out


@script
def embedding_things(torch, comp):
    nn = torch.nn
    out = []
    i = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9])
    off = torch.tensor([0, 4])
    for mode in ("sum", "mean", "max"):
        e = fill(torch, nn.EmbeddingBag(10, 3, mode=mode))
        o = e(i, off)
        (g,) = torch.autograd.grad(o.pow(2).sum(), e.weight)
        out += o.flatten().tolist() + g.flatten().tolist()
    e = fill(torch, nn.EmbeddingBag(10, 3, mode="sum"))
    out += e(i, off, per_sample_weights=torch.linspace(0, 1, 8)).flatten().tolist()
    e = fill(torch, nn.Embedding(10, 3, padding_idx=2, max_norm=0.5))
    o = e(i)
    out += o.flatten().tolist() + e.weight.flatten().tolist()
    (g,) = torch.autograd.grad(e(i).sum(), e.weight)
    out += g.sum(1).tolist()
    e = nn.Embedding.from_pretrained(data(torch, 4, 3), freeze=True)
    out += [float(e.weight.requires_grad)] + e(torch.tensor([[0, 3]])).flatten().tolist()
    e = fill(torch, nn.Embedding(10, 3, scale_grad_by_freq=True))
    (g,) = torch.autograd.grad(e(i).sum(), e.weight)
    return out + g.flatten().tolist()


@script
def text_classify_pipeline(torch, comp):
    nn = torch.nn
    words = ["the", "cat", "sat", "dog", "ran", "up"]
    vocab = {w: i + 1 for i, w in enumerate(words)}
    sents = ["the cat sat", "dog ran up the", "cat", "ran ran ran dog up"]
    seqs = [torch.tensor([vocab[w] for w in s.split()]) for s in sents]
    x = nn.utils.rnn.pad_sequence(seqs, batch_first=True, padding_value=0)
    lens = (x != 0).sum(1)
    y = torch.tensor([0, 1, 0, 1])

    class CNN(nn.Module):
        def __init__(s):
            super().__init__()
            s.e = nn.Embedding(7, 5, padding_idx=0)
            s.c = nn.ModuleList([nn.Conv1d(5, 4, k, padding=k // 2) for k in (1, 2, 3)])
            s.o = nn.Linear(12, 2)

        def forward(s, x, lens):
            h = s.e(x).permute(0, 2, 1)
            f = [torch.relu(c(h)).max(dim=2)[0] for c in s.c]
            m = (torch.arange(x.size(1))[None] < lens[:, None]).float()
            avg = (s.e(x) * m[..., None]).sum(1) / lens[:, None].float()
            return s.o(torch.cat(f, 1)) + avg[:, :2]

    net = fill(torch, CNN())
    opt = torch.optim.Adam(net.parameters(), lr=0.05)
    out = []

    def step(x, lens, y):
        l = nn.functional.cross_entropy(net(x, lens), y)
        opt.zero_grad()
        l.backward()
        opt.step()
        return l

    step = comp(step)
    for _ in range(20):
        out.append(float(step(x, lens, y)))
    net.eval()
    with torch.no_grad():
        p = net(x, lens).softmax(1)
        c = p.argmax(1)
        out += c.tolist() + [
            (c == y).float().mean().item(),
            float((c == y).sum()),
            p.max(1).values.sum().item(),
        ]
    return out


@script
def weird_indexing(torch, comp):
    x = data(torch, 4, 5, 6)
    out = []
    i = torch.tensor([0, 2])
    j = torch.tensor([[1], [3]])
    for v in (
        x[i],
        x[:, i],
        x[i, :, i],
        x[i, j],
        x[:, i, j],
        x[..., i],
        x[i, 1:3, i],
        x[None, i, ..., None],
        x[x > 0.5],
        x[:, torch.tensor([True, False, True, False, True])],
        x[-1, ::2, 1::2],
        x[[0, 1], [2, 3]],
        x[(0, 1)],
        x[1, ...],
        x[torch.tensor(1)],
        x[np.array([1, 2])],
        x[:, -1:],
        x.take(torch.tensor([0, 50])),
        x.index_select(1, i),
        x.gather(2, torch.zeros(4, 5, 2, dtype=torch.long)),
        x.masked_select(x > 1),
        x.narrow(1, 1, 2),
        x.movedim(0, 2),
        x.unfold(2, 3, 2),
        x.flatten(1),
        x.swapaxes(0, 1).reshape(5, -1),
        x.diagonal(0, 1, 2),
        x.tril(1),
        x.rot90(1, [1, 2]),
        x.repeat_interleave(2, 1),
        x.tile(2, 1, 1),
        x.split([2, 3], 1)[1],
        x.tensor_split(4, 1)[0],
        x.unbind(1)[2],
        x.squeeze(),
        x.expand(2, 4, 5, 6)[1],
        x.mT,
        torch.stack([x, x], -1),
        torch.vstack([x[0], x[1]]),
        torch.einsum("abc,dbc->ad", x, x),
        torch.cartesian_prod(i, i),
        torch.bucketize(x, torch.tensor([-1.0, 0, 1])),
        torch.searchsorted(torch.tensor([-1.0, 0, 1]), x, right=True),
        torch.quantile(x, torch.tensor([0.1, 0.9]), dim=1),
        x.kthvalue(2, 1)[0],
        x.mode(1)[0],
        x.var(1, unbiased=False),
        torch.cov(x[0]),
        torch.corrcoef(x[0]),
        torch.nanmean(x, 1),
        torch.logcumsumexp(x, 1),
        x.cummax(1)[0],
        x.diff(dim=1),
        torch.trapezoid(x, dim=1),
        torch.histc(x, 5, -2, 2),
        torch.bincount(torch.tensor([1, 1, 3]), minlength=5),
        torch.unique(torch.tensor([3, 1, 3]), return_counts=True)[1],
        torch.roll(x, (1, -1), (0, 1)),
        torch.block_diag(x[0], x[1]),
        torch.triu_indices(3, 3, 1),
        torch.tensordot(x, x, dims=([1, 2], [1, 2])),
        torch.addcmul(x, x, x, value=0.5),
        torch.lerp(x, x * 2, 0.3),
        torch.clamp(x, min=x.mean(0)),
        torch.heaviside(x, torch.tensor(0.5)),
        torch.copysign(x, -x.abs()),
        torch.frac(x),
        torch.fmod(x, 0.7),
        torch.remainder(x, 0.7),
        torch.float_power(x.abs(), 1.5),
        torch.nan_to_num(x / 0),
        torch.isclose(x, x + 1e-9).float(),
        torch.special.logit(torch.sigmoid(x)),
        torch.erfinv(torch.tanh(x)),
        torch.polygamma(1, x.abs() + 1),
        torch.cdist(x, x, p=1),
        torch.pdist(x[0]),
        torch.baddbmm(x @ x.mT, x, x.mT, beta=0.5),
    ):
        out += list(v.shape) + [
            float(v.to(torch.float64).sum()),
            float(
                (v.to(torch.float64).flatten() * torch.arange(v.numel(), dtype=torch.float64)).sum()
            ),
        ]
    return out
