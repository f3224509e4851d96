"""NVIDIA's compiler takes the generated source; hostile names never reach it.

Many sources are compiled in one call, each in a namespace of its own: a call takes a second however
little it compiles. Nothing is run; test_gpu.py does that on the processor.
"""

import re
import shutil
import subprocess

import numpy as np
import pytest

import probtorch
from probtorch.compiler.render.cuda_math import NUMBERS, runtime_text
from probtorch.core.dispatch import wrap
from probtorch.effects import deterministic
from probtorch.ops.rejection import SAMPLERS
from tests.backends import fake_cupy
from tests.compiler.gpu_programs import compiled
from tests.compiler.test_cuda_sorting import instantiations
from tests.compiler.test_gpu import (
    branches,
    elementwise_jobs,
    newton,
    scattered,
    softmaxes,
    structured_jobs,
    sums,
)
from tests.contracts import test_compiled_ops as ops

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")

rng = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def cuda_on_the_processor(monkeypatch):
    fake_cupy.install(monkeypatch)


def assert_compiles(sources, folder, architecture):
    """Compile all sources in one call."""
    spaces = []
    for i, source in enumerate(sources):
        body = source.replace('extern "C" ', "")
        spaces.append(f"namespace s{i} {{\n{body}\n}}")
    path = folder / "kernels.cu"
    path.write_text("\n".join(spaces))
    run = subprocess.run(
        [NVCC, "-ptx", f"-arch={architecture}", "-std=c++17", "-o", folder / "kernels.ptx", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[:3000]
    kernels = sum(source.count("__global__") for source in sources)
    assert (folder / "kernels.ptx").read_text().count(".entry") == kernels


def factors(a):
    factor = probtorch.linalg.cholesky(a @ a.T)
    return factor, probtorch.linalg.solve_triangular(factor, a, upper=False)


def handful():
    """Sources of a few programs, of every kind of phase."""
    x, base = rng.normal(size=(300, 40)), rng.normal(size=(6, 3))
    index = rng.integers(0, 6, 40)
    values = rng.normal(size=(40, 3))
    known = wrap(index)
    return [
        compiled(lambda x: softmaxes(x) + sums(x), [x]).ir,
        compiled(scattered, [values, index, base]).ir,
        compiled(lambda v, b: scattered(v, known, b), [values, base], frozen=True).ir,
        compiled(newton, [np.ones(900)]).ir,
        compiled(newton, [np.ones(70_000)]).ir,
        compiled(branches, [np.ones(1), np.ones(3)]).ir,
        compiled(lambda a: (a @ a.T, (a.T @ a).sum()), [x.astype(np.float32)[:40]]).ir,
        compiled(factors, [np.eye(9)]).ir,
    ]


@needs_nvcc
def test_nvcc_takes_a_handful_of_programs(tmp_path):
    assert_compiles(handful(), tmp_path, "sm_80")


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_nvcc_takes_every_function_of_the_runtime(tmp_path, architecture):
    kernel = 'extern "C" __global__ void k(double *x, double y) { double z = *x; %s }'
    numbers = {"pt_philox": 3, "pt_betainc": 3, "pt_digamma": 1, "pt_lgamma": 1, "pt_log_ndtr": 1}
    numbers |= {"pt_i0e": 1, "pt_i1e": 1, "pt_bits_to_integers": 3}
    numbers |= {f"pt_draw_{name}": sampler.arity + 3 for name, sampler in SAMPLERS.items()}
    names = [*NUMBERS, *(f"pt_draw_{name}" for name in SAMPLERS)]
    calls = [f"z += {name}({', '.join(['y'] * numbers.get(name, 2))});" for name in names]
    source = runtime_text(names) + kernel % (" ".join(calls) + " *x = z;")
    assert_compiles([source], tmp_path, architecture)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_nvcc_takes_sorting_and_searching_of_every_type(tmp_path, architecture):
    assert_compiles([instantiations()], tmp_path, architecture)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_nvcc_takes_every_elementwise_op(tmp_path, architecture):
    jobs = [job for _, job in elementwise_jobs(sorted(ops.FORMULAS)) if job is not None]
    assert_compiles([job.program.ir for job in jobs], tmp_path, architecture)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_nvcc_takes_every_structured_op(tmp_path, architecture):
    names = sorted(ops.LOWERED.keys() - ops.ELSEWHERE.keys())
    jobs = [job for _, job in structured_jobs(names) if job is not None]
    assert_compiles([job.program.ir for job in jobs], tmp_path, architecture)


HOSTILE = 'x"); system("touch /tmp/owned"); //'
# Every word of a program behind its head: our numbered names, C, and the numbers.
WORDS = re.compile(
    r"([fkpqxvcj]\d+|[ixltmMC]|i64|exp|pt_block_sum_double|shared|room|slice|first|end|stop|static|extern"
    r"|void|char|double|const|unsigned|blocks?|int|for|if|threadIdx|blockIdx|blockDim|gridDim|__\w+)"
)
LITERALS = re.compile(r"0x[0-9a-f]+\.?[0-9a-f]*p[+-]\d+|\d+LL")


def test_no_name_or_number_of_the_user_reaches_the_source():
    def model(x):
        deterministic(HOSTILE, x)
        return ((x * 12345.678).exp().sum() + 1.0,)

    model.__name__ = model.__qualname__ = HOSTILE
    text = compiled(model, [np.ones(3)]).ir
    assert HOSTILE not in text and "12345" not in text
    body = LITERALS.sub("", text[text.index("static __device__ void f1(") :])
    unknown = [w for w in re.findall(r"[A-Za-z_]\w*", body) if not WORDS.fullmatch(w)]
    assert not unknown


def test_source_is_the_same_in_every_run():
    assert handful() == handful()
