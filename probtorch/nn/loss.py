"""Losses as modules: the functions of `functional.loss` and `functional.margin_loss` with settings.

All take `reduction`, "mean", "sum" or "none", and the old `size_average` and `reduce`, which warn.
Class weights are buffers: they are saved and moved with the module.
"""

from __future__ import annotations

from probtorch.core.making import as_tensor
from probtorch.core.typed import TensorLike
from probtorch.nn import functional as F
from probtorch.nn.arguments import reduction_of
from probtorch.nn.functional.margin_loss import Distance
from probtorch.nn.module import Module
from probtorch.tensor import Tensor

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "MarginRankingLoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "NLLLoss2d",
    "PoissonNLLLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
]


class _Loss(Module):
    """Base: how the losses of single elements are reduced."""

    twin = "loss"

    def __init__(
        self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__()
        self.reduction = reduction_of(self.twin, reduction, size_average, reduce)

    def _keep(self, name: str, weight: TensorLike | None) -> None:
        """Register a weight as a buffer."""
        self.register_buffer(name, None if weight is None else as_tensor(weight, name))


class L1Loss(_Loss):
    """Absolute differences."""

    def forward(self, input: TensorLike, target: TensorLike) -> Tensor:
        return F.l1_loss(input, target, reduction=self.reduction)


class MSELoss(_Loss):
    """Squared differences."""

    def forward(self, input: TensorLike, target: TensorLike) -> Tensor:
        return F.mse_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """Half squares divided by `beta` below it, absolute differences above."""

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        beta: float = 1.0,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.beta = beta

    def forward(self, input: TensorLike, target: TensorLike) -> Tensor:
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(_Loss):
    """Half squares below `delta`, straight lines above."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, input: TensorLike, target: TensorLike) -> Tensor:
        return F.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


class PoissonNLLLoss(_Loss):
    """Negative log likelihood of counts under Poisson distributions.

    See `functional.poisson_nll_loss` for the arguments.
    """

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        size_average: bool | None = None,
        eps: float = 1e-8,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, log_input: bool, target: TensorLike) -> Tensor:
        return F.poisson_nll_loss(
            log_input, target, self.log_input, self.full, eps=self.eps, reduction=self.reduction
        )


class GaussianNLLLoss(_Loss):
    """Negative log likelihood under normals of given means and variances.

    See `functional.gaussian_nll_loss` for the arguments.
    """

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.full, self.eps = full, eps

    def forward(self, input: TensorLike, target: TensorLike, var: TensorLike) -> Tensor:
        return F.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


class CrossEntropyLoss(_Loss):
    """Negative log softmax probability of the target class.

    See `functional.cross_entropy` for the arguments.
    """

    def __init__(
        self,
        weight: TensorLike | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self._keep("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: TensorLike, target: TensorLike) -> Tensor:
        return F.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class NLLLoss(_Loss):
    """Negative of the input, log probabilities, at the target class.

    See `functional.nll_loss` for the arguments.
    """

    def __init__(
        self,
        weight: TensorLike | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self._keep("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, input: TensorLike, target: TensorLike) -> Tensor:
        return F.nll_loss(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


class NLLLoss2d(NLLLoss):
    """`NLLLoss` of images, which that takes as well: an old name."""


class BCELoss(_Loss):
    """Negative log likelihood of 0-1 targets, given probabilities."""

    def __init__(
        self,
        weight: TensorLike | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self._keep("weight", weight)

    def forward(self, input: TensorLike, target: TensorLike) -> Tensor:
        return F.binary_cross_entropy(input, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """Negative log likelihood of 0-1 targets, given logits; `pos_weight` weighs the ones."""

    def __init__(
        self,
        weight: TensorLike | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        pos_weight: TensorLike | None = None,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self._keep("weight", weight)
        self._keep("pos_weight", pos_weight)

    def forward(self, input: TensorLike, target: TensorLike) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


class KLDivLoss(_Loss):
    """``target * (log(target) - input)``; use ``reduction="batchmean"`` for the divergence."""

    twin = "kl_div"

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        log_target: bool = False,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.log_target = log_target

    def forward(self, input: TensorLike, target: TensorLike) -> Tensor:
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class MarginRankingLoss(_Loss):
    """``max(0, -target * (x1 - x2) + margin)``."""

    def __init__(
        self,
        margin: float = 0.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.margin = margin

    def forward(self, input1: TensorLike, input2: TensorLike, target: TensorLike) -> Tensor:
        return F.margin_ranking_loss(input1, input2, target, self.margin, reduction=self.reduction)


class HingeEmbeddingLoss(_Loss):
    """Distances where the target is 1, ``max(0, margin - x)`` where it is -1."""

    def __init__(
        self,
        margin: float = 1.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.margin = margin

    def forward(self, input: TensorLike, target: TensorLike) -> Tensor:
        return F.hinge_embedding_loss(input, target, self.margin, reduction=self.reduction)


class CosineEmbeddingLoss(_Loss):
    """One minus the cosine where the target is 1, its excess over `margin` where it is -1."""

    def __init__(
        self,
        margin: float = 0.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.margin = margin

    def forward(self, input1: TensorLike, input2: TensorLike, target: TensorLike) -> Tensor:
        return F.cosine_embedding_loss(
            input1, input2, target, self.margin, reduction=self.reduction
        )


class TripletMarginLoss(_Loss):
    """``max(0, margin + d(anchor, positive) - d(anchor, negative))``.

    See `functional.triplet_margin_loss` for the arguments.
    """

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: TensorLike, positive: TensorLike, negative: TensorLike) -> Tensor:
        return F.triplet_margin_loss(
            anchor,
            positive,
            negative,
            self.margin,
            self.p,
            self.eps,
            self.swap,
            reduction=self.reduction,
        )


class TripletMarginWithDistanceLoss(_Loss):
    """`TripletMarginLoss` with another distance.

    See `functional.triplet_margin_with_distance_loss` for the arguments.
    """

    def __init__(
        self,
        *,
        distance_function: Distance | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.distance_function = distance_function
        self.margin, self.swap = margin, swap

    def forward(self, anchor: TensorLike, positive: TensorLike, negative: TensorLike) -> Tensor:
        return F.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )


class SoftMarginLoss(_Loss):
    """``log(1 + exp(-target * x))`` for targets 1 and -1."""

    def forward(self, input: TensorLike, target: TensorLike) -> Tensor:
        return F.soft_margin_loss(input, target, reduction=self.reduction)


class MultiMarginLoss(_Loss):
    """Margins between the score of the target class and the others.

    See `functional.multi_margin_loss` for the arguments.
    """

    def __init__(
        self,
        p: float = 1,
        margin: float = 1.0,
        weight: TensorLike | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.p, self.margin = p, margin
        self._keep("weight", weight)

    def forward(self, input: TensorLike, target: TensorLike) -> Tensor:
        return F.multi_margin_loss(
            input, target, self.p, self.margin, self.weight, reduction=self.reduction
        )


class MultiLabelMarginLoss(_Loss):
    """Margins between the scores of target classes and the others."""

    def forward(self, input: TensorLike, target: TensorLike) -> Tensor:
        return F.multilabel_margin_loss(input, target, reduction=self.reduction)


class MultiLabelSoftMarginLoss(_Loss):
    """Mean over classes of the logistic loss of 0-1 targets; `weight` is per class."""

    def __init__(
        self,
        weight: TensorLike | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self._keep("weight", weight)

    def forward(self, input: TensorLike, target: TensorLike) -> Tensor:
        return F.multilabel_soft_margin_loss(input, target, self.weight, reduction=self.reduction)


class CTCLoss(_Loss):
    """Negative log probability of label sequences without their timing [graves2006]_.

    See `functional.ctc_loss` for the arguments.
    """

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(
        self,
        log_probs: TensorLike,
        targets: TensorLike,
        input_lengths: TensorLike,
        target_lengths: TensorLike,
    ) -> Tensor:
        return F.ctc_loss(
            log_probs,
            targets,
            input_lengths,
            target_lengths,
            self.blank,
            self.reduction,
            self.zero_infinity,
        )
