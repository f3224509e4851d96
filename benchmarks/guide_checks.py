"""How often a bad guide is found out, by the tail of its importance ratios and by their weights.

Normal guides in the right place, `scale` times as wide as a standard normal target in n dimensions.
Printed: the share of runs in which k is above its limit, and in which the weights widen a number by
more than `LARGEST_SD_RATIO` (probtorch/infer/vi/guide_quality.py).

Run as ``python -m benchmarks.guide_checks``; it takes half a minute.
"""

import numpy as np

from probtorch.diagnostics.psis import pareto_k_limit
from probtorch.infer.vi.guide_quality import LARGEST_SD_RATIO, quality_of

SCALES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.2, 2.0)
DIMS = (1, 2, 5, 20)
RUNS = 200


def shares(scale: float, dim: int, draws: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return the shares of runs found by k, and by the widths."""
    by_tail = by_width = 0
    for _ in range(RUNS):
        noise = rng.standard_normal((draws, dim))
        x = scale * noise
        log_ratio = 0.5 * (noise**2 - x**2).sum(axis=1)
        found = quality_of(log_ratio, {"x": x})
        by_tail += found.pareto_k > pareto_k_limit(draws)
        by_width += found.sd_ratio > LARGEST_SD_RATIO
    return by_tail / RUNS, by_width / RUNS


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    print("| scale | dims | k, 1000 draws | k, 10 000 draws | widths, 1000 draws |")
    print("|-------|------|---------------|-----------------|--------------------|")
    for scale in SCALES:
        for dim in DIMS:
            tail, width = shares(scale, dim, 1000, rng)
            many, _ = shares(scale, dim, 10_000, rng)
            print(f"| {scale} | {dim} | {tail:.0%} | {many:.0%} | {width:.0%} |")


if __name__ == "__main__":
    main()
