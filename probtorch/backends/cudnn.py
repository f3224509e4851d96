"""The settings that PyTorch scripts make for cuDNN, which is not used here.

Convolutions are matrix products and kernels of our own: there is nothing to try out, and the same
bits come of every run. So the flags are kept, and change nothing.
"""

__all__ = ["allow_tf32", "benchmark", "deterministic", "enabled", "is_available", "version"]

allow_tf32 = False
benchmark = False
deterministic = True
enabled = False


def is_available() -> bool:
    """Whether cuDNN is used: never."""
    return False


def version() -> int | None:
    """Return the version of cuDNN in use: None."""
    return None
