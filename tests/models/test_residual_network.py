"""The residual network learns, and a block is its convolutions plus what it was given."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import probtorch
from probtorch import nn

pytest.importorskip("sklearn")

SCRIPT = Path(__file__).resolve().parents[2] / "models" / "residual_network" / "model.py"


def test_script_runs_and_learns(run_model, number):
    small = ["--epochs", 1, "--blocks", 1, "--batch", 128, "--lr", 0.2]
    report = run_model("residual_network", "--no-compile", *small)
    # Chance is 10 %, log 10 nats.
    assert number("with shortcuts, loss at the end: ", report) < 2.0
    assert number("with shortcuts: ", report) > 10.0


def test_a_block_adds_what_it_was_given():
    block = runpy.run_path(str(SCRIPT))["BasicBlock"](2, 2, 1, True).eval()
    x = probtorch.randn(3, 2, 4, 4)
    with probtorch.no_grad():
        block.conv2.weight.zero_()
        # Nothing comes of the convolutions: what is left is the shortcut.
        np.testing.assert_allclose(block(x).numpy(), x.numpy().clip(0.0), atol=1e-6)


def test_eighteen_layers_for_photographs_have_the_known_number_of_parameters():
    block = runpy.run_path(str(SCRIPT))["BasicBlock"]
    layers = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers += [nn.MaxPool2d(3, 2, padding=1)]
    inputs = 64
    for stage, width in enumerate((64, 128, 256, 512)):
        for stride in (2 if stage else 1, 1):
            layers.append(block(inputs, width, stride, True))
            inputs = width
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    assert sum(p.numel() for p in net.parameters()) == 11_689_512  # He et al. 2016, table 1
    assert net.eval()(probtorch.randn(1, 3, 64, 64)).shape == (1, 1000)


@pytest.mark.slow
def test_shortcuts_help_a_deep_network(run_model, number):
    report = run_model("residual_network")
    # The README states 0.011 and 0.114 nats.
    plain = number("without, loss at the end: ", report)
    assert number("with shortcuts, loss at the end: ", report) < 0.5 * plain
