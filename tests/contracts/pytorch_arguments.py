"""The names of the arguments of PyTorch's functions, as pytorch_arguments.txt has them.

`python -m tests.contracts.pytorch_arguments` writes the file anew where PyTorch is installed. A
line is a function or class that both libraries have, and the names by which it takes arguments:
those of its signature, or of the first line of its documentation, where it has none that Python can
read.
"""

import inspect
import re
from pathlib import Path

import probtorch

FILE = Path(__file__).with_suffix(".txt")
ROOMS = (
    *("", "linalg", "special", "fft", "nn.functional", "Tensor", "nn", "nn.init", "nn.utils"),
    *("nn.utils.rnn", "nn.utils.parametrize", "nn.utils.parametrizations", "optim"),
    *("optim.lr_scheduler", "optim.swa_utils", "utils.data", "utils.checkpoint", "amp"),
    *("autograd", "autograd.functional", "func", "distributions"),
)
# Where what is made of classes counts too; the arguments are those of the constructor.
OF_CLASSES = frozenset(ROOMS[6:])


def room(package, name):
    """A module or class of a package, by its dotted name."""
    for part in filter(None, name.split(".")):
        package = getattr(package, part)
    return package


def documented(text, name):
    """Names of arguments in the first line of a documentation, which is the signature."""
    found = re.match(
        rf"\s*(?:[\w.]+\.)?{re.escape(name)}\((.*?)\)\s*(?:->|\n)", text or "", re.DOTALL
    )
    if found is None:
        return []
    inside = re.sub(r"\([^()]*\)|\[|\]", "", found[1])
    names = [part.split("=")[0].split(":")[0].split() for part in inside.split(",")]
    words = [words[-1].lstrip("*") for words in names if words]
    return [word for word in words if word.isidentifier()]


def arguments(function, name):
    """Names of the arguments of one of PyTorch's functions."""
    try:
        return [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
    except (TypeError, ValueError):
        return documented(function.__doc__, name)


def functions_of_both(torch):
    """Yield (dotted name, PyTorch's function, ours) of what both show."""
    for place in ROOMS:
        theirs, ours = room(torch, place), room(probtorch, place)
        classes = place in OF_CLASSES
        for name in sorted(dir(theirs)):
            one, two = getattr(theirs, name), getattr(ours, name, None)
            if name.startswith("_") or not callable(one) or not callable(two):
                continue
            home = getattr(one, "__module__", None) or "torch"
            if home.startswith("torch") and (classes or not inspect.isclass(one)):
                yield f"{place}.{name}".lstrip("."), one, two


def table():
    """Dict from dotted name to the names of arguments, as the file has it."""
    lines = FILE.read_text().splitlines()
    return {line.split(":")[0]: line.split(":")[1].split() for line in lines}


def main():
    """Write the file."""
    import torch

    rows = {name: arguments(one, name.split(".")[-1]) for name, one, _ in functions_of_both(torch)}
    FILE.write_text(
        "".join(f"{name}: {' '.join(names)}\n" for name, names in rows.items() if names)
    )


if __name__ == "__main__":
    main()
