"""Recordings that changed Python values which the function reads: when to leave it alone.

The first call of a version may change what it reads: it fills a cache, or the state of an
optimizer. A function that goes on doing so would be recorded for nothing at each call.
"""

__all__ = ["Changes"]

# Recordings of one version in a row, and of all versions in all, after which it is left alone.
IN_A_ROW, IN_ALL = 2, 24


class Changes:
    """Counts recordings that changed what the function reads, by version."""

    def __init__(self):
        self._in_a_row, self._in_all = {}, 0

    def reason(self, key, changed):
        """Note what a recording changed, None where it did not; returns why the function is to be
        left alone, None where it is not.
        """
        if changed is None:
            self._in_a_row.pop(key, None)
            return None
        self._in_all += 1
        count = self._in_a_row[key] = self._in_a_row.get(key, 0) + 1
        if count > IN_A_ROW:
            return f"every call changes {changed}, a Python value outside it"
        if self._in_all > IN_ALL:
            return f"calls again and again change {changed}, a Python value outside it"
        return None
