"""`probtorch.compile` and densities on tensors of a GPU, through a fake CuPy.

What is tested is what the executor does: which kernels it starts and when as a graph, that no
number crosses to the host unasked, draws, updates, guards, devices. That kernels are right is in
test_gpu.py. Where there is a GPU, the same tests run on it, marked `gpu`, those aside that count.
"""

import sys

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import autograd
from probtorch.backends import cupy_
from probtorch.backends.registry import to_host
from probtorch.compiler.compile import compile
from probtorch.compiler.compiled_function import CompiledFunction
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.paths import CompileWarning
from probtorch.compiler.program import NativeProgram
from probtorch.compiler.render import cuda_calls
from probtorch.core.dispatch import wrap
from probtorch.errors import DeviceError
from probtorch.infer import SVI, AutoNormal, Trace_ELBO
from probtorch.optim import Adam
from tests.backends import fake_cupy
from tests.backends.fake_cublas import FakeCublas
from tests.backends.fake_cupy import FakeKernels, FakeStream
from tests.compiler.gpu_programs import SEAMS, put_in_place
from tests.compiler.programs import FORMULAS

rng = np.random.default_rng(5)


@pytest.fixture(autouse=True, params=SEAMS)
def seam(request, monkeypatch):
    return put_in_place(request.param, monkeypatch)


@pytest.fixture
def copies(seam):
    if seam is None:
        pytest.skip("only the fake counts")
    return seam


def on_gpu(array):
    return probtorch.tensor(np.array(array)).to("cuda")


def host(t):
    return t.cpu().numpy()


def turned(t):
    """The transpose as a tensor of its own, of which nobody knows that it is a view."""
    return wrap(t.array.T)


def chain(x):
    """Several kernels: a large nest, the two passes of its sums, and sums of columns."""
    y = (x * 2.0).tanh()
    return y.sum(), y, y.sum(0)


def test_call_on_gpu_tensors_is_compiled_for_the_gpu_and_agrees_with_eager():
    x = on_gpu(rng.normal(size=(300, 200)))
    compiled = compile(chain)
    for _ in range(3):
        total, y, columns = compiled(x)
    assert compiled.reason is None
    assert total.device == y.device == x.device
    np.testing.assert_allclose(host(y), np.tanh(2.0 * host(x)), rtol=1e-14)
    np.testing.assert_allclose(host(columns), np.tanh(2.0 * host(x)).sum(0), rtol=1e-10)
    np.testing.assert_allclose(host(total), np.tanh(2.0 * host(x)).sum(), rtol=1e-12)
    assert "__global__" in compiled.source()
    assert "kernels on cuda:0" in compiled.explain()


def test_replay_copies_nothing_between_devices(copies):
    x = on_gpu(rng.normal(size=(300, 200)))
    compiled = compile(chain, verify=False)
    compiled(x)
    compiled(x)
    before = (copies.to_device, copies.to_host)
    for _ in range(3):
        compiled(x)
    assert (copies.to_device, copies.to_host) == before


def test_kernels_become_a_graph_when_addresses_come_back(copies):
    x = on_gpu(rng.normal(size=(300, 200)))
    program = compile(chain)
    program(x)
    (path,) = program.paths
    frame = path.program.bind()
    room = frame.new_outputs()
    kernels = len(path.program.kernels)
    assert kernels >= 3
    seen = []
    for _ in range(4):
        frame.run([x.array], room)
        seen.append((FakeKernels.launches, FakeKernels.graphs))
    # Met for the first time: one by one; then captured and started whole.
    assert seen == [(kernels, 0), (kernels, 1), (kernels, 2), (kernels, 3)]
    frame.run([on_gpu(host(x)).array], room)
    assert FakeKernels.launches == 2 * kernels


def own_products_are_small(monkeypatch):
    for name in ("_OWN_PRODUCT", "_OWN_WIDE_PRODUCT"):
        monkeypatch.setattr(cuda_calls, name, 0)


def wide_products(monkeypatch, library):
    """Give every product to the library, and have the fake find it."""
    own_products_are_small(monkeypatch)
    monkeypatch.setattr(cupy_, "load", lambda major: library)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_library_products_are_part_of_a_graph(copies, monkeypatch, dtype):
    library = FakeCublas()
    wide_products(monkeypatch, library)
    a, b = rng.normal(size=(35, 52)).astype(dtype), rng.normal(size=(52, 41)).astype(dtype)

    def fn(a, b):
        turned = b.T[1:, 2:] @ a[1:, 2:].T
        return a[1:, 2:] @ b[2:, 1:], turned, (a.T @ a).tanh(), b @ b.T

    compiled = compile(fn)
    x, y = on_gpu(a), on_gpu(b)
    for _ in range(3):
        got = compiled(x, y)
        expected = fn(probtorch.tensor(a), probtorch.tensor(b))
        for one, other in zip(got, expected, strict=True):
            rtol = 1e-5 if dtype is np.float32 else 1e-12
            np.testing.assert_allclose(host(one), other.numpy(), rtol, 20 * rtol)
    (path,) = compiled.paths
    (part,) = path.program.parts
    assert isinstance(part, list) and library.products >= 4
    frame, graphs = path.program.bind(), FakeKernels.graphs
    room = frame.new_outputs()
    for _ in range(2):
        frame.run([x.array, y.array], room)
    assert FakeKernels.graphs == graphs + 1 and library.space[1] == 32 << 20
    made = library.products
    frame.run([x.array, y.array], room)
    assert library.products == made, "a graph is launched, the library is not called"
    assert "CuPy" not in compiled.explain()


def test_library_products_of_a_batch_are_part_of_a_graph(copies, monkeypatch):
    library = FakeCublas()
    wide_products(monkeypatch, library)
    a, b = rng.normal(size=(5, 35, 52)), rng.normal(size=(5, 52, 41))

    def fn(a, b):
        return a @ b, (b.mT @ a.mT).tanh(), a[0] @ b, a @ b[0]

    compiled, x, y = compile(fn), on_gpu(a), on_gpu(b)
    for _ in range(3):
        for one, other in zip(
            compiled(x, y), fn(probtorch.tensor(a), probtorch.tensor(b)), strict=True
        ):
            np.testing.assert_allclose(host(one), other.numpy(), 1e-12, 1e-12)
    assert library.products >= 15 and "CuPy" not in compiled.explain()


@pytest.mark.parametrize("library", [None, FakeCublas(status=1)], ids=["missing", "failing"])
def test_products_go_through_cupy_where_cublas_cannot_be_called(copies, monkeypatch, library):
    if library is None:
        own_products_are_small(monkeypatch)
    else:
        wide_products(monkeypatch, library)
    compiled, x = compile(lambda a: (a @ a).tanh()), on_gpu(rng.normal(size=(35, 35)))
    for _ in range(3):
        np.testing.assert_allclose(host(compiled(x)), np.tanh(host(x) @ host(x)), rtol=1e-12)
    assert "through CuPy, between two captured graphs" in compiled.explain()


def test_kernels_are_started_one_by_one_where_cuda_captures_nothing(copies, monkeypatch):
    x = on_gpu(rng.normal(size=(300, 200)))
    compiled = compile(chain)
    compiled(x)
    monkeypatch.setattr(FakeStream, "refuses", True)
    (path,) = compiled.paths
    frame, room = path.program.bind(), path.program.bind().new_outputs()
    for _ in range(3):
        frame.run([x.array], room)
        np.testing.assert_allclose(to_host(room[1]), np.tanh(2.0 * host(x)), rtol=1e-14)
    assert "cudaErrorStreamCaptureUnsupported" in compiled.explain()


def test_program_that_changes_streams_waits_for_what_its_memory_is_used_for(copies):
    x = on_gpu(rng.normal(size=(300, 200)))
    compiled = compile(chain)
    waits = []

    def run(stream):
        with stream:
            compiled(x)
            waits.append(FakeStream.waits)

    one, other = (sys.modules["cupy"].cuda.Stream(non_blocking=True) for _ in range(2))
    for stream in (one, one, one, other, other, one, one):
        run(stream)
    # Not while it stays; the first call records, the second makes the memory.
    assert np.diff(waits).tolist() == [0, 0, 1, 0, 1, 0]


def test_results_share_no_memory_with_later_ones():
    x = on_gpu(rng.normal(size=(30, 4)))
    compiled = compile(lambda x: x + 1.0)
    results = [compiled(x) for _ in range(4)]
    addresses = {t.array.data.ptr for t in results}
    assert len(addresses) == 4 and x.array.data.ptr not in addresses


def test_branch_on_a_value_is_a_guard_checked_once_at_the_end(copies):
    compiled = compile(lambda x: x.exp() if x.sum() > 0 else x * 2.0, verify=False)
    x = on_gpu(rng.uniform(0.1, 1.0, 5))
    for sign in (1.0, -1.0, 1.0, -1.0):
        y = compiled(x * sign)
        expected = np.exp(host(x)) if sign > 0 else -2.0 * host(x)
        np.testing.assert_allclose(host(y), expected, rtol=1e-14)
    assert len(compiled.paths) == 2
    before = copies.to_host
    compiled(x * -1.0)
    assert copies.to_host == before + 1


def test_draws_are_those_of_eager_execution():
    def noisy(x):
        return x + probtorch.randn(40, device="cuda", dtype=probtorch.float64)

    x, compiled = on_gpu(np.zeros(40)), compile(noisy)
    probtorch.manual_seed(3)
    got = [host(compiled(x)) for _ in range(3)]
    probtorch.manual_seed(3)
    expected = [host(noisy(x)) for _ in range(3)]
    assert compiled.reason is None
    assert not np.array_equal(got[1], got[2])
    np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_numbers_of_draws_reach_the_device_without_a_copy(copies):
    compiled = compile(lambda x: x + probtorch.rand(8, device="cuda"), verify=False)
    x = on_gpu(np.zeros(8, np.float32))
    compiled(x)
    compiled(x)
    before = (copies.to_device, copies.to_host)
    compiled(x)
    assert (copies.to_device, copies.to_host) == before


def test_outside_tensor_is_updated_in_place_once_guards_hold():
    total = on_gpu(np.zeros(3))

    def step(x):
        total.add_(x)
        return total * 1.0 if x.sum() > 0 else total * 10.0

    compiled, x = compile(step), on_gpu(np.ones(3))
    place = total.array.data.ptr
    for n in (1.0, 2.0, 3.0):
        np.testing.assert_array_equal(host(compiled(x)), np.full(3, n))
    # The path of the first calls does not fit: nothing of what it wrote may stay.
    np.testing.assert_array_equal(host(compiled(-x)), np.full(3, 20.0))
    np.testing.assert_array_equal(host(compiled(-x)), np.full(3, 10.0))
    np.testing.assert_array_equal(host(total), np.full(3, 1.0))
    assert total.array.data.ptr == place and compiled.reason is None


def test_step_with_its_updates_is_one_graph(copies):
    w, m = on_gpu(rng.normal(size=(300, 200))), on_gpu(np.zeros((300, 200)))

    def step(x):
        m.mul_(0.9).add_(x * w)
        w.sub_(0.1 * m)
        return (w * w).sum()

    compiled, x = compile(step), on_gpu(rng.normal(size=(300, 200)))
    reference_w, reference_m, graphs = host(w), host(m), []
    for _ in range(6):
        reference_m = 0.9 * reference_m + host(x) * reference_w
        reference_w = reference_w - 0.1 * reference_m
        loss = compiled(x)
        np.testing.assert_allclose(float(loss), (reference_w**2).sum(), rtol=1e-12)
        graphs.append(FakeKernels.graphs)
    np.testing.assert_allclose(host(w), reference_w, rtol=1e-12)
    (path,) = compiled.paths
    (part,) = path.program.parts
    assert isinstance(part, list) and len(part) >= 3
    assert compiled.reason is None and np.diff(graphs)[-1] in (0, 1)


def test_losses_that_are_kept_do_not_keep_graphs_from_being_used(copies):
    w = on_gpu(rng.normal(size=(300, 200)))

    def step(x):
        w.mul_(0.5)
        return (x * w).sum()

    compiled, x = compile(step), on_gpu(rng.normal(size=(300, 200)))
    reference, kept, graphs = (host(w) * host(x)).sum(), [], []
    for _ in range(6):
        kept.append(compiled(x))
        graphs.append(FakeKernels.graphs)
    assert list(np.diff(graphs))[-3:] == [1, 1, 1]
    expected = [reference * 0.5 ** (n + 1) for n in range(6)]
    np.testing.assert_allclose([float(t) for t in kept], expected, rtol=1e-10)


def test_updates_of_any_memory_are_those_of_eager_execution():
    """Contiguous, strided, on the host, only written, replaced by another tensor's memory."""

    def state():
        return {
            "dense": on_gpu(np.arange(6.0)),
            "strided": turned(on_gpu(np.arange(12.0).reshape(6, 2))),
            "written": on_gpu(np.zeros(6)),
            "host": probtorch.tensor(np.zeros(6)),
        }

    def step(x, s):
        s["dense"].add_(x)
        s["strided"].mul_(2.0).add_(s["dense"])
        s["written"].copy_(s["dense"] * x)
        s["host"].add_((s["dense"] * 0.5).cpu())
        return s["strided"].sum()

    ours, eager = state(), state()
    compiled = compile(lambda x: step(x, ours))
    for n in range(7):
        if n == 4:
            for s in (ours, eager):
                s["dense"].array, s["written"].array = s["dense"].array.copy(), s["dense"].array * 0
        x = on_gpu(rng.normal(size=6))
        np.testing.assert_allclose(float(compiled(x)), float(step(x, eager)), rtol=1e-13)
        for name, t in ours.items():
            np.testing.assert_allclose(host(t), host(eager[name]), rtol=1e-13)
    assert compiled.reason is None and len(compiled.paths) == 1


def test_argument_that_shares_memory_with_an_updated_tensor_runs_eagerly():
    w = on_gpu(np.arange(4.0))

    def step(x):
        w.add_(1.0)
        return x * 2.0

    compiled = compile(step)
    for _ in range(2):
        compiled(on_gpu(np.ones(4)))
    with pytest.warns(CompileWarning, match="shares"):
        y = compiled(w[:4])
    np.testing.assert_array_equal(host(y), 2.0 * (np.arange(4.0) + 3.0))


def test_argument_with_gaps_that_shares_memory_with_an_updated_tensor_runs_eagerly():
    everything = on_gpu(np.zeros((10, 3)))
    w = wrap(everything.array[8:9])

    def step(x):
        w.add_(1.0)
        return x * 2.0

    compiled = compile(step)
    for _ in range(2):
        compiled(on_gpu(np.zeros((10, 3)))[::2])
    with pytest.warns(CompileWarning, match="shares"):
        y = compiled(everything[::2])
    np.testing.assert_array_equal(host(y), 2.0 * host(everything[::2]))
    assert float(host(y).max()) == 6.0


def test_change_of_a_view_reaches_its_base():
    w = on_gpu(np.zeros((3, 4)))

    def step(x):
        w.T.add_(x)
        return w.sum()

    compiled = compile(step)
    assert [float(host(compiled(on_gpu(1.0)))) for _ in range(5)] == [12.0, 24.0, 36.0, 48.0, 60.0]
    assert compiled.reason is None
    np.testing.assert_array_equal(host(w), np.full((3, 4), 5.0))


def test_written_tensor_of_another_shape_takes_another_path():
    w = on_gpu(np.zeros(3))
    compiled = compile(lambda x: w.copy_(x.sum() + w * 0) * 1.0)
    for n in (1.0, 2.0):
        np.testing.assert_array_equal(host(compiled(on_gpu([n, n]))), np.full(3, 2 * n))
    w.array = on_gpu(np.zeros((2, 2))).array
    np.testing.assert_array_equal(host(compiled(on_gpu([1.0, 2.0]))), np.full((2, 2), 3.0))


@pytest.mark.parametrize("strided", [False, True])
def test_restore_puts_back_what_was_before_the_last_run(strided):
    w = on_gpu(np.arange(8.0).reshape(4, 2))
    w = turned(w) if strided else w
    compiled = CompiledFunction(lambda x: w.mul_(x).sum(), saving=True)
    before = host(w)
    compiled(on_gpu(2.0))
    compiled.recorded.restore()
    np.testing.assert_array_equal(host(w), before)
    for _ in range(3):
        before = host(w)
        compiled(on_gpu(2.0))
    compiled.last.restore()
    np.testing.assert_array_equal(host(w), before)


def test_numbers_that_are_written_to_tensors_are_part_of_the_program():
    w = on_gpu(np.arange(6.0))

    def step(x):
        w.zero_()
        w[3], w[4:] = 2.0, x[0]
        return w + x

    compiled = compile(step)
    for n in range(3):
        x = on_gpu(np.full(6, 1.0 + n))
        np.testing.assert_array_equal(host(compiled(x)) - (n + 1), [0, 0, 0, 2, n + 1, n + 1])
    assert compiled.reason is None and len(compiled.paths) == 1


@pytest.mark.parametrize("strided", [False, True])
def test_run_that_fails_does_not_touch_what_was_there_before_the_last_one(strided):
    w = on_gpu(np.zeros((2, 2)))
    w = turned(w) if strided else w

    def step(x):
        w.add_(x)
        return w * 2.0 if w.sum() > 0.0 else w * 3.0

    compiled = CompiledFunction(step, saving=True)
    one = on_gpu(np.ones((2, 2)))
    for _ in range(4):
        compiled(one)
    path = compiled.last
    assert path.run([on_gpu(np.full((2, 2), -9.0)).array]) is None  # its guard fails
    np.testing.assert_array_equal(host(w), 4.0)
    path.restore()
    np.testing.assert_array_equal(host(w), 3.0)
    compiled(one)
    compiled.last.restore()
    np.testing.assert_array_equal(host(w), 3.0)


def test_a_step_of_gradient_descent_is_one_program():
    X, w = on_gpu(rng.normal(size=(60, 4))), on_gpu(np.zeros(4))
    y = on_gpu(host(X) @ np.array([1.0, -2.0, 0.5, 3.0]))

    def step():
        leaf = w.detach().requires_grad_()
        loss = ((X @ leaf - y) ** 2).mean()
        (g,) = autograd.grad(loss, leaf)
        w.sub_(0.1 * g)
        return loss.detach()

    compiled = compile(step)
    losses = [float(compiled()) for _ in range(30)]
    assert compiled.reason is None
    reference = np.zeros(4)
    for loss in losses:
        rest = host(X) @ reference - host(y)
        np.testing.assert_allclose(loss, (rest**2).mean(), rtol=1e-9)
        reference -= 0.1 * 2.0 * host(X).T @ rest / 60


def test_result_that_moved_to_the_host_is_there():
    compiled, x = compile(lambda x: ((x * 2.0).cpu(), x + 1.0)), on_gpu(np.arange(3.0))
    for _ in range(2):
        a, b = compiled(x)
        assert type(a.array) is np.ndarray and b.device == x.device
        np.testing.assert_array_equal(a.numpy(), [0.0, 2.0, 4.0])


def test_versions_on_host_and_gpu_are_kept_apart():
    compiled, x = compile(lambda x: x * 3.0), rng.normal(size=4)
    for _ in range(2):
        assert type(compiled(probtorch.tensor(x)).array) is np.ndarray
        np.testing.assert_array_equal(host(compiled(on_gpu(x))), 3.0 * x)
    assert len(compiled.paths) == 2


def test_loop_on_gpu_tensors_is_compiled():
    def halve(x):
        return probtorch.while_loop(lambda s: s[0].sum() > 1.0, lambda s: (s[0] * 0.5,), (x,))[0]

    compiled, x = compile(halve), on_gpu(np.array([30.0, 70.0]))
    for _ in range(3):
        np.testing.assert_allclose(host(compiled(x)), np.array([0.3, 0.7]) * 100 / 2**7, rtol=1e-15)
    assert compiled.reason is None


def test_op_without_a_form_on_the_gpu_runs_eagerly_with_one_warning(copies, monkeypatch):
    monkeypatch.setattr(
        sys.modules["cupyx.scipy.special"], "ive", fake_cupy.on_device(np.hypot), raising=False
    )
    compiled, x = compile(lambda x: probtorch.special.ive(x, x)), on_gpu(np.ones(3))
    with pytest.warns(CompileWarning, match="CPU only"):
        compiled(x)
    compiled(x)
    assert "CPU only" in compiled.reason[0]


def test_number_on_the_host_goes_along_to_the_device():
    x, scale = on_gpu(np.arange(3.0)), probtorch.tensor(2.0, dtype=probtorch.float64)
    scale.requires_grad_()
    y = (x * scale).sum()
    y.backward()
    assert y.device == x.device and scale.grad.device != x.device
    assert float(scale.grad) == 3.0
    with pytest.raises(DeviceError, match=r"(?s)one device.*cuda, cpu"):
        x @ probtorch.tensor(np.ones(3))


# -------------------------------------------------------------------------- programs and densities


def langevin(state):
    """Ten steps of Langevin dynamics on a standard normal, for many chains at once."""

    def body(s):
        i, x = s
        bits = FORMULAS["philox"].public(7, 1, counters + i * 600)
        noise = probtorch.special.ndtri(FORMULAS["bits_to_uniform"].public(bits))
        return i + 1, x - 0.05 * x + 0.1**0.5 * noise

    counters = probtorch.arange(600).reshape(200, 3).to(state["x"].device)
    i, x = probtorch.while_loop(lambda s: s[0] < 10, body, (probtorch.tensor(0), state["x"]))
    return {"x": x, "steps": i, "norm": (x * x).sum(1)}


def test_program_of_many_chains_runs_on_the_gpu():
    start = rng.normal(size=(200, 3))
    there = NativeProgram(langevin, {"x": on_gpu(start)})
    here = NativeProgram(langevin, {"x": probtorch.tensor(start)})
    expected = here({"x": probtorch.tensor(start)})
    for _ in range(2):
        got = there({"x": on_gpu(start)})
        for name in expected:
            np.testing.assert_allclose(host(got[name]), expected[name].numpy(), rtol=1e-10)
    assert got["x"].device == on_gpu(start).device
    assert "kernels on cuda:0" in there.explain()


def test_resident_program_keeps_its_memory_on_the_gpu():
    resident = NativeProgram(lambda t: t["x"] * 2.0, {"x": on_gpu(np.ones(3))}).resident(
        {"x": on_gpu(np.ones(3))}
    )
    place = resident.outputs[0].data.ptr
    for value in (1.0, 4.0):
        resident.inputs[0][...] = value
        resident.run()
        np.testing.assert_array_equal(to_host(resident.outputs[0]), np.full(3, 2.0 * value))
    assert resident.outputs[0].data.ptr == place


def logistic(X, y):
    def log_density(q):
        z = X @ q
        return (y * z).sum() - (1.0 + z.exp()).log().sum() - 0.5 * (q * q).sum()

    return log_density


def test_density_of_data_on_a_gpu_is_evaluated_there():
    X, y = rng.normal(size=(200, 4)), (rng.uniform(size=200) < 0.5) * 1.0
    there = NativeDensity(logistic(on_gpu(X), on_gpu(y)), 4)
    here = NativeDensity(logistic(probtorch.tensor(X), probtorch.tensor(y)), 4)
    for _ in range(4):
        q = rng.normal(size=4)
        (a, g), (b, h) = there.value_and_grad(q), here.value_and_grad(q)
        np.testing.assert_allclose(a, b, rtol=1e-12)
        np.testing.assert_allclose(g, h, rtol=1e-10)
    assert there.device == "cuda:0" and there.reason is None
    assert "kernels on cuda:0" in there.explain()


def test_density_on_a_gpu_with_a_branch_has_two_paths():
    data = on_gpu(np.array([1.0, 2.0]))
    density = NativeDensity(lambda q: -(data * q).sum() if q[0] > 0 else -(data * q * q).sum(), 2)
    for q in ([1.0, 1.0], [-1.0, 3.0], [2.0, 1.0], [-2.0, 3.0]):
        value, gradient = density.value_and_grad(np.array(q))
        q = np.array(q)
        expected = -(q @ [1.0, 2.0]) if q[0] > 0 else -(q * q) @ [1.0, 2.0]
        slope = -np.array([1.0, 2.0]) * (1.0 if q[0] > 0 else 2.0 * q)
        assert value == expected
        np.testing.assert_array_equal(gradient, slope)
    assert density.explain().count("kernels on cuda:0") == 2


# ---------------------------------------------------------------------------------------- inference


def test_svi_on_data_of_a_gpu_compiles_its_step_there():
    y = on_gpu(rng.normal(2.0, 1.0, 300))

    def model(y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
        with probtorch.plate("n", 300):
            probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)

    svi = SVI(model, AutoNormal(model), Adam, Trace_ELBO(), seed=0, lr=0.1)
    result = svi.run(60, y)
    assert np.mean(result.losses[-10:]) < 0.6 * result.losses[0]
    assert "kernels on cuda:0" in str(svi.explain())
