"""``mpirun -n 4 python model.py``, where mpi4py and an MPI are installed."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mpi4py", reason="the extra mpi is not installed")
MPIRUN = shutil.which("mpirun")
if MPIRUN is None:
    pytest.skip("there is no mpirun", allow_module_level=True)

ROOT = Path(__file__).parents[2]
MODEL = """
import os, signal, sys, time
import numpy as np
import probtorch
import probtorch.distributions as dist
from probtorch.distributed import all_gather_object, barrier, broadcast, get_rank, get_world_size
from probtorch.infer import HMC, MCMC, Target

rng = np.random.default_rng(0)
X, Y = (probtorch.tensor(rng.normal(size=s)) for s in ((100, 2), 100))

def model():
    b = probtorch.sample("b", dist.Normal(probtorch.zeros(2), 1.0).to_event(1))
    with probtorch.plate("row", 100, shard=True) as rows:
        probtorch.sample("y", dist.Normal(X[rows] @ b, 1.0), obs=Y[rows])
"""


def run(tmp_path, body, timeout=280):
    """Output of four ranks that run a model and what follows it."""
    script = tmp_path / "model.py"
    script.write_text(MODEL + body)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    flags = ["--oversubscribe", "--allow-run-as-root"]
    version = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True, check=True)
    flags = flags if "Open MPI" in version.stdout or "OpenRTE" in version.stdout else []
    return subprocess.run(
        [MPIRUN, *flags, "-n", "4", sys.executable, str(script)],
        capture_output=True, text=True, env=environment, timeout=timeout, check=False,
    )  # fmt: skip


def test_script_runs_under_mpirun_as_it_is(tmp_path):
    done = run(
        tmp_path,
        """
value, slope = Target.from_model(model).value_and_grad([0.5, -0.5])
mcmc = MCMC(HMC(model, num_steps=3), num_samples=50, warmup_steps=50, seed=0)
mcmc.diagnose = False
b = mcmc.run().posterior["b"]
found = [None] * get_world_size()
all_gather_object(found, (value, slope.tobytes(), b.tobytes()))
large = probtorch.arange(100_000.0) * (get_rank() + 1)
probtorch.distributed.all_reduce(large)
sent = probtorch.tensor([float(get_rank())]); broadcast(sent, src=2); barrier()
if get_rank() == 0:
    print(value, found == [found[0]] * 4, large[-1].item(), sent.item())
""",
    )
    assert done.returncode == 0, done.stderr
    value, same, large, sent = done.stdout.split()
    rng = np.random.default_rng(0)
    x, y, b = rng.normal(size=(100, 2)), rng.normal(size=100), np.array([0.5, -0.5])
    expected = -0.5 * (((y - x @ b) ** 2).sum() + 0.5) - 51 * np.log(2 * np.pi)
    np.testing.assert_allclose(float(value), expected, rtol=1e-10)
    assert (same, float(large), float(sent)) == ("True", 10 * 99_999.0, 2.0)


@pytest.mark.parametrize(
    "death", ["os.kill(os.getpid(), signal.SIGKILL)", "raise OSError('the disk is gone')"]
)
def test_rank_that_dies_ends_the_run(tmp_path, death):
    began = time.perf_counter()
    done = run(tmp_path, f"barrier()\nif get_rank() == 1:\n    {death}\nbarrier()\n")
    assert time.perf_counter() - began < 60
    assert done.returncode != 0
    if "raise" in death:
        assert "rank 1 of 4 failed and ends the run; last checkpoint: none" in done.stderr
        assert "OSError: the disk is gone" in done.stderr


def test_rank_that_does_not_come_is_named(tmp_path):
    done = run(
        tmp_path,
        "probtorch.distributed.init_process_group(timeout=1.0)\n"
        "barrier()\nif get_rank() == 1:\n    time.sleep(50)\nbarrier()\n",
    )
    assert done.returncode != 0
    assert "rank 1 did not come within 1 s" in done.stderr
