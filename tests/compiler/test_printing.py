"""Printing inside compiled functions: values are shown while recording, and nothing else changes.

What only goes to people leaves a function compiled; what may come back keeps it eager, and right.
"""

import contextlib
import io
import logging
import pdb  # noqa: T100 - what it shows is tested
import sys
import threading
import warnings

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import plate, sample
from probtorch.compiler import paths
from probtorch.compiler.paths import CompileWarning, PrintWarning
from probtorch.compiler.verify import unshown
from probtorch.config import configure
from probtorch.infer import MCMC, NUTS, SVI, AutoNormal, Predictive, Target
from probtorch.optim import Adam

log = logging.getLogger("probtorch.tests.printing")
KEPT = []


@pytest.fixture(autouse=True)
def forget():
    paths._PRINTING.clear()
    KEPT.clear()


def save(text):
    KEPT.append(text)
    return text


# ---------------------------------------------------------------------------------- only for people


def plain(y, x):
    print(y)


def several(y, x):
    print("y is", y, y.mean(), {"y": y}, sep=" ", file=sys.stderr)


def in_an_f_string(y, x):
    print(f"y is {y} and {y:.3f}")


def over_lines(y, x):
    print(
        f"y is {y:.3f}, of {x} in all",
        x.tolist(),
    )


def by_percent(y, x):
    print("y is %s %.3f" % (y, y))  # noqa: UP031


def by_format(y, x):
    print("y is {} {:.3f}".format(y, y))  # noqa: UP032


def joined(y, x):
    print(", ".join(str(v) for v in x))


def a_number(y, x):
    print(y.item(), float(y), int(y), round(float(y) * 2.0, 3), [float(v) for v in x])


def as_an_array(y, x):
    print(x.numpy())


def logged(y, x):
    log.warning("y is %s", y)
    log.info(f"y is {y:.2f}")


def written(y, x):
    sys.stdout.write(f"y is {y:.2f}\n")


def warned(y, x):
    warnings.warn(f"y is {y:.2f}", UserWarning)  # noqa: B028


def at_a_prompt(y, x):
    commands = io.StringIO("p y\npp [y, x]\np f'{y:.2f}'\nc\n")
    prompt = pdb.Pdb(stdin=commands, stdout=io.StringIO(), nosigint=True, readrc=False)
    prompt.set_trace()


SHOWN = [
    plain, several, in_an_f_string, over_lines, by_percent, by_format, joined, a_number,
    as_an_array, logged, written, warned, at_a_prompt,
]  # fmt: skip


def calls(shows):
    """A compiled function that shows a value on its way, called four times."""

    @probtorch.compile
    def f(x):
        y = (x * 2.0).sum()
        shows(y, x)
        return y * 3.0

    found = [float(f(probtorch.ones(3) * i)) for i in range(4)]
    return f, found


@pytest.mark.parametrize("shows", SHOWN, ids=lambda fn: fn.__name__)
def test_what_only_people_see_stays_compiled(shows, capsys):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f, found = calls(shows)
    assert found == [0.0, 18.0, 36.0, 54.0]
    assert "1 compiled path" in f.explain(), f.explain()
    kinds = [w.category for w in caught if w.category is not UserWarning]
    assert kinds == [PrintWarning]
    warning = next(w for w in caught if w.category is PrintWarning)
    text = str(warning.message)
    assert warning.filename == __file__ and f"shown at {__file__}:" in text
    for part in ("f prints while it is recorded", "  expected: ", "  got:      ", "  fix:      "):
        assert text.count(part) == 1
    assert "configure(jit=False)" in text


def test_shown_are_the_values_of_the_run_that_is_recorded(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrintWarning)
        calls(in_an_f_string)
        with configure(jit=False):
            calls(in_an_f_string)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "y is tensor(0.) and 0.000"
    # Without compiling, every call is shown.
    assert lines[-4:] == [f"y is tensor({6 * i}.) and {6 * i}.000" for i in range(4)]


# ------------------------------------------------------------------------------- what may come back


def kept(y):
    KEPT.append(str(y))
    return float(KEPT[-1][7:-1])


def kept_by_a_call_in_print(y):
    print(KEPT.append(str(y)))
    return float(KEPT[-1][7:-1])


def kept_by_a_function_in_print(y):
    print(f"{save(str(y))}")
    return float(KEPT[-1][7:-1])


def number_kept_in_print(y):
    print(KEPT.append(y.item()))
    return KEPT[-1]


def walrus(y):
    print(text := str(y))
    return float(text[7:-1])


def printed_into_a_file(y):
    file = io.StringIO()
    print(y, file=file)
    return float(file.getvalue()[7:-2])


def assigned(y):
    text = f"{y:.4f}"
    print(text)
    return float(text)


def other_print(y):
    print = save
    print(str(y))
    return float(KEPT[-1][7:-1])


def other_str(y):
    def str(value):
        KEPT.append(value.item())
        return "text"

    print(str(y))
    return KEPT[-1]


def element_of_an_array(y):
    array = np.zeros(1)
    print(array.__setitem__(0, y.item()))
    return float(array[0])


def in_an_expression(y):
    return float((print(y), str(y))[1][7:-1])


BACK = [
    kept, kept_by_a_call_in_print, kept_by_a_function_in_print, number_kept_in_print, walrus,
    printed_into_a_file, assigned, other_print, other_str, element_of_an_array, in_an_expression,
]  # fmt: skip


@pytest.mark.parametrize("back", BACK, ids=lambda fn: fn.__name__)
def test_what_may_come_back_is_right(back):
    @probtorch.compile
    def f(x):
        y = (x * 2.0).sum()
        return y * back(y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        warnings.simplefilter("error", PrintWarning)
        found = [float(f(probtorch.ones(3) * i)) for i in (1, 2, 3, 4, 2)]
    assert found == [36.0, 144.0, 324.0, 576.0, 144.0]


# ------------------------------------------------------------------------------------------- models


def model(y, shown=True):
    mu = sample("mu", dist.Normal(0.0, 1.0))
    if shown:
        print("mu", mu, f"{mu:.3f}", mu.item())
    with plate("n", 15):
        sample("y", dist.Normal(mu, 1.0), obs=y)


Y = probtorch.arange(15.0) / 15.0


@contextlib.contextmanager
def notes():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrintWarning)
        yield


def test_chains_of_a_model_that_prints_are_those_of_one_that_does_not(capsys):
    with notes():
        found = [
            MCMC(NUTS(model), 400, 100, num_chains=2, seed=1, progress_bar=False).run(Y, shown)
            for shown in (True, False)
        ]
    np.testing.assert_array_equal(found[0].posterior["mu"], found[1].posterior["mu"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("mu")]
    # One per run of Python's: there are hundreds of leapfrog steps.
    assert 1 <= len(lines) <= 20
    # Where programs are recorded for shapes only, no number is made up.
    assert all("tensor(..., shape=()" in line and "nan nan" in line for line in lines
               if "..." in line or "nan" in line)  # fmt: skip


def test_density_of_a_model_that_prints_is_compiled():
    target = Target.from_model(model, Y)
    plain = Target.from_model(model, Y, shown=False)
    with notes():
        for q in ([0.3], [-2.0], [5.0]):
            value, gradient = target.value_and_grad(q)
            assert value == plain.value_and_grad(q)[0]
            np.testing.assert_array_equal(gradient, plain.value_and_grad(q)[1])
    assert "1 compiled path" in target.density.explain()


def test_svi_of_a_model_that_prints_is_compiled(capsys):
    with notes():
        svi = SVI(model, AutoNormal(model), Adam({"lr": 0.01}), seed=0)
        svi.run(60, Y, progress_bar=False)
    assert 1 <= capsys.readouterr().out.count("mu ") <= 30


def test_predictions_of_a_model_that_prints_are_right():
    with notes():
        found = Predictive(model, {"mu": probtorch.linspace(-50.0, 50.0, 20)}, seed=0)(None)
    means = found["y"].numpy().mean(axis=1)
    np.testing.assert_allclose(means, np.linspace(-50.0, 50.0, 20), atol=2.0)


def test_runs_that_explain_a_difference_by_rounding_print_nothing(capsys):
    # The sum is all rounding: each comparison is repeated with other rounding.
    x = probtorch.tensor(np.linspace(-1.0, 1.0, 1000, dtype=np.float32))

    def fn(x):
        total = x.sum()
        print(f"total {total}")
        return total

    native = probtorch.compile(fn)
    with notes():
        for k in range(1, 10):
            native(x * k)
    lines = capsys.readouterr().out.splitlines()
    assert 0 < len(lines) <= 6  # recorded, and compared, as calls 1, 2, 3, 5 and 9


def test_what_other_threads_print_meanwhile_is_shown(capsys):
    def write(text):
        thread = threading.Thread(target=print, args=(text,))
        thread.start()
        thread.join()

    before = sys.stdout
    with unshown() as kept:
        print("own")
        sys.stdout.writelines(["lines", "\n"])
        write("another's")
        within = sys.stdout
    assert sys.stdout is before and kept.getvalue() == "own\nlines\n"
    within.write("afterwards\n")  # by whoever has kept the stream
    assert capsys.readouterr().out == "another's\nafterwards\n"


def test_a_stream_that_another_thread_has_put_in_place_meanwhile_stays(monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    with unshown():
        stream = sys.stdout = io.StringIO()
    assert sys.stdout is stream


def test_without_a_stream_nothing_is_printed(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with unshown():
        print("own")
    assert sys.stdout is None
