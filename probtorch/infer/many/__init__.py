"""Many posteriors of one model, each of data of its own."""
