"""No user's string reaches generated code: the text is the same whatever things are called.

50 names made to break out of strings, comments, identifiers, paths and terminals.
"""

import re

import numpy as np
import pytest

from probtorch.compiler.compile import compile
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.program import NativeProgram
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.distributions import HalfNormal, Normal
from probtorch.effects import deterministic, plate, sample
from probtorch.infer import Target
from probtorch.ops.control import while_loop

HOSTILE = [
    '"',
    "'",
    "`",
    "\\",
    '\\"',
    "\n",
    "\r\n",
    "\t",
    "\0",
    "\x1b[31m",
    "*/",
    "/*",
    "//",
    ";",
    "; ret i64 0",
    "}",
    "{",
    "}\ndefine i64 @run(ptr %a0) {\n ret i64 1\n}",
    "@run",
    "@llvm.trap",
    "%a0",
    "%v1",
    "!dbg",
    "#0",
    "$comdat",
    "entry:",
    "call void @abort()",
    "\n  call void @abort()\n",
    "declare i32 @system(ptr)",
    "asm sideeffect",
    "__import__('os').abort()",
    "{0.__class__}",
    "%s%n",
    "{}",
    "${HOME}",
    "$(reboot)",
    "`reboot`",
    "| rm",
    "../../etc/passwd",
    "/dev/null",
    "CON",
    "",
    " ",
    "x" * 100_000,
    "\u202egnp.exe",
    "\ud7ff",
    "\U0001f4a9",
    "é",
    "self",
    "lambda",
]
Y = wrap(np.array([1.0, 2.0, 0.5]))


def density_text(name):
    """IR of a small model whose sites, plate and dims are called after `name`."""

    def model(y):
        mu = sample(f"{name}", Normal(0.0, 1.0))
        with plate(f"{name} plate", 3, coords=[f"{name} {i}" for i in range(3)]):
            scale = sample(f"{name} scale", HalfNormal(1.0))
            deterministic(f"{name} twice", scale * 2.0)
            sample(f"{name} y", Normal(mu, scale), obs=y)

    model.__name__ = model.__qualname__ = f"{name}"
    density = Target.from_model(model, Y).density
    density.value_and_grad(np.zeros(4))
    (path,) = density.paths
    return path.ir


def test_there_are_fifty_names():
    assert len(HOSTILE) == len(set(HOSTILE)) == 50


@pytest.fixture(scope="module")
def plain():
    return density_text("plain")


@pytest.mark.parametrize("name", HOSTILE, ids=lambda n: ascii(n)[:20])
def test_a_model_with_a_hostile_name_becomes_the_same_text(name, plain):
    assert density_text(name) == plain


def test_names_of_functions_and_arguments_are_not_in_the_text():
    def texts(name):
        def fn(x, **options):
            return (x * options[name]).sum()

        fn.__name__ = fn.__qualname__ = name
        compiled = compile(fn)
        compiled(wrap(np.ones(3)), **{name: as_tensor(2.0)})

        density = NativeDensity(lambda q: (q * q).sum(), 3, name=name)
        density.value_and_grad(np.ones(3))

        def step(tree):
            return {name: while_loop(lambda s: s < 3, lambda s: s + 1, tree[name])}

        program = NativeProgram(step, {name: as_tensor(0)}, name=name)
        return compiled.source(), density.paths[0].ir, program.program.ir

    assert texts("plain") == texts('"}\n@abort %v1 ; \\')


def test_a_static_string_selects_a_version_and_goes_no_further():
    f = compile(lambda x, mode: x * 2.0 if mode else x)
    hostile = '"}\n@abort'
    f(wrap(np.ones(2)), hostile)
    assert hostile not in f.source() and "abort" not in f.source()


def test_every_identifier_in_the_text_is_one_of_ours(plain):
    ours = re.compile(r"[%@](?:[a-z][a-z0-9_]*(?:\.[a-z0-9]+)*)", re.IGNORECASE)
    for token in re.findall(r"[%@][^\s,()*={}\[\]\"]+", plain):
        assert ours.fullmatch(token), token


def test_constants_appear_as_bit_patterns_or_integers(plain):
    for line in plain.splitlines():
        assert not re.search(r"\b\d+\.\d", line.replace("llvm.", "")), line
