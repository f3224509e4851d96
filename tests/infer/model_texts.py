"""Texts of random models, which mean the same with names of probtorch and with those of NumPy.

`model_text(seed)` writes ``def model(data): ...``: sites of random families whose parameters are
random expressions of what is known so far, in plates, loops, branches, functions, dicts, under
handlers, with data. Numbers are sixteenths, which every dtype has.
"""

import random
import re
from dataclasses import dataclass, field

import numpy as np

from tests.infer.model_families import DATA, FINITE, LATENT, LOC_SCALE, SHARES, TRIANGLE

__all__ = ["ModelText", "model_text"]

ROWS, COLS = 3, 2
SIZES = {"rows": ROWS, "cols": COLS}
# What a finite site costs: the assignments that all of them have are summed one by one.
MOST_ASSIGNMENTS = 128


@dataclass(frozen=True)
class Variable:
    """What an expression may use: its text, what it is, the plates that its rows belong to."""

    text: str
    kind: str
    plates: tuple = ()


@dataclass
class ModelText:
    """A model by its text, with its data and what laws need to know of it."""

    lines: list = field(default_factory=list)
    data: dict = field(default_factory=dict)
    kinds: dict = field(default_factory=dict)
    assignments: int = 1
    names: int = 0
    reparametrised: bool = False
    branches: bool = False

    @property
    def text(self):
        return "\n".join(["def model(data):", *self.lines]) + "\n"


class Writer:
    """Writes one model: statements, one after another, of what is in scope."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.found = ModelText()
        self.scope = []
        self.indent, self.weighted = 1, False
        self.discrete = self.rng.random() < 0.35
        # With dims that are given, either plate may come alone; else rows are always outermost.
        self.dims = self.rng.random() < 0.4

    # ------------------------------------------------------------------------------------- texts

    def line(self, text):
        self.found.lines.append("    " * self.indent + text)

    def name(self, letter):
        self.found.names += 1
        return f"{letter}{self.found.names}"

    def number(self, low=-1.5, high=1.5):
        return self.rng.randrange(int(16 * low), int(16 * high) + 1) / 16

    def numbers(self, shape, low=-1.5, high=1.5):
        found = np.array([self.number(low, high) for _ in range(int(np.prod(shape)))])
        return f"const({found.reshape(shape).tolist()})"

    def shape(self, plates):
        """The shape of rows of these plates, cols to the left of rows."""
        full = (COLS if "cols" in plates else 1, ROWS if "rows" in plates else 1)
        return full if "cols" in plates else full[1:] if "rows" in plates else ()

    # ------------------------------------------------------------------------------- expressions

    def within(self, plates):
        return [v for v in self.scope if set(v.plates) <= set(plates)]

    def atom(self, plates):
        """A real number of each row: one of what is known, or a constant."""
        rng = self.rng
        known = self.within(plates)
        if not known or rng.random() < 0.2:
            if plates and rng.random() < 0.5:
                return self.numbers(self.shape(plates))
            return rng.choice([f"{self.number()}", "config['rate']", "settings.shift", "f(1.5)"])
        v = rng.choice(known[-6:])
        t, i = v.text, rng.randrange(3)
        forms = {
            "real": [t, t, f"f({t})"],
            "positive": [t, f"log({t})", f"sqrt({t})"],
            "unit": [t, f"{t} * {t}", f"log1p(-{t})"],
            "vector": [f"{t}[..., {i}]", f"{t}.sum(-1)", f"({t} * {self.numbers((3,))}).sum(-1)"],
            "simplex": [f"{t}[..., {i}]", f"log({t}[..., {i}])"],
            "ordered": [f"{t}[..., {i}]", f"({t}[..., 2] - {t}[..., 0])"],
            "matrix": [f"{t}[..., 0, {i}]", f"({t} @ {self.numbers((3,))}).sum(-1)"],
            "correlation": [f"{t}[..., 1, 0]", f"log({t}[..., 1, 1])"],
            "bit": [t, f"where({t} > 0.5, {self.number()}, {self.number()})"],
            "face": [f"pick({self.vector(plates, 0)}, {t})", f"pick({self.numbers((3,))}, {t})"],
        }
        return rng.choice(forms[v.kind])

    def real(self, plates, depth=2):
        rng = self.rng
        if depth == 0 or rng.random() < 0.35:
            return self.atom(plates)
        a, b = self.real(plates, depth - 1), self.real(plates, depth - 1)
        k = self.number()
        return rng.choice(
            [
                f"({a} + {b})", f"({a} - {b})", f"{k} * ({a})", f"tanh({a}) * ({b})",
                f"sin({a} + {k})", f"where({a} > {k}, {b}, {k})", f"log1p(({a}) ** 2)",
                f"maximum({a}, {k})", f"abs({a} - {k})", f"sum([{a}, {b}])", f"f({a}, {k})",
            ]
        )  # fmt: skip

    def positive(self, plates):
        rng = self.rng
        known = [v.text for v in self.within(plates) if v.kind == "positive"]
        if known and rng.random() < 0.3:
            return f"({rng.choice(known)} + 0.25)"
        if rng.random() < 0.4:
            return f"{self.number(0.25, 2.5)}"
        e = self.real(plates, 1)
        return rng.choice([f"exp(0.5 * tanh({e} * 1.0))", f"(softplus({e} * 1.0) + 0.25)"])

    def column(self, plates):
        """A positive number of each row, beside a vector of each."""
        known = [v.text for v in self.within(plates) if v.kind == "positive"]
        if known and self.rng.random() < 0.6:
            return f"({self.rng.choice(known)} + 0.25)[..., None]"
        return f"{self.number(0.25, 2.5)}"

    def unit(self, plates):
        known = [v.text for v in self.within(plates) if v.kind == "unit"]
        if known and self.rng.random() < 0.4:
            return f"(0.75 * {self.rng.choice(known)} + 0.125)"
        if self.rng.random() < 0.3:
            return f"{self.number(0.125, 0.875)}"
        return f"(0.875 * sigmoid({self.real(plates, 1)} * 1.0) + 0.0625)"

    def vector(self, plates, depth=1):
        rng = self.rng
        known = [v for v in self.within(plates) if v.kind in ("vector", "ordered")]
        # Of a vector that rows do not share there is one for each row, as there is of numbers.
        if not known or rng.random() < 0.3:
            return self.numbers((3,))
        v = rng.choice(known).text
        tables = [u for u in self.within(()) if u.kind == "matrix"]
        bits = [u for u in self.within(plates) if u.kind == "bit"]
        if tables and bits and rng.random() < 0.3:
            return f"pick_row({rng.choice(tables).text}, where({bits[0].text} > 0.5, 1, 0))"
        if depth and rng.random() < 0.5:
            return f"({v} * {self.number()} + {self.numbers((3,))})"
        return v

    def simplex(self, plates):
        known = [v.text for v in self.within(plates) if v.kind == "simplex"]
        if known and self.rng.random() < 0.6:
            return self.rng.choice(known)
        if self.rng.random() < 0.4:
            return "const([0.25, 0.125, 0.625])"
        return f"softmax({self.vector(plates)}, -1)"

    def filled(self, family, plates):
        """The text of a family with its arguments."""
        made = {
            "R": self.real, "P": self.positive, "U": self.unit, "V": self.vector,
            "S": self.simplex, "Q": self.column,
            "A": lambda plates: self.numbers((3,), 0.5, 3.0),
            "G": lambda plates: f"{self.number(0.5, 3.0)}",
            "L": lambda plates: TRIANGLE,
        }  # fmt: skip
        return re.sub(r"\b[A-Z]\b", lambda found: made[found[0]](plates), family)

    # -------------------------------------------------------------------------------- statements

    def latent(self, plates, letter="a"):
        """A site without data, of any kind."""
        kinds = list(LATENT)
        kind = self.rng.choices(kinds, [SHARES[k] for k in kinds])[0]
        name = self.name(letter)
        family = self.rng.choice(LATENT[kind])
        self.line(f'{name} = sample("{name}", {self.filled(family, plates)}{self.masked(plates)})')
        self.scope.append(Variable(name, kind, plates))
        self.found.kinds[name] = kind

    def masked(self, plates):
        if self.rng.random() > 0.06:
            return ""
        return f".mask({self.some_rows(plates)})"

    def some_rows(self, plates):
        found = np.array(
            [self.rng.random() < 0.7 for _ in range(6)][: int(np.prod(self.shape(plates)))]
        )
        return f"truth({found.reshape(self.shape(plates)).tolist()})"

    def finite(self, plates):
        """A site with few values, if there may be more."""
        family, kind, values = self.rng.choice(FINITE)
        count = values ** int(np.prod(self.shape(plates)))
        if not self.discrete or self.found.assignments * count > MOST_ASSIGNMENTS:
            return self.latent(plates)
        self.found.assignments *= count
        name = self.name("z")
        how = self.rng.choice(["", "", ", infer={'enumerate': 'parallel'}"])
        self.line(f'{name} = sample("{name}", {self.filled(family, plates)}{how})')
        self.scope.append(Variable(name, kind, plates))
        return None

    def observed(self, plates):
        family, kind = self.rng.choice(DATA)
        name = self.name("y")
        shape = self.shape(plates)
        size = (*shape, 3) if kind == "vector" else shape
        low, high = {
            "real": (-2.0, 2.0), "positive": (0.25, 3.0), "unit": (0.125, 0.875), "count": (0, 5),
            "bit": (0, 1), "face": (0, 2), "vector": (-2.0, 2.0),
        }[kind]  # fmt: skip
        values = np.array([self.number(low, high) for _ in range(int(np.prod(size)))])
        values = values.reshape(size)
        if kind in ("count", "bit", "face"):
            values = np.round(values)
        if self.rng.random() < 0.5:
            self.found.data[name] = values
            obs = f'data["{name}"]'
        else:
            obs = f"const({values.tolist()})"
        fn = self.filled(family, plates) + self.masked(plates)
        self.line(f'sample("{name}", {fn}, obs={obs})')

    def factor(self, plates):
        self.line(f'factor("{self.name("f")}", -0.25 * abs({self.real(plates)} * 1.0))')

    def deterministic(self, plates):
        name = self.name("d")
        self.line(f'{name} = deterministic("{name}", {self.real(plates)} * 1.0)')
        self.scope.append(Variable(name, "real", plates))

    def parameter(self, plates):
        name = self.name("w")
        if self.rng.random() < 0.5:
            self.line(f'{name} = param("{name}", const({self.number()}))')
            self.scope.append(Variable(name, "real"))
        else:
            value = self.number(0.25, 2.0)
            self.line(f'{name} = param("{name}", const({value}), constraint=positive)')
            self.scope.append(Variable(name, "positive"))

    def assignment(self, plates):
        name = self.name("t")
        self.line(f"{name} = {self.real(plates)}")
        if self.rng.random() < 0.3:
            self.line(f"config['rate'] = {self.number()}")
            self.line(f"settings.shift = settings.shift + {self.number()}")
        self.scope.append(Variable(name, "real", plates))

    def branch_on_a_constant(self, plates):
        """Of the two arms one is taken, whose names are known from then on."""
        test = self.rng.choice(["config['rate'] > 0.5", "settings.shift < 9.0", "len(data) > 99"])
        self.line(f"if {test}:")
        name = self.name("t")
        self.arm(name, plates)
        self.line("else:")
        self.arm(name, plates)
        self.scope.append(Variable(name, "real", plates))

    def arm(self, name, plates):
        self.indent += 1
        before = list(self.scope)
        site = self.name("a")
        self.line(f'{site} = sample("{site}", {self.filled("Normal(R, P)", plates)})')
        self.scope.append(Variable(site, "real", plates))
        self.line(f"{name} = {self.real(plates)}")
        self.scope[:] = before
        self.indent -= 1

    def branch_on_a_value(self, plates):
        known = [v.text for v in self.within(()) if v.kind in ("real", "positive", "unit")]
        known = [t for t in known if t[0] == "a"]
        if not known or self.discrete:
            return self.assignment(plates)
        self.found.branches = True
        name = self.name("t")
        self.line(f"if {self.rng.choice(known)} > {self.number(-0.5, 1.0)}:")
        self.line(f"    {name} = {self.real(plates)}")
        self.line("else:")
        self.line(f"    {name} = {self.real(plates)}")
        self.scope.append(Variable(name, "real", plates))
        return None

    def loop(self, plates):
        """A chain of sites, each given the one before, in one of four spellings."""
        name, n = self.name("x"), self.rng.randrange(2, 5)
        first, scale = self.real(plates, 1), self.positive(plates)
        k = self.number(-1.0, 1.0)
        family = self.rng.choice(["Normal", "Laplace", "Logistic"])
        how = self.rng.choice(["for", "while", "dict", "plate"])
        if how == "plate" and (plates or self.discrete):
            how = "for"
        self.line(f"{name} = [{first}]" if how != "dict" else f"{name} = {{-1: {first}}}")
        site = f'sample(f"{name}_{{i}}", {family}({k} * {name}[{{at}}], {scale}))'
        if how == "for":
            self.line(f"for i in range({n}):")
            self.line(f"    {name}.append({site.format(at='-1', i='{i}')})")
        elif how == "while":
            self.line("i = 0")
            self.line(f"while len({name}) <= {n}:")
            self.line(f"    {name} += [{site.format(at='i', i='{i}')}]")
            self.line("    i += 1")
        elif how == "dict":
            self.line(f"for i in range({n}):")
            self.line(f"    {name}[i] = {site.format(at='i - 1', i='{i}')}")
        else:
            self.line(f'for i in plate("{name}_rows", {n}):')
            self.line(f"    {name}.append({site.format(at='0', i='{i}')})")
        every = f"sum({name}[1:])" if how != "dict" else f"sum(list({name}.values()))"
        last = f"{name}[{n - 1}]" if how == "dict" else f"{name}[-1]"
        self.scope += [Variable(last, "real", plates), Variable(every, "real", plates)]

    def named_ones(self, plates):
        """A dict of parameters."""
        name = self.name("p")
        self.line(f"{name} = {{}}")
        self.line('for key, width in (("u", 1.0), ("v", 0.5)):')
        self.line(
            f'    {name}[key] = sample("{name}" + key, Normal({self.real(plates, 1)}, width))'
        )
        self.scope += [Variable(f"{name}['{k}']", "real", plates) for k in "uv"]

    def chain(self, plates):
        """A hidden chain of finite sites with a row of a table for each value, and its data."""
        n = 3
        if not self.discrete or self.found.assignments * 2**n > MOST_ASSIGNMENTS or plates:
            return self.loop(plates)
        self.found.assignments *= 2**n
        name = self.name("z")
        self.line(f"{name} = None")
        start, locs = self.unit(()), self.vector(())
        table, scale = self.numbers((3,), 0.125, 0.875), self.positive(())
        over = self.rng.choice([f"range({n})", f"markov(range({n}))"])
        self.line(f"for i in {over}:")
        self.line(f"    share = {start} if {name} is None else pick({table}, {name})")
        self.line(f'    {name} = sample(f"{name}_{{i}}", Bernoulli(share))')
        data = [self.number() for _ in range(n)]
        self.line(
            f'    sample(f"{name}_y{{i}}", Normal(pick({locs}, {name}), {scale}), obs={data}[i])'
        )
        return None

    def decentred(self, plates):
        # A weight of the density is not one of the determinant; of a site that depends on finite
        # ones there are several values.
        if self.weighted or self.discrete:
            return self.latent(plates)
        name = self.name("a")
        form = self.rng.choice(["0.0", "0.5", "1.0", "TransformReparam"])
        if form == "TransformReparam":
            family, kind = "TransformedDistribution(Normal(R, P), [ExpTransform()])", "positive"
            made = "TransformReparam()"
        else:
            family, kind = self.rng.choice(LOC_SCALE), "real"
            made = f"LocScaleReparam({form})"
        self.found.reparametrised = True
        self.line(f'with reparam(config={{"{name}": {made}}}):')
        self.line(f'    {name} = sample("{name}", {self.filled(family, plates)})')
        self.scope.append(Variable(name, kind, plates))
        return None

    def part(self, plates):
        """A function with sites of its own, called under a handler."""
        name = self.name("part")
        before = list(self.scope)
        u, v = self.name("u"), self.name("v")
        self.line(f"def {name}(k=0.5):")
        self.indent += 1
        self.line(f'{u} = sample("{u}", {self.filled("Normal(R, P)", plates)})')
        self.scope.append(Variable(u, "real", plates))
        self.line(f'{v} = sample("{v}", {self.filled("LogNormal(R, P)", plates)})')
        self.scope.append(Variable(v, "positive", plates))
        self.observed(plates)
        y = f"y{self.found.names}"
        self.line(f"return {self.real(plates)} + k * {u}")
        self.indent -= 1
        self.scope[:] = before
        given = self.numbers(self.shape(plates)) if plates else f"const({self.number()})"
        how = self.rng.choice(
            [
                f'scope({name}, prefix="s")',
                f'scope(scope({name}, prefix="in"), prefix="out")',
                f'condition({name}, data={{"{u}": {given}}})',
                f'scope(condition({name}, data={{"{u}": {given}}}), prefix="c")',
                f'do({name}, data={{"{u}": {given}}})',
                f"mask({name}, mask={self.some_rows(plates)})",
                f"scale({name}, scale={self.number(0.25, 3.0)})",
                f"scale(mask({name}, mask={self.some_rows(plates)}), scale=0.5)",
                f'block({name}, hide=["{y}"])',
                name,
            ]
        )
        r = self.name("r")
        self.line(f"{r} = {how}({self.rng.choice(['', str(self.number())])})")
        self.scope.append(Variable(r, "real", plates))

    def under(self, plates):
        """A few statements inside of a handler."""
        rows = self.some_rows(plates)
        how = self.rng.choice([f"mask(mask={rows})", f"scale(scale={self.number(0.25, 3.0)})"])
        if self.found.assignments > 1:
            how = f"mask(mask={rows})"
        self.line(f"with {how}:")
        self.indent += 1
        before = self.discrete
        self.discrete, self.weighted = False, True
        self.statements(self.rng.randrange(1, 3), plates, nested=True)
        self.discrete, self.weighted = before, False
        self.indent -= 1

    def some_of_many(self, plates):
        """Data of rows that stand for more."""
        if self.discrete:
            return self.rows(plates)
        name, i = self.name("n"), self.name("i")
        rows = sorted(self.rng.sample(range(6), 3))
        self.line(f'with plate("{name}", 6, subsample=index({rows})) as {i}:')
        self.indent += 1
        y = self.name("y")
        self.line(f"{y} = take({self.numbers((6,))}, {i})")
        self.line(f'sample("{y}", {self.filled("Normal(R, P)", ())}, obs={y})')
        self.factor(())
        self.indent -= 1
        return None

    def rows(self, plates):
        """Statements inside of one plate or two."""
        choices = [("rows",), ("rows", "cols")] + [("cols",)] * self.dims
        inner, outer = self.rng.choice(choices), self.indent
        if len(inner) == 2 and self.rng.random() < 0.5:
            self.line("with rows:")
            self.indent += 1
            self.statements(1, ("rows",), nested=True)
            self.line("with cols:")
        else:
            index = self.name("i") if inner == ("rows",) and self.rng.random() < 0.5 else ""
            self.line(f"with {', '.join(inner)}{' as ' * bool(index)}{index}:")
            if index:
                name = self.name("t")
                self.line(f"    {name} = take({self.numbers((ROWS,))}, {index}) + {index} * 0.25")
                self.scope.append(Variable(name, "real", inner))
        self.indent += 1
        self.statements(self.rng.randrange(1, 4), inner, nested=True)
        if self.rng.random() < 0.6:
            self.observed(inner)
        self.indent = outer

    def statements(self, count, plates, nested=False):
        table = [
            (self.latent, 6), (self.observed, 3), (self.finite, 3), (self.factor, 0.7),
            (self.deterministic, 1), (self.assignment, 1), (self.branch_on_a_constant, 0.7),
            (self.loop, 1), (self.named_ones, 0.5), (self.decentred, 0.8), (self.part, 1),
            (self.branch_on_a_value, 0.6),
        ]  # fmt: skip
        if not nested:
            table += [
                (self.some_of_many, 0.5),
                (self.rows, 3),
                (self.parameter, 0.7),
                (self.chain, 1),
                (self.under, 0.7),
            ]
        makers, shares = zip(*table, strict=True)
        for _ in range(count):
            self.rng.choices(makers, shares)[0](plates)

    def model(self):
        dims = (", dim=-1", ", dim=-2") if self.dims else ("", "")
        self.line(f'rows, cols = plate("rows", {ROWS}{dims[0]}), plate("cols", {COLS}{dims[1]})')
        self.line(f"config = {{'rate': {self.number()}, 'name': 'x'}}")
        self.line("class settings:")
        self.line(f"    shift = {self.number()}")
        self.line("def f(x, k=0.5):")
        self.line("    return x * k + config['rate']")
        self.latent(())
        self.statements(self.rng.randrange(2, 7), ())
        if self.rng.random() < 0.8:
            self.rows(())
        return self.found


def model_text(seed):
    """Return the model of a seed, a `ModelText`."""
    return Writer(seed).model()
