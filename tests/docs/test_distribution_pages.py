"""Pages of distributions: formulas of docstrings are the densities, and are mathematics."""

import ast
import importlib.util
import inspect
import math
from pathlib import Path
from types import GeneratorType

import numpy as np
import pytest
from scipy import integrate, special

import probtorch.distributions as dist
from probtorch.core.rng import Generator
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
    "multigamma": lambda a, n: math.exp(special.multigammaln(a, n)),
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
    )


def base_of(d):
    """The density and the cdf of what a distribution is made of, as functions of numbers."""
    whole = isinstance(d, dist.MixtureSameFamily)
    names = ("component_distribution",) if whole else ("base_dist", "propose")
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
INDICES = {dist.Categorical, dist.DiscreteMarkovChain, dist.PlackettLuce}


class _Integrals(ast.NodeTransformer):
    """integral(e for t in between(a, b)) as integral(lambda t: e, a, b)."""

    def visit_Call(self, node):
        self.generic_visit(node)
        if getattr(node.func, "id", "") != "integral":
            return node
        loop = node.args[0].generators[0]
        given = ast.arguments([], [ast.arg(loop.target.id)], None, [], [], None, [])
        args = [ast.Lambda(given, node.args[0].elt), *loop.iter.args]
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
        space = FUNCTIONS | {"integral": integral} | parameters(d)
        for x in d.sample((4,), Generator(2)).numpy():
            x = x.astype(int) if cls in INDICES else x.astype(float)
            here = dict(space) | {pages.FORMULA.search(" ".join(cls.__doc__.split()))["at"]: x}
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
    "a product or sum over time, places or paths, of densities of others": """
        AR DiscreteHMM EulerMaruyama GARCH11 GammaGaussianHMM GaussianHMM
        GaussianMRF GaussianStateSpace GroupedNormalNormal IndependentHMM LinearHMM MarkovChain
        CoalescentTimes CoalescentTimesWithRate GaussianCopula
        MixtureGeneral MaskedMixture TransformedDistribution""",
    "a constant that is a product over rows, or a sum over arrangements": """
        OneOneMatching OneTwoMatching SpanningTree""",
    "no closed form: a series or an integral": """
        Stable TruncatedPolyaGamma Wiener GaussianScaleMixture""",
    "points, tables, or a choice of more than two": """
        Delta Empirical FiniteDiscrete Interpolated JointCategorical ImproperUniform Censored
        IntervalCensoredDistribution QuantizedDistribution ZeroOneInflatedBeta
        CategoricalLogitGLM OrderedLogisticGLM""",
    "that of another class": """
        OneHotCategoricalStraightThrough RelaxedBernoulliStraightThrough
        RelaxedOneHotCategoricalStraightThrough NanMaskedMultivariateNormal""",
    "a normal vector whose covariance comes from a graph or a grid": """
        ICAR CirculantNormal KroneckerNormal""",
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
