"""The trace figure: written, readable back, and free of global state."""

import sys

import numpy as np
import pytest

from probtorch.diagnostics import Draws, trace_plot
from probtorch.diagnostics.plots import _density, _figure
from probtorch.errors import ArgumentError

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(
    "ending, magic", [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_a_figure_is_written_in_the_format_of_its_name(schools, tmp_path, ending, magic):
    path = tmp_path / f"trace.{ending}"
    assert trace_plot(schools, path) == str(path)
    assert path.read_bytes().startswith(magic)


def test_figure_says_what_it_left_out_and_marks_divergences():
    rng = np.random.default_rng(0)
    diverging = np.zeros((2, 60), bool)
    diverging[0, [3, 40]] = diverging[1, 40] = True
    draws = Draws({"w": rng.normal(size=(2, 60, 30))}, {"diverging": diverging})
    figure = _figure(draws, None)
    assert len(figure.axes) == 40
    title = figure.get_suptitle()
    assert "the first 20 of 30 parameters" in title and "3 divergences" in title
    density, trace = figure.axes[:2]
    assert density.get_title(loc="left") == "w[0]"
    np.testing.assert_array_equal(trace.lines[1].get_ydata(), draws.posterior["w"][1, :, 0])
    assert list(trace.lines[2].get_xdata()) == [3, 40]


def test_discrete_constant_and_broken_draws_are_drawn(tmp_path):
    rng = np.random.default_rng(1)
    broken = rng.normal(size=(2, 40))
    broken[0, 3] = np.nan
    draws = Draws(
        {
            "k": rng.poisson(3.0, (2, 40)),
            "flag": rng.random((2, 40)) < 0.3,
            "c": np.ones((2, 40)),
            "broken": broken,
            "lost": np.full((2, 40), np.nan),
            "big": rng.integers(0, 10**6, (2, 40)),
        }
    )
    trace_plot(draws, tmp_path / "t.png")
    assert (tmp_path / "t.png").stat().st_size > 10_000


def test_pyplot_is_not_needed(schools, tmp_path):
    before = "matplotlib.pyplot" in sys.modules
    trace_plot(schools, tmp_path / "t.png", names="mu")
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_densities_integrate_to_one():
    rng = np.random.default_rng(2)
    x, y = _density(rng.normal(5.0, 3.0, 20_000))
    # The grid ends two bandwidths beyond the outer thousandths.
    assert np.trapezoid(y, x) == pytest.approx(1.0, abs=0.01)
    assert x[np.argmax(y)] == pytest.approx(5.0, abs=0.6)
    k, share = _density(np.array([2, 2, 4]))
    np.testing.assert_array_equal(k, [1, 2, 3, 4, 5])
    np.testing.assert_allclose(share, [0, 2 / 3, 0, 1 / 3, 0])


def test_nothing_to_draw_is_refused_with_a_cure(schools, tmp_path):
    with pytest.raises(ArgumentError, match=r"(?s)expected: .*one scalar.*got: +0 scalars.*fix: "):
        trace_plot(Draws({"x": np.zeros((1, 5, 0))}), tmp_path / "t.png")
    with pytest.raises(ArgumentError, match="nu"):
        trace_plot(schools, tmp_path / "t.png", names="nu")
