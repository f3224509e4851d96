"""Compare probtorch with PyTorch on many random calls: `python -m tests.contracts.torch_sweep`."""

import argparse
import collections

from tests.contracts.further_calls import RECIPES
from tests.contracts.listed_differences import rows
from tests.contracts.torch_agreement import unlisted


def main():
    """Print the differences that the page does not list, the shortest call of each kind first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100, help="of each function")
    parser.add_argument("--start", type=int, default=0, help="number of the first call")
    parser.add_argument("names", nargs="*", help="functions; all if none is given")
    options = parser.parse_args()
    listed, made, total = rows(), 0, 0
    for name in options.names or sorted(RECIPES):
        found = collections.defaultdict(list)
        for seed in range(options.start, options.start + options.calls):
            made += 1
            for d in unlisted(name, seed, listed):
                found[d.aspect].append(d)
        for aspect, all_of_them in found.items():
            total += len(all_of_them)
            shortest = min(all_of_them, key=lambda d: len(str(d.call)))
            print(
                f"{name}: {aspect}, {len(all_of_them)} times\n  {str(shortest)[:1500]}", flush=True
            )
    print(f"{made} calls, {total} differences that the page does not list")
    raise SystemExit(bool(total))


if __name__ == "__main__":
    main()
