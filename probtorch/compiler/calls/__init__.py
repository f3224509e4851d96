"""Calls of a compiled function: versions of its arguments, paths, stand-ins, gradients."""
