"""Pages of distributions: formulas of docstrings are the densities, and are mathematics."""

import ast
import functools
import importlib.util
import inspect
import itertools
import math
from pathlib import Path
from types import GeneratorType

import numpy as np
import pytest
from scipy import integrate, linalg, special, stats

import probtorch.distributions as dist
from probtorch.core.rng import Generator
from probtorch.distributions import transforms
from probtorch.tensor import tensor
from probtorch.testing import assert_close

_path = Path(__file__).parents[2] / "docs" / "distribution_pages.py"
_spec = importlib.util.spec_from_file_location("distribution_pages", _path)
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)

STATED = [cls for cls in pages.distributions() if pages.formula(cls)]
FUNCTIONS = {
    "pi": math.pi,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "cos": np.cos,
    "cosh": np.cosh,
    "sin": np.sin,
    "sinh": np.sinh,
    "differences": lambda x: np.diff(x, prepend=0.0),
    "E1": special.exp1,
    "W": lambda x: special.lambertw(x).real,
    "asinh": np.arcsinh,
    "abs": np.abs,
    "sum": lambda x: np.sum(list(x) if isinstance(x, GeneratorType) else x),
    "prod": lambda x: np.prod(list(x) if isinstance(x, GeneratorType) else x),
    "gamma": special.gamma,
    "B": special.beta,
    "binom": special.binom,
    "factorial": special.factorial,
    "zeta": special.zeta,
    "Phi": special.ndtr,
    "Iv": special.iv,
    "Kv": special.kv,
    "inv": np.linalg.inv,
    "det": np.linalg.det,
    "trace": np.trace,
    "transpose": np.transpose,
    "diag": np.diag,
    "len": len,
    "inf": math.inf,
    "eye": np.eye,
    "degrees": lambda w: w.sum(-1),
    "positive": lambda x: np.maximum(x, 0.0),
    # Series whose terms have vanished long before.
    "range": lambda *ends: range(*(120 if e == math.inf else int(e) for e in ends)),
    "between": lambda low, high: (low, high),
    "max": np.max,
    "tan": np.tan,
    "sigmoid": special.expit,
    "Phi_inverse": special.ndtri,
    "N": lambda x, mean, cov: stats.multivariate_normal(mean, cov).pdf(x),
    "circulant": linalg.circulant,
    "kron": lambda factors: functools.reduce(np.kron, [f.numpy() for f in factors]),
    "ends": lambda c: np.concatenate([[-math.inf], c, [math.inf]]),
    "lines": np.interp,
    "one_hot": lambda k: np.eye(int(k.max()) + 1)[k],
    "tuple": tuple,
    "rows": lambda w: w / w.sum(-1, keepdims=True),
    "minor": lambda w: w[1:, 1:],
    "symmetric": lambda w: symmetric(w),
    "each": lambda x: list(x),
    "permutations": lambda n: itertools.permutations(range(int(n))),
    "pairings": lambda n: set(itertools.permutations([k for k in range(int(n)) for _ in "ab"])),
    "paths": lambda n, length: itertools.product(range(n), repeat=length),
    "multigamma": lambda a, n: math.exp(special.multigammaln(a, n)),
}


def symmetric(w):
    """A matrix whose upper triangle has these numbers, column after column."""
    n = int((1 + math.sqrt(1 + 8 * len(w))) / 2)
    out = np.zeros((n, n))
    pairs = [(i, j) for j in range(n) for i in range(j)]
    for value, (i, j) in zip(w, pairs, strict=True):
        out[i, j] = out[j, i] = value
    return out


def of_its_own(d):
    """What formulas of single classes name: functions that are parameters, and their like."""
    number = lambda v: tensor(np.asarray(v))
    if isinstance(d, dist.EulerMaruyama):
        parts = lambda y, t: [
            v if isinstance(v, float) else v.item() for v in d.sde_fn(*map(number, (y, t)))
        ]
        return {"drift": lambda y, t: parts(y, t)[0], "diffusion": lambda y, t: parts(y, t)[1]}
    if isinstance(d, dist.MarkovChain):
        step = lambda x, t, before: d.transition_fn(number(t), number(before)).log_prob(number(x))
        first = lambda x: d.initial_state_prior.log_prob(number(x)).exp().item()
        return {
            "transition_dist": lambda *at: step(*at).exp().item(),
            "initial_state_prior_dist": first,
        }
    if isinstance(d, dist.MaskedMixture):
        parts = d.component0, d.component1
        return {"mask": d.mask_.item()} | {
            f"component{i}_dist": lambda x, p=p: p.log_prob(number(x)).exp().item()
            for i, p in enumerate(parts)
        }
    if isinstance(d, dist.MixtureGeneral):
        parts = d.component_distributions
        return {
            "component_dist": lambda k, x: parts[k].log_prob(number(x)).exp().item(),
            "probs": d.mixing_distribution.probs.numpy(),
        }
    if isinstance(d, dist.IndependentHMM):
        series = lambda x: number(np.asarray(x).T[..., None])
        return {"base": lambda x: d.base_dist.log_prob(series(x)).exp().numpy()}
    if isinstance(d, dist.TransformedDistribution):
        whole = transforms.ComposeTransform(d.transforms)
        before = lambda x: whole.inv(number(x))
        return {
            "base": lambda x: d.base_dist.log_prob(number(x)).exp().numpy(),
            "inverse": lambda x: before(x).numpy(),
            "slope": lambda x: np.exp(-whole.log_abs_det_jacobian(before(x), number(x)).numpy()),
        }
    if isinstance(d, dist.DiscreteHMM):
        seen = d.observation_dist
        return {"observation_dist": lambda x: seen.log_prob(number(x)).exp().numpy().reshape(-1)}
    if isinstance(d, dist.GammaGaussianHMM):
        return {"g": lambda x, s: with_precision(d, s).log_prob(number(x)).exp().item()}
    if isinstance(d, dist.GaussianHMM | dist.LinearHMM | dist.GaussianMRF):
        return of_states(d)
    if isinstance(d, dist.GaussianCopula):
        return {"correlation_matrix": d.base_dist.covariance_matrix.numpy()}
    if isinstance(d, dist.Stable):
        # Of an oscillating function that has fallen to exp(-23) at the end.
        t = np.linspace(0.0, 23.0 ** (1.0 / d.stability.item()), 2_000_001)
        return {"integral": lambda fn, *_: integrate.simpson(fn(t), x=t)}
    if isinstance(d, dist.GroupedNormalNormal):
        return {"group_idx": d.group_idx.numpy().astype(int)}
    if isinstance(d, dist.JointCategorical):
        return {"probs": d.base_dist.probs.numpy().reshape(d.sizes)}
    return {}


def with_precision(d, s):
    """The `GaussianHMM` of a `GammaGaussianHMM` whose precision is known."""
    noise = lambda p: dist.MultivariateNormal(p.mean, covariance_matrix=p.covariance_matrix / s)
    first, move, see = (noise(p) for p in (d.initial_dist, d.transition_dist, d.observation_dist))
    matrices = d.transition_matrix, d.observation_matrix
    return dist.GaussianHMM(first, matrices[0], move, matrices[1], see, duration=d.duration)


def of_states(d):
    """Integrals over all states, or values, of functions whose logs are quadratic: Laplace's."""
    first, step, seen = d.initial_dist, d.transition_dist, d.observation_dist
    density = lambda p: lambda x: p.log_prob(tensor(x)).exp().item()
    parts = [density(p) for p in (first, step, seen)]

    def product(z, x):
        moves = (parts[1](np.concatenate(z[t : t + 2])) for t in range(len(x)))
        sights = (parts[2](np.concatenate([z[t + 1], x[t]])) for t in range(len(x)))
        return parts[0](z[0]) * math.prod(moves) * math.prod(sights)

    def integral(fn, shape):
        n, steps = math.prod(shape), np.eye(math.prod(shape))
        log = lambda v: math.log(fn(v.reshape(shape)))
        here = log(np.zeros(n))
        up, down = ([log(s * e) for e in steps] for s in (1.0, -1.0))
        slope = (np.array(up) - down) / 2.0
        both = np.array([[log(a + b) for b in steps] for a in steps])
        bend = np.add.outer(up, up) - here - both
        return math.exp(here + 0.5 * slope @ np.linalg.solve(bend, slope)) * math.sqrt(
            (2.0 * math.pi) ** n / np.linalg.det(bend)
        )

    return dict(
        zip(("initial_dist", "transition_dist", "observation_dist"), parts, strict=True)
    ) | {
        "g": product,
        "integral": integral,
        "transition_matrix": getattr(d, "transition_matrix", first.mean).numpy(),
        "observation_matrix": getattr(d, "observation_matrix", first.mean).numpy(),
        "states": lambda n: (n, d.hidden_dim),
        "values": lambda n: (n, d.obs_dim),
    }


def of_lines(d, x):
    """How many lines there are at a time, and integrals of functions of it, between its steps."""
    leaves = d.leaf_times.numpy()
    ends = np.sort(np.concatenate([leaves, x, np.arange(-20.0, 20.0)]))
    ends = ends[(ends >= x[0]) & (ends <= leaves.max())]
    rates = d.rate_grid.numpy() if isinstance(d, dist.CoalescentTimesWithRate) else None
    pieces = list(itertools.pairwise(ends))
    return {
        "lines_at": lambda t: (leaves > t).sum() - (x > t).sum(),
        "integral": lambda fn, *_: sum(fn(0.5 * (a + b)) * (b - a) for a, b in pieces),
        "rate_at": lambda t: rates[int(np.clip(np.floor(t), 0, len(rates) - 1))],
    }


def parameters(d):
    names = {n: getattr(d, n) for n in d._fields or vars(d) if not n.startswith("_")}
    if not d._fields:
        names |= {n: getattr(d, n) for n in ("gate",) if hasattr(d, n)}
    made_of = {n: v for n, v in names.items() if isinstance(v, dist.Distribution)}
    densities = {n: lambda x, v=v: v.log_prob(x).exp().item() for n, v in made_of.items()}
    names = {n: v for n, v in names.items() if n not in densities}
    return (
        densities
        | base_of(d)
        | {n: v.numpy() if hasattr(v, "numpy") else v for n, v in names.items()}
        | of_its_own(d)
    )


def base_of(d):
    """The density and the cdf of what a distribution is made of, as functions of numbers."""
    whole = isinstance(d, dist.MixtureSameFamily)
    names = ("component_distribution",) if whole else ("marginal_dist", "base_dist", "propose")
    base = next(
        (getattr(d, n) for n in names if isinstance(vars(d).get(n), dist.Distribution)), None
    )
    if base is None:
        return {}
    inner = getattr(base, "base_dist", base)
    more = {"loc": inner.loc.numpy()} if isinstance(d, dist.SineSkewed) else {}
    if isinstance(d, dist.MaskedDistribution):
        more["mask"] = True
    if whole:
        more["probs"] = d.mixture_distribution.probs.numpy()
    return {
        "base": lambda x: base.log_prob(x).exp().numpy(),
        "F": lambda x: base.cdf(x).numpy(),
        **more,
    }


# Whose values are places in tables.
INDICES = {
    *(dist.Categorical, dist.DiscreteMarkovChain, dist.PlackettLuce, dist.JointCategorical),
    *(dist.CategoricalLogitGLM, dist.OrderedLogisticGLM, dist.SpanningTree),
    *(dist.OneOneMatching, dist.OneTwoMatching),
}
# Without draws: the density at some numbers of the support.
NO_DRAWS = {dist.ICAR: (4, 3), dist.ImproperUniform: (4,)}
# Whose density is that of the class they come from, at the number before rounding.
ROUNDED = {
    dist.RelaxedBernoulliStraightThrough: dist.RelaxedBernoulli,
    dist.RelaxedOneHotCategoricalStraightThrough: dist.RelaxedOneHotCategorical,
}


def values_of(d):
    """Values at which a density is compared with its formula."""
    shape = NO_DRAWS.get(type(d))
    if shape:
        return np.random.default_rng(0).uniform(0.1, 2.0, shape)
    x = d.sample((4,), Generator(2)).numpy()
    if isinstance(d, dist.IntervalCensoredDistribution):
        x = x + np.array([0.0, 0.7])
    return x


class _Integrals(ast.NodeTransformer):
    """integral(e for t in between(a, b)) as integral(lambda t: e, a, b)."""

    def visit_Call(self, node):
        self.generic_visit(node)
        if getattr(node.func, "id", "") != "integral":
            return node
        loop = node.args[0].generators[0]
        given = ast.arguments([], [ast.arg(loop.target.id)], None, [], [], None, [])
        whole = loop.iter.func.id != "between"
        args = [ast.Lambda(given, node.args[0].elt), *([loop.iter] if whole else loop.iter.args)]
        return ast.copy_location(ast.Call(node.func, args, []), node)


def evaluated(text, names):
    """What a formula is with names; those of its loops are its own."""
    tree = ast.fix_missing_locations(_Integrals().visit(ast.parse(text, mode="eval")))
    with np.errstate(under="ignore", over="ignore"):
        return eval(compile(tree, "formula", "eval"), dict(names))


def integral(fn, low, high):
    return integrate.quad(fn, low, high, epsabs=0.0, epsrel=1e-7, limit=200)[0]


@pytest.mark.parametrize("cls", STATED, ids=lambda c: c.__name__)
def test_the_formula_of_a_docstring_is_the_density(cls):
    _, body, rest = pages.formula(cls)
    found = pages.examples(cls)
    assert found
    tested = 0
    for d in found:
        if cls is dist.Stable and d.stability.item() == 1.0:
            continue  # a limit
        if cls in ROUNDED:
            d = ROUNDED[cls](d.temperature, probs=d.probs)
        space = FUNCTIONS | {"integral": integral} | parameters(d)
        for x in values_of(d):
            x = x.astype(int) if cls in INDICES else x.astype(float)
            here = dict(space) | {pages.FORMULA.search(" ".join(cls.__doc__.split()))["at"]: x}
            if isinstance(d, dist.CoalescentTimes | dist.CoalescentTimesWithRate):
                here |= of_lines(d, x)
            try:
                with np.errstate(divide="raise", invalid="raise"):
                    for name, value in rest:
                        here[name] = evaluated(value, here)
                    expected = float(evaluated(body, here))
            except FloatingPointError:
                continue  # a limit, as for a concentration of 0
            got = d.log_prob(x).exp().double()
            # Powers of single precision draws, in double precision here and there.
            assert_close(got, expected, rtol=2e-4, msg=f"{d} at {x}")
            tested += 1
    assert tested >= 4


# By reason: which pages have the density in words alone.
IN_WORDS = {
    "a base of other classes": "ExponentialFamily HiddenMarkovModel",
}


def test_distributions_state_their_densities_or_why_not():
    silent = {cls.__name__ for cls in pages.distributions() if cls not in STATED}
    words = [name for names in IN_WORDS.values() for name in names.split()]
    assert len(words) == len(set(words))
    assert silent == set(words), "state the density in the docstring: ``f(x) = ...``"


@pytest.mark.parametrize("cls", pages.distributions(), ids=lambda c: c.__name__)
def test_a_page_has_no_holes(cls):
    text = pages.page(cls, pages.examples(cls), False)
    if cls.__name__ in IN_WORDS["a base of other classes"].split():
        return
    for part in (
        f"\n# {cls.__name__}\n",
        "## Parameters\n",
        "| support | `",
        "| has | ",
        "## Source",
    ):
        assert part in text, part
    assert ("$$" in text) == (cls in STATED)
    # A sentence says what it is, and every row what the parameter may be.
    assert len(text.split(f"# {cls.__name__}\n\n")[1].split("\n")[0]) > 12
    rows = [r for r in text.split("## What it has")[0].splitlines() if r.startswith("| `")]
    assert rows and all(row.split("|")[2].strip() for row in rows)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("-rate * x", r"-\mathrm{rate} \, x"),
        ("(a + b) * x", r"\left(a + b\right) \, x"),
        ("x ** (a - 1) / 2", r"\frac{x^{a - 1}}{2}"),
        ("(x / scale) ** 2", r"\left(\frac{x}{\mathrm{scale}}\right)^{2}"),
        ("a - (b - x)", r"a - \left(b - x\right)"),
        ("gamma(alpha)", r"\Gamma\left(\alpha\right)"),
        ("prod(x ** 2)", r"\prod_i x_{i}^{2}"),
        ("z @ inv(S) @ z", r"z^{\top} S^{-1} z"),
        ("a if x < b else 1", r"\begin{cases} a & x < b \\ 1 & \text{else} \end{cases}"),
    ],
)
def test_expressions_become_mathematics(text, expected):
    assert pages.latex(text) == expected


def test_a_page_says_what_the_class_declares(tmp_path):
    found = pages.examples(dist.Gamma)
    assert len(found) == 3
    text = pages.page(dist.Gamma, found, True)
    for part in (
        "# Gamma\n",
        r"\frac{\mathrm{rate}^{\mathrm{concentration}}}",
        "| `rate` | Tensor or number, positive | `positive` | `1.0` |",
        "| support | `nonnegative` |",
        "entropy, cdf, icdf by a search on the cdf",
        "InverseGamma",
        ":pyobject: Gamma",
    ):
        assert part in text
    assert "f(x)" not in text.replace("f(x) = \\frac", "")


def test_every_class_has_a_page_that_tables_do_not_break():
    for cls in pages.distributions():
        text = pages.page(cls, [], False)
        for row in (r for r in text.splitlines() if r.startswith("| `")):
            assert row.replace(r"\|", "").count("|") == 6, (cls, row)
        assert f"\n# {cls.__name__}\n" in text


def test_plots_are_the_same_each_time(tmp_path):
    pytest.importorskip("matplotlib")
    found = pages.examples(dist.Poisson)
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    assert pages.plot(dist.Poisson, found, first) and pages.plot(dist.Poisson, found, second)
    assert first.read_bytes() == second.read_bytes()
    assert inspect.isclass(dist.Poisson)
