"""What every test shares: one thread, one throw-away compiler cache, reproducible hypothesis runs.

The environment is set before anything imports NumPy: BLAS reads its thread count once, at load.
GPU tests are skipped with the reason that `probtorch.backends.registry` gives.
"""

import gc
import os
import shutil
import signal
import tempfile

for _name in (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
):
    os.environ[_name] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")
# A process in the background may have inherited that Ctrl-C is ignored; tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A test must neither profit from, nor leave traces in, the user's own cache.
_CACHE_DIR = tempfile.mkdtemp(prefix="probtorch-test-cache-")
os.environ["PROBTORCH_CACHE_DIR"] = _CACHE_DIR

import pytest  # noqa: E402 - after the environment is set
from hypothesis import settings  # noqa: E402

# Code for another processor than this one: tests/compiler/test_processors.py runs others so.
if os.environ.get("PROBTORCH_TEST_PROCESSOR"):
    from probtorch.compiler.native.host import write_for

    write_for(os.environ["PROBTORCH_TEST_PROCESSOR"])

# Compiling inside an example takes as long as it takes, so there is no deadline.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(items):
    """Skip tests marked gpu where there is no usable GPU, and say why."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    from probtorch.backends.registry import unavailable_reason

    reason = unavailable_reason("cuda")
    if reason is not None:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=f"no CUDA device: {reason}"))


def pytest_collection_finish():
    """The tests themselves, tens of thousands of objects, are not walked by each collection."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """Remove the session's compiler cache."""
    shutil.rmtree(_CACHE_DIR, ignore_errors=True)


@pytest.fixture(autouse=True)
def _nothing_left_behind():
    """The default generator goes back after each test; one that leaves a mode on fails itself."""
    from probtorch.core.dispatch import grad_enabled, recorder, set_grad_enabled, set_recorder
    from probtorch.core.rng import default_generator

    state = default_generator.get_state()
    yield
    default_generator.set_state(state)
    left = [] if grad_enabled() else ["gradients switched off"]
    left += [] if recorder() is None else ["a recorder"]
    set_grad_enabled(True)
    set_recorder(None)
    assert not left, f"left behind: {', '.join(left)}"
