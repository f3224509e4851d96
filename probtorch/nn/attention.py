"""Multi-head attention: queries, keys and values are projected, split into heads, and attended."""

from __future__ import annotations

import math

from probtorch.core.casting import cast
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType, DTypeLike, TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.factories import zeros
from probtorch.nn import functional as F
from probtorch.nn import init
from probtorch.nn.arguments import fraction, whole
from probtorch.nn.functional.attention import attention_weights, causal_mask
from probtorch.nn.linear import Linear
from probtorch.nn.module import Module
from probtorch.ops.arithmetic import where
from probtorch.ops.contraction import matmul
from probtorch.ops.movement import expand, permute, reshape, swapaxes, unsqueeze
from probtorch.ops.pieces import cat, chunk
from probtorch.ops.reduction import mean
from probtorch.tensor import Tensor

__all__ = ["MultiheadAttention", "additive_mask"]


def additive_mask(owner: str, name: str, mask: TensorLike | None, dtype: DType) -> Tensor | None:
    """Return a mask to be added to scores: booleans say what to leave out.

    Raises
    ------
    DTypeError
        If the mask is neither boolean nor floating.
    """
    if mask is None:
        return None
    mask = as_tensor(mask, owner)
    if mask.array.dtype.kind == "b":
        return cast(where(mask, -math.inf, 0.0), dtype)
    if mask.array.dtype.kind != "f":
        raise DTypeError(
            owner,
            expected=f"{name}: booleans (True is left out) or floats (added to the scores)",
            got=str(mask.array.dtype),
            fix="convert it with .bool()",
        )
    return cast(mask, dtype)


class MultiheadAttention(Module):
    """Attend to keys and values in several learned projections at once [vaswani2017]_.

    Shapes: query ``(L, N, embed_dim)``, key ``(S, N, kdim)``, value ``(S, N, vdim)``, with
    `batch_first` the batch before the sequence, or all without the batch. The result is a pair:
    output of the query's shape, and weights ``(N, L, S)`` or None.

    Parameters
    ----------
    embed_dim : int
        Divisible by `num_heads`.
    num_heads : int
    dropout : float
        Share of the weights that is dropped in training.
    bias : bool
        Whether the projections have biases, which start at 0.
    add_bias_kv : bool
        Append a learned key and value to those given.
    add_zero_attn : bool
        Append a key and value of zeros.
    kdim, vdim : int, optional
        Sizes of keys and values; `embed_dim` if None.
    batch_first : bool
    device, dtype
        Of the parameters.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        whole("MultiheadAttention", embed_dim=embed_dim, num_heads=num_heads)
        fraction("MultiheadAttention", "dropout", dropout)
        if embed_dim % num_heads:
            raise ArgumentError(
                "MultiheadAttention",
                expected="embed_dim divisible by num_heads",
                got=f"embed_dim={embed_dim}, num_heads={num_heads}",
                fix="each head has embed_dim / num_heads features",
            )
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.batch_first, self.add_zero_attn = batch_first, add_zero_attn
        self.head_dim = embed_dim // num_heads
        e, together = embed_dim, self.kdim == self.vdim == embed_dim
        start = init.xavier_uniform()
        self.parameter("in_proj_weight", (3 * e, e) if together else None, init=start)
        self.parameter("q_proj_weight", None if together else (e, e), init=start)
        self.parameter("k_proj_weight", None if together else (e, self.kdim), init=start)
        self.parameter("v_proj_weight", None if together else (e, self.vdim), init=start)
        self.parameter("in_proj_bias", (3 * e,) if bias else None, init=init.zeros())
        self.out_proj = Linear(e, e, bias, device, dtype)
        if bias:
            init.zeros_(self.out_proj.bias)
        extra = (1, 1, e) if add_bias_kv else None
        self.parameter("bias_k", extra, init=_xavier_row)
        self.parameter("bias_v", extra, init=_xavier_row)

    def forward(
        self,
        query: TensorLike,
        key: TensorLike,
        value: TensorLike,
        key_padding_mask: TensorLike | None = None,
        need_weights: bool = True,
        attn_mask: TensorLike | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (output, weights).

        Parameters
        ----------
        query, key, value : Tensor
        key_padding_mask : Tensor, shape (N, S) or (S,), optional
            Booleans: keys that are left out. Floats: added to the scores.
        need_weights : bool
            Return the weights too, else None.
        attn_mask : Tensor, shape (L, S) or (N * num_heads, L, S), optional
            Booleans: pairs that are left out. Floats: added to the scores.
        average_attn_weights : bool
            Average the weights over heads; else they are (N, num_heads, L, S).
        is_causal : bool
            Without `attn_mask`: leave out keys after each query.
        """
        q, k, v = (as_tensor(t, "MultiheadAttention") for t in (query, key, value))
        batched = q.array.ndim == 3
        if batched and not self.batch_first:
            q, k, v = (swapaxes(t, 0, 1) for t in (q, k, v))
        elif not batched:
            q, k, v = (unsqueeze(t, 0) for t in (q, k, v))
        self._check(q, k, v)
        mask = self._mask(q, k, key_padding_mask, attn_mask, is_causal, batched)
        q, k, v = self._projected(q, k, v)
        if self.bias_k is not None:
            shape = (k.array.shape[0], 1, self.embed_dim)
            k = cat([k, expand(self.bias_k, shape)], 1)
            v = cat([v, expand(self.bias_v, shape)], 1)
            mask = _longer(mask)
        if self.add_zero_attn:
            nothing = zeros((k.array.shape[0], 1, self.embed_dim), dtype=k.dtype, device=k.device)
            k, v = cat([k, nothing], 1), cat([v, nothing], 1)
            mask = _longer(mask)
        weights = attention_weights(self._heads(q), self._heads(k), mask)
        weights = F.dropout(weights, self.dropout, self.training)
        output = permute(matmul(weights, self._heads(v)), (0, 2, 1, 3))
        output = self.out_proj(reshape(output, q.array.shape))
        if batched and not self.batch_first:
            output = swapaxes(output, 0, 1)
        if not need_weights:
            return (output if batched else output.squeeze(0)), None
        weights = mean(weights, 1) if average_attn_weights else weights
        return (output, weights) if batched else (output.squeeze(0), weights.squeeze(0))

    def _check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        sizes = [t.array.shape for t in (q, k, v)]
        fits = (
            all(len(s) == 3 for s in sizes)
            and [s[-1] for s in sizes] == [self.embed_dim, self.kdim, self.vdim]
            and sizes[0][0] == sizes[1][0] == sizes[2][0]
            and sizes[1][1] == sizes[2][1]
        )
        if not fits:
            raise ShapeError(
                "MultiheadAttention",
                expected=f"query (N, L, {self.embed_dim}), key (N, S, {self.kdim}) and value "
                f"(N, S, {self.vdim}), the sequence first unless batch_first",
                got=f"{sizes[0]}, {sizes[1]} and {sizes[2]}, batch first",
                fix="check batch_first, kdim and vdim",
            )

    def _mask(
        self,
        q: Tensor,
        k: Tensor,
        padding: TensorLike | None,
        attn_mask: TensorLike | None,
        is_causal: bool,
        batched: bool,
    ) -> Tensor | None:
        """Return one floating mask that broadcasts to (N, heads, L, S), or None."""
        n, length, keys = q.array.shape[0], q.array.shape[1], k.array.shape[1]
        if attn_mask is None and is_causal:
            attn_mask = ~causal_mask(length, keys, q.device)
        mask = additive_mask("MultiheadAttention", "attn_mask", attn_mask, q.dtype)
        if mask is not None:
            shape = mask.array.shape
            if shape == (n * self.num_heads, length, keys):
                mask = reshape(mask, (n, self.num_heads, length, keys))
            elif shape != (length, keys):
                raise ShapeError(
                    "MultiheadAttention",
                    expected=f"attn_mask of shape {(length, keys)} or "
                    f"{(n * self.num_heads, length, keys)}",
                    got=str(shape),
                    fix="one row per query, one column per key",
                )
        keyed = additive_mask("MultiheadAttention", "key_padding_mask", padding, q.dtype)
        if keyed is None:
            return mask
        if keyed.array.shape != ((n, keys) if batched else (keys,)):
            raise ShapeError(
                "MultiheadAttention",
                expected=f"key_padding_mask of shape {(n, keys) if batched else (keys,)}",
                got=str(keyed.array.shape),
                fix="one entry per key",
            )
        keyed = reshape(keyed, (n, 1, 1, keys))
        return keyed if mask is None else mask + keyed

    def _projected(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        biases = (None,) * 3 if self.in_proj_bias is None else chunk(self.in_proj_bias, 3)
        if self.in_proj_weight is None:
            weights: tuple[Tensor, ...] = (
                self.q_proj_weight,
                self.k_proj_weight,
                self.v_proj_weight,
            )
        else:
            weights = chunk(self.in_proj_weight, 3)
        return tuple(F.linear(x, w, b) for x, w, b in zip((q, k, v), weights, biases))

    def _heads(self, x: Tensor) -> Tensor:
        """Split (N, L, E) into (N, heads, L, E / heads)."""
        n, length = x.array.shape[:2]
        return permute(reshape(x, (n, length, self.num_heads, self.head_dim)), (0, 2, 1, 3))


def _xavier_row(tensor: Tensor) -> Tensor:
    """Fill a (1, 1, E) key or value as PyTorch does: `xavier_normal_` of its shape."""
    return init.xavier_normal_(tensor)


def _longer(mask: Tensor | None) -> Tensor | None:
    """Let a mask admit one more key, at the end."""
    return mask if not isinstance(mask, TensorBase) else F.pad(mask, (0, 1))
