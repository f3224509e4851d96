"""What every op refuses: by its public function, with the class PyTorch has, in three parts.

The mistakes are made from the declaration: operands that are no numbers, operands that do not
broadcast, results that go nowhere, dims that are not there, matrices that are none. Primitives
that have no public function of their name are reached through the one that users call.
"""

import numpy as np
import pytest
from scipy import sparse

import probtorch
import probtorch.distributions as dist
import probtorch.nn.functional as F
from probtorch import linalg, special
from probtorch.core.dispatch import wrap
from probtorch.errors import ProbtorchError
from probtorch.ops import variates
from probtorch.testing.domains import draw
from probtorch.testing.sweep import cases
from tests.contracts.test_every_op import OPS

SHAPE, DIM, TYPE = RuntimeError, IndexError, TypeError
VECTOR, MATRIX = probtorch.ones(3), probtorch.ones(2, 3)
LEAST_ON_AVERAGE = 2

# Of what has no dims, no matrices and no formula: (class, call).
CALLS = {
    "binomial_draw": [(ValueError, lambda: dist.Binomial(3, VECTOR + 1.0).sample())],
    "cast": [(TYPE, lambda: VECTOR.to("colour")), (TYPE, lambda: VECTOR.type("colour"))],
    "cat": [
        (SHAPE, lambda: probtorch.cat([MATRIX, probtorch.ones(3, 3)], 1)),
        (DIM, lambda: probtorch.cat([MATRIX, MATRIX], 2)),
        (TYPE, lambda: probtorch.cat(["text"])),
    ],
    "cummax_index": [(DIM, lambda: probtorch.cummax(VECTOR, 1))],
    "cummin_index": [(DIM, lambda: probtorch.cummin(VECTOR, 1))],
    "diag_embed": [(TYPE, lambda: probtorch.diag_embed("text"))],
    "diagonal": [
        (DIM, lambda: probtorch.diagonal(VECTOR)),
        (SHAPE, lambda: probtorch.diagonal(MATRIX, 0, 1, 1)),
    ],
    "expand": [
        (SHAPE, lambda: VECTOR.expand(2, 4)),
        (SHAPE, lambda: MATRIX.expand(3)),
        (SHAPE, lambda: probtorch.broadcast_to(VECTOR, (2,))),
    ],
    "matmul": [
        (SHAPE, lambda: MATRIX @ MATRIX),
        (SHAPE, lambda: probtorch.matmul(probtorch.tensor(1.0), MATRIX)),
        (TYPE, lambda: probtorch.matmul("text", MATRIX)),
    ],
    "strided": [
        (DIM, lambda: VECTOR.as_strided((4,), (1,))),
        (ValueError, lambda: VECTOR.as_strided((2,), (-1,))),
        (ValueError, lambda: VECTOR.unfold(0, 4, 1)),
        (DIM, lambda: VECTOR.unfold(1, 1, 1)),
    ],
    "order_statistic": [
        (ValueError, lambda: probtorch.kthvalue(VECTOR, 4)),
        (DIM, lambda: probtorch.kthvalue(VECTOR, 1, dim=2)),
    ],
    "overlap_add": [(SHAPE, lambda: F.fold(probtorch.ones(1, 5, 3), 4, 2))],
    "permute": [
        (SHAPE, lambda: MATRIX.permute(0, 0)),
        (SHAPE, lambda: MATRIX.permute(0)),
        (DIM, lambda: MATRIX.permute(0, 2)),
    ],
    "poisson_draw": [
        (TYPE, lambda: probtorch.poisson("text")),
        (ValueError, lambda: probtorch.poisson(-VECTOR)),
    ],
    "put": [
        (DIM, lambda: probtorch.zeros(3).index_put((probtorch.tensor([3]),), VECTOR[:1])),
        (SHAPE, lambda: probtorch.zeros(3).index_put((probtorch.tensor([0, 1]),), VECTOR)),
    ],
    "reshape": [
        (SHAPE, lambda: VECTOR.reshape(2, 2)),
        (SHAPE, lambda: VECTOR.reshape(-1, -1)),
        (SHAPE, lambda: MATRIX.reshape(-1, 4)),
    ],
    "sparse_product": [
        (SHAPE, lambda: sparse.csr_array(np.eye(2)) @ VECTOR),
        (TYPE, lambda: sparse.csr_array(np.eye(3) * 1j) @ VECTOR),
    ],
    "searchsorted": [
        (TYPE, lambda: probtorch.searchsorted(VECTOR, "text")),
        (SHAPE, lambda: probtorch.searchsorted(MATRIX, probtorch.ones(3, 2))),
    ],
    "slice": [
        (DIM, lambda: VECTOR[3]),
        (DIM, lambda: VECTOR[0, 0]),
        (DIM, lambda: VECTOR[0.5]),
        (DIM, lambda: VECTOR[::0]),
    ],
    "slice_put": [(SHAPE, lambda: probtorch.zeros(3).__setitem__(slice(2), VECTOR))],
    "take": [
        (DIM, lambda: VECTOR[probtorch.tensor([3])]),
        (DIM, lambda: VECTOR[probtorch.tensor([0.5])]),
        (DIM, lambda: VECTOR[probtorch.tensor([True, False])]),
    ],
    "standard_gamma": [(ValueError, lambda: dist.Gamma(-VECTOR, 1.0).sample())],
    "to_device": [(RuntimeError, lambda: VECTOR.to("abacus"))],
    "variance": [
        (DIM, lambda: VECTOR.var(dim=1)),
        (SHAPE, lambda: MATRIX.var(dim=(0, 0))),
        (TYPE, lambda: probtorch.var("text")),
    ],
    "window_max": [(SHAPE, lambda: F.max_pool1d(probtorch.ones(1, 1, 2), 3))],
    "window_sum": [(SHAPE, lambda: F.avg_pool1d(probtorch.ones(1, 1, 2), 3))],
    "progeny_draw": [(ValueError, lambda: variates.progeny(-VECTOR, 0.5))],
    "polya_gamma_draw": [(ValueError, lambda: variates.polya_gamma(-VECTOR, 0.0))],
    "von_mises_draw": [(ValueError, lambda: dist.VonMises(0.0, -VECTOR).sample())],
    "windows": [(SHAPE, lambda: F.unfold(probtorch.ones(1, 1, 2, 2), 3))],
}
# Operations that users call by functions of nn.functional.
CALLS |= {
    name: [(TYPE, lambda fn=fn: fn("text")), (TYPE, lambda fn=fn: fn(["text"]))]
    for name, fn in {
        **{name: getattr(F, name) for name in ("elu", "selu", "celu", "leaky_relu", "hardtanh")},
        **{name: getattr(F, name) for name in ("hardsigmoid", "hardswish", "hardshrink")},
        "softshrink": F.softshrink,
        "huber": lambda x: F.huber_loss(x, VECTOR),
        "smooth_l1": lambda x: F.smooth_l1_loss(x, VECTOR),
    }.items()
}
CALLS["interval_means"] = [
    (SHAPE, lambda: F.adaptive_avg_pool1d(VECTOR, 2)),
    (ValueError, lambda: F.adaptive_avg_pool1d(MATRIX, 0)),
]
CALLS["interval_maxima"] = [
    (SHAPE, lambda: F.adaptive_max_pool1d(VECTOR, 2)),
    (ValueError, lambda: F.adaptive_max_pool1d(MATRIX, 0)),
]
ROOMS = (probtorch, linalg, special)


def public_of(op):
    found = (getattr(room, op.name, None) for room in ROOMS)
    return op.public or next((fn for fn in found if fn is not None), None)


def error_inputs(op):
    """Return (what is wrong, the class it is refused with, the call) for an op."""
    if op.name in CALLS:
        return [(f"call {i}", kind, call) for i, (kind, call) in enumerate(CALLS[op.name])]
    fn = public_of(op)
    if fn is None:
        return []
    return _of_elementwise(op, fn) if op.samples is None else _of_others(op, fn)


def _of_elementwise(op, fn):
    rng = np.random.default_rng(0)
    plain = [wrap(draw(d, rng, (3,))) for d in op.domain]
    view = probtorch.zeros(10, dtype=probtorch.float64)[:7]
    out = [
        ("a result that is no tensor", TYPE, lambda: fn(*plain, out="text")),
        ("a result of another shape", SHAPE, lambda: fn(*plain, out=view)),
    ]
    for i, d in enumerate(op.domain):
        with_ = lambda wrong, i=i: fn(*plain[:i], wrong, *plain[i + 1 :])
        out += [
            (f"text for operand {i}", TYPE, lambda with_=with_: with_("text")),
            (f"no number for operand {i}", TYPE, lambda with_=with_: with_(object())),
            (
                f"rows of two lengths for operand {i}",
                SHAPE,
                lambda with_=with_: with_([[1], [1, 2]]),
            ),
        ]
        if len(op.domain) > 1:
            short = wrap(draw(d, rng, (2,)))
            wide = wrap(draw(d, rng, (3, 2)))
            out += [
                (f"operand {i} too short", SHAPE, lambda with_=with_, x=short: with_(x)),
                (f"operand {i} turned", SHAPE, lambda with_=with_, x=wide: with_(x)),
            ]
    return out


def _of_others(op, fn):
    case = cases(op)[0]
    first, *rest = (wrap(a) for a in case.arrays)
    along = bool({"dim", "dims"} & set(case.attrs))
    out = [("text", TYPE, lambda: fn("text", *rest, **{"dim": 0} if along else {}))]
    if along:
        far = first.ndim
        out += [
            ("a dim too many", DIM, lambda: fn(first, *rest, dim=far)),
            ("a dim too far back", DIM, lambda: fn(first, *rest, dim=-far - 1)),
            ("a dim that is no integer", TYPE, lambda: fn(first, *rest, dim="rows")),
        ]
    if "dims" in case.attrs:
        out.append(("a dim twice", SHAPE, lambda: fn(first, *rest, dim=(0, 0))))
    if op.family == "linalg":
        out.append(("a vector", SHAPE, lambda: fn(first[0], *rest)))
        if op.core.startswith("(n,n)"):
            out.append(("not square", SHAPE, lambda: fn(first[..., :-1], *rest)))
        if rest:
            out.append(("too few rows", SHAPE, lambda: fn(first, rest[0][..., :-1, :])))
    return out


FOUR, FIVE = probtorch.ones(4, 3), probtorch.ones(5)
BY_NAME = {
    "batch_norm": lambda: F.batch_norm(FOUR, FIVE, FIVE),
    "cholesky_solve": lambda: linalg.cholesky_solve(FOUR, FIVE),
    "cosine_similarity": lambda: F.cosine_similarity(FOUR, FIVE),
    "diagonal": lambda: probtorch.diagonal(FIVE),
    "group_norm": lambda: F.group_norm(FOUR, 1, FIVE, FIVE),
    "instance_norm": lambda: F.instance_norm(probtorch.ones(4, 3, 2), weight=FIVE),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_composition_is_blamed_by_its_own_name(name):
    with pytest.raises(ProbtorchError, match=rf"^{name}\n"):
        BY_NAME[name]()


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"])
def test_a_loss_is_blamed_by_its_own_name(name):
    with pytest.warns(UserWarning, match="target size"):
        with pytest.raises(ProbtorchError, match=rf"^{name}\n"):
            getattr(F, name)(FOUR, FIVE)


@pytest.mark.parametrize("op", [op for op in OPS if error_inputs(op)], ids=lambda op: op.name)
def test_what_is_wrong_is_named(op):
    for label, kind, call in error_inputs(op):
        with pytest.raises(ProbtorchError) as caught:
            call()
        message = str(caught.value)
        assert isinstance(caught.value, kind), f"{label}: {type(caught.value).__mro__}"
        for part in ("expected:", "got:", "fix:"):
            assert part in message, f"{label}: {message}"
        if op.name not in CALLS:
            assert op.name in message.splitlines()[0], f"{label}: {message}"


def test_ops_have_two_error_inputs_on_average():
    counts = [len(error_inputs(op)) for op in OPS]
    assert sum(counts) >= LEAST_ON_AVERAGE * len(OPS)
    # What has none is a part of another op that no user calls.
    unreachable = {op.name for op, n in zip(OPS, counts, strict=True) if not n}
    assert unreachable <= {
        *(
            "affine",
            "betainc_grad",
            "bits_to_integers",
            "class_log_probs",
            "class_loss",
            "class_mean",
            "cofactor",
        ),
        *("demand", "det_hessian"),
        *("gamma_log_implicit", "gammainc_grad_a", "interval_spread", "linear_recurrence"),
        "native_density",
        *(
            "peak",
            "room",
            "standard_log_gamma",
            "standardise",
            "unslice",
            "untake",
            "von_mises_slope",
        ),
    }, unreachable
