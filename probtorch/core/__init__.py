"""The grammar every floor above shares: dtypes, shapes, trees, random numbers, ops and the one door they pass."""
