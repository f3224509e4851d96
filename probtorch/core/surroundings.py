"""What model statements do and read, told to floors below them.

The compiler has to know whether a function performs statements and what they read; the floor that
performs them, effects/runtime.py, says so here.
"""

__all__ = ["Surroundings", "set_surroundings", "surroundings"]


class Surroundings:
    """What model statements do and read, as the compiler has to know; see effects/runtime.py."""

    def performed(self):
        """Return how many statements this thread has performed."""
        return 0

    def active(self):
        """Whether statements mean something else here than in a plain script."""
        return False

    def roots(self):
        """Return objects whose Python values statements read in a plain script."""
        return ()


_surroundings = Surroundings()


def surroundings():
    """Return what tells about model statements."""
    return _surroundings


def set_surroundings(found):
    """Set what tells about model statements; called once, by the module that performs them."""
    global _surroundings
    _surroundings = found
