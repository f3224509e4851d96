"""Attention against a written-out softmax over keys, its masks, and transformer layers."""

import numpy as np
import pytest
from scipy import special

import probtorch.nn as nn
import probtorch.nn.functional as F
from probtorch.core.rng import manual_seed
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.factories import ones, zeros
from probtorch.tensor import tensor
from probtorch.testing import assert_close

RNG = np.random.default_rng(6)


def normal(*shape):
    return RNG.standard_normal(shape)


def attended(q, k, v, mask=0.0, scale=None):
    """Written-out attention: query by query, key by key."""
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    scores = np.array([[a @ b * scale for b in k] for a in q]) + mask
    weights = special.softmax(scores, -1)
    return weights @ v, weights


@pytest.mark.parametrize("masked", ["no", "boolean", "additive", "causal"])
def test_scaled_dot_product_attention_is_a_weighted_mean(masked):
    q, k, v = normal(2, 3, 4), normal(2, 5, 4), normal(2, 5, 6)
    allowed = RNG.random((3, 5)) < 0.6
    allowed[:, 0] = True
    bias, settings = 0.0, {}
    if masked == "boolean":
        settings, bias = {"attn_mask": tensor(allowed)}, np.where(allowed, 0.0, -np.inf)
    elif masked == "additive":
        bias = normal(3, 5)
        settings = {"attn_mask": tensor(bias)}
    elif masked == "causal":
        settings = {"is_causal": True}
        bias = np.where(np.arange(5) <= np.arange(3)[:, None], 0.0, -np.inf)
    got = F.scaled_dot_product_attention(*map(tensor, (q, k, v)), **settings)
    for n in range(2):
        assert_close(got[n], attended(q[n], k[n], v[n], bias)[0], rtol=1e-11, atol=1e-13)


def test_scale_and_groups_of_queries():
    q, k, v = normal(4, 3, 2), normal(2, 5, 2), normal(2, 5, 2)
    got = F.scaled_dot_product_attention(*map(tensor, (q, k, v)), scale=0.3, enable_gqa=True)
    for head in range(4):
        expected = attended(q[head], k[head // 2], v[head // 2], scale=0.3)[0]
        assert_close(got[head], expected, rtol=1e-11, atol=1e-13)
    with pytest.raises(ShapeError, match="divides 3"):
        F.scaled_dot_product_attention(*map(tensor, (q[:3], k, v)), enable_gqa=True)


def test_query_that_may_see_nothing_gets_zeros_and_finite_gradients():
    q = tensor(normal(2, 4), requires_grad=True)
    mask = tensor([[True, False], [False, False]])
    out = F.scaled_dot_product_attention(q, tensor(normal(2, 4)), tensor(normal(2, 3)), mask)
    assert out[1].tolist() == [0.0, 0.0, 0.0]
    out.sum().backward()
    assert np.isfinite(q.grad.numpy()).all()


def test_attention_names_shapes_that_do_not_fit():
    with pytest.raises(ShapeError, match=r"query \(\.\.\., L, E\)"):
        F.scaled_dot_product_attention(zeros(2, 3), zeros(2, 4), zeros(2, 4))
    with pytest.raises(ArgumentError, match="attn_mask or is_causal"):
        F.scaled_dot_product_attention(
            zeros(2, 3), zeros(2, 3), zeros(2, 3), attn_mask=ones(2, 2), is_causal=True
        )


def heads_by_hand(m, query, key, value, mask=0.0):
    """Output and weights per head of one sample, from the module's own parameters."""
    p = {name: t.detach().numpy() for name, t in m.named_parameters()}
    w = np.split(p["in_proj_weight"], 3)
    b = np.split(p["in_proj_bias"], 3)
    q, k, v = (x @ a.T + c for x, a, c in zip((query, key, value), w, b))
    size = m.embed_dim // m.num_heads
    outs, weights = [], []
    for h in range(m.num_heads):
        part = slice(h * size, (h + 1) * size)
        o, s = attended(q[:, part], k[:, part], v[:, part], mask)
        outs.append(o)
        weights.append(s)
    out = np.concatenate(outs, -1) @ p["out_proj.weight"].T + p["out_proj.bias"]
    return out, np.array(weights)


@pytest.fixture
def module():
    manual_seed(2)
    m = nn.MultiheadAttention(6, 2).double()
    m.in_proj_bias.data.copy_(tensor(normal(18)))
    return m


def test_multihead_attention_is_attention_per_head(module):
    q, k, v = normal(3, 2, 6), normal(5, 2, 6), normal(5, 2, 6)
    out, weights = module(*map(tensor, (q, k, v)))
    _, per_head = module(*map(tensor, (q, k, v)), average_attn_weights=False)
    for n in range(2):
        expected, w = heads_by_hand(module, q[:, n], k[:, n], v[:, n])
        assert_close(out.detach()[:, n], expected, rtol=1e-10, atol=1e-12)
        assert_close(per_head.detach()[n], w, rtol=1e-10, atol=1e-12)
        assert_close(weights.detach()[n], w.mean(0), rtol=1e-10, atol=1e-12)
    assert module(*map(tensor, (q, k, v)), need_weights=False)[1] is None


def test_masks_leave_out_what_is_true(module):
    q, k = normal(3, 2, 6), normal(4, 2, 6)
    padding = np.array([[False, False, True, False], [True, False, False, True]])
    pairs = np.array([[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]], bool)
    out, _ = module(
        *map(tensor, (q, k, k)), key_padding_mask=tensor(padding), attn_mask=tensor(pairs)
    )
    for n in range(2):
        bias = np.where(pairs | padding[n], -np.inf, 0.0)
        expected, _ = heads_by_hand(module, q[:, n], k[:, n], k[:, n], bias)
        assert_close(out.detach()[:, n], expected, rtol=1e-10, atol=1e-12)


def test_mask_may_differ_by_head_and_be_causal(module):
    q = normal(4, 2, 6)
    future = np.triu(np.ones((4, 4), bool), 1)
    causal, _ = module(*map(tensor, (q, q, q)), is_causal=True)
    by_pair, _ = module(*map(tensor, (q, q, q)), attn_mask=tensor(future))
    by_head, _ = module(*map(tensor, (q, q, q)), attn_mask=tensor(np.stack([future] * 4)))
    assert_close(causal.detach(), by_pair.detach(), rtol=1e-13)
    assert_close(causal.detach(), by_head.detach(), rtol=1e-13)
    expected, _ = heads_by_hand(module, q[:, 0], q[:, 0], q[:, 0], np.where(future, -np.inf, 0))
    assert_close(causal.detach()[:, 0], expected, rtol=1e-10, atol=1e-12)


def test_batch_first_and_unbatched_are_rearrangements(module):
    first = nn.MultiheadAttention(6, 2, batch_first=True).double()
    first.load_state_dict(module.state_dict())
    q, k = normal(3, 2, 6), normal(4, 2, 6)
    out, _ = module(*map(tensor, (q, k, k)))
    swapped, _ = first(*(tensor(x.swapaxes(0, 1)) for x in (q, k, k)))
    assert_close(swapped.detach(), out.detach().numpy().swapaxes(0, 1), rtol=1e-12)
    single, weights = module(*(tensor(x[:, 1]) for x in (q, k, k)))
    assert_close(single.detach(), out.detach().numpy()[:, 1], rtol=1e-12)
    assert weights.shape == (3, 4)


def test_mistakes_are_named(module):
    x = zeros(3, 2, 6, dtype=np.float64)
    with pytest.raises(ArgumentError, match="divisible by num_heads"):
        nn.MultiheadAttention(6, 4)
    with pytest.raises(ShapeError, match="sequence first unless batch_first"):
        module(x, zeros(3, 1, 6), x)
    with pytest.raises(ShapeError, match="attn_mask of shape"):
        module(x, x, x, attn_mask=ones(2, 2))
    with pytest.raises(ShapeError, match="key_padding_mask of shape"):
        module(x, x, x, key_padding_mask=ones(3, 2))
    with pytest.raises(DTypeError, match="booleans"):
        module(x, x, x, attn_mask=tensor(np.zeros((3, 3), int)))


# ------------------------------------------------------------------------------------- transformers


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_adds_and_normalises_its_parts(norm_first):
    m = nn.TransformerEncoderLayer(6, 2, 8, 0.0, norm_first=norm_first).double()
    x = tensor(normal(4, 2, 6))

    def attend(x):
        return m.self_attn(x, x, x)[0]

    def feed(x):
        return m.linear2(F.relu(m.linear1(x)))

    if norm_first:
        y = x + attend(m.norm1(x))
        y = y + feed(m.norm2(y))
    else:
        y = m.norm1(x + attend(x))
        y = m.norm2(y + feed(y))
    assert_close(m(x).detach(), y.detach(), rtol=1e-12)


def test_decoder_layer_attends_to_its_memory():
    m = nn.TransformerDecoderLayer(6, 2, 8, 0.0).double()
    x, memory = tensor(normal(3, 2, 6)), tensor(normal(4, 2, 6))
    y = m.norm1(x + m.self_attn(x, x, x)[0])
    y = m.norm2(y + m.multihead_attn(y, memory, memory)[0])
    y = m.norm3(y + m.linear2(F.relu(m.linear1(y))))
    assert_close(m(x, memory).detach(), y.detach(), rtol=1e-12)


def test_stacks_apply_copies_in_order_and_mask_them():
    layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0).double()
    stack = nn.TransformerEncoder(layer, 2, nn.LayerNorm(6).double())
    x, mask = tensor(normal(4, 2, 6)), nn.Transformer.generate_square_subsequent_mask(4)
    assert_close(stack(x).detach(), stack.norm(layer(layer(x))).detach(), rtol=1e-12)
    assert_close(stack(x, mask).detach(), stack(x, is_causal=True).detach(), rtol=1e-12)
    assert len({id(p) for p in stack.parameters()}) == 2 * 12 + 2
    inner = nn.TransformerDecoderLayer(6, 2, 8, 0.0).double()
    decoder = nn.TransformerDecoder(inner, 2)
    memory = tensor(normal(5, 2, 6))
    expected = inner(inner(x, memory, mask), memory, mask)
    assert_close(decoder(x, memory, mask).detach(), expected.detach(), rtol=1e-12)


def test_transformer_ignores_the_future_of_its_target():
    manual_seed(3)
    m = nn.Transformer(6, 2, 1, 1, 8, 0.0).double()
    src, tgt = normal(5, 2, 6), normal(4, 2, 6)
    mask = m.generate_square_subsequent_mask(4)
    before = m(tensor(src), tensor(tgt), tgt_mask=mask).detach().numpy()
    tgt[2:] += 1.0
    after = m(tensor(src), tensor(tgt), tgt_mask=mask).detach().numpy()
    np.testing.assert_array_equal(before[:2], after[:2])
    assert np.abs(before[2:] - after[2:]).max() > 1e-3
    with pytest.raises(ShapeError, match="d_model = 6"):
        m(zeros(5, 2, 4), tensor(tgt))


def test_matrices_of_a_transformer_start_by_xavier():
    manual_seed(4)
    m = nn.Transformer(16, 2, 1, 1, 32)
    bound = np.sqrt(6 / (16 + 32))
    assert 0.9 * bound < np.abs(m.encoder.layers[0].linear1.weight.detach().numpy()).max() <= bound
    with pytest.raises(ArgumentError, match="'relu', 'gelu'"):
        nn.TransformerEncoderLayer(6, 2, activation="swish")


def test_dropout_is_active_in_training_only():
    manual_seed(5)
    m = nn.TransformerEncoderLayer(6, 2, 8, 0.5)
    x = tensor(normal(4, 2, 6).astype(np.float32))
    assert np.abs(m(x).detach().numpy() - m(x).detach().numpy()).max() > 1e-3
    m.eval()
    assert_close(m(x).detach(), m(x).detach(), rtol=0, atol=0)
