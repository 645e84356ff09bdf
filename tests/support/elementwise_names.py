"""The names of all elementwise ops."""

from __future__ import annotations

NAMES = """abs sign negative square sqrt cbrt rsqrt reciprocal exp exp2 expm1 log log1p log2 log10
    sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma
    sigmoid ceil floor round trunc isnan isinf isfinite signbit logical_not bitwise_invert conj
    real imag add subtract multiply divide floor_divide remainder power maximum minimum atan2 hypot
    logaddexp copysign nextafter fma equal not_equal less less_equal greater greater_equal
    logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift
    bitwise_right_shift where astype bitcast"""
