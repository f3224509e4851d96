"""Machine code: sources, keys and plans on disk, the processors, and the libraries it links to."""
