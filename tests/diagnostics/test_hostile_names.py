"""Results under hostile names are saved, read back and shown: 500 of them, 50 in a file."""

import html

import numpy as np
import pytest

from probtorch.core.making import as_tensor
from probtorch.diagnostics import Draws
from probtorch.effects.params import ParamStore
from tests.compiler.hostile import HOSTILE
from tests.compiler.test_explain import Page

BATCHES = [HOSTILE[k : k + 50] for k in range(0, len(HOSTILE), 50)]
rng = np.random.default_rng(0)


def draws_of(names):
    """Half of the names are variables; the others dims, labels and attributes."""
    posterior, dims, coords = {}, {}, {}
    attrs = {"model_name": names[7], "labels": names[:5]}
    for variable, dim in zip(names[::2], names[1::2], strict=True):
        posterior[variable] = rng.standard_normal((2, 5, 2))
        dims[variable] = (f"{dim} plate",)
        coords[f"{dim} plate"] = [f"{dim} 0", f"1 {variable}"]
        attrs[f"count of {names.index(dim)}"] = dim
    return Draws(posterior, {"diverging": np.zeros((2, 5), bool)}, dims, coords, attrs=attrs)


def joined(x):
    """Text, or a tree of it, with two halves of a surrogate pair as one character, as JSON does."""
    if isinstance(x, str):
        return x.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if isinstance(x, dict):
        return {joined(key): joined(value) for key, value in x.items()}
    return [joined(item) for item in x] if isinstance(x, (list, tuple)) else x


def plain(x):
    return {key: np.asarray(value).tolist() for key, value in x.items()}


@pytest.mark.parametrize("ending", ["nc", "npz"])
@pytest.mark.parametrize("k", range(len(BATCHES)))
def test_draws_are_read_back_as_they_were(k, ending, tmp_path):
    draws = draws_of(BATCHES[k])
    place = tmp_path / f"draws.{ending}"
    draws.save(place)
    again = Draws.load(place)
    assert plain(again.posterior) == joined(plain(draws.posterior))
    assert joined(dict(again.dims)) == joined(dict(draws.dims))
    assert joined(plain(again.coords)) == joined(plain(draws.coords))
    for name, value in joined(draws.attrs).items():
        assert joined(again.attrs[name]) == value
    assert [file.name for file in tmp_path.iterdir()] == [place.name]


@pytest.mark.parametrize("k", [0, 5, 9])
def test_arviz_gets_all_variables(k):
    tree = draws_of(BATCHES[k]).to_arviz()
    assert len(tree["posterior"].data_vars) == 25


@pytest.mark.parametrize("k", range(len(BATCHES)))
def test_a_summary_shows_names_as_text(k):
    summary = draws_of([name[:300] for name in BATCHES[k]]).summary()
    page = Page(summary._repr_html_())
    assert {"script", "img", "svg", "iframe", "b", "link", "style"}.isdisjoint(page.tags)
    assert html.escape("<x>") not in "".join(page.text)


@pytest.mark.parametrize("k", range(len(BATCHES)))
def test_parameters_are_saved_and_loaded(k, tmp_path):
    store = ParamStore()
    for i, name in enumerate(BATCHES[k]):
        store[name] = as_tensor(float(i))
    store.save(tmp_path / "params")
    again = ParamStore()
    again.load(tmp_path / "params")
    assert {joined(n): float(v) for n, v in again.items()} == {
        joined(n): float(v) for n, v in store.items()
    }


def test_dims_that_would_be_spelled_alike_stay_apart():
    posterior = {"x": np.zeros((2, 5, 3)), "y": np.zeros((2, 5, 4)), "chain": np.ones((2, 5, 2))}
    draws = Draws(posterior, dims={"x": ("a/b",), "y": ("a.b",)})
    sizes = draws.to_datatree()["posterior"].sizes
    assert sorted(sizes.values()) == [2, 2, 3, 4, 5] and sizes["chain"] == 2
