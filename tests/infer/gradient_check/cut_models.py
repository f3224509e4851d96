"""Models of which the gradient is cut, each with the line that cuts it.

`CUTS` are ways to make something of a latent value past the tape, for `regression`; `PLACES` are
models that do so elsewhere. ``LINE[0]`` is where the last of them did.
"""

import functools
import json
import math
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import plate, sample, stack, tensor
from probtorch.errors import user_frame
from tests.infer.gradient_check.whole_models import Box


def here():
    """The line after this call: where a cut is made."""
    file, line = user_frame(2)
    return f"{Path(file).name}:{line + 1}"


CUTS = {}


def cut(fn):
    """Register what is made of a latent value; it notes the line of its escape."""
    CUTS[fn.__name__] = fn
    return fn


LINE = [""]


@cut
def by_float(b):
    LINE[0] = here()
    return float(b)


@cut
def by_float_squared(b):
    LINE[0] = here()
    return float(b) ** 2


@cut
def by_item(b):
    LINE[0] = here()
    return b.item()


@cut
def by_item_times_two(b):
    LINE[0] = here()
    return b.item() * 2.0


@cut
def by_item_of_a_result(b):
    LINE[0] = here()
    return (b * 3.0 + 1.0).item()


@cut
def by_item_in_a_tensor(b):
    LINE[0] = here()
    return tensor(b.item())


@cut
def by_item_in_a_list(b):
    LINE[0] = here()
    return tensor([b.item(), 1.0])[0]


@cut
def by_item_in_a_mixed_list(b):
    LINE[0] = here()
    return tensor([b.item(), b])[0]


@cut
def by_tolist(b):
    LINE[0] = here()
    return stack([b, b]).tolist()[1]


@cut
def by_detach_numpy(b):
    LINE[0] = here()
    return b.detach().numpy()


@cut
def by_numpy_force(b):
    LINE[0] = here()
    return b.numpy(force=True) + 0.0


@cut
def by_numpy_of_a_vector(b):
    LINE[0] = here()
    return tensor(stack([b, b]).detach().numpy())[0]


@cut
def by_a_view_of_numpy(b):
    LINE[0] = here()
    return probtorch.from_numpy(stack([b, b]).numpy(force=True)[1:])[0]


@cut
def by_asarray(b):
    LINE[0] = here()
    return np.asarray(b.detach())


@cut
def by_numpy_exp(b):
    LINE[0] = here()
    return np.exp(b.detach().numpy())


@cut
def by_numpy_after_tensor_operations(b):
    LINE[0] = here()
    return (b.detach() * 2.0 + 1.0).numpy() + 0.0


@cut
def by_math(b):
    LINE[0] = here()
    return math.exp(b)


@cut
def by_element_assignment(b):
    mu = np.zeros(3)
    LINE[0] = here()
    mu[0] = b
    return mu[0]


@cut
def by_list_of_floats(b):
    LINE[0] = here()
    return np.array([float(b), 1.0]).sum()


@cut
def by_an_object(b):
    LINE[0] = here()
    Box.kept = float(b)
    return Box.kept + 0.0


@cut
def by_a_dict(b):
    LINE[0] = here()
    return {"b": b.item()}["b"] * 1.0


@cut
def by_dlpack(b):
    LINE[0] = here()
    return np.from_dlpack(b.detach()) * 1.0


@cut
def by_format(b):
    LINE[0] = here()
    return float(f"{b.item():.17g}")


@cut
def by_sum_of_python(b):
    LINE[0] = here()
    return sum(stack([b, b * b]).tolist())


@cut
def by_max_of_python(b):
    LINE[0] = here()
    return max(float(b), -100.0)


@cut
def by_numpy_unwrap(b):
    LINE[0] = here()
    return 2.0 * np.unwrap(b.detach()[None])[0]


@cut
def by_full_of_item(b):
    LINE[0] = here()
    return probtorch.full((), b.item())


@cut
def by_linspace(b):
    LINE[0] = here()
    return probtorch.linspace(0.0, b, 3)[2]


@cut
def by_text(b):
    LINE[0] = here()
    return float(f"{b:.17g}")


@cut
def by_json(b):
    LINE[0] = here()
    return json.loads(json.dumps(stack([b, b]).tolist()))[0]


@cut
def by_struct(b):
    LINE[0] = here()
    return struct.unpack("d", struct.pack("d", b))[0]


@cut
def by_pickle(b):
    LINE[0] = here()
    return pickle.loads(pickle.dumps(b.detach())) * 2.0


@functools.lru_cache(None)
def squared(value):
    return value * value


@cut
def by_a_cache(b):
    LINE[0] = here()
    return squared(float(b))


@cut
def by_a_sum_of_doubles(b):
    LINE[0] = here()
    return math.fsum([b, b])


@cut
def by_a_number_of_numpy(b):
    LINE[0] = here()
    return np.float64(b) * 2.0


@cut
def by_normalising(b):
    LINE[0] = here()
    return b / (1.0 + abs(b.item()))


@cut
def by_an_array_shared_with_a_tensor(b):
    array = np.zeros(20)
    t = probtorch.from_numpy(array)
    LINE[0] = here()
    array[:] = b.detach().numpy() * 2.0
    return t


@cut
def by_solving_for_it(b):
    optimize = pytest.importorskip("scipy.optimize")
    LINE[0] = here()
    return optimize.brentq(lambda z: z**3 + z - float(b), -5.0, 5.0)


def regression(made):
    def model(x, y):
        b = sample("b", dist.Normal(0.0, 1.0))
        a = sample("a", dist.Normal(0.0, 1.0))
        with plate("n", 20):
            sample("y", dist.Normal(made(b) * x + a, 0.5), obs=y)

    return model


def in_a_plate(x, y):
    with plate("n", 20):
        b = sample("b", dist.Normal(0.0, 1.0))
        LINE[0] = here()
        kept = b.detach().numpy() * 2.0
        sample("y", dist.Normal(kept * x, 0.5), obs=y)


def in_a_loop(x, y):
    b = sample("b", dist.Normal(0.0, 1.0))
    total = 0.0
    for i in range(3):
        LINE[0] = here()
        total = total + b.item() * i
    sample("y", dist.Normal(total * x, 0.5).to_event(1), obs=y)


def in_a_scale(x, y):
    b = sample("b", dist.LogNormal(0.0, 1.0))
    LINE[0] = here()
    sample("y", dist.Normal(x, float(b)).to_event(1), obs=y)


def in_a_factor(x, y):
    b = sample("b", dist.Normal(0.0, 1.0))
    LINE[0] = here()
    probtorch.factor("f", -(float(b) ** 2))


def in_a_later_prior(x, y):
    b = sample("b", dist.Normal(0.0, 1.0))
    LINE[0] = here()
    c = sample("c", dist.Normal(b.item() * 2.0, 1.0))
    sample("y", dist.Normal(c * x, 0.5).to_event(1), obs=y)


def of_a_vector_site(x, y):
    b = sample("b", dist.Normal(tensor(np.zeros(3)), 1.0).to_event(1))
    LINE[0] = here()
    mu = x * float(b[1]) + 0.0
    sample("y", dist.Normal(mu, 0.5).to_event(1), obs=y)


PLACES = [in_a_plate, in_a_loop, in_a_scale, in_a_factor, in_a_later_prior, of_a_vector_site]
