"""Tables of learned vectors, one per category: looked up one by one, or in bags."""

from __future__ import annotations

from typing import Self

from probtorch.autograd.modes import no_grad
from probtorch.core.making import as_tensor
from probtorch.core.typed import DTypeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.nn import functional as F
from probtorch.nn import init
from probtorch.nn.arguments import whole
from probtorch.nn.module import Module
from probtorch.nn.parameter import Parameter
from probtorch.tensor import Tensor

__all__ = ["Embedding", "EmbeddingBag"]


class Embedding(Module):
    """Look up the learned vector of each category.

    Shapes: integers of any shape ``(*)`` to ``(*, embedding_dim)``.

    Parameters
    ----------
    num_embeddings : int
        Number of categories.
    embedding_dim : int
        Size of each vector.
    padding_idx : int, optional
        Category whose vector starts at 0 and gets no gradient.
    max_norm, norm_type : float
        Vectors longer than `max_norm` are scaled down to it, in place, when they are looked up.
    scale_grad_by_freq : bool
        Divide gradients by how often a category occurs in the input.
    sparse : bool
        Not supported.
    _weight : Tensor, shape (num_embeddings, embedding_dim), optional
        Vectors to start with, standard normal draws if None.
    _freeze : bool
        Whether `weight` is not learned.
    device, dtype
        Of `weight`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: TensorLike | None = None,
        _freeze: bool = False,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        whole("Embedding", 0, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(
                "Embedding",
                expected=f"padding_idx in [{-num_embeddings}, {num_embeddings - 1}]",
                got=str(padding_idx),
                fix="it is one of the categories",
            )
        if sparse:
            raise ArgumentError(
                "Embedding",
                expected="sparse=False",
                got="sparse=True",
                fix="gradients are dense: leave the argument out",
            )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx if padding_idx is None else padding_idx % num_embeddings
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        shape = (num_embeddings, embedding_dim)
        if _weight is None:
            start = _normal_rows(self.padding_idx)
            self.parameter("weight", shape, init=start, requires_grad=not _freeze)
        else:
            _weight = as_tensor(_weight, "Embedding")
            if _weight.array.shape != shape:
                raise ShapeError(
                    "Embedding",
                    expected=f"_weight of shape {shape}",
                    got=str(_weight.array.shape),
                    fix="use Embedding.from_pretrained(table)",
                )
            self.weight = Parameter(_weight, requires_grad=not _freeze)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: TensorLike,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Self:
        """Return a layer with a table of shape (rows, features), frozen unless `freeze` is off."""
        rows, features = _table_shape(embeddings)
        return cls(
            rows,
            features,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            sparse,
            _weight=embeddings,
            _freeze=freeze,
        )

    def forward(self, input: TensorLike) -> Tensor:
        return F.embedding(
            input,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        if self.max_norm is not None:
            text += f", max_norm={self.max_norm}"
        if self.norm_type != 2:
            text += f", norm_type={self.norm_type}"
        return text + (", scale_grad_by_freq=True" if self.scale_grad_by_freq else "")


class EmbeddingBag(Module):
    """Look up learned vectors and combine those of each bag, without keeping them.

    Shapes: integers ``(B, N)``, or ``(n,)`` with offsets ``(B,)``, to ``(B, embedding_dim)``.

    Parameters
    ----------
    num_embeddings : int
        Number of categories.
    embedding_dim : int
        Size of each vector.
    max_norm, norm_type : float
        Vectors longer than `max_norm` are scaled down to it, in place, when they are looked up.
    scale_grad_by_freq : bool
        Divide gradients by how often a category occurs in the input; not in mode "max".
    mode : {"mean", "sum", "max"}
    sparse : bool
        Not supported.
    _weight : Tensor, shape (num_embeddings, embedding_dim), optional
        Vectors to start with, standard normal draws if None.
    include_last_offset : bool
        Whether offsets have one more number, where the last bag ends.
    padding_idx : int, optional
        Category that counts in no bag; its vector starts at 0.
    device, dtype
        Of `weight`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: TensorLike | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        # The table, and what is checked about it, are those of `Embedding`.
        table = Embedding(
            num_embeddings,
            embedding_dim,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            sparse,
            _weight,
            device=device,
            dtype=dtype,
        )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.weight = table.padding_idx, table.weight
        self._recipes.update(table._recipes)
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.mode, self.sparse = scale_grad_by_freq, mode, sparse
        self.include_last_offset = include_last_offset

    @classmethod
    def from_pretrained(
        cls,
        embeddings: TensorLike,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Self:
        """Return a layer with a table of shape (rows, features), frozen unless `freeze` is off."""
        rows, features = _table_shape(embeddings)
        out = cls(
            rows,
            features,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            mode,
            sparse,
            embeddings,
            include_last_offset,
            padding_idx,
        )
        out.weight.requires_grad_(not freeze)
        return out

    def forward(
        self,
        input: TensorLike,
        offsets: TensorLike | None = None,
        per_sample_weights: TensorLike | None = None,
    ) -> Tensor:
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.max_norm is not None:
            text += f", max_norm={self.max_norm}"
        if self.norm_type != 2:
            text += f", norm_type={self.norm_type}"
        if self.scale_grad_by_freq:
            text += ", scale_grad_by_freq=True"
        text += f", mode={self.mode!r}"
        return text + ("" if self.padding_idx is None else f", padding_idx={self.padding_idx}")


def _table_shape(embeddings: TensorLike) -> tuple[int, ...]:
    table = as_tensor(embeddings, "from_pretrained")
    if table.array.ndim != 2:
        raise ShapeError(
            "from_pretrained", expected="a matrix", got=str(table.array.shape), fix="reshape it"
        )
    return table.array.shape


class _normal_rows:
    """Initial values: standard normal, with one row of zeros if asked."""

    _saved_whole = True

    def __init__(self, zero_row: int | None) -> None:
        self.zero_row = zero_row

    @no_grad
    def __call__(self, tensor: Tensor) -> Tensor:
        init.normal_(tensor)
        if self.zero_row is not None:
            tensor[self.zero_row] = 0.0
        return tensor
