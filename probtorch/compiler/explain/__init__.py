"""Reports: what was compiled, why not, what it moves and how long it takes."""
