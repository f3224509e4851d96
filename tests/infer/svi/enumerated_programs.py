"""Random programs of discrete sites in plates and chains, and their bounds by brute force.

A `Program` is a list of sites, each in some plates, with parents among the sites before it and a
table of logits (or means) indexed by the values of the parents. `model` and `guide` run it by the
library; `brute_force` unrolls every row into a variable of its own and sums over all combinations
of values in Python loops, for the bound and its gradient.
"""

import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from probtorch.distributions import Categorical, Normal
from probtorch.effects import markov, plate, sample
from probtorch.tensor import tensor

F8 = np.dtype("f8")


@dataclass
class Node:
    name: str
    plates: tuple
    role: str  # "model", "guide" or "data"
    size: int  # number of values; 0 for a normal
    parents: tuple
    per_row: tuple  # plates that the table has a dim for
    table: np.ndarray
    guide_parents: tuple = ()
    guide_table: np.ndarray | None = None
    chain: int | None = None  # steps of one chain share a number
    step: int = 0
    data: np.ndarray | None = None


@dataclass
class Program:
    sizes: dict  # plate -> rows
    explicit: bool  # plates cross, and have dims of their own
    reenter: bool  # a plate is entered anew for each site
    nodes: list = field(default_factory=list)

    @property
    def outcomes(self):
        return math.prod(n.size ** self.rows(n) for n in self.nodes if n.role != "data")

    def rows(self, node):
        return math.prod(self.sizes[p] for p in node.plates)

    def dims(self, where):
        """Dims of plates that are entered in this order."""
        if self.explicit:
            return {p: -1 - list(self.sizes).index(p) for p in where}
        return {p: -1 - i for i, p in enumerate(where)}

    def index(self, node, cell, ndim):
        """Index of one row into a tensor with plates at their dims."""
        at = dict(zip(self.dims(node.plates).values(), cell))
        return tuple(at.get(d, 0) for d in range(-ndim, 0))

    def leaves(self):
        """Tensors for all tables: ``(of the model, of the guide)`` by name."""
        make = lambda x: tensor(x, dtype=F8, requires_grad=True)
        return (
            {n.name: make(n.table) for n in self.nodes},
            {n.name: make(n.guide_table) for n in self.nodes if n.guide_table is not None},
        )


# ------------------------------------------------------------------------------------- generation


def random_program(seed, guided=True, max_outcomes=160):
    """Draw programs until one has a latent site and few enough outcomes."""
    rng = np.random.default_rng(seed)
    while True:
        program = _draw(rng, guided)
        latent = [n for n in program.nodes if n.role != "data"]
        if 1 <= len(latent) <= 6 and program.outcomes <= max_outcomes:
            return program


def _draw(rng, guided):
    plates = [f"p{i}" for i in range(rng.integers(0, 4))]
    explicit = bool(rng.random() < 0.2) and len(plates) > 1
    paths = {(): ()}
    for p in plates:
        # Nested in one that is there, or beside it.
        base = list(paths)[rng.integers(len(paths))] if not explicit else ()
        paths[(*base, p)] = ()
    places = list(paths)
    if explicit:
        places += [tuple(plates[:2]), *([tuple(plates)] if len(plates) > 2 else [])]
    sizes = {p: int(rng.choice([1, 2, 2, 3])) for p in plates}
    program = Program(sizes, explicit, bool(rng.random() < 0.5))
    for i in range(rng.integers(1, 6)):
        where = places[rng.integers(len(places))]
        if rng.random() < 0.25:
            _add_chain(rng, program, where, i, guided)
        else:
            role = _role(rng, guided)
            _add(rng, program, f"s{i}", where, role)
    for i in range(rng.integers(1, 3)):
        _add(rng, program, f"y{i}", places[rng.integers(len(places))], "data", normal=True)
    return program


def _role(rng, guided):
    return str(rng.choice(["model", "guide", "data"] if guided else ["model", "data"]))


def _add_chain(rng, program, where, number, guided):
    role = _role(rng, guided)
    role = "model" if role == "data" else role
    before = ()
    size, emits = int(rng.integers(2, 4)), rng.random() < 0.5
    for t in range(rng.integers(2, 5)):
        name = f"c{number}_{t}"
        node = _add(rng, program, name, where, role, size=size, given=before, chain=(number, t))
        before = (node.name,)
        if emits:
            _add(
                rng, program, f"e{number}_{t}", where, "data", True, given=before, chain=(number, t)
            )


def _add(rng, program, name, where, role, normal=False, size=None, given=(), chain=None):
    number, step = (None, 0) if chain is None else chain
    size = 0 if normal else int(rng.integers(2, 4)) if size is None else size
    known = {n.name: n for n in program.nodes}
    # What is in sight: sites in the plates around, and of chains only the last step.
    seen = [
        n.name
        for n in program.nodes
        if set(n.plates) <= set(where) and n.size and n.name not in given and _in_sight(program, n)
    ]
    seen = [s for s in seen if known[s].chain is None or known[s].chain != number]
    rng.shuffle(seen)
    parents = (*given, *seen[: rng.integers(0, 3)])
    per_row = tuple(p for p in where if rng.random() < 0.4)
    lead = tuple(program.sizes[p] for p in per_row)
    shape = lead + tuple(known[p].size for p in parents) + ((size,) if size else ())
    node = Node(name, where, role, size, parents, per_row, rng.normal(size=shape))
    node.chain, node.step = number, step
    if role == "data":
        rows = tuple(program.sizes[p] for p in where)
        node.data = rng.integers(0, size, rows) if size else rng.normal(size=rows)
    if role == "guide":
        guides = tuple(p for p in parents if known[p].role == "guide")
        node.guide_parents = guides
        shape = lead + tuple(known[p].size for p in guides) + (size,)
        node.guide_table = rng.normal(size=shape)
    program.nodes.append(node)
    return node


def _in_sight(program, node):
    """Whether a site is outside of chains, or the last step of the chain that was last stated."""
    if node.chain is None:
        return True
    last = [n for n in program.nodes if n.chain is not None][-1]
    return node.chain == last.chain and node.step == last.step


# -------------------------------------------------------------------------------------------- runs


class _Plates:
    """The plates of one run; `at` enters those of a site, keeping what is entered already."""

    def __init__(self, program):
        self.program = program
        dims = {p: -1 - i for i, p in enumerate(program.sizes)} if program.explicit else {}
        self.plates = {p: plate(p, n, dim=dims.get(p)) for p, n in program.sizes.items()}
        self.open = []

    def at(self, where):
        shared = 0
        if not self.program.reenter:
            while self.open[shared : shared + 1] == list(where[shared : shared + 1]) != []:
                shared += 1
        while len(self.open) > shared:
            self.plates[self.open.pop()].__exit__(None, None, None)
        for p in where[shared:]:
            self.plates[p].__enter__()
            self.open.append(p)

    def index(self, p):
        """Row numbers of a plate, at its dim."""
        n = self.program.sizes[p]
        return tensor(np.arange(n).reshape(n, *(1,) * (-self.plates[p].dim - 1)))

    def laid_out(self, node):
        """The data of a site, plates at their dims."""
        dims = [self.plates[p].dim for p in node.plates]
        order = np.argsort(dims)
        data = np.transpose(node.data, order)
        at = {dims[i]: data.shape[k] for k, i in enumerate(order)}
        return data.reshape([at.get(d, 1) for d in range(min(dims, default=0), 0)])


def _groups(nodes):
    """Nodes outside of chains one by one, chains as lists of steps."""
    for _, group in itertools.groupby(
        enumerate(nodes), lambda x: (x[1].chain, x[1].chain is None and x[0])
    ):
        members = [n for _, n in group]
        if members[0].chain is None:
            yield members[0]
        else:
            yield [list(g) for _, g in itertools.groupby(members, lambda n: n.step)]


def _run(program, nodes, state):
    plates = _Plates(program)
    try:
        for item in _groups(nodes):
            if isinstance(item, Node):
                plates.at(item.plates)
                state(item, plates)
                continue
            plates.at(item[0][0].plates)
            for step in markov(item):
                for node in step:
                    state(node, plates)
    finally:
        plates.at(())


def model(program, tables):
    """Run the program; returns the values of its sites by name."""
    values = {}

    def state(node, plates):
        key = [plates.index(p) for p in node.per_row] + [values[p] for p in node.parents]
        table = tables[node.name]
        row = table[tuple(key)] if key else table
        fn = Categorical(logits=row) if node.size else Normal(row, 1.0)
        obs = None if node.data is None else plates.laid_out(node)
        values[node.name] = sample(node.name, fn, obs=obs)

    _run(program, program.nodes, state)
    return values


def guide(program, tables):
    values = {}

    def state(node, plates):
        key = [plates.index(p) for p in node.per_row] + [values[p] for p in node.guide_parents]
        table = tables[node.name]
        row = table[tuple(key)] if key else table
        values[node.name] = sample(
            node.name, Categorical(logits=row), infer={"enumerate": "parallel"}
        )

    _run(program, [n for n in program.nodes if n.role == "guide"], state)


# ------------------------------------------------------------------------------------- brute force


def cells(program, node):
    return list(itertools.product(*(range(program.sizes[p]) for p in node.plates)))


def _entry(program, node, cell, table_of, values):
    """Index into the table of a node for one row: rows of plates, then the parents' values."""
    at = dict(zip(node.plates, cell))
    parents = node.parents if table_of == "model" else node.guide_parents
    known = {n.name: n for n in program.nodes}
    key = [at[p] for p in node.per_row]
    for p in parents:
        key.append(values[p, tuple(at[q] for q in known[p].plates)])
    return tuple(key)


def _log_term(node, table, key, x):
    """Log density of one row and its derivative with respect to the row of the table."""
    row = table[key]
    if node.size == 0:
        return -0.5 * (x - row) ** 2 - 0.5 * math.log(2.0 * math.pi), x - row
    top = row.max()
    p = np.exp(row - top)
    log_z = math.log(p.sum())
    slope = -p / p.sum()
    slope[x] += 1.0
    return row[x] - top - log_z, slope


def unrolled(program):
    """All ``(node, cell)`` pairs."""
    return [(n, c) for n in program.nodes for c in cells(program, n)]


def _assignments(program, role):
    places = [(n, c) for n, c in unrolled(program) if n.role == role]
    for choice in itertools.product(*(range(n.size) for n, _ in places)):
        yield {(n.name, c): x for (n, c), x in zip(places, choice)}


def brute_force(program):
    """Return ``(bound, gradients of the model's tables, gradients of the guide's)``."""
    everything = unrolled(program)
    data = {(n.name, c): n.data[c].item() for n, c in everything if n.role == "data"}
    slopes = {n.name: np.zeros_like(n.table) for n in program.nodes}
    guide_slopes = {
        n.name: np.zeros_like(n.guide_table) for n in program.nodes if n.guide_table is not None
    }
    bound = 0.0
    for guided in _assignments(program, "guide"):
        log_q, steps = 0.0, []
        for n, c in everything:
            if n.role == "guide":
                key = _entry(program, n, c, "guide", guided)
                term, slope = _log_term(n, n.guide_table, key, guided[n.name, c])
                log_q += term
                steps.append((n.name, key, slope))
        q = math.exp(log_q)
        logs, found = [], []
        for summed in _assignments(program, "model"):
            values = {**data, **guided, **summed}
            log_p, moves = 0.0, []
            for n, c in everything:
                key = _entry(program, n, c, "model", values)
                term, slope = _log_term(n, n.table, key, values[n.name, c])
                log_p += term
                moves.append((n.name, key, slope))
            logs.append(log_p)
            found.append(moves)
        top = max(logs)
        log_marginal = top + math.log(sum(math.exp(x - top) for x in logs))
        for log_p, moves in zip(logs, found):
            share = q * math.exp(log_p - log_marginal)
            for name, key, slope in moves:
                slopes[name][key] += share * slope
        bound += q * (log_marginal - log_q)
        for name, key, slope in steps:
            guide_slopes[name][key] += q * (log_marginal - log_q) * slope
    return bound, slopes, guide_slopes


def posterior(program):
    """Return marginals of a program without guide, its most probable values, and their lead.

    The lead is by how much their log density exceeds that of the next best.
    """
    everything = unrolled(program)
    data = {(n.name, c): n.data[c].item() for n, c in everything if n.role == "data"}
    found = []
    for summed in _assignments(program, "model"):
        values = {**data, **summed}
        log_p = 0.0
        for n, c in everything:
            key = _entry(program, n, c, "model", values)
            log_p += _log_term(n, n.table, key, values[n.name, c])[0]
        found.append((log_p, summed))
    logs = np.array([log_p for log_p, _ in found])
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    shares = {(n.name, c): np.zeros(n.size) for n, c in everything if n.role == "model"}
    for w, (_, summed) in zip(weights, found):
        for place, x in summed.items():
            shares[place][x] += w
    best = int(logs.argmax())
    lead = logs[best] - np.delete(logs, best).max(initial=-np.inf)
    return shares, found[best][1], lead


def ties_rows_of_guide(program):
    """Whether a connected part of what is summed in the model meets two rows of a guide's site.

    Then the sum is a function of all those rows together, and has to be refused.
    """
    parent = {}

    def root(x):
        while parent.setdefault(x, x) != x:
            x = parent[x]
        return x

    roles = {n.name: n.role for n in program.nodes}
    known = {n.name: n for n in program.nodes}
    guides = []
    for n, c in unrolled(program):
        at = dict(zip(n.plates, c))
        family = [(n.name, c)]
        family += [(p, tuple(at[q] for q in known[p].plates)) for p in n.parents]
        summed = [x for x in family if roles[x[0]] == "model"]
        for x in summed:
            parent[root(x)] = root(summed[0])
        if summed:
            guides += [(x, summed[0]) for x in family if roles[x[0]] == "guide"]
    seen = {}
    for (name, cell), member in guides:
        seen.setdefault((root(member), name), set()).add(cell)
    return any(len(cells) > 1 for cells in seen.values())
