"""No code is kept alive by tests alone: every name of the inner rooms is used by the library.

A name at the top of a module counts as used where its own module reads it outside of its
definition, where another imports it, as an attribute of an imported module, or by a string, such as
the table of a tensor's methods. Decorators register, so what they decorate is used. Public rooms
are exempt: their users are not in this repository.
"""

import ast
import re
from collections import Counter
from pathlib import Path

import probtorch

ROOT = Path(probtorch.__file__).parent

INNER = ("autograd", "backends", "compiler", "core", "ops")

# Modules that keep others in a table, and the folder of these.
TABLES = {
    "probtorch.backends.registry": "probtorch.backends",
    "probtorch.compiler.render.runtime": "probtorch.compiler.render.runtime",
}

# Read by tests, recipes and extension authors, on purpose.
LEVERS = {
    "probtorch.autograd.batching.slow_ops": "docs/internals/ops.md shows it to authors of ops",
    "probtorch.compiler.native.cache.forget_directories": "the cache's directory is an environment",
    "probtorch.compiler.native.host.write_for": "runs the tests for other processors",
    "probtorch.core.doors.DOORS": "the list that counts them",
    "probtorch.autograd.functional.vhp": "PyTorch's name",
    "probtorch.autograd.graph.Node": "PyTorch's name",
    "probtorch.autograd.graph.increment_version": "PyTorch's name",
    "probtorch.autograd.graph.save_on_cpu": "PyTorch's name",
    "probtorch.backends.cudnn.allow_tf32": "PyTorch's setting",
    "probtorch.backends.cudnn.benchmark": "PyTorch's setting",
}


def _modules():
    """Return the syntax nodes of every module, the module itself first."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = list(ast.walk(ast.parse(path.read_text())))
    return found


MODULES = _modules()


def _definitions(body):
    """Return the nodes that define names at the top of a module, by name."""
    found = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            found.update((n.id, node) for n in names if isinstance(n.ctx, ast.Store))
    return found


def _words(nodes):
    """Return the words of all strings but docstrings and lists of exports."""
    prose = [
        n.value for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
    ]
    for node in nodes[0].body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            prose += ast.walk(node)
    found, left_out = set(), set(map(id, prose))
    for node in nodes:
        if isinstance(node, ast.Constant) and type(node.value) is str and id(node) not in left_out:
            found.update(re.findall(r"\w+", node.value))
    return found


WORDS = set().union(*map(_words, MODULES.values()))


def _reads(nodes):
    return Counter(
        n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)
    )


def _asked_of_others():
    """Return what modules import from each other or read off each other, as ``module.name``."""
    used = set()
    for nodes in MODULES.values():
        modules = {}
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    used.add(full)
                    if full in MODULES:
                        modules[alias.asname or alias.name] = full
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.add(f"{modules.get(node.value.id)}.{node.attr}")
    # Modules that are one interface, asked through a table.
    for table, folder in TABLES.items():
        asked = {node.attr for node in MODULES[table] if isinstance(node, ast.Attribute)}
        kin = [name for name in MODULES if name.rpartition(".")[0] == folder]
        used |= {f"{module}.{name}" for module in kin for name in asked}
    return used


def _unused(module, used):
    tree, *_ = nodes = MODULES[module]
    reads = _reads(nodes)
    for name, node in _definitions(tree.body).items():
        if name.startswith("__") or name in WORDS or f"{module}.{name}" in used:
            continue
        plain = isinstance(node, (ast.FunctionDef, ast.ClassDef))
        own = _reads(ast.walk(node))[name] if plain else 0
        if reads[name] == own and not (plain and node.decorator_list):
            yield f"{module}.{name}"


def test_every_name_of_the_inner_rooms_is_used_by_the_library():
    used = _asked_of_others()
    inner = [m for m in MODULES if m.count(".") and m.split(".")[1] in INNER]
    left = {name for module in inner for name in _unused(module, used)}
    assert left == set(LEVERS)
