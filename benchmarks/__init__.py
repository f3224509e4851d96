"""Ours against peers: in one run, on one machine, on one core, with the method stated.

``python -m benchmarks eager|density|nuts|all`` prints tables with the ratio ours / peer, the
versions and the machine; ``--write`` puts them into docs/benchmarks.md. Each system has an
adapter in `peers/`; those that are not installed are named and left out.

Read `problems.py` (what is computed), `timing.py` (how it is timed), then the three suites.
"""
