"""What PyTorch answers, probtorch answers; what differs stands in docs/reference/differences.md.

Where PyTorch is not installed, only the form of that page is looked at. `fitting_calls.py` and
`further_calls.py` have the functions and their arguments, `torch_agreement.py` compares; for more
random calls than here:

    python -m tests.contracts.torch_sweep --calls 1000
"""

import fnmatch

import pytest

from tests.contracts.further_calls import RECIPES
from tests.contracts.listed_differences import ASPECTS, CONDITIONS, rows

ROWS = rows()
NAMES = {n for name in RECIPES for n in (name, name.rpartition(".")[2])}


def test_rows_of_the_page_have_a_form_that_the_sweep_understands():
    assert len({r.id for r in ROWS}) == len(ROWS)
    for r in ROWS:
        assert r.aspects and set(r.aspects) <= set(ASPECTS), r.id
        assert set(r.conditions) <= set(CONDITIONS), r.id
        assert r.why.endswith(".") and r.example, r.id
        for f in r.functions:
            assert fnmatch.filter(NAMES, f), f"{r.id}: no function is called {f}"


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.id)
def test_an_example_of_the_page_still_differs(row):
    pytest.importorskip("torch")
    from tests.contracts.torch_agreement import example_differs

    assert example_differs(row), f"{row.example} no longer differs: take the row off the page"


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_answers_are_those_of_pytorch(name):
    pytest.importorskip("torch")
    from tests.contracts.torch_agreement import unlisted

    found = [d for seed in range(3) for d in unlisted(name, seed, ROWS)]
    assert not found, "\n".join(map(str, found[:3]))


def test_every_shared_function_is_called():
    pytest.importorskip("torch")
    from tests.contracts.torch_agreement import NOT_CALLED, shared_names

    assert shared_names() - set(RECIPES) == NOT_CALLED
