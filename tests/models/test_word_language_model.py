"""The language models learn which words follow which, and counts are counted right."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest

import probtorch

SCRIPT = Path(__file__).resolve().parents[2] / "models" / "word_language_model" / "model.py"


def test_perplexity_of_counts_is_that_of_hand_made_chances():
    script = runpy.run_path(str(SCRIPT))
    text, test = probtorch.tensor([0, 1, 0, 1, 0, 2]), probtorch.tensor([0, 1, 0, 2])
    single, pairs = script["perplexity_of_counts"](text, test, 3)
    # One is added to 3, 2 and 1; then, of 3 pairs from 0 two kinds, of 2 from 1 one kind.
    p = np.array([3.0, 4.0, 2.0]) / 9.0
    assert single == pytest.approx(math.exp(-np.log(p).mean()), rel=1e-6)
    p = np.array([(2 + 2 * 3 / 9) / 5, (2 + 4 / 9) / 3, (1 + 2 * 2 / 9) / 5])
    assert pairs == pytest.approx(math.exp(-np.log(p).mean()), rel=1e-6)


@pytest.mark.parametrize("kind", ["LSTM", "Transformer"])
def test_a_model_learns_a_text_that_repeats_and_sees_nothing_of_what_comes(kind):
    script = runpy.run_path(str(SCRIPT))
    with probtorch.random.fork_rng():
        probtorch.manual_seed(0)
        net = script[kind](5)
        optimizer = probtorch.optim.Adam(net.parameters(), lr=1e-2)
        text = (probtorch.arange(13) % 5)[:, None]
        for _ in range(30):
            optimizer.zero_grad()
            logits, _ = net(text[:-1])
            loss = probtorch.nn.functional.cross_entropy(logits[:, 0], text[1:, 0])
            loss.backward()
            optimizer.step()
    assert script["perplexity"](net, probtorch.arange(37) % 5, 12) < 2.0
    with probtorch.no_grad():
        whole, part = net(text)[0], net(text[:7])[0]
    np.testing.assert_allclose(whole[:7].numpy(), part.numpy(), atol=1e-5)


@pytest.mark.slow
def test_full_training_of_the_transformer_beats_pairs(run_model, number):
    report = run_model("word_language_model")
    # The README states 42 and 52; the text differs between versions of Python.
    pairs = number("counts of pairs: perplexity ", report)
    assert number("Transformer: perplexity ", report) < pairs
