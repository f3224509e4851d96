"""The handler stack: order of hooks, three ways to use a handler, what an error leaves behind."""

import threading

import pytest

from probtorch.core.rng import Generator, default_generator
from probtorch.distributions.normal import Normal
from probtorch.effects.handlers import block, condition, seed, substitute, trace
from probtorch.effects.plates import plate
from probtorch.effects.primitives import sample
from probtorch.effects.runtime import STATE, Handler, outside


class Spy(Handler):
    """Writes down what it sees."""

    def __init__(self, label, log, fn=None):
        super().__init__(fn)
        self.label, self.log = label, log

    def on_sample(self, site):
        self.log.append(f"{self.label} on {site.name}")

    def after_sample(self, site):
        self.log.append(f"{self.label} after {site.name}")


def draw_x():
    return sample("x", Normal(0.0, 1.0))


def test_hooks_run_from_the_inside_out_and_back():
    log = []
    with Spy("outer", log), Spy("inner", log):
        draw_x()
    assert log == ["inner on x", "outer on x", "outer after x", "inner after x"]


def test_stopped_site_comes_back_only_to_those_that_saw_it():
    log = []
    with Spy("outer", log), block(), Spy("inner", log):
        draw_x()
    assert log == ["inner on x", "inner after x"]


def test_handler_is_a_wrapper_a_decorator_and_a_context_manager():
    wrapped = condition(draw_x, data={"x": 2.0})

    @condition(data={"x": 2.0})
    def decorated():
        return draw_x()

    with condition(data={"x": 2.0}):
        inside = draw_x()
    assert wrapped().item() == decorated().item() == inside.item() == 2.0
    assert decorated.__name__ == "decorated"


def test_decorated_method_is_bound():
    class Model:
        shift = 3.0

        @condition(data={"x": 2.0})
        def run(self, factor):
            return draw_x().item() * factor + self.shift

    assert Model().run(10.0) == 23.0


def test_subclass_inherits_and_overrides_hooks():
    class Doubled(substitute):
        def on_sample(self, site):
            super().on_sample(site)
            if site.value is not None:
                site.value = site.value * 2.0

    assert Doubled(draw_x, {"x": 2.0})().item() == 4.0


@pytest.mark.parametrize("where", ["model", "hook"])
def test_exception_leaves_the_stack_as_it_was(where):
    class Bad(Handler):
        def on_sample(self, site):
            if where == "hook":
                raise RuntimeError("hook")

    def model():
        with plate("a", 2), Bad():
            draw_x()
            raise RuntimeError("model")

    with trace() as kept:
        with pytest.raises(RuntimeError, match=where):
            seed(model, rng_seed=0)()
        assert len(STATE.handlers) == 1
        assert STATE.plates.frames == ()
        sample("y", Normal(0.0, 1.0))
    assert "y" in kept


def test_threads_have_stacks_of_their_own():
    seen = []

    def other():
        seen.append((STATE.handlers, STATE.plates.frames))

    with trace(), plate("a", 2):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == [((), ())]


def test_wrapped_handler_runs_in_several_threads_at_once():
    model = seed(lambda: (sample("x", Normal(0.0, 1.0)), sample("y", Normal(0.0, 1.0))), rng_seed=3)
    want = [v.item() for v in model()]
    got = [None] * 8

    def run(i):
        for _ in range(20):
            got[i] = [v.item() for v in model()]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 8


def test_statements_of_a_hook_reach_only_outer_handlers_and_traces():
    log = []

    class Split(Handler):
        def on_sample(self, site):
            with outside(self):
                sample(site.name + "_part", Normal(0.0, 1.0))

    with trace() as far, Spy("outer", log), Split(), Spy("inner", log), trace() as near:
        draw_x()
    assert [line for line in log if "part" in line] == ["outer on x_part", "outer after x_part"]
    assert set(far) == set(near) == {"x", "x_part"}


def test_draw_without_seed_comes_from_the_default_generator():
    default_generator.manual_seed(11)
    first = draw_x().item()
    default_generator.manual_seed(11)
    assert draw_x().item() == first
    assert seed(draw_x, rng_seed=11)().item() == first


def test_seed_does_not_touch_the_default_generator():
    before = default_generator.get_state()
    seed(draw_x, rng_seed=1)()
    assert default_generator.get_state() == before


def test_site_keeps_the_generator_it_drew_from():
    rng = Generator(5)
    with trace() as tr, seed(rng_seed=rng):
        draw_x()
    assert tr["x"].generator is rng and rng.counter > 0
