"""One entry per module class and way of using it: what the layer tests know about each.

An entry builds the module from its arguments and names its inputs and the shape of what comes out.
Inputs lie away from kinks, so that gradients can be compared with differences.
"""

from dataclasses import dataclass, field

import numpy as np

import probtorch.nn as nn
from probtorch.core.dispatch import wrap
from probtorch.tensor import tensor


@dataclass
class Layer:
    """A module class with arguments and inputs.

    Attributes
    ----------
    name : str
        Of the class in `probtorch.nn`; the same in `torch.nn`.
    args, kwargs
        Of the constructor; arrays among them become tensors.
    inputs : tuple of ndarray
        float64, or integers, which have no gradient.
    shape : tuple or list of tuple
        Of the output, or of each tensor in it.
    fixed : tuple of int
        Inputs without a gradient although they are floats (targets).
    evaluate : bool
        Whether only evaluation mode is deterministic.
    own_gradient : bool
        Whether the gradient is meant to differ from that of the value.
    """

    name: str
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    inputs: tuple = ()
    shape: tuple | list = ()
    fixed: tuple = ()
    evaluate: bool = False
    own_gradient: bool = False

    @property
    def id(self):
        """Name in the test report."""
        shown = [str(a) for a in self.args if not isinstance(a, np.ndarray) and not callable(a)]
        shown += [k if isinstance(v, np.ndarray) else f"{k}={v}" for k, v in self.kwargs.items()]
        return f"{self.name}({','.join(shown)})-{'x'.join(map(str, self.inputs[0].shape))}"

    def build(self, library=nn, make=tensor):
        """Return the module, from `probtorch.nn` or another library with the same names."""
        args = [make(a) if isinstance(a, np.ndarray) else a for a in self.args]
        kwargs = {k: make(v) if isinstance(v, np.ndarray) else v for k, v in self.kwargs.items()}
        module = getattr(library, self.name)(*args, **kwargs)
        return module.eval() if self.evaluate else module

    def tensors(self, dtype=np.float64):
        """Return the inputs as tensors, those with a gradient requiring it."""
        out = []
        for i, a in enumerate(self.inputs):
            t = wrap(a.astype(dtype) if a.dtype.kind == "f" else np.array(a))
            out.append(t.requires_grad_() if self.has_gradient(i) else t)
        return out

    def has_gradient(self, i):
        """Whether input `i` is differentiable."""
        return self.inputs[i].dtype.kind == "f" and i not in self.fixed


RNG = np.random.default_rng(20)


def normal(*shape):
    return RNG.standard_normal(shape)


def away(*shape):
    """Numbers that keep a distance from 0, 0.5, 1 and 3: the kinks of the activations."""
    x = RNG.uniform(-4.0, 4.0, 40 * int(np.prod(shape)))
    near = np.min(np.abs(np.abs(x)[:, None] - np.array([0.0, 0.1, 0.5, 1.0, 3.0, 6.0])), axis=1)
    return x[near > 0.05][: int(np.prod(shape))].reshape(shape)


def distinct(*shape):
    """Numbers that differ by at least 0.1: no ties for maxima."""
    return RNG.permutation(np.arange(np.prod(shape)) * 0.1).reshape(shape) - 1.0


def unit(*shape):
    return RNG.uniform(0.1, 0.9, shape)


def integers(high, *shape):
    return RNG.integers(0, high, shape)


def signs(*shape):
    return RNG.choice([-1.0, 1.0], shape)


def entry(name, *args, on, out, fixed=(), evaluate=False, own_gradient=False, **kwargs):
    return Layer(name, args, kwargs, on, out, fixed, evaluate, own_gradient)


SPATIAL = {1: (6,), 2: (5, 6), 3: (4, 3, 5)}


def activations():
    for name in (
        "CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish ReLU "
        "ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink"
    ).split():
        yield entry(name, on=(away(3, 4),), out=(3, 4))
    yield entry("RReLU", on=(away(3, 4),), out=(3, 4), evaluate=True)
    yield entry("Threshold", 0.1, 20.0, on=(away(3, 4),), out=(3, 4))
    yield entry("GELU", "tanh", on=(away(3, 4),), out=(3, 4))
    yield entry("Softplus", 2.0, 5.0, on=(away(3, 4),), out=(3, 4))
    yield entry("ELU", 0.7, on=(away(5),), out=(5,))
    yield entry("CELU", 0.7, on=(away(5),), out=(5,))
    yield entry("GLU", on=(normal(3, 4),), out=(3, 2))
    yield entry("PReLU", on=(away(3, 4),), out=(3, 4))
    yield entry("PReLU", 4, on=(away(2, 4, 3),), out=(2, 4, 3))
    for name in ("Softmax", "Softmin", "LogSoftmax"):
        yield entry(name, 1, on=(normal(3, 4),), out=(3, 4))
    yield entry("Softmax2d", on=(normal(2, 3, 2, 2),), out=(2, 3, 2, 2))


def maps():
    yield entry("Identity", on=(normal(3),), out=(3,))
    yield entry("Lambda", nn.functional.tanh, on=(normal(3),), out=(3,))
    yield entry("Linear", 3, 4, on=(normal(2, 5, 3),), out=(2, 5, 4))
    yield entry("Linear", 3, 4, on=(normal(3),), out=(4,), bias=False)
    yield entry("Bilinear", 3, 4, 5, on=(normal(2, 3), normal(2, 4)), out=(2, 5))
    yield entry("Embedding", 7, 3, on=(integers(7, 4, 2),), out=(4, 2, 3))
    for settings in ({"padding_idx": 2}, {"scale_grad_by_freq": True}):
        rows = np.array([0, 2, 2])
        yield entry("Embedding", 5, 3, on=(rows,), out=(3, 3), own_gradient=True, **settings)
    bags, begins = integers(7, 6), np.array([0, 2, 2])
    yield entry("EmbeddingBag", 7, 3, on=(integers(7, 2, 4),), out=(2, 3))
    yield entry("EmbeddingBag", 7, 3, on=(bags, begins), out=(3, 3), mode="max", padding_idx=2)
    yield entry("EmbeddingBag", 7, 3, on=(bags, begins, normal(6)), out=(3, 3), mode="sum")
    yield entry("CosineSimilarity", on=(normal(3, 4), normal(3, 4)), out=(3,))
    yield entry("PairwiseDistance", on=(normal(3, 4), normal(3, 4)), out=(3,))
    yield entry("PairwiseDistance", 1.0, on=(unit(3, 4), -unit(3, 4)), out=(3, 1), keepdim=True)


def convolutions():
    for n, spatial in SPATIAL.items():
        conv, transposed = f"Conv{n}d", f"ConvTranspose{n}d"
        yield entry(
            conv,
            4,
            6,
            3,
            on=(normal(2, 4, *spatial),),
            out=(2, 6, *((s - 1) // 2 + 1 for s in spatial)),
            stride=2,
            padding=1,
            groups=2,
        )
        yield entry(
            conv, 2, 3, 2, on=(normal(2, *spatial),), out=(3, *spatial), padding="same", bias=False
        )
        yield entry(
            conv,
            2,
            3,
            3,
            on=(normal(2, *spatial),),
            out=(3, *spatial),
            padding=1,
            padding_mode="circular",
        )
        yield entry(
            transposed,
            4,
            2,
            3,
            on=(normal(2, 4, *(2,) * n),),
            out=(2, 2, *(4,) * n),
            stride=2,
            padding=1,
            output_padding=1,
            groups=2,
        )
    yield entry("Conv2d", 1, 2, (3, 2), on=(normal(1, 1, 6, 5),), out=(1, 2, 4, 4))
    yield entry("Conv1d", 2, 2, 2, on=(normal(2, 7),), out=(2, 5), dilation=2)


def pools():
    for n, spatial in SPATIAL.items():
        x, half = (2, 3, *spatial), tuple(s // 2 for s in spatial)
        over = tuple(-(-(s + 2 - 3) // 2) + 1 for s in spatial)
        yield entry(f"MaxPool{n}d", 2, on=(distinct(*x),), out=(2, 3, *half))
        yield entry(f"AvgPool{n}d", 2, on=(normal(*x),), out=(2, 3, *half))
        for kind in ("Max", "Avg"):
            yield entry(
                f"{kind}Pool{n}d",
                3,
                on=(distinct(3, *spatial),),
                out=(3, *over),
                stride=2,
                padding=1,
                ceil_mode=True,
            )
            size = tuple(min(s, 3) for s in spatial)
            yield entry(f"Adaptive{kind}Pool{n}d", size, on=(distinct(*x),), out=(2, 3, *size))
        yield entry(f"LPPool{n}d", 2.0, 2, on=(unit(*x),), out=(2, 3, *half))
        places = np.argsort(distinct(2, 3, *half).reshape(2, 3, -1)).reshape(2, 3, *half)
        back = tuple(2 * h for h in half)
        yield entry(f"MaxUnpool{n}d", 2, on=(normal(2, 3, *half), places), out=(2, 3, *back))
        if n > 1:
            size, draws = tuple(s - 2 for s in spatial), unit(2, 3, n)
            yield entry(
                f"FractionalMaxPool{n}d",
                2,
                size,
                on=(distinct(*x),),
                out=(2, 3, *size),
                _random_samples=draws,
            )
        if n < 3:
            wide = tuple(s + 4 for s in spatial)
            for kind in ("Reflection", "Replication", "Zero", "Circular"):
                yield entry(f"{kind}Pad{n}d", 2, on=(normal(*x),), out=(2, 3, *wide))
            yield entry(f"ConstantPad{n}d", 2, 1.5, on=(normal(*x),), out=(2, 3, *wide))
    volume, wide = normal(1, 2, 2, 3, 2), (1, 2, 4, 5, 4)
    for kind in ("Reflection", "Replication", "Zero", "Circular"):
        yield entry(f"{kind}Pad3d", 1, on=(volume,), out=wide)
    yield entry("ConstantPad3d", 1, 1.5, on=(volume,), out=wide)


def shapes():
    yield entry("Flatten", on=(normal(2, 3, 4),), out=(2, 12))
    yield entry("Unflatten", 1, (2, 3), on=(normal(2, 6),), out=(2, 2, 3))
    yield entry("PixelShuffle", 2, on=(normal(2, 8, 3, 2),), out=(2, 2, 6, 4))
    yield entry("PixelUnshuffle", 2, on=(normal(2, 2, 6, 4),), out=(2, 8, 3, 2))
    yield entry("ChannelShuffle", 2, on=(normal(2, 6, 3),), out=(2, 6, 3))
    yield entry("Unfold", (2, 3), on=(normal(2, 3, 4, 5),), out=(2, 18, 9))
    yield entry("Fold", (4, 5), (2, 2), on=(normal(2, 8, 12),), out=(2, 2, 4, 5))


def resizing():
    signal, image, volume = normal(2, 3, 5), normal(2, 3, 4, 5), normal(2, 2, 3, 2, 4)
    yield entry("Upsample", on=(signal,), out=(2, 3, 10), scale_factor=2)
    yield entry("Upsample", on=(signal,), out=(2, 3, 3), size=3, mode="nearest-exact")
    yield entry("Upsample", on=(signal,), out=(2, 3, 8), size=8, mode="linear")
    yield entry("Upsample", (6, 3), on=(image,), out=(2, 3, 6, 3), mode="bicubic")
    yield entry("Upsample", (2, 9), on=(image,), out=(2, 3, 2, 9), mode="area")
    yield entry("Upsample", on=(volume,), out=(2, 2, 4, 3, 6), scale_factor=1.5, mode="trilinear")
    yield entry("UpsamplingNearest2d", (2, 9), on=(image,), out=(2, 3, 2, 9))
    yield entry("UpsamplingBilinear2d", on=(image,), out=(2, 3, 8, 10), scale_factor=2)


def norms():
    for n, spatial in SPATIAL.items():
        x = (3, 4, *spatial[: min(n, 2)], *(2,) * max(n - 2, 0))
        yield entry(f"BatchNorm{n}d", 4, on=(normal(*x),), out=x)
        yield entry(f"BatchNorm{n}d", 4, on=(normal(*x),), out=x, evaluate=True)
        yield entry(
            f"InstanceNorm{n}d", 4, on=(normal(*x),), out=x, affine=True, track_running_stats=True
        )
        yield entry(f"InstanceNorm{n}d", 4, on=(normal(*x[1:]),), out=x[1:])
        yield entry(f"Dropout{n}d", 0.3, on=(normal(*x),), out=x, evaluate=True)
    yield entry("BatchNorm1d", 4, on=(normal(5, 4),), out=(5, 4), momentum=None)
    yield entry("BatchNorm1d", 4, on=(normal(5, 4),), out=(5, 4), bias=False)
    yield entry(
        "BatchNorm1d", 4, on=(normal(5, 4),), out=(5, 4), affine=False, track_running_stats=False
    )
    yield entry("SyncBatchNorm", 4, on=(normal(3, 4, 2),), out=(3, 4, 2), evaluate=True)
    yield entry("LocalResponseNorm", 3, 0.5, on=(normal(2, 5, 3),), out=(2, 5, 3), k=2.0)
    yield entry("LayerNorm", 6, on=(normal(2, 3, 6),), out=(2, 3, 6))
    yield entry("LayerNorm", (3, 6), on=(normal(2, 3, 6),), out=(2, 3, 6), bias=False)
    yield entry("RMSNorm", 6, on=(normal(2, 6),), out=(2, 6))
    yield entry("GroupNorm", 2, 6, on=(normal(2, 6, 3),), out=(2, 6, 3))
    yield entry("Dropout", 0.3, on=(normal(3),), out=(3,), evaluate=True)
    yield entry("FeatureAlphaDropout", 0.3, on=(normal(2, 3),), out=(2, 3), evaluate=True)
    yield entry("AlphaDropout", 0.3, on=(normal(3),), out=(3,), evaluate=True)


def recurrent():
    for name in ("RNN", "GRU", "LSTM"):
        states = 2 if name == "LSTM" else 1
        x = normal(4, 2, 3)
        yield entry(name, 3, 4, on=(x,), out=[(4, 2, 4), *[(1, 2, 4)] * states])
        yield entry(name, 3, 4, on=(normal(4, 3),), out=[(4, 4), *[(1, 4)] * states])
        yield entry(
            name,
            3,
            2,
            on=(normal(2, 4, 3),),
            out=[(2, 4, 4), *[(4, 2, 2)] * states],
            num_layers=2,
            bidirectional=True,
            batch_first=True,
            bias=name != "GRU",
        )
        cell = [(2, 4)] * 2 if states == 2 else (2, 4)
        yield entry(f"{name}Cell", 3, 4, on=(normal(2, 3),), out=cell)
    yield entry(
        "LSTM",
        3,
        4,
        on=(normal(4, 2, 3),),
        out=[(4, 2, 2), (1, 2, 2), (1, 2, 4)],
        proj_size=2,
    )


def attentions():
    q, k = normal(4, 2, 6), normal(3, 2, 6)
    yield entry("MultiheadAttention", 6, 2, on=(q, k, k), out=[(4, 2, 6), (2, 4, 3)])
    yield entry(
        "MultiheadAttention",
        6,
        2,
        on=(normal(2, 4, 6), normal(2, 3, 5), normal(2, 3, 4)),
        out=[(2, 4, 6), (2, 4, 3)],
        kdim=5,
        vdim=4,
        batch_first=True,
        bias=False,
    )
    yield entry(
        "MultiheadAttention",
        6,
        3,
        on=(normal(4, 6), normal(3, 6), normal(3, 6)),
        out=[(4, 6), (4, 5)],
        add_bias_kv=True,
        add_zero_attn=True,
    )
    layer = {"dropout": 0.0, "activation": "gelu"}
    yield entry("TransformerEncoderLayer", 6, 2, 8, on=(q,), out=(4, 2, 6), **layer)
    yield entry(
        "TransformerEncoderLayer",
        6,
        2,
        8,
        on=(normal(2, 4, 6),),
        out=(2, 4, 6),
        norm_first=True,
        batch_first=True,
        bias=False,
        **layer,
    )
    yield entry("TransformerDecoderLayer", 6, 2, 8, on=(q, k), out=(4, 2, 6), **layer)
    yield entry("Transformer", 6, 2, 1, 1, 8, 0.0, "gelu", on=(q, k), out=(3, 2, 6))


def losses():
    x, t = away(3, 4), signs(3, 4) * 0.3
    for name in ("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss"):
        for reduction in ("mean", "sum", "none"):
            out = (3, 4) if reduction == "none" else ()
            yield entry(name, on=(x, t), out=out, fixed=(1,), reduction=reduction)
    yield entry("SoftMarginLoss", on=(normal(3, 4), signs(3, 4)), out=(), fixed=(1,))
    counts = integers(5, 3, 4).astype(float)
    yield entry("PoissonNLLLoss", on=(normal(3, 4), counts), out=(), fixed=(1,), full=True)
    yield entry("PoissonNLLLoss", on=(unit(3, 4), counts), out=(), fixed=(1,), log_input=False)
    gaussian = (normal(3, 4), normal(3, 4), unit(3))
    yield entry("GaussianNLLLoss", on=gaussian, out=(), full=True)
    weights = unit(5)
    for settings in (
        {},
        {"weight": weights, "reduction": "sum"},
        {"ignore_index": 2, "reduction": "none"},
        {"label_smoothing": 0.1, "weight": weights, "ignore_index": 1},
    ):
        out = (6, 2) if settings.get("reduction") == "none" else ()
        labels = integers(5, 6, 2)
        yield entry("CrossEntropyLoss", on=(normal(6, 5, 2), labels), out=out, **settings)
        if "label_smoothing" not in settings:
            yield entry("NLLLoss", on=(normal(6, 5, 2), labels), out=out, **settings)
    yield entry("NLLLoss2d", on=(normal(2, 4, 2, 1), integers(4, 2, 2, 1)), out=())
    yield entry("CrossEntropyLoss", on=(normal(5), np.array(3)), out=())
    yield entry(
        "CrossEntropyLoss",
        on=(normal(6, 5), unit(6, 5)),
        out=(),
        label_smoothing=0.2,
        weight=weights,
    )
    yield entry("BCELoss", on=(unit(3, 4), unit(3, 4)), out=(), fixed=(1,), weight=unit(4))
    yield entry(
        "BCEWithLogitsLoss",
        on=(normal(3, 4) * 5, unit(3, 4)),
        out=(),
        fixed=(1,),
        weight=unit(4),
        pos_weight=unit(4),
    )
    logp = normal(5, 2, 4)
    logp -= np.log(np.exp(logp).sum(-1, keepdims=True))
    lengths = np.array([5, 4]), np.array([3, 1])
    # PyTorch's gradient is one for what comes out of log_softmax only: see test_ctc.py.
    on = (logp, 1 + integers(3, 2, 3), *lengths)
    yield entry("CTCLoss", on=on, out=(), fixed=(0,), own_gradient=True)
    on, out = (normal(6, 8), np.array([0, 6, 3, 1, 4, 5])), [(6,), ()]
    cuts = {"div_value": 2.0, "head_bias": True}
    yield entry("AdaptiveLogSoftmaxWithLoss", 8, 7, [2, 5], on=on, out=out, **cuts)
    yield entry("KLDivLoss", on=(normal(3, 4), unit(3, 4)), out=(), reduction="batchmean")
    yield entry("KLDivLoss", on=(normal(3, 4), normal(3, 4)), out=(), log_target=True)
    a, b, c = normal(3, 4), normal(3, 4), normal(3, 4)
    yield entry("MarginRankingLoss", 0.3, on=(a, b, signs(3, 4)), out=(), fixed=(2,))
    yield entry("HingeEmbeddingLoss", on=(away(3, 4), signs(3, 4)), out=(), fixed=(1,))
    yield entry("CosineEmbeddingLoss", 0.05, on=(a, b, signs(3)), out=(), fixed=(2,))
    yield entry("TripletMarginLoss", on=(a, b, c), out=(), swap=True)
    yield entry("TripletMarginWithDistanceLoss", on=(a, b, c), out=(), margin=0.7, swap=True)
    labels = integers(4, 3)
    yield entry("MultiMarginLoss", on=(normal(3, 4), labels), out=(), weight=unit(4))
    yield entry("MultiMarginLoss", 2, on=(normal(4), np.array(1)), out=())
    listed = np.array([[3, 0, -1, 1], [1, -1, -1, -1]])
    yield entry("MultiLabelMarginLoss", on=(normal(2, 4), listed), out=())
    yield entry(
        "MultiLabelSoftMarginLoss",
        on=(normal(3, 4), unit(3, 4)),
        out=(),
        fixed=(1,),
        weight=unit(4),
    )


def networks():
    """Networks of `pyro.nn`, which torch.nn has not."""
    mask = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    yield entry("MaskedLinear", 3, 2, mask, on=(normal(4, 3),), out=(4, 2))
    yield entry("MaskedLinear", 3, 2, mask, on=(normal(3),), out=(2,), bias=False)
    x, context = normal(4, 3), normal(4, 2)
    yield entry("AutoRegressiveNN", 3, [5], on=(x,), out=[(4, 3), (4, 3)])
    yield entry("AutoRegressiveNN", 3, [5, 6], [2], on=(x,), out=(4, 2, 3), skip_connections=True)
    yield entry("AutoRegressiveNN", 1, [4], [1], on=(normal(4, 1),), out=(4, 1))
    on = (x, context)
    out = [(4, 1, 3), (4, 2, 3)]
    yield entry("ConditionalAutoRegressiveNN", 3, 2, [5], [1, 2], on=on, out=out)
    yield entry("DenseNN", 3, [5], [4, 2], on=(x,), out=[(4, 4), (4, 2)])
    yield entry("DenseNN", 3, [5, 6], [4], on=(x,), out=(4, 4))
    yield entry("ConditionalDenseNN", 3, 2, [5], on=(x, context[0]), out=[(4, 1), (4, 1)])


LAYERS = [
    layer
    for group in (
        activations,
        maps,
        convolutions,
        pools,
        shapes,
        resizing,
        norms,
        recurrent,
        attentions,
        losses,
        networks,
    )
    for layer in group()
]
# Containers and bases have no computation of their own: test_containers.py and test_module.py.
WITHOUT_ENTRY = {
    "DataParallel",
    "Module",
    "ModuleDict",
    "ModuleList",
    "ParameterDict",
    "ParameterList",
    "RNNBase",
    "RNNCellBase",
    "Sequential",
    "TransformerDecoder",
    "TransformerEncoder",
    # They become others on their first call: test_lazy.py.
    "LazyLinear",
    *(
        f"Lazy{kind}{n}d"
        for kind in ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm")
        for n in (1, 2, 3)
    ),
}
