"""Pyro's names for settings and the logger."""

import subprocess
import sys

import pytest

import probtorch
from probtorch import settings
from probtorch.errors import ArgumentError


def test_settings_are_read_set_and_put_back():
    assert settings.get("jit") is settings.jit and settings.get() == vars(settings)
    before = settings.get()
    with settings.context(verify=False, jit=False):
        assert (settings.verify, settings.jit) == (False, False)
        with settings.context(jit=True):
            assert settings.get("jit") is True
        settings.set(progress=False)
    assert settings.get() == {**before, "progress": False}
    settings.set(**before)
    assert settings.get() == before


def test_a_context_of_settings_decorates_and_changes_nothing_before():
    context = settings.context(verify=False)
    assert settings.verify is True

    @context
    def inside():
        return settings.verify

    assert inside() is False and settings.verify is True
    with pytest.raises(ZeroDivisionError), context:
        raise ZeroDivisionError
    assert settings.verify is True


def test_a_setting_that_does_not_exist_is_refused():
    for wrong in (
        lambda: settings.get("nonsense"),
        lambda: settings.set(nonsense=1),
        lambda: settings.context(nonsense=1),
    ):
        with pytest.raises(ArgumentError, match=r"expected: one of jit, .*\n.*nonsense"):
            wrong()


def test_they_stay_where_they_are_when_imported_as_a_module():
    code = (
        "import probtorch, probtorch.settings\n"
        "from probtorch.settings import settings, configure\n"
        "assert probtorch.settings is settings and settings.jit is True\n"
        "from probtorch.logger import log\n"
        "log.info('told %s', 3); log.debug('not told')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == "INFO \t told 3\n"
    assert probtorch.settings is settings
