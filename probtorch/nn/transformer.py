"""Transformer layers and stacks of them, encoding and decoding [vaswani2017]_."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

from probtorch.core.making import as_tensor
from probtorch.core.typed import DTypeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.nn import functional as F
from probtorch.nn import init
from probtorch.nn.arguments import Place, documented_by
from probtorch.nn.attention import MultiheadAttention
from probtorch.nn.containers import ModuleList
from probtorch.nn.dropout import Dropout
from probtorch.nn.functional.attention import causal_mask
from probtorch.nn.linear import Linear
from probtorch.nn.module import Module
from probtorch.nn.normalization import LayerNorm
from probtorch.ops.arithmetic import where
from probtorch.tensor import Tensor

__all__ = [
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


def _activation(
    owner: str, activation: str | Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    if callable(activation):
        return activation
    if activation not in _ACTIVATIONS:
        raise ArgumentError(
            owner,
            expected="activation: 'relu', 'gelu' or a function",
            got=repr(activation),
            fix="pass the function itself",
        )
    return _ACTIVATIONS[activation]


class _Layer(Module):
    """What layers of both kinds share: the feed-forward part, and the order of normalisation.

    Shapes: ``(L, N, d_model)``, with `batch_first` ``(N, L, d_model)``, or ``(L, d_model)``; the
    result has the shape of the input.

    Parameters
    ----------
    d_model : int
        Number of features.
    nhead : int
        Number of heads.
    dim_feedforward : int
        Width of the hidden layer of the feed-forward part.
    dropout : float
    activation : {"relu", "gelu"} or callable
        Of that hidden layer.
    layer_norm_eps : float
    batch_first : bool
    norm_first : bool
        Normalise before each part instead of after it.
    bias : bool
        Whether linear layers and normalisations have biases.
    device, dtype
        Of the parameters.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        place: Place = {"device": device, "dtype": dtype}
        for name in self.attentions:
            setattr(
                self,
                name,
                MultiheadAttention(
                    d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, **place
                ),
            )
        self.linear1 = Linear(d_model, dim_feedforward, bias, **place)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **place)
        self.norm_first = norm_first
        self.activation = _activation(type(self).__name__, activation)
        parts = range(1, len(self.attentions) + 2)
        for i in parts:
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias, **place))
        for i in parts:
            setattr(self, f"dropout{i}", Dropout(dropout))

    attentions: tuple[str, ...]

    def _part(self, x: Tensor, norm: Module, block: Callable[[Tensor], Tensor]) -> Tensor:
        """Add `block` to `x`, with the normalisation before or after."""
        return x + block(norm(x)) if self.norm_first else norm(x + block(x))

    def _feed_forward(self, x: Tensor, dropout: Module) -> Tensor:
        return dropout(self.linear2(self.dropout(self.activation(self.linear1(x)))))


@documented_by(_Layer)
class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward part, each added to its input and normalised."""

    attentions = ("self_attn",)

    def forward(
        self,
        src: TensorLike,
        src_mask: TensorLike | None = None,
        src_key_padding_mask: TensorLike | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the encoded sequence; masks as for `MultiheadAttention`."""

        def attend(x: Tensor) -> Tensor:
            found, _ = self.self_attn(
                x,
                x,
                x,
                key_padding_mask=src_key_padding_mask,
                need_weights=False,
                attn_mask=src_mask,
                is_causal=is_causal,
            )
            return self.dropout1(found)

        x = self._part(as_tensor(src, "TransformerEncoderLayer"), self.norm1, attend)
        return self._part(x, self.norm2, lambda x: self._feed_forward(x, self.dropout2))


@documented_by(_Layer)
class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to a memory and a feed-forward part."""

    attentions = ("self_attn", "multihead_attn")

    def forward(
        self,
        tgt: TensorLike,
        memory: TensorLike,
        tgt_mask: TensorLike | None = None,
        memory_mask: TensorLike | None = None,
        tgt_key_padding_mask: TensorLike | None = None,
        memory_key_padding_mask: TensorLike | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the decoded sequence; masks as for `MultiheadAttention`."""

        def attend(x: Tensor) -> Tensor:
            found, _ = self.self_attn(
                x,
                x,
                x,
                key_padding_mask=tgt_key_padding_mask,
                need_weights=False,
                attn_mask=tgt_mask,
                is_causal=tgt_is_causal,
            )
            return self.dropout1(found)

        def look(x: Tensor) -> Tensor:
            found, _ = self.multihead_attn(
                x,
                memory,
                memory,
                key_padding_mask=memory_key_padding_mask,
                need_weights=False,
                attn_mask=memory_mask,
                is_causal=memory_is_causal,
            )
            return self.dropout2(found)

        x = self._part(as_tensor(tgt, "TransformerDecoderLayer"), self.norm1, attend)
        x = self._part(x, self.norm2, look)
        return self._part(x, self.norm3, lambda x: self._feed_forward(x, self.dropout3))


def _copies(layer: Module, count: int) -> ModuleList:
    return ModuleList(copy.deepcopy(layer) for _ in range(count))


class TransformerEncoder(Module):
    """Encoder layers on top of each other.

    Parameters
    ----------
    encoder_layer : TransformerEncoderLayer
        Copied `num_layers` times; the copies start equal.
    num_layers : int
    norm : Module, optional
        Applied to the result.
    enable_nested_tensor, mask_check : bool
        Accepted for PyTorch's sake; there is no second path to choose.
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = _copies(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        src: Tensor,
        mask: TensorLike | None = None,
        src_key_padding_mask: TensorLike | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """Return the encoded sequence; masks as for `MultiheadAttention`."""
        for layer in self.layers:
            src = layer(
                src,
                src_mask=mask,
                src_key_padding_mask=src_key_padding_mask,
                is_causal=bool(is_causal),
            )
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """Decoder layers on top of each other.

    Parameters
    ----------
    decoder_layer : TransformerDecoderLayer
        Copied `num_layers` times; the copies start equal.
    num_layers : int
    norm : Module, optional
        Applied to the result.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _copies(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: TensorLike,
        tgt_mask: TensorLike | None = None,
        memory_mask: TensorLike | None = None,
        tgt_key_padding_mask: TensorLike | None = None,
        memory_key_padding_mask: TensorLike | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the decoded sequence; masks as for `MultiheadAttention`."""
        for layer in self.layers:
            tgt = layer(
                tgt,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=bool(tgt_is_causal),
                memory_is_causal=memory_is_causal,
            )
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder of one sequence and a decoder of another.

    Parameters
    ----------
    d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first
        As for the layers.
    num_encoder_layers, num_decoder_layers : int
    custom_encoder, custom_decoder : Module, optional
        In the place of the stacks made here.
    bias : bool
    device, dtype
        Of the parameters; matrices start as `init.xavier_uniform_`.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = F.relu,
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        settings = (dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first)
        place: Place = {"device": device, "dtype": dtype}
        if custom_encoder is None:
            layer = TransformerEncoderLayer(d_model, nhead, *settings, bias=bias, **place)
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, **place)
            custom_encoder = TransformerEncoder(layer, num_encoder_layers, norm)
        if custom_decoder is None:
            inner = TransformerDecoderLayer(d_model, nhead, *settings, bias=bias, **place)
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, **place)
            custom_decoder = TransformerDecoder(inner, num_decoder_layers, norm)
        self.encoder, self.decoder = custom_encoder, custom_decoder
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new matrices for all layers; vectors stay as they are."""
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: TensorLike | None = None,
        tgt_mask: TensorLike | None = None,
        memory_mask: TensorLike | None = None,
        src_key_padding_mask: TensorLike | None = None,
        tgt_key_padding_mask: TensorLike | None = None,
        memory_key_padding_mask: TensorLike | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the decoded target; masks as for `MultiheadAttention`."""
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise ShapeError(
                "Transformer",
                expected=f"src and tgt with last size d_model = {self.d_model}",
                got=f"{src.shape} and {tgt.shape}",
                fix="embed both sequences first",
            )
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(sz: int) -> Tensor:
        """Return the (sz, sz) mask with 0 where position i may look (0 to i) and -inf elsewhere."""
        return where(causal_mask(sz, sz), 0.0, -math.inf)
