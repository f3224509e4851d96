"""What speaks against a model or its posterior: refits, sensitivity, one report of all."""
