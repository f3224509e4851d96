"""ONNX files of modules: onnxruntime gives the numbers that the module gives."""

import io
import sys

import numpy as np
import pytest

import probtorch
from probtorch import nn
from probtorch.errors import ArgumentError, FileError, ModelError
from probtorch.nn import functional
from probtorch.onnx import export

IMAGE, ROWS = (2, 3, 8, 8), (5, 4)


class Fn(nn.Module):
    """A function as a module."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn
        self.scale = nn.Parameter(probtorch.tensor(1.5))

    def forward(self, *args):
        return self.fn(*args) * self.scale


def attention(x):
    return functional.scaled_dot_product_attention(x, x, x)


def views(x):
    return x[:, 1:, ::2].flip(0).expand(2, 2, 4, 8).permute(1, 0, 3, 2)


def statistics(x):
    return x.mean(0) + x.std(0) + x.var() + x.amax(0) - x.amin()


def logarithms(x):
    return (x.exp() + 1).log2() + x.abs().log1p() + x.expm1() + x.logsumexp(1, keepdim=True)


def choices(x):
    return probtorch.where((x > 0) & (x != 1.0), x.clamp(-1, 1), x.sign() - 2 / (x * x + 1))


def integers(x):
    return x.argmax(1) / 2 + (x > 0).float().sum(1) + (x.long() ^ 3).sum(1)


def pieces(x):
    return probtorch.cat([x[:, [2, 0]], probtorch.stack([x[:, 0]] * 2, 1)], 1)


MODULES = {
    "linear": (lambda: nn.Linear(4, 3), ROWS),
    "linear of three dims": (lambda: nn.Linear(4, 3, bias=False), (2, 5, 4)),
    "layers": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout()), ROWS),
    "conv": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), IMAGE),
    "conv with groups": (lambda: nn.Conv2d(3, 6, (3, 2), dilation=2, groups=3, bias=False), IMAGE),
    "conv of one image": (lambda: nn.Conv2d(3, 4, 3), IMAGE[1:]),
    "conv of time": (lambda: nn.Conv1d(4, 2, 2), (2, 4, 7)),
    "conv of space": (lambda: nn.Conv3d(1, 2, 2), (1, 1, 4, 4, 4)),
    "conv around": (lambda: nn.Conv2d(3, 4, 3, padding="same"), IMAGE),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3, 2, padding=1, output_padding=1), IMAGE),
    "pooled": (lambda: nn.Sequential(nn.MaxPool2d(3, 2, padding=1), nn.AvgPool2d(2)), IMAGE),
    "pooled to one": (lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), IMAGE),
    "normalised": (lambda: nn.Sequential(nn.BatchNorm2d(3), nn.GroupNorm(3, 3)), IMAGE),
    "layer norm": (lambda: nn.LayerNorm(4), ROWS),
    "activations": (
        lambda: nn.Sequential(
            nn.GELU(), nn.SiLU(), nn.ELU(), nn.LeakyReLU(), nn.Hardtanh(), nn.PReLU(), nn.Softplus()
        ),
        ROWS,
    ),
    "more activations": (
        lambda: nn.Sequential(nn.GELU("tanh"), nn.Mish(), nn.SELU(), nn.ReLU6(), nn.LogSigmoid()),
        ROWS,
    ),
    "softmax": (lambda: nn.Sequential(nn.Softmax(0), nn.LogSoftmax(-1)), ROWS),
    "pixels": (lambda: nn.PixelShuffle(2), (1, 4, 2, 3)),
    "padded": (lambda: nn.ZeroPad2d((1, 2, 0, 3)), IMAGE),
    "attention": (lambda: Fn(attention), (2, 3, 4)),
    "a transformer's layer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True),
        (2, 3, 4),
    ),
    "functional conv": (lambda: Fn(lambda x: functional.conv2d(x, W, stride=2)), IMAGE),
    "views": (lambda: Fn(views), IMAGE),
    "statistics": (lambda: Fn(statistics), ROWS),
    "logarithms": (lambda: Fn(logarithms), ROWS),
    "choices": (lambda: Fn(choices), ROWS),
    "integers": (lambda: Fn(integers), ROWS),
    "pieces": (lambda: Fn(pieces), ROWS),
}
W = probtorch.ones(2, 3, 3, 3) / 27


def run(model, *args, **options):
    """What onnxruntime makes of the file, and the file."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    file = io.BytesIO()
    export(model, args, file, **options)
    loaded = onnx.load_from_string(file.getvalue())
    onnx.checker.check_model(loaded, full_check=True)
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    return session.run(None, dict(zip(names, (x.numpy() for x in args), strict=True))), loaded


@pytest.mark.parametrize("name", MODULES)
def test_onnxruntime_gives_the_same(name):
    make, shape = MODULES[name]
    probtorch.manual_seed(0)
    model = make()
    x = probtorch.randn(shape)
    (found,), _ = run(model, x)
    assert model.training  # as it was
    with probtorch.no_grad():
        expected = model.eval()(x)
    assert found.dtype == expected.numpy().dtype and found.shape == tuple(expected.shape)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_a_graph_has_a_node_per_layer():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.ReLU())
    _, file = run(model, probtorch.randn(IMAGE), input_names=["image"], output_names=["score"])
    assert [node.op_type for node in file.graph.node] == ["Conv", "Relu", "Conv", "Relu"]
    assert [x.name for x in file.graph.input] == ["image"]
    assert [x.name for x in file.graph.output] == ["score"]
    assert {x.name for x in file.graph.initializer} == {n for n, _ in model.named_parameters()}


def test_integers_go_in_and_several_results_come_out():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(5, 3)

        def forward(self, i, x):
            found = self.words(i)
            return found, {"sum": found.sum(-1) + x, "same": x}

    model = Two()
    i, x = probtorch.tensor([[1, 4], [0, 2]]), probtorch.randn(2, 2)
    found, _ = run(model, i, x)
    expected = model(i, x)
    assert len(found) == 3
    np.testing.assert_allclose(found[0], expected[0].detach().numpy())
    for part in (expected[1]["sum"], x):
        assert any(np.allclose(y, part.detach().numpy()) for y in found[1:])


def test_float64_stays_float64():
    model = nn.Linear(4, 2).double()
    (found,), _ = run(model, probtorch.randn(ROWS, dtype=probtorch.float64))
    assert found.dtype == np.float64


def test_a_file_is_written(tmp_path):
    onnx = pytest.importorskip("onnx")
    export(nn.Linear(4, 2), probtorch.ones(1, 4), tmp_path / "net.onnx", opset_version=20)
    assert onnx.load(tmp_path / "net.onnx").opset_import[0].version == 20


@pytest.mark.parametrize(
    "fn, what",
    [(lambda x: x.sort(0)[0], "sort"), (lambda x: x.clone().mul_(2.0), "in place")],
)
def test_what_has_no_counterpart_is_refused_by_its_name(fn, what):
    pytest.importorskip("onnx")
    model = Fn(fn)
    with pytest.raises(ModelError, match=what):
        export(model, probtorch.ones(2, 2), io.BytesIO())
    assert model(probtorch.ones(2, 2)).shape == (2, 2) and model.training


def test_wrong_arguments_are_refused():
    pytest.importorskip("onnx")
    net, x = nn.Linear(2, 2), probtorch.ones(1, 2)
    for options, said in [
        ({"opset_version": 9}, "from 18"),
        ({"input_names": ["a", "b"]}, "one for each input"),
        ({"dynamic_axes": {"input_0": {0: "batch"}}}, "export once for each size"),
    ]:
        with pytest.raises(ArgumentError, match=said):
            export(net, x, io.BytesIO(), **options)
    with pytest.raises(ArgumentError, match="forward takes tensors alone"):
        export(net, (1.0,), io.BytesIO())


def test_without_onnx_the_error_says_what_to_install(monkeypatch):
    for name in ("onnx", "onnx.helper"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FileError, match=r"probtorch\[onnx\]"):
        export(nn.Linear(1, 1), probtorch.ones(1, 1), io.BytesIO())
