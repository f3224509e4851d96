"""A class name has one home: who reads it anywhere knows which class is meant."""

import re
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "probtorch"
# Names are read with the file's or the room's: `nodes.Call`, and Pyro's `kernels.Exponential` and
# `likelihoods.Poisson`.
ALWAYS_QUALIFIED = "compiler/lang/nodes.py", "contrib/gp/kernels/", "contrib/gp/likelihoods.py"
# An annotation of values in classes, where the module of that name is never used.
SHARED_ON_PURPOSE = {
    "Parameter": {"nn/parameter.py", "distributions/fields.py"},
    # PyTorch's: a name of a device, and a block in which a GPU is the current one.
    "device": {"core/device.py", "cuda.py"},
    # PyMC's distribution of sums of steps, and the Metropolis kernel that Pyro calls so.
    "RandomWalk": {"distributions/walks.py", "infer/mcmc/kernels/random_walk.py"},
}


def homes(package: Path) -> dict[str, set[str]]:
    """Return the files that define each public class."""
    found = defaultdict(set)
    for path in package.rglob("*.py"):
        name = str(path.relative_to(package))
        if name.startswith(ALWAYS_QUALIFIED):
            continue
        for class_name in re.findall(r"^ *class ([A-Za-z]\w*)[:(]", path.read_text(), re.MULTILINE):
            found[class_name].add(name)
    return found


def test_a_public_class_name_has_one_home():
    several = {name: files for name, files in homes(PACKAGE).items() if len(files) > 1}
    assert several == SHARED_ON_PURPOSE


def test_a_second_home_is_found(tmp_path):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("class Draws: pass\nclass _Own: pass\n")
    assert homes(tmp_path) == {"Draws": {"a.py", "b.py"}}
