"""What the vector runtime knows of float64 and float32: constants, and coefficients of its fits.

The polynomials are minimax fits by Remez exchange in 200-bit arithmetic, coefficients then rounded
to the format; the fitted function and interval stand beside each table. `mathlib` has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["F32", "F64", "FORMATS", "Format"]


@dataclass(frozen=True)
class Format:
    """What a formula must know about a floating-point format."""

    suffix: str
    float_type: str
    bits: int
    mantissa: int
    bias: int
    # 1.5 * 2**mantissa: adding it rounds to an integer, which then stands in the low bits.
    magic: float
    # ln 2 in two parts; the first has so many trailing zeros that its product with any exponent is
    # exact.
    ln2_high: float
    ln2_low: float
    # Beyond these, exp is inf and 0, and expm1 is -1. exp is 0 from -746 (-104) on; at its limit
    # both factors of `_scale` are 0, where a product that underflows takes a processor 150 cycles.
    overflow: float
    underflow: float
    expm1_saturation: float
    tanh_saturation: float
    # Below this magnitude f(x) rounds to x for log1p, expm1 and tanh.
    negligible: float
    smallest_normal: float
    # (exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2, relative to exp(r).
    exp_tail: tuple[float, ...]
    # (exp(r) - 1 - r - r**2 / 2) / r**3 there, relative to r.
    expm1_tail: tuple[float, ...]
    # (2 atanh(s) - 2 s) / s**3 as a polynomial in s**2, |s| <= (sqrt(2) - 1) / (sqrt(2) + 1).
    log_tail: tuple[float, ...]
    # The same for |s| <= 1/5.
    log1p_unit_tail: tuple[float, ...]
    # (tanh(x) - x) / x**3 as a polynomial in x**2, |x| <= 0.55.
    tanh_tail: tuple[float, ...]


F64 = Format(
    suffix="f64",
    float_type="double",
    bits=64,
    mantissa=52,
    bias=1023,
    magic=1.5 * 2.0**52,
    ln2_high=float.fromhex("0x1.62e42fefa3800p-1"),
    ln2_low=float.fromhex("0x1.ef35793c76730p-45"),
    overflow=710.0,
    underflow=-1418.2,
    expm1_saturation=-40.0,
    tanh_saturation=20.0,
    negligible=2.0**-54,
    smallest_normal=2.0**-1022,
    exp_tail=(
        0.5000000000000011,
        0.16666666666666413,
        0.04166666666653063,
        0.008333333333494054,
        0.0013888888943521382,
        0.0001984126950716221,
        2.4801493200274483e-05,
        2.755758604503228e-06,
        2.763021530255157e-07,
        2.5000120324260045e-08,
    ),
    expm1_tail=(
        0.16666666666666677,
        0.04166666666666669,
        0.008333333333321745,
        0.0013888888888870282,
        0.00019841269885873517,
        2.4801587355842642e-05,
        2.755724443850642e-06,
        2.755724579938349e-07,
        2.5108963264700163e-08,
        2.0923694651213117e-09,
    ),
    log_tail=(
        0.6666666666666731,
        0.3999999999943622,
        0.2857142873833535,
        0.2222219893829019,
        0.18183547268484523,
        0.15314449255593873,
        0.1479226224627905,
    ),
    log1p_unit_tail=(
        0.666666666666666,
        0.400000000000559,
        0.2857142855601502,
        0.2222222427548372,
        0.18181667124721493,
        0.15391071406775825,
        0.13174276987909503,
        0.1383847514890804,
    ),
    tanh_tail=(
        -0.333333333333333,
        0.1333333333332689,
        -0.05396825396390498,
        0.021869488389721248,
        -0.008863232661349463,
        0.0035920926072859558,
        -0.0014555464067148324,
        0.0005884585939892934,
        -0.00023341625194369764,
        8.336462658389253e-05,
        -1.9523579548353118e-05,
    ),
)

F32 = Format(
    suffix="f32",
    float_type="float",
    bits=32,
    mantissa=23,
    bias=127,
    magic=1.5 * 2.0**23,
    ln2_high=float.fromhex("0x1.62e4p-1"),
    ln2_low=float.fromhex("0x1.7f7d1cp-20"),
    overflow=89.0,
    underflow=-176.1,
    expm1_saturation=-18.0,
    tanh_saturation=10.0,
    negligible=2.0**-25,
    smallest_normal=2.0**-126,
    exp_tail=(
        0.4999999347263959,
        0.16666520706077845,
        0.041668383141142865,
        0.00836870996214131,
        0.001381483263589319,
    ),
    expm1_tail=(
        0.1666666677219849,
        0.04166648207470848,
        0.008333282185986291,
        0.0013933307728459363,
        0.0001990967486507705,
    ),
    log_tail=(
        0.6666666566441577,
        0.40000331919869014,
        0.2853747880557772,
        0.23579393027881104,
    ),
    log1p_unit_tail=(
        0.6666666269302368,
        0.4000086188316345,
        0.28507134318351746,
        0.24098454415798187,
    ),
    tanh_tail=(
        -0.33333318085116515,
        0.1333260265740265,
        -0.05385393711389641,
        0.021078019735149042,
        -0.006282774307636661,
    ),
)

FORMATS = (F64, F32)
