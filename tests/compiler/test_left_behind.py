"""What a call leaves behind in Python, in containers outside and among the arguments; and ids."""

import collections
import functools
import warnings

import pytest

from probtorch import nn, tensor
from probtorch.autograd.transforms import grad
from probtorch.autograd.vmap import vmap
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.core.tree import map_tree
from probtorch.distributions import Normal
from probtorch.errors import CompileError
from probtorch.testing import assert_close


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        yield


@pytest.mark.parametrize("make", [list, dict, set])
def test_a_container_that_was_empty_is_filled_by_every_call(make):
    kept = make()
    put = {list: list.append, dict: lambda d, x: d.update({len(d): x}), set: set.add}[make]

    def fn(x):
        put(kept, x * 3.0)
        return x * 2.0

    call = compile(fn, verify=False)
    for i in range(6):
        assert call(tensor(float(i))).item() == 2.0 * i
    found = kept.values() if make is dict else kept
    assert sorted(t.item() for t in found) == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]


def put(x, d):
    d["out"] = x * 2.0
    return x


def count(x, d):
    d["n"] = d.get("n", 0) + 1
    return x * d["n"]


def append(x, d):
    d["all"][0].append(x)
    return x + len(d["all"][0])


def take(x, d):
    return x + d["all"].pop()[0] if d["all"] else x


def other_order(x, d):
    d["k"] = d.pop("k")
    return x


CHANGES = [put, count, append, take, other_order]


def plain(x):
    if isinstance(x, dict):
        return [(key, plain(y)) for key, y in x.items()]
    return [plain(y) for y in x] if isinstance(x, list) else getattr(x, "tolist", lambda: x)()


@pytest.mark.parametrize("fn", CHANGES, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("taped", [False, True])
@pytest.mark.parametrize("how", ["position", "keyword"])
def test_containers_among_the_arguments_are_the_callers(fn, taped, how):
    call = compile(fn, verify=False)

    def play(call):
        d, found = {"k": 1.0, "all": [[2.0], [3.0]]}, []
        inner = d["all"]
        for i in range(5):
            x = tensor(float(i), requires_grad=taped)
            out = call(x, d) if how == "position" else call(x, d=d)
            found.append((plain(out), plain(d)))
            assert d["all"] is inner
        return found

    assert play(call) == play(fn)


@pytest.mark.parametrize("kind", [collections.OrderedDict, collections.defaultdict])
def test_containers_of_other_types_are_the_callers_all_along(kind):
    def fn(x, d):
        d["n"] = d.get("n", 0.0) + 1.0
        return x * d["n"]

    call, d = compile(fn, verify=False), kind()
    assert [call(tensor(2.0), d).item() for _ in range(5)] == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert d["n"] == 5.0


class Wide(collections.namedtuple("Narrow", "a b")):
    """Has more than its fields."""


class Doubled(collections.namedtuple("Pair", "a b")):
    def __new__(cls, a):
        return super().__new__(cls, a, a * 2.0)


class Powered(Normal):
    def __init__(self, loc, scale, power=1.0):
        super().__init__(loc, scale)
        self.power = power

    def log_prob(self, value):
        return super().log_prob(value) * self.power


def wide(extra):
    made = Wide(1.0, 2.0)
    made.extra = extra
    return made


def both(call, a, b):
    return [call(tensor(1.0), x).item() for x in (a, b, a)]


@pytest.mark.parametrize(
    ("fn", "a", "b"),
    [
        (lambda x, p: x * p.extra + p.a, wide(2.0), wide(3.0)),
        (lambda x, p: x * p.b, Doubled(2.0), Doubled(tensor(3.0))),
        (lambda x, d: d.log_prob(x), Powered(0.0, 1.0, 3.0), Powered(0.0, 1.0, 5.0)),
    ],
    ids=["attributes", "constructor", "distribution"],
)
def test_arguments_with_more_than_their_fields_keep_it(fn, a, b):
    assert both(compile(fn, verify=False), a, b) == pytest.approx(both(fn, a, b))


def test_what_a_function_sets_of_a_distribution_is_set():
    def fn(x, d):
        d.loc = x
        return d.log_prob(x + 1.0)

    call, d = compile(fn, verify=False), Normal(0.0, 1.0)
    for i in range(4):
        assert call(tensor(float(i)), d).item() == pytest.approx(-1.4189385)
        assert d.loc.item() == i


def test_a_container_given_twice_is_one():
    def fn(x, a, b):
        a.append(x)
        return x * len(b)

    call, kept = compile(fn, verify=False), []
    assert [call(tensor(1.0), kept, kept).item() for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]
    assert [call(tensor(1.0), kept, []).item() for _ in range(2)] == [0.0, 0.0]


@pytest.mark.parametrize("by", ["argument", "name"])
def test_a_container_that_is_found_outside_too_is_one(by):
    d = {"k": tensor(2.0)}

    def fn(x, given):
        written, read = (given, d) if by == "argument" else (d, given)
        written["k"] = x * 7.0
        return x * read["k"]

    call = compile(fn, verify=False)
    assert [call(tensor(float(i)), d).item() for i in range(5)] == [7.0 * i * i for i in range(5)]
    assert d["k"].item() == 28.0


def test_one_container_is_told_from_another_where_that_is_asked():
    outside = {"k": 1.0}
    given = [
        (outside, outside),
        (outside, {"k": 1.0}),
        ({"k": 1.0}, {"k": 1.0}),
        (outside, outside),
    ]
    for fn in (
        lambda x, a, b: x * (2.0 if a is b else 3.0),
        lambda x, a, b: x * (2.0 if a is outside else 3.0),
    ):
        call = compile(fn, verify=False)
        for _ in range(2):
            found = [call(tensor(1.0), a, b).item() for a, b in given]
            assert found == [fn(tensor(1.0), a, b).item() for a, b in given]


def test_what_is_kept_in_a_container_is_the_callers_own_tensor():
    call, kept, x = compile(lambda x, kept: (kept.append(x), x)[1]), [], tensor(1.0)
    call(x, kept)
    assert kept[0] is x


def test_a_changed_container_is_named_and_nothing_else_makes_a_function_eager():
    with pytest.warns(CompileWarning, match=r"argument 1, a dict that it changes"):
        compile(put)(tensor(1.0), {})
    with pytest.raises(CompileError, match="argument 1"):
        compile(put, fullgraph=True)(tensor(1.0), {})
    reads = compile(lambda x, d: x * d["a"] + sum(d["all"]))
    for _ in range(3):
        reads(tensor(1.0), {"a": tensor(2.0), "all": [1.0, 2.0]})
    assert reads.reason is None and len(reads.paths) == 1


def test_a_refused_call_leaves_what_it_put_into_a_container():
    def fn(x, d):
        d["x"] = x
        raise ValueError

    d = {}
    with pytest.raises(ValueError):
        compile(fn)(x := tensor(1.0), d)
    assert d == {"x": x}


def test_the_number_that_python_has_for_a_tensor_is_its_own():
    a, b = tensor(1.0), tensor(1.0)
    names = {id(a): 2.0, id(b): 3.0}
    for hidden in (False, True):  # whether the function can reach the tensors as well
        by_names, by_ids = lambda x: x * names[id(x)], lambda x: x * {id(a): 2.0, id(b): 3.0}[id(x)]
        call = compile(by_names if hidden else by_ids)
        assert [call(x).item() for x in (a, b, a, b)] == [2.0, 3.0, 2.0, 3.0]


def test_a_method_that_is_not_called_may_show_its_id():
    class Thing:
        k = 2.0

        def __repr__(self):
            return f"<{id(self)}>"

    thing = Thing()
    call = compile(lambda x: x * thing.k)
    assert [call(tensor(float(i))).item() for i in range(12)] == [2.0 * i for i in range(12)]
    assert call.reason is None and len(call.paths) == 1


def test_modules_that_keep_what_went_through_them_keep_each():
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = []

        def forward(self, x):
            self.kept.append(x * 2.0)
            return x

    net = Keeping()
    call = compile(net, verify=False)
    for i in range(5):
        call(tensor(float(i)))
    assert [t.item() for t in net.kept] == [0.0, 2.0, 4.0, 6.0, 8.0]


# ------------------------------------------------------------------- compared with Python, too


def test_the_comparison_knows_containers_as_the_call_does():
    x, default, shared = tensor([1.0, 2.0]), {"scale": 2.0}, [tensor(1.0)]

    def scaled(x, options=None):
        options = default if options is None else options
        return (x if options is default else x + 100.0) * options["scale"]

    compiled = compile(scaled)
    for options in (default, default, {"scale": 2.0}, default):
        assert_close(compiled(x, options), scaled(x, options))
    alike = compile(lambda a, b, x: x * 2.0 if a is b else x * 3.0)
    for other, factor in ((shared, 2.0), (shared, 2.0), ([tensor(1.0)], 3.0), (shared, 2.0)):
        assert_close(alike(shared, other, x), x * factor)


@pytest.mark.parametrize("wants_grad", [False, True])
def test_containers_that_are_one_are_not_taken_for_two(wants_grad):
    def grown(a, b, x):
        a.append(1)
        r = x * len(b)
        a.pop()
        return r

    compiled, x = compile(grown), tensor([1.0, 2.0], requires_grad=wants_grad)
    a, b = [], []
    for first, second in ((a, b), (a, b), (a, a), (a, a), (b, a)):
        assert_close(compiled(first, second, x), grown(first, second, x))


def test_what_a_taped_call_fills_is_the_callers_at_every_call_and_on_errors():
    def kept(c, x):
        if len(c) < 1 and x.sum() > 0:
            c["m"] = x.sum()
        return (x * 2.0).sum() + (c["m"] if c else 0.0)

    compiled, c, d = compile(kept), {}, {}
    for v in (-1.0, -1.0, 1.0, 2.0, 3.0):
        x = tensor([v], requires_grad=True)
        assert_close(compiled(c, x), kept(d, x))
    assert_close(c["m"], d["m"])

    def fails(seen, x):
        seen.append(1)
        raise ValueError

    compiled, seen = compile(fails), []
    for _ in range(3):
        with pytest.raises(ValueError):
            compiled(seen, tensor([1.0], requires_grad=True))
    assert len(seen) == 3


def test_what_is_no_more_than_its_fields_stays_a_tree():
    class Pair(collections.namedtuple("Pair", "a b")):
        @functools.cached_property
        def product(self):
            return self.a * self.b

    x = tensor([1.0, 2.0])
    pair = Pair(x, x)
    pair.product  # noqa: B018  # makes an attribute
    assert isinstance(map_tree(lambda t: t * 2.0, pair), Pair)
    noted = Pair(x, x)
    noted.note = "kept"
    assert map_tree(lambda t: t, noted) is noted
    assert_close(grad(lambda s: (s.a * s.b).sum())(Pair(x, x)).a, x)

    class Own(Normal):
        def __init__(self, loc, scale, validate_args=None):
            super().__init__(loc, scale, validate_args=validate_args)

    class Powered(Normal):
        def __init__(self, loc, scale, power):
            super().__init__(loc, scale)
            self.power = power

    class Child(Powered):
        pass

    assert_close(vmap(lambda d, v: d.log_prob(v))(Own(x, x), x), Normal(x, x).log_prob(x))
    compiled = compile(lambda d, v: d.log_prob(v) * d.power)
    for kind in (Powered, Child):
        d = kind(0.0, 1.0, 2.0)
        assert_close(compiled(d, x), d.log_prob(x) * 2.0)


class Missing(dict):
    def __missing__(self, key):
        self[key] = 0.5
        return 0.5


@pytest.mark.parametrize("make", [lambda: collections.defaultdict(lambda: 0.5), Missing])
@pytest.mark.parametrize(
    "value", [float, lambda i: tensor([float(i), 1.0])], ids=["float", "tensor"]
)
@pytest.mark.parametrize("asks", [True, False])
def test_a_replay_does_not_make_what_a_dict_misses(make, value, asks):
    def play(wrap):
        kept, found = make(), []
        kept["a"] = value(1)

        def fn(x):
            return x * kept["a"] if "a" in kept and asks else x * kept.get("a", 2.0)

        call = wrap(fn)
        for i in range(12):
            found.append((call(tensor([1.0, 2.0])).tolist(), plain(kept)))
            if i in (6, 9):
                kept.pop("a", None)
            else:
                kept["a"] = value(2 + i)
        return found

    assert play(lambda fn: compile(fn, verify=False)) == play(lambda fn: fn)
