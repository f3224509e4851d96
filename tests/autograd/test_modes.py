"""Gradient modes: context managers, decorators, and what they leave behind."""

import pytest

import probtorch


def leaf():
    return probtorch.tensor([1.0], requires_grad=True)


def test_no_grad_keeps_operations_off_the_tape():
    x = leaf()
    with probtorch.no_grad():
        assert not (x * 2).requires_grad
        assert not probtorch.is_grad_enabled()
    assert (x * 2).requires_grad


def test_modes_nest():
    with probtorch.no_grad():
        with probtorch.enable_grad():
            assert probtorch.is_grad_enabled()
        assert not probtorch.is_grad_enabled()
    assert probtorch.is_grad_enabled()


def test_mode_comes_back_after_an_error():
    with pytest.raises(KeyError), probtorch.no_grad():
        raise KeyError("on purpose")
    assert probtorch.is_grad_enabled()


@pytest.mark.parametrize("spelling", [probtorch.no_grad, probtorch.no_grad()], ids=["bare", "call"])
def test_no_grad_decorates_functions(spelling):
    @spelling
    def double(x):
        """Docstring."""
        return x * 2

    assert not double(leaf()).requires_grad
    assert double.__doc__ == "Docstring."


def test_inference_mode_takes_a_flag():
    x = leaf()
    for spelling in (probtorch.inference_mode(), probtorch.inference_mode(True)):
        with spelling:
            assert not (x * 2).requires_grad
    with probtorch.inference_mode(False):
        assert (x * 2).requires_grad
    assert not probtorch.inference_mode(lambda: x * 2)().requires_grad


def test_set_grad_enabled_works_at_once_and_as_a_block():
    with probtorch.set_grad_enabled(False):
        assert not probtorch.is_grad_enabled()
    assert probtorch.is_grad_enabled()
    probtorch.set_grad_enabled(False)
    try:
        assert not probtorch.is_grad_enabled()
    finally:
        probtorch.set_grad_enabled(True)


def test_one_context_manager_may_be_entered_again_and_again():
    mode = probtorch.no_grad()
    with mode, mode:
        assert not probtorch.is_grad_enabled()
    assert probtorch.is_grad_enabled()
    with mode:
        assert not probtorch.is_grad_enabled()
