"""Machine code that is called: compiled from text, or taken from the disk cache."""
