"""The public name of the handlers offers all of them."""

import probtorch.handlers as public
from probtorch.effects import handlers


def test_handlers_can_be_imported_by_their_public_name():
    assert set(handlers.__all__) <= set(public.__all__)
    for name in handlers.__all__:
        assert getattr(public, name) is getattr(handlers, name)


def test_public_name_is_an_attribute_of_the_package_too():
    import probtorch

    assert probtorch.handlers.trace is handlers.trace
