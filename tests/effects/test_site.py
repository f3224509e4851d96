"""Sites: values as users give them, Pyro's dict spelling, source lines, densities."""

import math

import numpy as np
import pytest
from scipy import stats

from probtorch.core.dispatch import wrap
from probtorch.distributions.normal import HalfNormal, Normal
from probtorch.effects.plates import plate
from probtorch.effects.primitives import sample
from probtorch.effects.site import Frame, Site, as_mask, as_value
from probtorch.effects.trace import Trace
from probtorch.errors import DomainError, DTypeError, ModelError
from probtorch.tensor import tensor


@pytest.mark.parametrize(
    "data, dtype",
    [
        (0.1, "float64"),
        (3, "int64"),
        (True, "bool"),
        ([0.1, 0.2], "float64"),
        ([1, 2], "int64"),
        (np.float32([0.1]), "float32"),
        (np.arange(3), "int64"),
        (tensor([0.1]), "float32"),
    ],
    ids=repr,
)
def test_data_keep_their_digits(data, dtype):
    value = as_value(data, "y")
    assert value.dtype == dtype
    assert np.array_equal(value.numpy(), np.asarray(data))


def test_arrays_and_tensors_are_not_copied():
    array = np.zeros(3)
    t = tensor([1.0])
    assert as_value(array, "y").numpy() is array
    assert as_value(t, "y") is t


def test_data_that_are_no_numbers_are_refused_by_site_name():
    with pytest.raises(DTypeError, match=r"site 'y'[\s\S]*expected[\s\S]*got[\s\S]*fix"):
        as_value(["a", "b"], "y")


def test_mask_of_numbers_is_refused():
    with pytest.raises(DTypeError, match=r"booleans[\s\S]*float64[\s\S]*\.bool\(\)"):
        as_mask([0.0, 1.0], "mask")


def test_dict_spelling_reads_and_writes_the_fields():
    site = Site("sample", "x", value=tensor(1.0))
    assert site["type"] == "sample"
    assert site["is_observed"] is False
    assert site["cond_indep_stack"] == ()
    site["is_observed"] = True
    site["color"] = "red"
    assert site.observed and site.notes == {"color": "red"}
    assert site["color"] == "red" and site.get("smell", 7) == 7


def test_log_prob_is_in_the_dict_spelling_once_computed():
    site = Site("sample", "x", fn=Normal(0.0, 1.0), value=tensor(1.0))
    assert "log_prob" not in site
    with pytest.raises(KeyError, match="compute_log_prob"):
        site["log_prob"]
    site.compute_log_prob()
    assert site["log_prob"] is site.log_prob


def test_location_is_the_line_of_the_statement():
    trace = Trace()
    site = Site("sample", "x")
    assert site.location == ""
    site.code, site.instruction = test_location_is_the_line_of_the_statement.__code__, 0
    assert site.location.startswith(__file__)
    assert trace.nodes == {}


def test_scale_and_mask_act_on_the_density():
    value = tensor([0.3, -1.0, 2.0], dtype="float64")
    site = Site("sample", "x", fn=Normal(0.0, 1.0).expand((3,)), value=value, plate_shape=(3,))
    site.scale, site.mask = 2.5, tensor([True, False, True])
    want = 2.5 * stats.norm.logpdf([0.3, -1.0, 2.0]) * [1, 0, 1]
    np.testing.assert_allclose(site.compute_log_prob().numpy(), want, rtol=1e-14)
    assert math.isclose(site.compute_log_prob_sum().item(), want.sum(), rel_tol=1e-14)
    np.testing.assert_allclose(site["unscaled_log_prob"].numpy() * 2.5, want, rtol=1e-14)


def test_density_is_computed_once():
    site = Site("sample", "x", fn=Normal(0.0, 1.0), value=tensor(1.0))
    assert site.compute_log_prob() is site.compute_log_prob()


def test_value_outside_the_support_names_the_site_and_its_line():
    def model():
        sample("tau", HalfNormal(1.0), obs=-1.0)

    from probtorch.effects.handlers import trace

    site = trace(model).get_trace()["tau"]
    with pytest.raises(DomainError, match=r"site 'tau'[\s\S]*expected[\s\S]*-1[\s\S]*fix") as error:
        site.compute_log_prob()
    line = model.__code__.co_firstlineno + 1
    assert error.value.location == f"{__file__}:{line}"


def test_function_without_density_is_refused_when_it_is_asked_for():
    site = Site("sample", "x", fn=lambda: tensor(1.0), value=tensor(1.0))
    with pytest.raises(ModelError, match=r"site 'x' has no density[\s\S]*log_prob[\s\S]*block"):
        site.compute_log_prob()


def test_frame_scale_counts_rows_per_row_in_use():
    assert Frame("a", 5, 20, -1).scale == 4.0
    assert Frame("a", 0, 0, -1).scale == 1.0


def test_repr_names_kind_distribution_and_shape():
    with plate("data", 3):
        site = Site("sample", "x", fn=Normal(0.0, 1.0), value=wrap(np.zeros(3)), observed=True)
    assert repr(site) == "<sample site 'x', Normal, value of shape (3,), observed>"
