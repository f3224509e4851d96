"""`TraceEnum_ELBO` on random programs: bounds and gradients against sums in Python loops."""

from functools import partial

import numpy as np
import pytest

from probtorch.errors import InferenceError
from probtorch.infer import TraceEnum_ELBO, infer_discrete
from tests.infer.svi.enumerated_programs import (
    brute_force,
    cells,
    guide,
    model,
    posterior,
    random_program,
    ties_rows_of_guide,
)

BLOCKS = 12
PER_BLOCK = 30
# Relative to terms of the size of 100, these are a few units in the last place.
ATOL = 1e-10


def attempt(method, *args):
    """The result of a method, or the message with which it refuses."""
    try:
        return method(*args), None
    except InferenceError as error:
        return None, str(error)


def gradient_gap(leaves, expected):
    """Largest difference between the gradients of a loss and those of the bound."""
    gaps = [0.0]
    for name, leaf in leaves.items():
        found = 0.0 if leaf.grad is None else leaf.grad.numpy()
        gaps.append(np.abs(found + expected[name]).max())
    return max(gaps)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_bound_and_gradient_are_those_of_brute_force(block):
    done = 0
    for seed in range(1000 * block, 1000 * block + PER_BLOCK):
        program = random_program(seed)
        of_model, of_guide = program.leaves()
        runs = partial(model, program, of_model), partial(guide, program, of_guide)
        loss, refusal = attempt(TraceEnum_ELBO().loss_and_grads, *runs)
        if refusal is not None:
            # Only sums that have no short form are refused.
            assert "intractable" in refusal
            assert program.explicit or ties_rows_of_guide(program), seed
            continue
        assert not ties_rows_of_guide(program), seed
        bound, slopes, guide_slopes = brute_force(program)
        assert loss == pytest.approx(-bound, abs=ATOL), seed
        assert gradient_gap(of_model, slopes) < ATOL, seed
        assert gradient_gap(of_guide, guide_slopes) < ATOL, seed
        done += 1
    # 12 blocks of at least 26 programs are more than 300.
    assert done >= 26


@pytest.mark.parametrize("seed", range(40))
def test_marginals_and_modes_are_those_of_brute_force(seed):
    program = random_program(seed, guided=False)
    tables, _ = program.leaves()
    run = partial(model, program, tables)
    marginals, refusal = attempt(TraceEnum_ELBO().compute_marginals, run, lambda: None)
    if refusal is not None:
        assert "intractable" in refusal
        assert program.explicit
        return
    shares, mode, gap = posterior(program)
    best = infer_discrete(run, temperature=0)()
    for node in program.nodes:
        if node.role == "data":
            continue
        probs, value = marginals[node.name].probs, best[node.name]
        for cell in cells(program, node):
            at = program.index(node, cell, value.ndim)
            np.testing.assert_allclose(
                probs[at].detach().numpy(), shares[node.name, cell], atol=ATOL
            )
            if gap > 1e-9:
                assert value[at].item() == mode[node.name, cell], node.name
