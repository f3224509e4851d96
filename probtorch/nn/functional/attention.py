"""Attention: weighted means of values, with weights from the products of queries and keys."""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.nn.functional.dropout import dropout
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq
from probtorch.ops.contraction import matmul
from probtorch.ops.exponential_sums import softmax
from probtorch.ops.extremes import amax
from probtorch.ops.movement import reshape, swapaxes
from probtorch.ops.repeating import repeat
from probtorch.tensor import Tensor

__all__ = ["attention_weights", "causal_mask", "scaled_dot_product_attention"]


def causal_mask(queries: int, keys: int, device: str | None = "cpu") -> Tensor:
    """Return the boolean (queries, keys) mask that lets position i see keys 0 to i."""
    return as_tensor(np.tril(np.ones((queries, keys), bool))).to(device)


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Return ``softmax(query @ key.T * scale + mask)`` over the keys, shape (..., L, S).

    A boolean `mask` says which keys take part; a floating one is added. A query that may see
    nothing has weights 0.
    """
    scale = 1.0 / math.sqrt(query.array.shape[-1]) if scale is None else scale
    scores = matmul(query * scale, swapaxes(key, -1, -2))
    if mask is None:
        return softmax(scores, -1)
    if mask.array.dtype.kind == "b":
        scores = where(mask, scores, -math.inf)
    else:
        scores = scores + mask
    blind = eq(amax(scores.detach(), -1, True), -math.inf)
    return where(blind, 0.0, softmax(where(blind, 0.0, scores), -1))


@in_our_words
def scaled_dot_product_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    attn_mask: TensorLike | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the values weighted by how well their keys go with each query.

    Parameters
    ----------
    query : Tensor, shape (..., L, E)
    key : Tensor, shape (..., S, E)
    value : Tensor, shape (..., S, V)
    attn_mask : Tensor, broadcasting to (..., L, S), optional
        Boolean: which keys take part. Floating: added to the products.
    dropout_p : float
        Share of the weights that is dropped; always, so pass 0 outside training.
    is_causal : bool
        Let query i see keys 0 to i only; excludes `attn_mask`.
    scale : float, optional
        Of the products; 1 / sqrt(E) if None.
    enable_gqa : bool
        Repeat heads (dim -3) of key and value to the number of query's.

    Returns
    -------
    Tensor, shape (..., L, V)

    Raises
    ------
    ShapeError
        If the sizes E or S do not agree.
    ArgumentError
        If both `attn_mask` and `is_causal` are given.
    """
    q, k, v = (as_tensor(t, "scaled_dot_product_attention") for t in (query, key, value))
    if enable_gqa:
        k, v = (_repeated_heads(t, q.array.shape[-3]) for t in (k, v))
    a, b, c = (t.array.shape for t in (q, k, v))
    if min(len(a), len(b), len(c)) < 2 or a[-1] != b[-1] or b[-2] != c[-2]:
        raise ShapeError(
            "scaled_dot_product_attention",
            expected="query (..., L, E), key (..., S, E) and value (..., S, V)",
            got=f"{a}, {b} and {c}",
            fix="query and key share the last size, key and value the one before",
        )
    if is_causal:
        if attn_mask is not None:
            raise ArgumentError(
                "scaled_dot_product_attention",
                expected="attn_mask or is_causal",
                got="both",
                fix="leave one of them out",
            )
        attn_mask = causal_mask(a[-2], b[-2], q.device)
    mask = None if attn_mask is None else as_tensor(attn_mask, "scaled_dot_product_attention")
    weights = attention_weights(q, k, mask, scale)
    return matmul(dropout(weights, dropout_p), v)


def _repeated_heads(x: Tensor, heads: int) -> Tensor:
    *lead, have, length, size = x.array.shape
    if heads % have:
        raise ShapeError(
            "scaled_dot_product_attention",
            expected=f"a number of heads that divides {heads}",
            got=str(have),
            fix="with enable_gqa, queries have a multiple of the heads of keys and values",
        )
    apart = reshape(x, (*lead, have, 1, length, size))
    n = len(lead)
    return reshape(repeat(apart, *[1] * n, 1, heads // have, 1, 1), (*lead, heads, length, size))
