"""BLAS's threads: none while small matrices are decomposed, as many as before afterwards."""

import contextlib
import sys

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from probtorch import sample
from probtorch.distributions import Normal
from probtorch.infer import MCMC, NUTS, blas_threads
from probtorch.infer.blas_threads import LARGE, blas_shared_out, without_blas_threads
from probtorch.infer.mcmc.warm_up import mass_matrix


def counts():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture
def three():
    with threadpool_limits(3, user_api="blas"):
        yield


def test_small_matrices_have_one_thread(three):
    with without_blas_threads(10):
        assert counts() == {1}
    assert counts() == {3}


def test_large_matrices_keep_them(three):
    with without_blas_threads(LARGE):
        assert counts() == {3}


def test_an_error_gives_them_back(three):
    with pytest.raises(np.linalg.LinAlgError), without_blas_threads(2):
        np.linalg.inv(np.zeros((2, 2)))
    assert counts() == {3}


def test_a_library_that_is_loaded_later_has_one_thread_too(three, monkeypatch):
    """Native code brings SciPy's BLAS when it is first called."""
    looked = []
    monkeypatch.setattr(blas_threads, "_found", lambda scipy: looked.append(scipy) or found)
    found = ThreadpoolController().select(user_api="blas")
    name = "scipy.linalg.cython_blas"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with without_blas_threads(10):
        monkeypatch.setitem(sys.modules, name, sys)
    with without_blas_threads(10):
        assert counts() == {1}
    assert set(looked) == {False, True}


def test_one_chain_keeps_them_and_three_share_them(three):
    with blas_shared_out(1):
        assert counts() == {3}
    with blas_shared_out(1000):
        assert counts() == {1}
    assert counts() == {3}


def stretched():
    sample("x", Normal(np.zeros(60), np.geomspace(0.1, 10.0, 60)).to_event(1))


def test_a_chain_alone_fits_its_metric_without_them(monkeypatch):
    seen, before = [], counts()
    given = mass_matrix.without_blas_threads

    @contextlib.contextmanager
    def looking(dim):
        with given(dim):
            seen.append(counts())
            yield

    monkeypatch.setattr(mass_matrix, "without_blas_threads", looking)
    MCMC(NUTS(stretched), 400, 150, seed=3, progress_bar=False).run()
    assert seen and all(count == {1} for count in seen)
    assert counts() == before
