"""Sphinx extension: a page for each distribution and a gallery, made from the declarations.

A page has what the class states: its docstring, whose formula is written as mathematics, the
parameters with their constraints, the support, which moments there are, its divergences, a plot of
the density for a few parameters, and the source. Nothing is written by hand, so nothing goes stale.
"""

import ast
import importlib.util
import inspect
import re
import textwrap
from pathlib import Path

import numpy as np

import probtorch.distributions as dist
from probtorch import Generator, Tensor, tensor
from probtorch.distributions import biject_to, constraints, kl_rules

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location(
    "distribution_examples", HERE / "distribution_examples.py"
)
_examples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_examples)
MADE = _examples.MADE
ROOT = HERE.parent
OUT = HERE / "reference" / "generated" / "distributions"
GALLERY = HERE / "reference" / "generated" / "gallery.md"
# In unconstrained space, of three examples; parameters take them in turn.
STEPS = (0.0, 0.7, -0.7)
# Elements of vectors, rows of matrices, and what settings and counts without a default are.
SIZE, COUNTS = 3, (10, 5, 20)
QUANTITIES = {
    "mean": "_mean",
    "variance": "_variance",
    "mode": "_mode",
    "skewness": "_skewness",
    "kurtosis": "_kurtosis",
    "entropy": "_entropy",
    "cdf": "_cdf",
    "icdf": "_icdf",
}
FORMULA = re.compile(
    r"``(?P<kind>[fp])\((?P<at>[xy])\) = (?P<body>.+?)``(?P<rest>(?: (?:with|and) ``\w+ = .+?``)*)"
)


# ------------------------------------------------------------------------------ mathematics


def formula(cls):
    """Return the letter, the expression and the definitions that a docstring states, or None.

    The value is x, or y where a parameter has that name.
    """
    found = FORMULA.search(" ".join((cls.__doc__ or "").split()))
    if not found:
        return None
    return found["kind"], found["body"], re.findall(r"``(\w+) = (.+?)``", found["rest"])


def latex(expression):
    """Return an expression in Python's notation as mathematics."""
    return _tex(_Signs().visit(ast.parse(expression, mode="eval").body))


class _Signs(ast.NodeTransformer):
    """Takes the sign of a first factor in front of the product: -a * b is -(a * b)."""

    def visit_BinOp(self, node):
        self.generic_visit(node)
        first = node.left
        if isinstance(first, ast.UnaryOp) and not isinstance(node.op, ast.Add | ast.Sub | ast.Pow):
            return ast.UnaryOp(first.op, ast.BinOp(first.operand, node.op, node.right))
        return node


GREEK = {"alpha", "beta", "nu", "omega", "pi", "mu", "sigma"}
WORDS = {"log", "cos", "cosh", "exp", "max", "sin", "sinh", "tan"}
# The density and the cdf of a base, and functions with a letter of their own.
LETTERS = {
    "base": r"f_{\mathrm{base}}",
    "F": r"F_{\mathrm{base}}",
    "E1": "E_1",
    "W": "W",
    "differences": r"\Delta ",
    "log_prob_accept": r"\log a",
    "sigmoid": r"\sigma",
    "Phi_inverse": r"\Phi^{-1}",
    "inverse": "T^{-1}",
    "slope": r"\left|\det J_{T^{-1}}\right|",
    # What docstrings say in words beside the formula.
    "lines_at": "k",
    "rate_at": r"\lambda",
    "g": "g",
    "lines": r"\ell",
    "drift": "f",
    "diffusion": "g",
    "one_hot": r"\operatorname{onehot}",
    "circulant": r"\operatorname{circ}",
    "symmetric": r"\operatorname{sym}",
    "minor": r"\operatorname{minor}",
    "rows": r"\operatorname{normalised\;rows}",
}
# What a sum runs over, where that is no range: arrangements, and the elements of a vector.
SETS = {
    "permutations": "S_{{{0}}}",
    "pairings": "P_{{{0}}}",
    "paths": r"\{{0, \dots, {0} - 1\}}^{{{1}}}",
    "each": "{0}",
}
MATRICES = {
    "covariance_matrix",
    "correlation_matrix",
    "scale_matrix",
    "scale_tril",
    "scale_tril_row",
    "scale_tril_column",
    "cov_factor",
    "transition_matrix",
    "G",
    "L",
    "S",
}
SUM, PRODUCT, POWER, ATOM = range(4)


def _level(node):
    if isinstance(node, ast.BinOp):
        levels = {ast.Add: SUM, ast.Sub: SUM, ast.Pow: POWER}
        return ATOM if isinstance(node.op, ast.Div) else levels.get(type(node.op), PRODUCT)
    return SUM if isinstance(node, ast.UnaryOp) else ATOM


def _round(text):
    return rf"\left({text}\right)"


def _tex(node, least=SUM, index=None):
    text = _node(node, index)
    return _round(text) if _level(node) < least else text


def _node(node, index):
    if isinstance(node, ast.Constant):
        return f"{node.value:g}"
    if isinstance(node, ast.Name):
        return _name(node.id) + (f"_{{{index}}}" if index and node.id in VECTORS else "")
    if isinstance(node, ast.UnaryOp):
        return "-" + _tex(node.operand, PRODUCT, index)
    if isinstance(node, ast.Subscript):
        # An index that has an index of its own stays on the line.
        if isinstance(node.slice, ast.Slice):
            return f"{_tex(node.value)}_{{0 : {_tex(node.slice.upper)}}}"
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return f"{_tex(node.value)}_{{{', '.join(map(_tex, parts))}}}"
    if isinstance(node, ast.IfExp):
        cases = []
        while isinstance(node, ast.IfExp):
            cases.append(f"{_tex(node.body)} & {_tex(node.test)}")
            node = node.orelse
        rows = r" \\ ".join([*cases, rf"{_tex(node)} & \text{{else}}"])
        return rf"\begin{{cases}} {rows} \end{{cases}}"
    if isinstance(node, ast.Compare):
        sign = "=" if isinstance(node.ops[0], ast.Eq) else "<"
        return f"{_tex(node.left)} {sign} {_tex(node.comparators[0])}"
    if isinstance(node, ast.Call):
        return _call(node.func.id, node.args, index)
    return _binary(node, index)


VECTORS = {"x", "y", "z", "d", "probs", "concentration", "skewness"}


def _over(name, node):
    """A sum or product over whole numbers from the first to one before the second; an integral."""
    loop = node.generators[0]
    if name == "integral" and loop.iter.func.id in ("states", "values"):
        return rf"\int {_tex(node.elt, PRODUCT)} \, d{_tex(loop.target)}"
    if loop.iter.func.id in SETS:
        domain = SETS[loop.iter.func.id].format(*map(_tex, loop.iter.args))
        return rf"\{name}_{{{_tex(loop.target)} \in {domain}}} {_tex(node.elt, PRODUCT)}"
    ends = [ast.Constant(0), *loop.iter.args][-2:]
    low, high, letter = _tex(ends[0]), _tex(ends[1]), _tex(loop.target)
    body = _tex(node.elt, PRODUCT)
    if name == "integral":
        return rf"\int_{{{low}}}^{{{high}}} {body} \, d{letter}"
    if high != r"\infty":
        high = _tex(ast.BinOp(ends[1], ast.Sub(), ast.Constant(1)))
    return rf"\{name}_{{{letter} = {low}}}^{{{high}}} {body}"


def _name(name):
    if name == "inf":
        return r"\infty"
    if name in GREEK:
        return "\\" + name
    return name if len(name) == 1 else rf"\mathrm{{{name.strip('_')}}}".replace("_", r"\_")


def _binary(node, index):
    op, left, right = type(node.op), node.left, node.right
    if op is ast.Div:
        return rf"\frac{{{_tex(left, SUM, index)}}}{{{_tex(right, SUM, index)}}}"
    if op is ast.Pow:
        base = _tex(left, ATOM, index)
        plain = isinstance(left, ast.Name | ast.Constant)
        base = base if plain or base.startswith(r"\left(") else _round(base)
        return f"{base}^{{{_tex(right, SUM, index)}}}"
    if op is ast.MatMult:
        return _product_of_matrices(node)
    if op in (ast.Add, ast.Sub):
        sign = "+" if op is ast.Add else "-"
        return f"{_tex(left, SUM, index)} {sign} {_tex(right, PRODUCT, index)}"
    between = r" \cdot " if isinstance(right, ast.Constant) else r" \, "
    return _tex(left, PRODUCT, index) + between + _tex(right, PRODUCT, index)


def _product_of_matrices(node):
    parts = [node.right]
    while isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.MatMult):
        node = node.left
        parts.append(node.right)
    first = node.left
    text = _tex(first, POWER)
    if not isinstance(first, ast.Call) and getattr(first, "id", "") not in MATRICES:
        text = rf"{text}^{{\top}}"
    return " ".join([text, *(_tex(p, POWER) for p in reversed(parts))])


def _call(name, args, index):
    if isinstance(args[0], ast.GeneratorExp):
        return _over(name, args[0])
    inner = [_tex(a, SUM, index) for a in args]
    one = inner[0]
    simple = isinstance(args[0], ast.Name | ast.Constant)
    base = one if simple else _round(one)
    listed = _round(", ".join(inner))
    forms = {
        "sqrt": rf"\sqrt{{{one}}}",
        "abs": rf"\left|{one}\right|",
        "det": rf"\left|{one}\right|",
        "gamma": r"\Gamma" + listed,
        "B": r"\mathrm{B}" + listed,
        "Phi": r"\Phi" + listed,
        "zeta": r"\zeta" + listed,
        "asinh": r"\operatorname{arsinh}" + listed,
        "trace": r"\operatorname{tr}" + listed,
        "diag": r"\operatorname{diag}" + listed,
        "len": rf"\dim {one}",
        "factorial": f"{base}!",
        "inv": f"{base}^{{-1}}",
        "transpose": rf"{base}^{{\top}}",
        "eye": "I",
        "kron": rf"\bigotimes_i {one}_i",
        "ends": rf"\left(-\infty, {one}, \infty\right)",
        "tuple": one,
        "min": r"\min" + listed,
        "degrees": rf"{one} \mathbf{{1}}",
        "positive": rf"{_round(one)}_{{+}}",
    }
    if name in forms:
        return forms[name]
    if name.endswith("_dist"):
        return rf"f_{_name(name)}" + listed
    if name == "N":
        return rf"\mathcal{{N}}\left({inner[0]}; {', '.join(inner[1:])}\right)"
    if name in LETTERS:
        of = index and any(isinstance(a, ast.Name) and a.id in VECTORS for a in args)
        many = name == "base" and of
        return LETTERS[name] + (f"{{}}_{{,{index}}}" if many else "") + listed
    if name in WORDS:
        return rf"\{name}{listed}"
    if name == "binom":
        return rf"\binom{{{inner[0]}}}{{{inner[1]}}}"
    if name in ("Iv", "Kv"):
        return rf"{name[0]}_{{{inner[0]}}}\left({inner[1]}\right)"
    if name == "multigamma":
        return rf"\Gamma_{{{inner[1]}}}\left({inner[0]}\right)"
    letter = "j" if index else "i"
    return rf"\{name}_{letter} {_tex(args[0], PRODUCT, letter)}"


# ------------------------------------------------------------------------------ examples


def distributions():
    """Return the public classes, in the order of their names."""
    classes = (getattr(dist, name) for name in sorted(dist.__all__))
    return [
        c
        for c in classes
        if inspect.isclass(c) and issubclass(c, dist.Distribution) and c is not dist.Distribution
    ]


def examples(cls):
    """Return up to three instances for parameters in their constraints, or the one that is stated.

    None of a base of other classes, which has no instances.
    """
    if cls.__name__ in MADE:
        return [MADE[cls.__name__]()]
    found = []
    for turn in range(len(STEPS)):
        try:
            d = cls(**arguments(cls, turn))
            d.sample((2,), Generator(0))
        except Exception:
            # What cannot be made from its fields alone has no plot.
            break
        found.append(d)
        if d.event_shape:
            break
    return found


def arguments(cls, turn):
    """Return values for the fields that have to be given, by turns of `STEPS`."""
    values, alternatives = {}, list(cls._alternatives)
    owner = type("Given", (), {})()
    fields = [(n, f) for n, f in cls._fields.items() if n not in alternatives[1:]]
    # What depends on others comes after them.
    for name, field in sorted(fields, key=lambda f: _depends(f[1])):
        place = turn + fields.index((name, field))
        if field.constraint is None:
            if isinstance(field.default, int | float | tuple | str | type(None)):
                continue
            values[name] = SIZE if "shape" not in name else (SIZE,)
        elif _depends(field):
            values[name] = _inside(field.constraint.resolve(owner), place)
        else:
            values[name] = _inside(field.constraint, place)
        setattr(owner, name, tensor(values[name]) if field.constraint else values[name])
    return values


def _depends(field):
    return field.constraint is not None and constraints.is_dependent(field.constraint)


def _inside(constraint, turn):
    if constraint.is_discrete:
        ends = (getattr(constraint, end, None) for end in ("lower_bound", "upper_bound"))
        low, high = (None if end is None else float(end) for end in ends)
        step = COUNTS[turn % 3]
        return (low or 0.0) + (step if high is None else float(int((high - low) * step / 25)))
    transform = biject_to(constraint)
    event = (SIZE,) * constraint.event_dim
    shape = transform.inverse_shape(event)
    steps = np.array([STEPS[(turn + i) % 3] for i in range(int(np.prod(shape)))], float)
    value = transform(tensor(steps.reshape(shape))).numpy()
    # Matrices and simplexes would not survive rounding.
    return float(f"{value:.2g}") if not event else value


# ------------------------------------------------------------------------------ plots


def plot(cls, instances, path):
    """Draw densities of numbers, or draws of vectors; return whether there was anything to draw."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 2.6))
    axes = figure.add_axes((0.13, 0.17, 0.84, 0.8))
    try:
        (_densities if not instances[0].event_shape else _points)(axes, instances)
    except (NotImplementedError, ValueError, ArithmeticError, IndexError):
        return False
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    figure.savefig(path, dpi=100, metadata={"Software": None})
    return True


def _densities(axes, instances):
    draws = [d.sample((2000,), Generator(0)).numpy().astype(float) for d in instances]
    low = min(np.quantile(x, 0.02) for x in draws)
    high = max(np.quantile(x, 0.96) for x in draws)
    if instances[0].is_discrete:
        # Short enough to be read, with the whole of a small support.
        at = np.arange(np.floor(low), min(np.ceil(high), np.floor(low) + 30) + 1.0)
    else:
        width = high - low
        at = np.linspace(low - 0.15 * width, high + 0.15 * width, 400)
    top = []
    for d in instances:
        with np.errstate(all="ignore"):
            inside = d.support.check(tensor(at)).numpy()
            safe = np.where(inside, at, np.asarray(d.support.interior(tensor(at)), float))
            y = np.where(inside, np.exp(d.log_prob_inside(tensor(safe)).numpy()), np.nan)
        style = {"marker": "o", "markersize": 3, "linewidth": 0.6} if d.is_discrete else {}
        axes.plot(at, y, label=_label(d), **style)
        top.append(np.quantile(y[np.isfinite(y)], 0.98))
    if not max(top) > 0.0:
        raise ValueError("one point has no curve")
    axes.set_ylim(0.0, 1.25 * max(top))
    if any(map(_label, instances)):
        axes.legend(fontsize=7, frameon=False)


def _label(d):
    given = ((name, vars(d).get(name)) for name in d._fields)
    numbers = [(n, v.item()) for n, v in given if isinstance(v, Tensor) and not v.shape]
    return ", ".join(f"{name} {value:g}" for name, value in numbers if np.isfinite(value))


def _points(axes, instances):
    x = instances[0].sample((500,), Generator(0)).numpy().reshape(500, -1)
    first, second = x[:, 0], x[:, -1 if instances[0].event_dim == 1 else min(SIZE, x.shape[1] - 1)]
    axes.plot(first, second, ".", markersize=2.5)
    axes.set_xlabel("first element of a draw", fontsize=8)
    axes.set_ylabel("another", fontsize=8)


# ------------------------------------------------------------------------------ pages


def page(cls, instances, plotted):
    """Return the page of a class, in MyST."""
    doc = inspect.cleandoc(cls.__doc__ or "")
    summary, rest = (doc.split("\n", 1) + [""])[:2]
    rest = rest.split("Parameters\n---")[0]
    if formula(cls):
        rest = re.sub(
            r"(?:Density|Probability) ``[fp]\([xy]\) = .*?``\.(?=\n|$)", "", rest, flags=re.S
        )
    # The gallery links to the page; in the table of contents it would be one of a hundred and more.
    parts = [
        "---\norphan: true\n---",
        f"# {cls.__name__}",
        _prose(summary),
        _prose(rest.strip()),
        _density(cls),
    ]
    if plotted:
        parts.append(f"![Density of {cls.__name__}]({cls.__name__}.png)")
    parts += [_parameters(cls, doc), _facts(cls, instances), _divergences(cls), _source(cls)]
    return "\n\n".join(p for p in parts if p) + "\n"


def _prose(text):
    """Docstrings have single backquotes for names, and mathematics in double ones."""
    text = re.sub(r"\[(\w+\d{4})\]_", r"\1", text)
    return re.sub(r"``(.+?)``", lambda m: f"`{' '.join(m[1].split())}`", text, flags=re.S)


def _density(cls):
    stated = formula(cls)
    if not stated:
        return ""
    kind, body, rest = stated
    at = FORMULA.search(" ".join(cls.__doc__.split()))["at"]
    lines = [f"{kind}({at}) = {latex(body)}", *(f"{_name(n)} = {latex(b)}" for n, b in rest)]
    return "$$\n" + r" \\ ".join(lines) + "\n$$" if len(lines) == 1 else _aligned(lines)


def _aligned(lines):
    rows = " \\\\\n".join(line.replace(" = ", " &= ", 1) for line in lines)
    return f"$$\n\\begin{{aligned}}\n{rows}\n\\end{{aligned}}\n$$"


def _parameters(cls, doc):
    section = re.search(r"Parameters\n-+\n(.*?)(?=\n\n\w+\n---|\Z)", doc, re.S)
    if not section:
        return ""
    described = re.findall(r"^(\S.*?)(?: : (.*))?\n((?: +.*\n?)*)", section[1] + "\n", re.M)
    rows = ["| parameter | values | constraint | default | |", "| --- | --- | --- | --- | --- |"]
    for names, kind, meaning in described:
        for name in (n.strip() for n in names.split(",")):
            field = cls._fields.get(name)
            row = [f"`{name}`", kind, *_stated(field), " ".join(textwrap.dedent(meaning).split())]
            rows.append("| " + " | ".join(_prose(cell).replace("|", r"\|") for cell in row) + " |")
    return "## Parameters\n\n" + "\n".join(rows)


def _stated(field):
    if field is None:
        return "", ""
    constraint = field.constraint
    stated = "" if constraint is None else f"`{constraint!r}`"
    if constraint is not None and constraints.is_dependent(constraint):
        stated = "depends on others"
    plain = isinstance(field.default, int | float | tuple | str | bool)
    return stated, f"`{field.default}`" if plain else ""


def _facts(cls, instances):
    rows = ["| | |", "| --- | --- |"]
    support = getattr(instances[0], "support", None) if instances else cls.__dict__.get("support")
    known = support is not None and not isinstance(support, property)
    if known and not constraints.is_dependent(support):
        moves = constraints.is_dependent(inspect.getattr_static(cls, "support"))
        words = f"`{support!r}`".replace("|", r"\|")
        rows.append(f"| support | {words}{', for the first of the plotted' if moves else ''} |")
    there = [n for n, method in QUANTITIES.items() if hasattr(cls, method)]
    if "icdf" not in there and "cdf" in there and not (instances and instances[0].event_shape):
        there.append("icdf by a search on the cdf")
    rows.append(f"| has | {', '.join(there) or 'draws and a density'} |")
    if instances:
        rows.append(f"| draws with gradients | {'yes' if instances[0].has_rsample else 'no'} |")
        listed = "yes" if instances[0].has_enumerate_support else "no"
        rows.append(f"| finite support that can be listed | {listed} |")
    return "## What it has\n\n" + "\n".join(rows)


def _divergences(cls):
    names = sorted({q.__name__ for p, q in kl_rules._RULES if issubclass(cls, p) and q in PUBLIC})
    if not names:
        return ""
    return f"Divergences in closed form, or known to be infinite, to: {', '.join(names)}."


PUBLIC = {getattr(dist, name) for name in dist.__all__ if inspect.isclass(getattr(dist, name))}


def _source(cls):
    path = Path(inspect.getsourcefile(cls)).relative_to(ROOT).as_posix()
    return (
        f"## Source\n\n{{py:class}}`probtorch.distributions.{cls.__name__}`, in `{path}`.\n\n"
        f"```{{literalinclude}} /../{path}\n:pyobject: {cls.__name__}\n```"
    )


GROUPS = (
    ("Numbers on the line", lambda d: not d.event_shape and not d.is_discrete and _ends(d) == "ll"),
    ("Positive numbers", lambda d: not d.event_shape and not d.is_discrete and _ends(d) != "hh"),
    ("Numbers in an interval", lambda d: not d.event_shape and not d.is_discrete),
    ("Counts and categories", lambda d: not d.event_shape),
    ("Vectors and matrices", lambda d: True),
)


def _ends(d):
    """By end: l for none, h for a bound."""
    bounds = (getattr(d.support, end, None) for end in ("lower_bound", "upper_bound"))
    return "".join("l" if b is None else "h" for b in bounds)


def gallery(plotted, others):
    """Return the gallery: plots by what draws are, and the names of what has none."""
    parts = [
        "# Gallery of distributions",
        "Each has a page with its density, parameters, moments and source.",
    ]
    left = dict(plotted)
    for title, belongs in GROUPS:
        names = [name for name, d in left.items() if belongs(d)]
        for name in names:
            del left[name]
        if names:
            parts += [f"## {title}", _grid(names)]
    links = ", ".join(f"[{name}](distributions/{name}.md)" for name in others)
    parts += [f"## Made of others, or of data\n\n{links}"]
    return "\n\n".join(parts) + "\n"


def _grid(names, columns=3):
    cells = [f"[![{n}](distributions/{n}.png)](distributions/{n}.md)<br>{n}" for n in names]
    cells += [""] * (-len(cells) % columns)
    rows = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(["|" + " |" * columns, "|" + " --- |" * columns, *lines])


def write_pages(app=None):
    """Write pages, plots and gallery, where they have changed."""
    OUT.mkdir(parents=True, exist_ok=True)
    plotted, others, kept = {}, [], set()
    for cls in distributions():
        name = cls.__name__
        instances, image = examples(cls), OUT / f"{name}.png"
        drawn = bool(instances) and plot(cls, instances, image)
        if drawn:
            plotted[name] = instances[0]
        else:
            others.append(name)
            image.unlink(missing_ok=True)
        _write(OUT / f"{name}.md", page(cls, instances, drawn))
        kept.add(name)
    for path in OUT.iterdir():
        if path.stem not in kept:
            path.unlink()
    _write(GALLERY, gallery(plotted, others))


def _write(path, text):
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def setup(app):
    """Write the pages before Sphinx looks for them."""
    app.connect("builder-inited", write_pages, priority=100)
    return {"parallel_read_safe": True}
