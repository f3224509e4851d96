"""Modules that state their own weights: names, draws within a call, constrained parameters."""

import copy
import pickle
import threading

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch import nn
from probtorch.distributions import constraints
from probtorch.effects import (
    PyroModule,
    PyroParam,
    PyroSample,
    handlers,
    param,
    pyro_method,
    sample,
    to_pyro_module_,
)
from probtorch.effects.params import ParamStore
from probtorch.errors import DomainError, DTypeError, ModelError, ShapeError
from probtorch.testing import assert_close

NORMAL = dist.Normal(0.0, 1.0)


def traced(fn, *args):
    return handlers.trace(fn).get_trace(*args)


class Net(PyroModule):
    def __init__(self, name=""):
        super().__init__(name)
        self.fc = PyroModule[nn.Linear](2, 3)
        self.fc.weight = PyroSample(dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
        self.plain = nn.Sequential(nn.Linear(3, 1), nn.ReLU())
        self.scale = PyroParam(2.0, constraints.positive)

    def forward(self, x):
        return self.plain(self.fc(x)) * self.scale


# ---------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(("name", "start"), [("", ""), ("net", "net.")])
def test_sites_are_called_after_attributes(name, start):
    tr = traced(Net(name), probtorch.zeros(4, 2))
    params = ["fc.bias", "plain.0.weight", "plain.0.bias", "scale"]
    assert tr.param_nodes == [start + n for n in params]
    assert tr.stochastic_nodes == [f"{start}fc.weight"]


def test_modules_inside_ordinary_containers_are_named_by_their_path():
    class Deep(PyroModule):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Tanh())
            self.body.append(PyroModule[nn.Linear](2, 2, bias=False))
            self.body[1].weight = PyroSample(NORMAL)

        def forward(self, x):
            return self.body(x)

    assert list(traced(Deep(), probtorch.ones(2))) == ["body.1.weight"]


def test_child_called_by_itself_has_the_name_that_its_parent_gave():
    net = Net("net")
    assert "net.fc.weight" in traced(net.fc, probtorch.zeros(2))


def test_module_statement_names_a_pyro_module():
    net = Net()
    with handlers.trace() as tr:
        probtorch.module("decoder", net)(probtorch.zeros(2))
    assert tr.stochastic_nodes == ["decoder.fc.weight"]
    assert "decoder.scale" in tr.param_nodes
    assert not any("unconstrained" in n for n in tr)


def test_errors_blame_the_line_that_called_the_module():
    tr = traced(lambda: Net()(probtorch.zeros(2)))
    assert tr["fc.weight"].location.rpartition(":")[0] == __file__


# ---------------------------------------------------------------------------------------- draws


class Twice(PyroModule):
    def __init__(self):
        super().__init__()
        self.w = PyroSample(NORMAL)

    def forward(self):
        return self.w, self.w

    @pyro_method
    def by_method(self):
        return self.w, self.forward()[0]


def test_an_attribute_is_drawn_once_in_a_call():
    net = Twice()
    for call in (net, net.by_method):
        tr = traced(call)
        assert list(tr) == ["w"]
        a, b = tr.returned
        assert a is b


def test_outside_of_calls_reads_are_fresh_draws_and_no_sites():
    net = Twice()
    with handlers.trace() as tr:
        a, b = net.w, net.w
    assert len(tr) == 0
    assert a.item() != b.item()


def test_calls_draw_anew():
    net = Twice()
    assert net()[0].item() != net()[0].item()


def test_two_calls_in_one_run_are_told_to_have_the_same_site():
    net = Twice()
    with pytest.raises(ModelError, match="Multiple sample sites named 'w'"):
        traced(lambda: (net(), net()))


def test_an_error_inside_a_call_ends_it():
    class Fails(Twice):
        def forward(self):
            raise ZeroDivisionError(self.w)

    net = Fails()
    with pytest.raises(ZeroDivisionError):
        net()
    with handlers.trace() as tr:
        _ = net.w
    assert len(tr) == 0


def test_prior_may_depend_on_other_attributes():
    class Hierarchy(PyroModule):
        def __init__(self):
            super().__init__()
            self.top = PyroSample(dist.HalfNormal(1.0))
            self.w = PyroSample(lambda self: dist.Normal(0.0, self.top))

        def forward(self):
            return self.w

    tr = traced(Hierarchy())
    assert list(tr) == ["top", "w"]
    top, w = (tr[n].value.item() for n in ("top", "w"))
    assert_close(tr["w"].compute_log_prob(), stats.norm(0.0, top).logpdf(w), rtol=1e-5)


def test_prior_of_single_numbers_takes_the_shape_of_the_parameter_it_replaces():
    linear = PyroModule[nn.Linear](3, 2)
    linear.weight = PyroSample(NORMAL)
    linear.weight = PyroSample(dist.Laplace(0.0, 1.0))
    site = traced(linear, probtorch.zeros(3))["weight"]
    assert isinstance(site.fn.base_dist, dist.Laplace)
    assert (site.fn.batch_shape, site.fn.event_shape) == ((), (2, 3))
    assert [n for n, _ in linear.named_parameters()] == ["bias"]


def test_prior_that_does_not_fit_is_refused():
    linear = PyroModule[nn.Linear](3, 2)
    linear.weight = PyroSample(dist.Normal(probtorch.zeros(4), 1.0))
    with pytest.raises(ShapeError, match=r"PyroSample 'weight'"):
        linear(probtorch.zeros(3))


def test_prior_that_is_none_is_refused():
    with pytest.raises(DTypeError, match="PyroSample"):
        PyroSample(3.0)
    net = Twice()
    net.w = PyroSample(lambda self: 3.0)
    with pytest.raises(DTypeError, match=r"PyroSample 'w'"):
        net()


def test_a_tensor_takes_the_place_of_a_random_attribute():
    net = Twice()
    net.w = probtorch.tensor(5.0)
    tr = traced(net)
    assert list(tr) == []
    assert tr.returned[0].item() == 5.0
    net.w = PyroSample(NORMAL)
    assert list(traced(net)) == ["w"]
    del net.w
    with pytest.raises(AttributeError, match="no attribute 'w'"):
        net()


def test_conditioned_weights_are_used():
    weight, net = np.arange(6.0).reshape(3, 2), Net()
    tr = traced(handlers.condition(net.fc, data={"fc.weight": weight}), probtorch.ones(2))
    assert_close(tr.returned, weight.sum(1) + net.fc.bias.detach().numpy(), rtol=1e-6)


def test_substituted_parameters_reach_ordinary_modules_below():
    net, x = Net(), probtorch.ones(2)
    values = {"plain.0.weight": probtorch.zeros(1, 3), "plain.0.bias": probtorch.tensor([3.0])}
    with handlers.substitute(data={**values, "scale": probtorch.tensor(4.0)}):
        assert net(x).item() == 12.0
    assert net.plain[0].bias.item() != 3.0


def test_threads_draw_for_themselves():
    class Slow(Twice):
        def forward(self):
            first = self.w
            barrier.wait(10.0)
            return first, self.w

    barrier, found = threading.Barrier(2), []
    net = Slow()
    threads = [threading.Thread(target=lambda: found.append(net())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (a, b), (c, d) = found
    assert a is b
    assert c is d
    assert a is not c


# --------------------------------------------------------------------------------- constrained


class Noise(PyroModule):
    @PyroParam(constraint=constraints.positive)
    def scale(self):
        return 2.0

    @PyroParam
    def loc(self):
        return probtorch.tensor([1.0, 2.0])

    @PyroSample
    def w(self):
        return dist.Normal(self.loc.sum(), self.scale)

    def forward(self):
        return self.w


def test_decorated_methods_say_what_attributes_are():
    net = Noise()
    tr = traced(net)
    assert tr.param_nodes == ["loc", "scale"]
    assert tr.stochastic_nodes == ["w"]
    assert (tr["w"].fn.loc.item(), tr["w"].fn.scale.item()) == (3.0, 2.0)
    assert net.scale.item() == 2.0
    names = [n for n, _ in net.named_parameters()]
    assert sorted(names) == ["loc_unconstrained", "scale_unconstrained"]


def test_constrained_parameter_is_the_leaf_of_the_store():
    net = Net()
    with ParamStore().activate() as store:
        net(probtorch.zeros(2))
    leaf = store.unconstrained("scale")
    assert leaf is dict(net.named_parameters())["scale_unconstrained"]
    assert_close(store["scale"], 2.0)
    assert_close(leaf, np.log(2.0))


def test_constrained_parameter_takes_values_in_place_and_refuses_others():
    net = Net()
    leaf = dict(net.named_parameters())["scale_unconstrained"]
    net.scale = 5.0
    assert_close(net.scale, 5.0)
    assert dict(net.named_parameters())["scale_unconstrained"] is leaf
    with pytest.raises(DomainError, match=r"PyroParam 'scale'"):
        net.scale = -1.0
    with pytest.raises(DomainError, match=r"PyroParam 'fc.bias'"):
        net.fc.bias = PyroParam(-1.0, constraints.positive)


def test_values_of_constrained_and_other_parameters_are_listed():
    net = Net()
    found = dict(net.named_pyro_params())
    assert sorted(found) == ["fc.bias", "plain.0.bias", "plain.0.weight", "scale"]
    assert found["plain.0.bias"] is net.plain[0].bias
    assert_close(found["scale"], 2.0)
    assert list(dict(net.named_pyro_params("net", recurse=False))) == ["net.scale"]


def test_parameter_with_event_dims_is_cut_to_the_rows_of_a_plate():
    class Rows(PyroModule):
        def __init__(self):
            super().__init__()
            self.loc = PyroParam(probtorch.arange(10.0), event_dim=0)

        def forward(self, rows):
            with probtorch.plate("data", 10, subsample=rows):
                return self.loc

    assert Rows()(probtorch.tensor([7, 2])).tolist() == [7.0, 2.0]


# ------------------------------------------------------------------------------ copies, classes


def test_state_dict_holds_unconstrained_numbers_and_loads():
    net, other = Net(), Net()
    net.scale = 9.0
    other.load_state_dict(net.state_dict())
    assert_close(other.scale, 9.0)
    assert sorted(net.state_dict()) == [
        "fc.bias",
        "plain.0.bias",
        "plain.0.weight",
        "scale_unconstrained",
    ]


def test_copies_are_independent():
    net = Net()
    twin = copy.deepcopy(net)
    twin.scale = 7.0
    assert_close(net.scale, 2.0)
    assert traced(twin, probtorch.zeros(2)).stochastic_nodes == ["fc.weight"]


def test_made_classes_pickle():
    linear = PyroModule[nn.Linear](2, 1)
    linear.bias = PyroParam(probtorch.ones(1), constraints.positive)
    twin = pickle.loads(pickle.dumps(linear))
    assert type(twin) is type(linear)
    assert_close(twin.bias, linear.bias)
    assert_close(twin.weight, linear.weight)


def test_classes_are_made_once_and_keep_their_base():
    assert PyroModule[nn.Linear] is PyroModule[nn.Linear]
    assert issubclass(PyroModule[nn.Linear], (nn.Linear, PyroModule))
    assert PyroModule[nn.Module] is PyroModule
    assert PyroModule[Net] is Net
    assert PyroModule[nn.Linear].__name__ == "PyroLinear"
    with pytest.raises(DTypeError, match=r"subclass of nn\.Module"):
        PyroModule[dict]


def test_a_module_is_converted_in_place():
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    weight = net[0].weight
    to_pyro_module_(net)
    assert isinstance(net[2], PyroModule)
    assert net[0].weight is weight
    for layer in net[0], net[2]:
        layer.weight = PyroSample(NORMAL)
    tr = traced(net, probtorch.zeros(2))
    assert tr.stochastic_nodes == ["0.weight", "2.weight"]
    assert tr.param_nodes == ["0.bias", "2.bias"]


def test_conversion_may_leave_the_modules_below():
    net = nn.Sequential(nn.Linear(2, 2))
    to_pyro_module_(net, recurse=False)
    assert isinstance(net, PyroModule)
    assert not isinstance(net[0], PyroModule)


def test_attributes_need_the_constructor_first():
    class Late(PyroModule):
        def __init__(self):
            self.w = PyroSample(NORMAL)

    with pytest.raises(AttributeError, match=r"super\(\).__init__\(\)"):
        Late()


def test_recurrent_layer_with_random_weights_runs():
    net = PyroModule[nn.GRU](2, 3)
    net.weight_hh_l0 = PyroSample(NORMAL)
    tr = traced(net, probtorch.zeros(4, 2))
    assert tr.stochastic_nodes == ["weight_hh_l0"]
    assert tr["weight_hh_l0"].fn.event_shape == (9, 3)


def test_statements_inside_forward_keep_their_own_names():
    class Mixed(PyroModule):
        def forward(self):
            return sample("z", NORMAL) + param("shift", probtorch.tensor(1.0))

    assert list(traced(Mixed("net"))) == ["z", "shift"]


def test_weights_of_a_simplex_are_divided_by_their_sum():
    net = PyroModule()
    net.shares = PyroParam(probtorch.tensor([1.0, 3.0]), constraint=constraints.simplex)
    assert_close(net.shares, probtorch.tensor([0.25, 0.75]))
    net.shares = probtorch.tensor([2.0, 2.0])
    assert_close(net.shares, probtorch.tensor([0.5, 0.5]))
