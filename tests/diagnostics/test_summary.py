"""The summary table: its numbers, rows, and looks."""

import copy
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

from probtorch.diagnostics import Draws, summary
from probtorch.diagnostics import ess_bulk as ess_bulk_of
from probtorch.errors import ArgumentError

COLUMNS = (
    "mean", "sd", "hdi_5%", "hdi_95%", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat",
)  # fmt: skip


def test_rows_are_labelled_by_coords_or_index(schools):
    assert summary(schools).rows == (
        "mu", "tau", "theta[Choate]", "theta[Deerfield]", "theta[Phillips]",
    )  # fmt: skip
    grid = Draws(
        {"w": np.zeros((1, 4, 2, 2))},
        dims={"w": (None, "side")},
        coords={"side": ["left", "right"]},
    )
    assert grid.summary().rows == ("w[0, left]", "w[0, right]", "w[1, left]", "w[1, right]")


def test_numbers_belong_to_their_rows(schools):
    table = schools.summary(names=["theta", "mu"])
    theta = schools.posterior["theta"]
    assert table.rows[:2] == ("theta[Choate]", "theta[Deerfield]")
    assert table["theta[Deerfield]"]["mean"] == pytest.approx(theta[..., 1].mean())
    np.testing.assert_allclose(table["theta"]["sd"], theta.std(axis=(0, 1), ddof=1))
    np.testing.assert_array_equal(table["theta"]["ess_bulk"], ess_bulk_of(theta))
    assert isinstance(table["mu"]["mean"], float)
    assert list(table) == list(table.rows) and len(table) == 4
    assert "mu" in table and "theta[Choate]" in table and "tau" not in table


def test_interval_columns_are_named_for_their_ends(schools):
    assert schools.summary().columns == COLUMNS
    assert schools.summary(hdi_prob=0.94).columns[2:4] == ("hdi_3%", "hdi_97%")
    assert schools.summary(hdi_prob=0.89).columns[2:4] == ("hdi_5.5%", "hdi_94.5%")


def test_summary_agrees_with_arviz(az, schools):
    ours = schools.summary(names=["mu", "theta"])
    if int(az.__version__.split(".")[0]) < 1:
        options = {"hdi_prob": 0.9, "round_to": "none"}
        theirs = az.summary(schools.to_arviz(), var_names=["mu", "theta"], **options)
        columns = list(COLUMNS)
        assert list(theirs.columns) == columns
    else:
        # Intervals there are equal-tailed, and the tail ESS is that of their ends.
        theirs = az.summary(schools.to_arviz(), var_names=["mu", "theta"], round_to="none")
        columns = [name for name in COLUMNS if name[:3] != "hdi" and name != "ess_tail"]
    assert list(theirs.index) == list(ours.rows)
    mine = ours.to_pandas()[columns].to_numpy()
    np.testing.assert_allclose(mine, theirs[columns].to_numpy(float), rtol=1e-10)


def test_rounding_is_of_the_numbers_and_of_the_print(schools):
    table = schools.summary(names="mu", round_to=1)
    mean = schools.posterior["mu"].mean()
    assert table["mu"]["mean"] == round(mean, 1)
    assert f"  {mean:.1f}  " in str(table)


def test_print_is_aligned_and_ends_with_divergences(schools):
    diverging = np.zeros((4, 200), bool)
    diverging[1, 3:8] = True
    stats = {**schools.sample_stats, "diverging": diverging}
    lines = str(schools.with_group("sample_stats", stats).summary()).splitlines()
    assert lines[0].split() == list(COLUMNS)
    assert len({len(line) for line in lines[:6]}) == 1
    assert lines[-2:] == ["4 chains x 200 draws.", "Number of divergences: 5"]
    assert repr(schools.summary()) == str(schools.summary())


def test_engines_without_divergences_print_no_count():
    assert "ivergences" not in str(Draws({"x": np.zeros((1, 10))}).summary())


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e5, 1e20])
def test_printed_numbers_keep_the_digits_that_matter(scale):
    x = np.random.default_rng(0).normal(3.0, 1.0, (4, 250)) * scale
    table = Draws({"x": x}).summary()
    cells = str(table).splitlines()[1].split()[1:]
    for text, value in zip(cells[:4], table.values[0]):
        assert float(text) == pytest.approx(value, abs=0.006 * scale)
        assert len(text) < 13
    assert float(cells[4]) == pytest.approx(table["x"]["mcse_mean"], rel=0.05)


def test_doubtful_numbers_are_shown_plainly():
    x = np.random.default_rng(1).normal(size=(2, 50, 3))
    x[0, 0, 0] = np.nan
    x[..., 1] = 2.5
    x[..., 2] = [[1.0], [2.0]]
    lines = str(Draws({"x": x}).summary()).splitlines()
    assert lines[1].split()[1:] == ["nan"] * 9
    assert lines[2].split()[1] == "2.500" and lines[2].split()[-1] == "nan"
    assert lines[3].split()[-1] == "inf"


def test_long_tables_are_cut_in_print_only():
    table = Draws({"x": np.random.default_rng(2).normal(size=(1, 8, 250))}).summary()
    text = str(table)
    assert "x[199]" in text and "x[200]" not in text and "... and 50 more rows" in text
    assert len(table) == 250 and table["x"]["mean"].shape == (250,)


def test_discrete_and_complex_variables_have_rows():
    flag = np.random.default_rng(3).random((2, 40)) < 0.5
    table = Draws({"flag": flag, "z": flag + 2j}).summary()
    assert table.rows == ("flag", "z_real", "z_imag")
    assert table["flag"]["mean"] == pytest.approx(flag.mean())
    assert table["z_imag"]["mean"] == 2.0


def test_few_draws_and_no_draws_are_summarised_all_the_same():
    table = Draws({"x": np.array([[1.0, 3.0]])}).summary()
    assert table["x"]["mean"] == 2.0 and np.isnan(table["x"]["r_hat"])
    nothing = Draws({"x": np.zeros((4, 0, 2))}).summary()
    assert nothing.rows == ("x[0]", "x[1]") and np.isnan(nothing.values).all()
    assert "x[1]" in str(nothing)


def test_dict_and_html_hold_the_same_table(schools):
    table = schools.summary()
    assert table.to_dict()["tau"] == table["tau"]
    renamed = Draws({"<b>": schools.posterior["mu"]}).summary()
    assert "&lt;b&gt;" in renamed._repr_html_() and "<b>" not in renamed._repr_html_()
    assert table._repr_html_().count("<tr>") == 6


def test_unknown_names_are_refused_with_a_cure(schools):
    with pytest.raises(ArgumentError, match=r"(?s)expected: .*mu, tau, theta.*got: +nu\b.*fix: "):
        schools.summary(names=["mu", "nu"])
    with pytest.raises(ArgumentError, match=r"(?s)expected: .*mu.*got: +'nu'.*fix: .*'mu'"):
        schools.summary()["nu"]


def test_names_in_the_place_of_the_probability_are_told_where_they_go(schools):
    with pytest.raises(ArgumentError, match=r"names=\[\.\.\.\]"):
        schools.summary(hdi_prob=["mu"])


def test_a_summary_and_its_checks_import_nothing_heavy(tmp_path):
    # In a fresh interpreter: this one has imported ArviZ for the other tests.
    code = (
        "import sys, numpy as np\n"
        "from probtorch.diagnostics import Draws, diagnose\n"
        "draws = Draws({'x': np.zeros((4, 200))})\n"
        "print(draws.summary(), diagnose(draws))\n"
        "draws.save(sys.argv[1])\n"
        "heavy = {'arviz', 'xarray', 'pandas', 'rich', 'matplotlib', 'h5py'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "x.npz")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.fixture
def matrix():
    values = np.random.default_rng(0).normal(size=(2, 20, 2, 2))
    return Draws({"mu": values[..., 0, 0], "L": values, "mean": values[..., 1, 0]}).summary()


def test_index_of_a_row_is_found_with_and_without_spaces(matrix):
    assert matrix["L[1,0]"] == matrix["L[1, 0]"] == matrix["L[ 1, 0 ]"]
    assert "L[1,0]" in matrix and "L[1,2]" not in matrix
    assert matrix.get("L[0,1]")["mean"] == matrix["L"]["mean"][0, 1]
    assert matrix.get("L[9,9]") is None


@pytest.mark.parametrize(
    ("key", "fix"),
    [("L[5,0]", "ask for 'L', or 'L[0, 0]' to 'L[1, 1]'"), ("muu", "ask for 'mu'")],
)
def test_unknown_row_names_the_one_that_was_meant(matrix, key, fix):
    with pytest.raises(
        ArgumentError, match=rf"a variable among mu, L, mean[\s\S]*got: +'{re.escape(key)}'"
    ) as info:
        matrix[key]
    assert f"fix:      {fix}" in str(info.value)


def test_data_frame_of_a_summary_is_the_table(matrix):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(matrix)
    pandas.testing.assert_frame_equal(frame, matrix.to_pandas())
    # A variable may be called as a column is.
    assert frame.loc["mean", "mean"] == matrix["mean"]["mean"]


def test_summary_is_a_dict_of_columns_only_where_it_is_asked_for_them(matrix):
    assert dict(matrix) == matrix.to_pandas().to_dict()
    assert list(matrix.keys()) == list(matrix.columns)
    assert dict(matrix.items())["sd"]["mu"] == matrix["mu"]["sd"]
    assert bool(matrix) and matrix == matrix and matrix != copy.copy(matrix).to_dict()
    assert len({matrix, matrix}) == 1


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_summary_travels_whole(matrix, again):
    made = again(matrix)
    assert str(made) == str(matrix) and made["L[1,1]"] == matrix["L[1,1]"]
