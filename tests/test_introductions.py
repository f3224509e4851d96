"""What introductions to PyTorch print, from 2017 on, runs under ``import probtorch as torch``.

Each test is what one of them shows, with what must come out.
"""

import collections
import gc
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest

import probtorch as torch
import probtorch.nn.functional as F
from probtorch import nn, optim
from probtorch.autograd import Variable
from probtorch.errors import DeviceError
from probtorch.utils.data import DataLoader, Dataset
from probtorch.viz import make_dot


class LeNet(nn.Module):
    def __init__(self):
        super(LeNet, self).__init__()  # noqa: UP008  # as it was written then
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(-1, int(np.prod(x.size()[1:])))
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


# ------------------------------------------------------------------------------ tensors and devices


def test_sizes_make_uninitialised_tensors():
    x = torch.Tensor(4, 3)
    assert (x.size(), x.dtype) == ((4, 3), torch.float32)
    assert torch.Tensor(4, 4).shape == (4, 4)
    assert torch.Tensor([0.2, 0.2, 0.6]).tolist() == pytest.approx([0.2, 0.2, 0.6])
    assert torch.Tensor([1, 2]).dtype == torch.float32
    assert torch.FloatTensor(2, 3).shape == (2, 3)
    assert torch.LongTensor([1, 2]).dtype == torch.int64
    assert isinstance(torch.DoubleTensor([1]), torch.DoubleTensor)
    assert not isinstance(torch.DoubleTensor([1]), torch.FloatTensor)
    with pytest.raises(TypeError):
        torch.Tensor(2, 3, colour="red")


def test_tensors_are_added_in_every_spelling():
    x, y = torch.rand(4, 3), torch.rand(4, 3)
    result = torch.Tensor(5, 3)
    with pytest.warns(UserWarning, match="resized"):
        torch.add(x, y, out=result)
    assert result.shape == (4, 3)
    before = y.numpy().copy()
    assert (torch.add(x, y) == x + y).all() and (result == x + y).all()
    assert torch.equal(torch.add(x, y, alpha=2), x + 2 * y)
    assert y.add_(x) is y
    np.testing.assert_array_equal(y.numpy(), before + x.numpy())
    assert torch.equal(y.sub(x, alpha=3), y - 3 * x)
    assert re.match(r"tensor\(\[\[[\d., ]+\],", repr(x))


def test_results_are_not_resized_behind_the_back_of_other_tensors():
    base = torch.zeros(6)
    for out in (base[:5], torch.zeros(5, requires_grad=True)):
        with pytest.raises(torch.errors.ShapeError):
            torch.add(torch.ones(4), 1.0, out=out)


def test_views_share_their_storage():
    x = torch.randn(4, 4)
    y, z = x.view(16), x.view(-1, 8)
    assert (x.size(), y.size(), z.size()) == ((4, 4), (16,), (2, 8))
    assert y.data_ptr() == x.data_ptr()
    assert x[:, 1].shape == (4,)
    assert torch.numel(x) == 16


def test_functions_change_their_operand_where_their_name_ends_in_an_underscore():
    x = torch.tensor([1.0, 9.0])
    assert torch.sqrt_(x) is x
    assert x.tolist() == [1.0, 3.0]
    assert x[x > 2].tolist() == [3.0]
    assert torch.cumprod(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [1, 2, 6, 24]
    assert (torch.ones(1) * 4 + torch.ones(1) * 2).item() == 6


def test_blocks_for_a_gpu_are_skipped_where_there_is_none():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    y = torch.ones_like(torch.zeros(3), device=device)
    assert y.to("cpu", torch.double).dtype == torch.float64
    net = LeNet().to(device)
    inputs = torch.randn(2, 1, 32, 32).to(device, non_blocking=True)
    assert net(inputs).shape == (2, 10)
    assert next(net.parameters()).device.type == device.type
    assert torch.device("cuda", 1) == torch.device("cuda:1") == "cuda:1"
    assert repr(torch.device("cuda:1")) == "device(type='cuda', index=1)"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_questions_about_gpus_are_answered_without_one():
    assert torch.cuda.device_count() == 0
    assert torch.cuda.memory_allocated() == 0
    assert re.match(r"<probtorch\.cuda\.device object at 0x", repr(torch.cuda.device(0)))
    torch.cuda.empty_cache()
    torch.cuda.manual_seed_all(0)
    for ask in (torch.cuda.current_device, lambda: torch.cuda.get_device_name(0)):
        with pytest.raises(DeviceError, match="CuPy"):
            ask()
    with pytest.raises(RuntimeError), torch.cuda.device(0):
        pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_line_of_training_on_a_gpu_runs_without_one_where_that_is_set():
    images, labels = torch.randn(4, 1, 32, 32), torch.tensor([0, 3, 9, 1])
    model = LeNet()
    with pytest.raises(DeviceError, match="cuda_fallback"):
        images.cuda()
    with torch.configure(cuda_fallback=True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.cuda()
        torch.nn.cross_entropy(model(images.cuda()), labels.cuda()).backward()
        assert torch.ones(2, device="cuda").device == "cpu"
    assert caught and all("the CPU is" in str(w.message) for w in caught)
    assert all(p.grad is not None for p in model.parameters())


def test_settings_of_cudnn_are_taken(monkeypatch):
    cudnn = torch.backends.cudnn
    for flag in ("benchmark", "deterministic", "enabled", "allow_tf32"):
        assert isinstance(getattr(cudnn, flag), bool)
        monkeypatch.setattr(cudnn, flag, True)
    assert cudnn.is_available() is False and cudnn.version() is None


def test_networks_are_spread_where_there_are_several_gpus():
    model = nn.Linear(5, 2)
    if torch.cuda.device_count() > 1:
        model = nn.DataParallel(model)
    assert nn.DataParallel(model)(torch.ones(30, 5)).shape == (30, 2)
    x = torch.ones(2, 2, requires_grad=True)
    assert x.requires_grad and x.is_leaf


def test_notebooks_show_tables():
    shown = torch.arange(6.0).reshape(2, 3)._repr_html_()
    assert shown.count("<tr>") == 2 and shown.count("<td") == 6 and "5." in shown
    assert "shape=(2, 3), dtype=float32" in shown
    x = torch.zeros(3, requires_grad=True)
    assert "grad_fn=&lt;MulBackward0&gt;" in (x * 2)._repr_html_()
    large = torch.zeros(100, 100)._repr_html_()
    assert large.count("<tr>") == 7 and "..." in large
    assert torch.zeros(2, 2, 2)._repr_html_().startswith("<pre>tensor([[[")
    assert torch.tensor(1.0)._repr_html_() == "<pre>tensor(1.)</pre>"


# ----------------------------------------------------------------------------------------- autograd


def test_worked_example_of_a_gradient():
    x = Variable(torch.ones(2, 2), requires_grad=True)
    y = x + 2
    z = y * y * 3
    out = z.mean()
    out.backward()
    assert z.tolist() == [[27, 27], [27, 27]] and out.item() == 27
    assert x.grad.tolist() == [[4.5, 4.5], [4.5, 4.5]]
    assert isinstance(x, Variable) and isinstance(x, torch.Tensor)
    assert not isinstance(3.0, Variable)


def test_gradients_of_an_affine_map():
    x = Variable(torch.ones(1, 5))
    w = Variable(torch.randn(5, 1), requires_grad=True)
    b = Variable(torch.randn(1), requires_grad=True)
    y = x.mm(w) + b
    assert re.match(r"<AddBackward0 object at 0x", repr(y.grad_fn))
    assert "grad_fn=<AddBackward0>" in repr(y)
    y.backward()
    assert w.grad.tolist() == [[1.0]] * 5 and b.grad.tolist() == [1.0] and x.grad is None
    assert x.grad_fn is None


def test_variables_that_nothing_is_recorded_of_are_written_otherwise_today():
    with pytest.raises(torch.errors.AutogradError, match="no_grad"):
        Variable(torch.ones(1), volatile=True)
    assert torch.autograd.Variable(torch.ones(4, 4), requires_grad=True).is_leaf


def test_loops_of_python_decide_by_values():
    def grown(x):
        while x.sum() < 100:
            x = torch.nn.ReLU()(x**2)
        return x

    x = Variable(torch.ones([2, 2]) * 2)
    assert grown(x).tolist() == torch.compile(grown)(x).tolist() == [[256.0] * 2] * 2


def test_graph_is_walked_from_the_loss():
    net, target = LeNet(), Variable(torch.arange(1, 11))
    with pytest.warns(UserWarning, match="size"):  # (1, 10) and (10,) broadcast
        loss = nn.MSELoss()(net(torch.randn(1, 1, 32, 32)), target)
    step, names = loss.grad_fn, []
    while step.next_functions:
        names.append(step.name())
        step = next(f for f, _ in step.next_functions if f is not None)
    assert all(name.endswith("Backward0") for name in names) and len(names) > 5
    assert step.name() == "AccumulateGrad"
    assert any(step.variable is p for p in net.parameters())


def test_graph_is_drawn_with_the_names_of_parameters():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    y = model(Variable(torch.randn(1, 8)))
    graph = make_dot(y, params=dict(model.named_parameters()))
    for name, _ in model.named_parameters():
        assert name in graph.source


def test_vector_has_no_gradient_without_being_told_of_what():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outp"):
        (x * 2).backward()
    (x * 2).backward(torch.ones(2))
    assert x.grad.tolist() == [2.0, 2.0]
    with pytest.raises(RuntimeError, match=r"detach\(\)"):
        x.numpy()


def test_graph_that_is_gone_says_so():
    x = torch.ones(2, requires_grad=True)
    y = (x * x).sum()
    product = y.grad_fn.next_functions[0][0]
    assert product.next_functions[0] == product.next_functions[1]
    y.backward()
    with pytest.raises(torch.errors.AutogradError, match="retain_graph"):
        _ = y.grad_fn.next_functions


def test_graph_shows_where_inputs_were_before_they_changed():
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    z = y.sum()
    y.mul_(3.0)
    assert z.grad_fn.next_functions[0][0].next_functions[0][0].variable is x


# ---------------------------------------------------------------------------------------- networks


def test_first_network_has_its_parameters():
    net = LeNet()
    parameters = list(net.parameters())
    assert len(parameters) == 10
    assert sum(p.numel() for p in parameters) == 61_706
    out = net(Variable(torch.randn(1, 1, 32, 32)))
    net.zero_grad()
    assert net.conv1.bias.grad is None
    out.backward(torch.randn(1, 10))
    assert net.conv1.bias.grad.shape == (6,)
    before = net.fc3.bias.detach().clone()
    for f in net.parameters():
        f.data.sub_(f.grad.data * 0.01)
    assert torch.equal(net.fc3.bias, before - net.fc3.bias.grad * 0.01)


def test_loop_of_training_lowers_the_loss():
    torch.manual_seed(0)
    net = LeNet()
    optimizer = optim.SGD(net.parameters(), lr=0.01)
    inputs, target = torch.randn(4, 1, 32, 32), torch.randn(4, 10)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.MSELoss()(net(inputs), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_containers_chain_layers():
    layers = nn.Conv2d(1, 20, 5), nn.ReLU(), nn.Conv2d(20, 64, 5), nn.ReLU()
    image = Variable(torch.rand(1, 1, 32, 32))
    out = nn.Sequential(*layers)(image)
    assert out.shape == (1, 64, 24, 24) and out.min() >= 0 and "..." in repr(out)
    names = "conv1 relu1 conv2 relu2".split()
    named = nn.Sequential(collections.OrderedDict(zip(names, layers, strict=True)))
    assert "conv1.weight" in named.state_dict() and named.conv2 is layers[2]

    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.linears = nn.ModuleList([nn.Linear(10, 10) for _ in range(10)])

        def forward(self, x):
            for i, layer in enumerate(self.linears):
                x = self.linears[i // 2](x) + layer(x)
            return x

    assert Pairs()(torch.randn(2, 10)).shape == (2, 10)
    assert len(list(Pairs().parameters())) == 20


def test_layer_of_ones_user_adds_noise():
    class AddNoise(torch.nn.Module):
        def __init__(self, mean=0.0, stddev=0.1):
            super().__init__()
            self.mean, self.stddev = mean, stddev

        def forward(self, input):
            noise = input.clone().normal_(self.mean, self.stddev)
            return input + noise

    torch.manual_seed(0)
    x = torch.zeros(10_000, requires_grad=True)
    noisy = AddNoise(0.5)(x)
    assert abs(noisy.mean().item() - 0.5) < 0.003 and abs(noisy.std().item() - 0.1) < 0.003
    noisy.sum().backward()
    assert (x.grad == 1).all()
    linear = nn.Linear(5, 1)(torch.ones(5, 5))
    assert linear.shape == (5, 1) and torch.allclose(linear, linear[:1])


def test_classes_are_weighted_by_a_criterion():
    x, y = Variable(torch.randn(10, 3)), Variable(torch.ones(10).type(torch.LongTensor))
    weights = Variable(torch.Tensor([0.2, 0.2, 0.6]))
    loss = torch.nn.CrossEntropyLoss(weight=weights)(x, y)
    assert loss.item() == pytest.approx(-torch.log_softmax(x, 1)[:, 1].mean().item(), rel=1e-5)
    assert torch.ones(10).type() == "torch.FloatTensor"
    assert nn.cross_entropy(x, y).item() == pytest.approx(F.cross_entropy(x, y).item())


def test_first_step_of_adam_has_the_length_of_its_rate():
    x, y = Variable(torch.randn(5, 5)), Variable(torch.randn(5, 5), requires_grad=True)
    z = x.mm(y).mean()
    opt = torch.optim.Adam([y], lr=2e-4, betas=(0.5, 0.999))
    z.backward()
    before = y.data.clone()
    opt.step()
    moved = (y.data - before) * -torch.sign(y.grad)
    assert torch.allclose(moved, torch.full((5, 5), 2e-4), rtol=1e-2)


def test_first_model_of_two_convolutions():
    class Model(nn.Module):
        def __init__(self):
            super(Model, self).__init__()  # noqa: UP008  # as it was written then
            self.conv1 = nn.Conv2d(1, 20, 5)
            self.conv2 = nn.Conv2d(20, 20, 5)

        def forward(self, x):
            return F.relu(self.conv2(F.relu(self.conv1(x))))

    assert Model()(torch.randn(1, 1, 32, 32)).shape == (1, 20, 24, 24)


def test_style_is_learned_from_correlations_of_channels():
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    net = nn.Sequential(
        *(nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3, stride=2), nn.InstanceNorm2d(8, affine=True)),
        *(nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(8, 3, 3, padding=1)),
    )

    def gram(x):
        n, channels, h, w = x.shape
        flat = x.view(n, channels, h * w)
        return flat.bmm(flat.transpose(1, 2)) / (channels * h * w)

    content, style = torch.rand(2, 3, 16, 16), torch.rand(1, 3, 16, 16) ** 3
    wanted = gram(features(style)).detach()
    optimizer = optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        made = features(net(content))
        loss = F.mse_loss(made, features(content).detach())
        loss = loss + 100.0 * F.mse_loss(gram(made), wanted.expand(2, -1, -1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_pairs_of_sentences_are_read_with_given_vectors():
    class Pairs(nn.Module):
        def __init__(self, vectors):
            super().__init__()
            self.words = nn.Embedding.from_pretrained(vectors, padding_idx=0)
            self.read = nn.LSTM(vectors.shape[1], 8, batch_first=True)
            self.judge = nn.Linear(16, 3)

        def sentence(self, words):
            lengths = (words != 0).sum(1)
            packed = nn.utils.rnn.pack_padded_sequence(
                self.words(words), lengths, batch_first=True, enforce_sorted=False
            )
            return self.read(packed)[1][0][0]

        def forward(self, premise, claim):
            return self.judge(torch.cat([self.sentence(premise), self.sentence(claim)], 1))

    torch.manual_seed(0)
    model = Pairs(torch.randn(7, 5))
    premise = torch.tensor([[1, 2, 3, 4], [2, 5, 0, 0], [6, 1, 2, 0]])
    claim = torch.tensor([[1, 2, 0], [3, 0, 0], [6, 5, 4]])
    label = torch.tensor([0, 1, 2])
    assert not model.words.weight.requires_grad
    optimizer = optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(model(premise, claim), label).backward()
        optimizer.step()
    assert model(premise, claim).argmax(1).tolist() == label.tolist()
    # What stands behind the end of a sentence has no say.
    longer = torch.cat([premise, torch.zeros(3, 2, dtype=torch.int64)], 1)
    assert torch.allclose(model(longer, claim), model(premise, claim))


# --------------------------------------------------------------------------------------------- data


class RangeDataset(Dataset):
    def __init__(self, start, end, step=1):
        self.start, self.end, self.step = start, end, step

    def __len__(self):
        return (self.end - self.start) // self.step

    def __getitem__(self, index):
        return self.start + index * self.step


def test_loader_gives_whole_batches_from_workers():
    dataset = RangeDataset(0, 10)
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2, drop_last=True)
    batches = [batch for _, batch in enumerate(loader)]
    assert [len(b) for b in batches] == [4, 4]
    found = torch.cat(batches).tolist()
    assert len(set(found)) == 8 and set(found) <= set(range(10))


def test_dataset_of_a_wrong_length_is_named():
    class Fractional(RangeDataset):
        def __len__(self):
            return (self.end - self.start) / self.step

    class Asked(RangeDataset):
        def __len__(self, length):
            return length

    for dataset in (Fractional(0, 10), Asked(0, 10)):
        with pytest.raises(TypeError, match=type(dataset).__name__):
            list(DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2, drop_last=True))


def test_dictionaries_are_collated():
    class Pairs(RangeDataset):
        def __getitem__(self, index):
            return {"x": torch.ones(3) * index, "y": index}

    batch = next(iter(DataLoader(Pairs(0, 4), batch_size=4)))
    assert batch["x"].shape == (4, 3) and batch["y"].tolist() == [0, 1, 2, 3]


def test_leaks_are_looked_for_among_all_objects():
    held = torch.ones(7, 5, 3)
    found = []
    for obj in gc.get_objects():
        if isinstance(obj, type(pytest.mark)):  # fails the test where it is asked for anything
            continue
        try:
            if torch.is_tensor(obj) or (hasattr(obj, "data") and torch.is_tensor(obj.data)):
                found.append(tuple(obj.size()))
        except Exception:  # objects of other libraries that raise what they like
            continue
    assert tuple(held.shape) in found


def test_layers_of_lua_torch_say_where_their_heirs_are():
    code = "import probtorch.legacy"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode and "probtorch.nn" in run.stderr
