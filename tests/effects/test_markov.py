"""`markov`: which steps are in sight, and that nothing is left behind."""

import threading

import pytest

from probtorch.distributions import Bernoulli
from probtorch.effects import markov, sample
from probtorch.effects.handlers import seed
from probtorch.effects.markov import Link
from probtorch.effects.runtime import STATE
from probtorch.errors import ArgumentError


def links():
    return STATE.chains.links


def test_steps_see_those_before_them_up_to_history():
    seen = []
    for _ in markov(range(5), history=2):
        (link,) = links()
        seen.append(link)
    assert [link.position for link in seen] == [0, 1, 2, 3, 4]
    steps = [link.steps[-1] for link in seen]
    assert seen[4].in_sight == tuple(steps[2:])
    assert seen[4].in_use == tuple(steps[1:])
    assert seen[1].in_sight == tuple(steps[:2])


def test_a_loop_gives_its_values_and_leaves_no_chain():
    assert list(markov("abc")) == ["a", "b", "c"]
    assert links() == ()


def test_leaving_a_loop_early_leaves_no_chain():
    for _ in markov(range(5)):
        break
    assert links() == ()

    def failing():
        for _ in markov(range(5)):
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        failing()
    assert links() == ()


def test_nested_loops_are_links_from_the_outside():
    outer, inner = markov(range(2)), markov(range(2))
    for _ in outer:
        for _ in inner:
            assert [link.owner for link in links()] == [outer, inner]
        assert [link.owner for link in links()] == [outer]


def test_kept_steps_are_those_of_the_row_before():
    inner = markov(range(3), keep=True)
    rows = []
    for _ in markov(range(2)):
        rows.append([links()[1].steps[-1] for _ in inner])
    assert rows[0] == rows[1]
    fresh = markov(range(3))
    rows = [[links()[0].steps[-1] for _ in fresh] for _ in range(2)]
    assert not set(rows[0]) & set(rows[1])


def test_entering_again_is_the_next_step():
    chain = markov(history=1)
    with chain:
        first = links()[0]
        with chain:
            second = links()[0]
        assert links() == (first,)
    assert links() == ()
    assert isinstance(second, Link) and second.steps[:1] == first.steps and second.position == 1


def test_a_recursive_function_steps_at_each_call():
    positions = []

    @markov
    def run(n):
        """Count down."""
        positions.append(links()[0].position)
        if n:
            run(n - 1)

    run(3)
    assert positions == [0, 1, 2, 3] and links() == ()
    assert run.__name__ == "run" and run.__doc__ == "Count down."


def test_a_decorated_method_is_a_method():
    class Chain:
        def __init__(self):
            self.seen = 0

        @markov(history=2)
        def run(self, n):
            self.seen += 1
            if n:
                self.run(n - 1)
            return self.seen

    assert Chain().run(2) == 3


def test_chains_belong_to_a_thread():
    found = []
    for _ in markov(range(1)):
        worker = threading.Thread(target=lambda: found.append(links()))
        worker.start()
        worker.join()
    assert found == [()]


def test_draws_do_not_notice():
    def model(loop):
        return [sample(f"x_{t}", Bernoulli(0.5)).item() for t in loop(range(20))]

    assert seed(model, 0)(list) == seed(model, 0)(markov)


def test_a_loop_needs_something_to_loop_over():
    with pytest.raises(ArgumentError, match="iterable"):
        list(markov())
