"""Executables: what a graph becomes on each device, and memory to run it in."""
