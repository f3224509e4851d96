"""Networks in a model: learned weights by `module`, random ones by `random_module`."""

import threading

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch import nn
from probtorch.effects import get_param_store, handlers, module, param, random_module
from probtorch.effects.params import ParamStore
from probtorch.errors import ArgumentError, DTypeError, ModelError, ShapeError
from probtorch.testing import assert_close


def mlp(dtype=None):
    probtorch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3, dtype=dtype), nn.Tanh(), nn.Linear(3, 1, dtype=dtype))


def values_like(net, seed=0):
    rng = np.random.default_rng(seed)
    return {
        f"net.{name}": probtorch.tensor(rng.normal(size=tuple(p.shape)))
        for name, p in net.named_parameters()
    }


def by_numpy(values, x):
    """The network of `mlp` in NumPy."""
    w0, b0, w2, b2 = (values[f"net.{n}"].numpy() for n in "0.weight 0.bias 2.weight 2.bias".split())
    return np.tanh(x @ w0.T + b0) @ w2.T + b2


X = np.random.default_rng(5).normal(size=(4, 2))

# --------------------------------------------------------------------------------------- module


def test_module_states_its_parameters_by_name_and_is_returned():
    net = mlp()
    with handlers.trace() as tr:
        assert module("net", net) is net
    names = ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]
    assert list(tr) == names
    assert tr.param_nodes == names
    assert tr["net.0.bias"].location.rpartition(":")[0] == __file__


def test_store_refers_to_the_parameters_themselves():
    net = mlp()
    with ParamStore().activate() as store:
        module("net", net)
    assert dict(store.named_parameters())["net.2.bias"] is net[2].bias
    store["net.2.bias"] = probtorch.tensor([7.0])
    assert net[2].bias.tolist() == [7.0]
    assert store.unconstrained("net.2.bias") is net[2].bias


def test_frozen_parameters_are_not_stated():
    net = mlp()
    net[0].requires_grad_(False)
    with handlers.trace() as tr:
        module("net", net)
    assert list(tr) == ["net.2.weight", "net.2.bias"]


def test_tied_weights_are_one_site_and_are_replaced_everywhere():
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    weight = probtorch.tensor([[0.0, 1.0], [2.0, 0.0]])
    with handlers.trace() as tr, handlers.substitute(data={"net.0.weight": weight}):
        y = module("net", net)(probtorch.tensor([1.0, 10.0]))
    assert list(tr) == ["net.0.weight"]
    assert_close(y, weight @ weight @ probtorch.tensor([1.0, 10.0]))


def test_module_used_twice_below_is_one_module_in_the_copy():
    layer = nn.Linear(1, 1, bias=False)
    net = nn.Sequential(layer, nn.ReLU(), layer)
    with handlers.substitute(data={"net.0.weight": probtorch.tensor([[3.0]])}):
        copy = module("net", net)
    assert copy[0] is copy[2]
    assert copy(probtorch.ones(1)).item() == 9.0


def test_substituted_weights_leave_the_network_alone():
    net = mlp(probtorch.float64)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    values = values_like(net)
    with handlers.substitute(data=values):
        y = module("net", net)(probtorch.tensor(X))
    assert_close(y, by_numpy(values, X))
    for name, value in net.state_dict().items():
        assert_close(value, before[name], rtol=0.0, atol=0.0)


def test_runs_in_threads_do_not_see_the_weights_of_each_other():
    net = mlp(probtorch.float64)
    barrier, wrong = threading.Barrier(4), []

    def work(seed):
        values = values_like(net, seed)
        expected = by_numpy(values, X)
        barrier.wait(10.0)
        for _ in range(50):
            with handlers.substitute(data=values):
                y = module("net", net)(probtorch.tensor(X))
            if not np.allclose(y.detach().numpy(), expected):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Odd(nn.Module):
    """Refers to its parts in unusual ways."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Linear(1, 1, bias=False) for _ in range(2))
        self.both = [self.first, self.second]
        self.by_name = {"first": self.first}
        self.weights = (self.second.weight,)
        self.bound = self.doubled

    def doubled(self, x):
        return 2.0 * self.first(x)

    def forward(self, x):
        listed = self.both[0](x) + self.both[1](x)
        return listed + 10.0 * self.by_name["first"](x) + 100.0 * self.weights[0] + self.bound(x)


def test_lists_dicts_and_methods_of_a_copy_refer_to_the_copy():
    values = {
        "net.first.weight": probtorch.tensor([[1.0]]),
        "net.second.weight": probtorch.tensor([[2.0]]),
    }
    with handlers.substitute(data=values):
        y = module("net", Odd())(probtorch.ones(1))
    assert y.item() == 1.0 + 2.0 + 10.0 + 200.0 + 2.0


def test_buffers_of_a_copy_are_those_of_the_network():
    net = nn.BatchNorm1d(1, momentum=1.0)
    x = probtorch.tensor([[1.0], [5.0]])
    with handlers.substitute(data={"net.weight": probtorch.tensor([2.0])}):
        module("net", net)(x)
    assert net.running_mean.tolist() == [3.0]


def test_gradients_reach_the_network():
    net = mlp()
    module("net", net)(probtorch.tensor(X, dtype=probtorch.float32)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_evaluation_mode_is_left_as_it_is():
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)).eval()
    assert not module("net", net).training
    with handlers.substitute(data={"net.1.bias": probtorch.zeros(2)}):
        assert not module("net", net)[0].training


def test_a_second_network_of_a_name_is_refused_within_an_inference():
    with ParamStore().activate():
        module("net", nn.Linear(1, 1))
        with pytest.raises(ModelError, match="another module") as caught:
            module("net", nn.Linear(1, 1))
    assert "update_module_params" in caught.value.fix
    assert "'net.weight'" in caught.value.subject


def test_outside_of_an_inference_a_network_is_what_it_is():
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    assert module("net", first) is first
    assert module("net", second) is second
    assert get_param_store().unconstrained("net.weight") is first.weight


def test_update_module_params_takes_the_values_of_the_store():
    with ParamStore().activate() as store:
        trained = module("net", nn.Linear(2, 1))
        fresh = nn.Linear(2, 1)
        net = module("net", fresh, update_module_params=True)
    x = probtorch.tensor([[1.0, 2.0]])
    assert_close(net(x), trained(x))
    assert_close(fresh(x), trained(x))
    assert store.unconstrained("net.weight") is trained.weight
    net(x).sum().backward()
    assert trained.weight.grad is not None


def test_values_of_another_shape_in_the_store_are_refused():
    with ParamStore().activate():
        module("net", nn.Linear(2, 1))
        with pytest.raises(ShapeError, match=r"'net.weight'"):
            module("net", nn.Linear(3, 1), update_module_params=True)


def test_a_name_that_a_param_statement_has_is_refused():
    with ParamStore().activate():
        param("net.weight", probtorch.zeros(1, 1))
        with pytest.raises(ModelError, match="param statement"):
            module("net", nn.Linear(1, 1))


@pytest.mark.parametrize("statement", [module, lambda n, m: random_module(n, m, dist.Normal())])
def test_what_is_no_network_is_refused(statement):
    with pytest.raises(DTypeError, match="the class Linear") as caught:
        statement("net", nn.Linear)
    assert "make the network first" in caught.value.fix
    with pytest.raises(DTypeError, match="Tensor"):
        statement("net", probtorch.zeros(2))
    with pytest.raises(DTypeError, match="a name as its first argument"):
        statement(mlp(), "net")


def test_scope_prefixes_the_names():
    with handlers.trace() as tr, handlers.scope(prefix="a"):
        module("net", nn.Linear(1, 1))
    assert list(tr) == ["a/net.weight", "a/net.bias"]


def test_lift_makes_weights_random_with_a_prior_of_single_numbers():
    net = mlp()
    lifted = handlers.lift(lambda: module("net", net), prior=dist.Normal(0.0, 2.0))
    tr = handlers.trace(lifted).get_trace()
    assert tr["net.0.weight"].kind == "sample"
    assert tr["net.0.weight"].fn.event_shape == (3, 2)
    value = tr["net.0.weight"].value
    assert_close(
        tr["net.0.weight"].compute_log_prob(),
        stats.norm(0.0, 2.0).logpdf(value.detach().numpy()).sum(),
        rtol=1e-5,
    )


# -------------------------------------------------------------------------------- random_module


def random_values(prior, net=None):
    tr = handlers.trace(lambda: random_module("net", net or mlp(), prior)).get_trace()
    return tr


def test_one_distribution_is_the_prior_of_every_weight():
    tr = random_values(dist.Normal(0.0, 1.0))
    assert tr.stochastic_nodes == ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]
    assert tr["net.0.weight"].value.shape == (3, 2)
    expected = sum(stats.norm.logpdf(tr[n].value.numpy()).sum() for n in tr)
    assert_close(tr.log_prob_sum(), expected, rtol=1e-5)


def test_dict_names_weights_by_their_whole_or_last_name():
    prior = {"weight": dist.Normal(0.0, 1.0), "2.weight": dist.Laplace(0.0, 1.0)}
    tr = random_values(prior)
    assert tr.stochastic_nodes == ["net.0.weight", "net.2.weight"]
    assert tr.param_nodes == ["net.0.bias", "net.2.bias"]
    assert isinstance(tr["net.2.weight"].fn.base_dist, dist.Laplace)


def test_callable_prior_is_given_name_and_shape():
    asked = []

    def prior(name, shape):
        asked.append((name, shape))
        return dist.Normal(0.0, 1.0) if name.endswith("weight") else None

    tr = random_values(prior)
    assert asked == [("0.weight", (3, 2)), ("0.bias", (3,)), ("2.weight", (1, 3)), ("2.bias", (1,))]
    assert tr.stochastic_nodes == ["net.0.weight", "net.2.weight"]


def test_prior_with_an_event_of_its_own_covers_the_last_dims():
    cov = probtorch.tensor([[2.0, 0.5], [0.5, 1.0]])
    prior = {"0.weight": dist.MultivariateNormal(probtorch.zeros(2), cov)}
    tr = random_values(prior)
    rows = tr["net.0.weight"].value.numpy()
    expected = stats.multivariate_normal(np.zeros(2), cov.numpy()).logpdf(rows).sum()
    assert_close(tr["net.0.weight"].compute_log_prob(), expected, rtol=1e-5)


def test_frozen_weights_are_random_only_where_a_dict_names_them():
    net = mlp().requires_grad_(False)
    assert list(random_values(dist.Normal(0.0, 1.0), net)) == []
    tr = random_values({"0.bias": dist.Normal(0.0, 1.0)}, net)
    assert list(tr) == ["net.0.bias"]


def test_random_network_computes_with_its_draws():
    net = mlp(probtorch.float64)
    values = values_like(net)
    with handlers.substitute(data=values):
        y = random_module("net", net, dist.Normal(0.0, 1.0))(probtorch.tensor(X))
    assert_close(y, by_numpy(values, X))


def test_unknown_names_among_priors_are_refused():
    with pytest.raises(ArgumentError, match="'wieght'") as caught:
        random_values({"wieght": dist.Normal(0.0, 1.0)})
    assert "named_parameters" in caught.value.fix


@pytest.mark.parametrize(
    "prior", [dist.Normal(probtorch.zeros(5), 1.0), dist.Dirichlet(probtorch.ones(4))], ids=repr
)
def test_prior_of_another_shape_is_refused(prior):
    with pytest.raises(ShapeError, match=r"prior of 'net.0.weight'"):
        random_values(prior)


@pytest.mark.parametrize("prior", [3.0, lambda name, shape: "normal"])
def test_what_is_no_prior_is_refused(prior):
    with pytest.raises(DTypeError):
        random_values(prior)
