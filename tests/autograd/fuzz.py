"""New random programs of views and in-place changes, for as long as it is let.

    python -m tests.autograd.fuzz [programs] [first seed]

Each is held against a complex step on NumPy's arrays and, where it is installed, against torch, on
the tape alone and with detached tensors, hooks, kept gradients and switched-off tapes in between. A
difference is printed with the seed that repeats it, and the exit status is 1.
"""

import sys
import time

from tests.autograd.test_views import agrees_with_complex_step, agrees_with_torch


def main(count=20_000, first=1_000_000):
    """Run `count` programs from seed `first` on; returns the number of differences."""
    try:
        import torch  # noqa: F401

        kinds = ["complex step", "torch", "torch, off the tape too"]
    except ImportError:
        kinds = ["complex step"]
    tally = {kind: {True: 0, False: 0, None: 0} for kind in kinds}
    began = time.perf_counter()
    for seed in range(first, first + count):
        for kind in kinds:
            if kind == "complex step":
                found = agrees_with_complex_step(seed)
            else:
                found = agrees_with_torch(seed, kind != "torch")
            tally[kind][found] += 1
            if found is False:
                print(f"seed {seed} differs from {kind}", flush=True)
    for kind, found in tally.items():
        print(f"{kind}: {found[True]} agree, {found[False]} differ, {found[None]} refused")
    print(f"{time.perf_counter() - began:.0f} s")
    return sum(found[False] for found in tally.values())


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
