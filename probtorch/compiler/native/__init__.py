"""Machine code: sources, keys and plans on disk, the engine and the library it links to."""
