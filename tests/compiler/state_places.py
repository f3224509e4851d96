"""Places where a program keeps what its next call reads: texts that make, read and write them.

In each text ``@`` is the place's own name, ``{c}`` a number, ``{v}`` a value of the moment (a
number or a tensor), ``{n}`` a number for sure, a NUL an at sign. `declare` stands at the top of the
function that reads and writes; `setup` ahead of it, where `at_module` says at the top of the
module; `changes` come from outside, between calls; `left` tells what is there.
"""

from dataclasses import dataclass

__all__ = ["PLACES", "Place"]


@dataclass(frozen=True)
class Place:
    """One place; see the module's docstring."""

    setup: str
    reads: tuple
    writes: tuple = ()
    changes: tuple = ()
    left: str = "None"
    declare: str = ""
    tests: tuple = ()
    at_module: bool = False


HELP = '''
class Thing:
    total = 0.5
    def __init__(self, k):
        self.k = k
        self.n = 0

class Counted:
    """Counts how often it was asked, and set."""
    def __init__(self, k):
        self.kept, self.asked = k, 0
    @property
    def k(self):
        self.asked += 1
        return self.kept
    @k.setter
    def k(self, value):
        self.kept = value

class Mean:
    """A running mean."""
    def __init__(self):
        self.n, self.mean = 0, 0.0
    def __call__(self, v):
        self.n += 1
        self.mean = self.mean + (v - self.mean) / self.n
        return self.mean

class Slotted:
    __slots__ = ("k", "n")
    def __init__(self, k):
        self.k, self.n = k, 0

class Filed:
    """A descriptor that keeps values in a table of the class."""
    table = {}
    def __set_name__(self, owner, name):
        self.name = name
    def __get__(self, own, owner=None):
        return self if own is None else own.table[self.name]
    def __set__(self, own, value):
        own.table[self.name] = value

class Net(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.register_buffer("mean", tensor([k, 1.0]))
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        self.mean = 0.75 * self.mean + 0.25 * x.detach()
        return x - self.mean

def running(k):
    total = k
    while True:
        got = yield total
        total = 0.5 * total + (0.25 if got is None else got)

def total(v):
    return v.sum() if hasattr(v, "sum") else v
'''

PLACES = {
    "global": Place(
        "@ = {c}", ("@",), ("@ = {v}", "@ += 0.5", "@ = 0.5 * @ - {v}"), ("@ = {c}",), "@",
        "global @", ("@ > {c}",), at_module=True,
    ),
    "nonlocal": Place(
        "@ = {c}", ("@",), ("@ = {v}", "@ = -@", "@ -= 0.25"), ("@ = {c}",), "@", "nonlocal @",
        ("@ > {c}",),
    ),
    "attribute": Place(
        "@ = Thing({c})", ("@.k", "@.n * 0.5", "getattr(@, 'k')", "vars(@)['k']"),
        ("@.k = {v}", "@.n += 1", "setattr(@, 'k', {v})", "@.k, @.n = @.n, 1"),
        ("@.k = {c}", "@.n = 3", "@.__dict__.update(k={c})"), "[@.k, @.n]",
        tests=("@.n % 2", "@.n > 3"),
    ),
    "slots": Place(
        "@ = Slotted({c})", ("@.k",), ("@.k = {v}", "@.n += 1"), ("@.k = {c}",), "[@.k, @.n]",
        tests=("@.n % 3 == 1",),
    ),
    "class attribute": Place(
        "class @(Thing):\n    pass", ("@.total", "@(1.0).total"),
        ("@.total = {v}", "@.total = @.total + 0.5"), ("@.total = {c}",), "@.total",
    ),
    "property": Place(
        "@ = Counted({c})", ("@.k", "@.asked * 0.25"), ("@.k = {v}",),
        ("@.k = {c}", "@.asked = 0"), "[@.kept, @.asked]", tests=("@.asked > 2",),
    ),
    "descriptor": Place(
        "class @_(Thing):\n    k, table = Filed(), {{}}\n@ = @_({c})", ("@.k",),
        ("@.k = {v}", "@.n += 1"), ("@.table['k'] = {c}", "@.k = {c}"), "[@.k, @.n]",
        tests=("@.n % 2",),
    ),
    "dict": Place(
        "@ = {{'k': {c}}}", ("@['k']", "@.get('k', 2.0)", "@.get('m', {c})", "len(@) * 0.5"),
        (
            "@['k'] = {v}", "@['m'] = {v}", "@.update(k={v})", "@.pop('m', None)",
            "@.setdefault('m', {v})", "@['n'] = @.get('n', 0) + 1", "@['k'] = @.pop('k')",
        ),
        ("@['k'] = {c}", "@.pop('m', None)", "@['m'] = {c}"), "list(@.items())",
        tests=("'m' in @", "@.get('n', 0) % 2", "next(iter(@)) == 'k'"),
    ),
    "list": Place(
        "@ = [{c}]", ("@[-1]", "@[0]", "len(@) * 0.25", "sum(@)", "sum(v * 0.5 for v in @)"),
        (
            "@.append({v})", "@.insert(0, {v})", "@[0] = {v}", "@[:] = @[-3:]", "@ += [{v}]",
            "@.pop() if len(@) > 2 else None", "@.reverse()", "@.extend([{n}, {n}])",
        ),
        ("@.append({c})", "@[-1] = {c}", "@.reverse()"), "list(@)", "nonlocal @",
        ("len(@) > 4", "len(@) % 2"),
    ),
    "list of tensors": Place(
        "@ = []", ("sum(@, 0.0)", "(@[-1] if @ else 0.5)", "len(@) * 0.5"),
        ("@.append(y.detach())", "@.append(y * 0.5)", "del @[:-2]"),
        ("@.clear()", "@.append(tensor([{c}, 1.0]))"), "list(@)", tests=("len(@) > 1", "@"),
    ),
    "deque": Place(
        "@ = collections.deque([{c}], maxlen=3)", ("@[-1]", "@[0]", "sum(@)"),
        ("@.append({v})", "@.appendleft({v})", "@.rotate(1)"), ("@.append({c})",), "list(@)",
        tests=("len(@) == 3",),
    ),
    "counter": Place(
        "@ = collections.Counter('ab')", ("@['a'] * 0.5", "sum(@.values()) * 0.25"),
        ("@['a'] += 1", "@.update('c')", "@.subtract('b')"), ("@['a'] = 2", "@.clear()"),
        "sorted(@.items())", tests=("@['a'] > 3", "@['c'] % 2"),
    ),
    "defaultdict": Place(
        "@ = collections.defaultdict(lambda: {c})", ("@['a']", "len(@) * 0.5", "@[len(@) % 3]"),
        ("@['a'] = {v}", "@[len(@)] = {n}"), ("@.pop('a', None)",), "list(@.items())",
        tests=("len(@) > 3",),
    ),
    "set": Place(
        "@ = {{1.0}}", ("sum(sorted(@)) * 0.1", "len(@) * 0.25"),
        ("@.add(len(@) + 0.5)", "@.discard(1.0)", "@ |= {{2.0}}"), ("@.add({c})", "@.clear()"),
        "sorted(@)", "nonlocal @", ("1.0 in @", "len(@) > 2"),
    ),
    "heap": Place(
        "@ = [0.5, 1.0, 2.0]", ("@[0]",),
        ("heapq.heappush(@, {n})", "heapq.heappop(@) if len(@) > 2 else None"),
        ("heapq.heappush(@, {c})",), "list(@)", tests=("len(@) > 4",),
    ),
    "cache by key": Place(
        "@ = {{}}", ("sum(@.values(), 0.0)", "@.setdefault(len(@) % 4, {c})"),
        (
            "@[len(@) % 3] = {v}",
            "if len(@) % 5 not in @:\n    @[len(@) % 5] = y.detach()",
            "if len(@) > 3:\n    @.clear()",
        ),
        ("@.clear()", "@[0] = {c}"), "list(@.items())", tests=("2 in @",),
    ),
    "memo of the shape": Place(
        "@ = {{}}", ("sum(@.values(), 0.0)",),
        ("@[tuple(x.shape)] = {n}", "@.setdefault(x.ndim, y.detach())"), ("@.clear()",),
        "list(@.items())", tests=("tuple(x.shape) in @",),
    ),
    "default argument": Place(
        "def @(v, kept=[{c}]):\n    kept.append(0.5 * kept[-1] + v)\n    return kept[-1]",
        ("@({v})", "@.__defaults__[0][-1]"), ("@({n})",),
        ("@.__defaults__[0].append({c})", "@.__defaults__ = ([{c}],)"),
        "list(@.__defaults__[0])", tests=("len(@.__defaults__[0]) > 4",),
    ),
    "keyword default": Place(
        "def @(*, kept={{'k': {c}}}):\n    kept['k'] = 0.5 * kept['k'] + 0.25\n"
        "    return kept['k']",
        ("@()",), ("@()",), ("@.__kwdefaults__['kept']['k'] = {c}",),
        "@.__kwdefaults__['kept']['k']",
    ),
    "attribute of a function": Place(
        "def @(v):\n    @.calls += 1\n    @.last = v\n    return v * 0.5 + @.calls\n"
        "@.calls, @.last = 0, {c}",
        ("@({v})", "@.last", "@.calls * 0.5"), ("@({n})", "@.last = {v}"),
        ("@.calls = 0", "@.last = {c}"), "[@.calls, @.last]", tests=("@.calls % 2",),
    ),
    "closure of a helper": Place(
        "def @_():\n    k = {c}\n    def read():\n        return k\n    def write(v):\n"
        "        nonlocal k\n        k = v\n    return read, write\n@, @w = @_()",
        ("@()",), ("@w({v})", "@w(0.5 * @() + 0.5)"), ("@w({c})",), "@()", tests=("@() > {c}",),
    ),
    "generator": Place(
        "@ = running({c})\nnext(@)", ("next(@)", "@.send(0.5)"), ("@.send({n})", "next(@)"),
        ("next(@)",), "next(@)",
    ),
    "iterator": Place(
        "@, @c = itertools.cycle([{c}, 0.5, -1.0]), itertools.count(0.5, 0.25)",
        ("next(@)", "next(@c)"), ("next(@)",), ("next(@c)",), "[next(@), next(@c)]",
        tests=("next(@) > 0",),
    ),
    "lru_cache": Place(
        "@s = [{c}]\n@ = functools.lru_cache(lambda i: @s[0] + i)", ("@(0)", "@(1) * 0.5", "@s[0]"),
        ("@s[0] = {n}", "@.cache_clear()"), ("@s[0] = {c}", "@.cache_clear()", "@(2)"),
        "[@s[0], @.cache_info()[1:]]", tests=("@.cache_info().hits > 3",),
    ),
    "cached property": Place(
        "class @_(Thing):\n    \0functools.cached_property\n    def m(self):\n"
        "        return 0.5 * self.k\n@ = @_({c})",
        ("@.m", "@.k"), ("@.k = {n}", "@.__dict__.pop('m', None)", "@.m = {v}"),
        ("@.k = {c}", "@.__dict__.pop('m', None)"), "[@.k, vars(@).get('m')]",
        tests=("'m' in vars(@)",),
    ),
    "running mean": Place(
        "@ = Mean()", ("@.mean", "@({v})", "@.n * 0.1"), ("@({v})", "@({n})"),
        ("@.n, @.mean = 0, {c}",), "[@.n, @.mean]", tests=("@.n > 4",),
    ),
    "array": Place(
        "@ = np.array([{c}, 1.0])", ("@[0]", "float(@.sum())", "@ * 0.5", "tensor(@)"),
        ("@[0] = {n}", "@ *= 0.5", "@[1] += 1.0", "np.negative(@, out=@)", "@[:] = y.detach()"),
        ("@[0] = {c}", "@ += {c}"), "@.copy()", "nonlocal @", ("@[0] > {c}", "@.sum() > 1.0"),
    ),
    "tensor": Place(
        "@ = tensor([{c}, 1.0])", ("@", "@.sum()", "@[0]", "float(@[1])"),
        (
            "@.mul_(0.5)", "@.add_(y.detach())", "@[0] = {n}", "@.copy_(y.detach())",
            "@ = 0.5 * @ + y.detach()", "@.fill_({n})", "@ += 0.5",
        ),
        ("@.add_({c})", "@[1] = {c}", "@ = tensor([{c}, 2.0])"), "@.clone()", "nonlocal @",
        ("@[0] > {c}", "@.sum().item() > 0.5"),
    ),
    "view": Place(
        "@ = tensor([[{c}, 1.0], [0.5, 2.0]])\n@v = @[0]", ("@v", "@[:, 1]", "@.sum()"),
        ("@v.mul_(0.5)", "@[1].copy_(y.detach())", "@[:, 0] = {n}"), ("@.add_({c})",),
        "@.clone()", tests=("@v[0] > {c}",),
    ),
    "tensor of an object": Place(
        "@ = Thing(tensor([{c}, 1.0]))", ("@.k", "@.k.sum()"),
        ("@.k = y.detach()", "@.k = @.k * 0.5 + 1.0", "@.k.add_(0.5)", "@.k = {n}", "@.k = y"),
        ("@.k = tensor([{c}, 0.5])", "@.k = tensor({c})"), "@.k",
        tests=("isinstance(@.k, float)", "total(@.k) > {c}"),
    ),
    "buffer": Place(
        "@ = Net({c})", ("@(x)", "@.mean", "@.calls * 0.25"),
        ("@(y)", "@.mean.mul_(0.5)", "@.calls = 0"),
        ("@.mean.add_({c})", "@.calls += 1", "@.mean = tensor([{c}, 1.0])"),
        "[@.mean.clone(), @.calls]", tests=("@.calls > 3",),
    ),
    "batch norm": Place(
        "@ = nn.BatchNorm1d(2)", ("@(torch_rows(y))", "@.running_mean"),
        ("@.train(not @.training)", "@(torch_rows(x))"),
        ("@.train()", "@.eval()", "@.momentum = 0.5", "@.running_var.fill_(2.0)"),
        "[@.running_mean.clone(), @.running_var.clone(), @.training]", tests=("@.training",),
    ),
    "optimizer": Place(
        "@p = nn.Parameter(tensor([{c}, 1.0]))\n@ = optim.SGD([@p], lr=0.1, momentum=0.5)",
        ("@p.detach()", "(@p * 0.5).sum().detach()"),
        ("@.zero_grad(); (@p * x.detach()).sum().backward(); @.step()", "@p.data.mul_(0.5)"),
        ("@.param_groups[0]['lr'] = abs({c})", "@p.data.add_({c})"), "@p.detach().clone()",
    ),
    "random of Python": Place(
        "@ = random.Random(3)", ("@.random()", "@.choice([1.0, 2.0])"), ("@.random()",),
        ("@.seed(5)",), "@.random()", tests=("@.random() > 0.5",),
    ),
    "random of NumPy": Place(
        "@ = np.random.default_rng(3)", ("@.normal()", "float(@.integers(3))"), ("@.normal()",),
        ("@.normal()",), "@.normal()",
    ),
    "generator of ours": Place(
        "@ = Generator(4)", ("probtorch.rand(2, generator=@)",),
        ("probtorch.randn((), generator=@)",), ("@.manual_seed(9)",),
        "probtorch.rand(1, generator=@)",
    ),
    "draw": Place(
        "@ = Thing({c})", ("probtorch.rand(2)", "@.k"),
        ("@.k = probtorch.rand(()).item()", "@.k = probtorch.randn(2)"), ("@.k = {c}",), "@.k",
    ),
    "context variable": Place(
        "@ = contextvars.ContextVar('@', default={c})", ("@.get()",), ("@.set({v})",),
        ("@.set({c})",), "@.get()", tests=("total(@.get()) > {c}",),
    ),
    "context manager": Place(
        "@d = [0]\n\0contextlib.contextmanager\ndef @(k):\n    @d[0] += 1\n    try:\n"
        "        yield @d[0] * k\n    finally:\n        @d.append(k)",
        ("len(@d) * 0.25", "@d[0] * 0.5"),
        ("with @(0.5) as k:\n    y = y * 0.5 + k", "with @({n}):\n    pass"), ("@d[0] = 0",),
        "list(@d)", tests=("@d[0] % 2", "len(@d) > 5"),
    ),
    "text": Place(
        "@ = Thing('a')", ("len(@.k) * 0.25",), ("@.k += 'b'", "@.k = @.k[:3]"), ("@.k = 'cd'",),
        "len(@.k)", tests=("@.k.endswith('b')", "len(@.k) % 2"),
    ),
    "linked": Place(
        "@ = Thing((0.5, None))", ("@.k[0]",),
        ("@.k = ({v}, @.k)", "@.k = @.k[1] or @.k", "@.n += 1"), ("@.k = ({c}, None)",),
        "[@.k[0], @.n]", tests=("@.k[1] is None",),
    ),
    "replaced function": Place(
        "@ = Thing(lambda v: v * 0.5)", ("@.k({v})",),
        ("@.k = lambda v: v + 0.25", "@.k = lambda v, k={n}: v * 0.25 + k"),
        ("@.k = lambda v: v - {c}",), "@.k(1.0)",
    ),
    "weak": Place(
        "@o = Thing({c})\n@ = weakref.ref(@o)", ("@().k",), ("@().k = {v}", "@o.n += 1"),
        ("@o.k = {c}",), "[@o.k, @o.n]", tests=("@().n % 2",),
    ),
    "dataclass": Place(
        "@ = Thing(types.SimpleNamespace(a={c}, more=[1.0]))", ("@.k.a", "@.k.more[-1]"),
        ("@.k.a = {v}", "@.k.more.append({n})", "@.k = types.SimpleNamespace(a={n}, more=[{n}])"),
        ("@.k.a = {c}", "@.k.more.append({c})"), "[@.k.a, list(@.k.more)]",
        tests=("len(@.k.more) > 2",),
    ),
    "array of objects": Place(
        "@ = np.array([{c}, None], dtype=object)", ("@[0]",), ("@[0] = {v}", "@[1] = {n}"),
        ("@[0] = {c}",), "list(@)", tests=("@[1] is None",),
    ),
    "frame": Place(
        "@ = pd.DataFrame({{'a': [{c}, 1.0]}})",
        ("float(@['a'].iloc[0])", "tensor(@['a'].to_numpy())"),
        ("@.loc[1, 'a'] = {n}", "@['a'] = @['a'] * 0.5", "@['b'] = {n}"), ("@.loc[0, 'a'] = {c}",),
        "@.to_numpy().copy()", tests=("'b' in @.columns",),
    ),
    "module": Place(
        "@ = types.ModuleType('of_a_program')\n@.k = {c}", ("@.k",), ("@.k = {v}", "@.m = 1.0"),
        ("@.k = {c}",), "@.k", tests=("hasattr(@, 'm')",),
    ),
    "memory view": Place(
        "@ = bytearray(b'abc')\n@v = memoryview(@)", ("@[0] * 0.01", "len(@) * 0.5"),
        ("@[0] = (@[0] + 3) % 200", "@v[1] = 7"), ("@[0] = 40",), "list(@)", tests=("@[0] % 2",),
    ),
}  # fmt: skip
