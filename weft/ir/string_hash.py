"""Hashes of byte strings that are the same on all machines, bit for bit those of TensorFlow.

`murmur64` is Hash64 of tensorflow/core/lib/hash/hash.cc (MurmurHash64A, A. Appleby);
`fingerprint64` is Fingerprint64 of github.com/google/farmhash (farmhashna::Hash64, G. Pike).
"""

from __future__ import annotations

_M = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_SEED = 0xDECAFCAFFE
_MURMUR = 0xC6A4A7935BD1E995


def murmur64(s: bytes) -> int:
    """MurmurHash64A with TensorFlow's seed, as `string_to_hash_bucket` uses it."""
    h = (_SEED ^ len(s) * _MURMUR) & _M
    whole = len(s) & ~7
    for at in range(0, whole, 8):
        k = int.from_bytes(s[at : at + 8], "little") * _MURMUR & _M
        k = (k ^ k >> 47) * _MURMUR & _M
        h = (h ^ k) * _MURMUR & _M
    if whole < len(s):
        h = (h ^ int.from_bytes(s[whole:], "little")) * _MURMUR & _M
    h = (h ^ h >> 47) * _MURMUR & _M
    return h ^ h >> 47


def fingerprint64(s: bytes) -> int:
    """FarmHash's Fingerprint64, as `string_to_hash_bucket_fast` uses it."""
    n = len(s)
    if n <= 16:
        return _to_16(s)
    if n <= 32:
        return _to_32(s)
    return _to_64(s) if n <= 64 else _long(s)


def _word(s: bytes, at: int) -> int:
    return int.from_bytes(s[at : at + 8], "little")


def _rotated(x: int, by: int) -> int:
    x &= _M
    return (x >> by | x << 64 - by) & _M


def _folded(x: int) -> int:
    x &= _M
    return x ^ x >> 47


def _mixed(u: int, v: int, multiplier: int) -> int:
    a = _folded((u ^ v) * multiplier)
    b = _folded((v ^ a) * multiplier)
    return b * multiplier & _M


def _to_16(s: bytes) -> int:
    n = len(s)
    if n >= 8:
        multiplier = _K2 + n * 2
        a, b = (_word(s, 0) + _K2) & _M, _word(s, n - 8)
        c = (_rotated(b, 37) * multiplier + a) & _M
        d = (_rotated(a, 25) + b) * multiplier & _M
        return _mixed(c, d, multiplier)
    if n >= 4:
        a = int.from_bytes(s[:4], "little")
        return _mixed(n + (a << 3), int.from_bytes(s[-4:], "little"), _K2 + n * 2)
    if n:
        y, z = s[0] + (s[n >> 1] << 8), n + (s[-1] << 2)
        return _folded(y * _K2 ^ z * _K0) * _K2 & _M
    return _K2


def _to_32(s: bytes) -> int:
    n = len(s)
    multiplier = _K2 + n * 2
    a, b = _word(s, 0) * _K1 & _M, _word(s, 8)
    c, d = _word(s, n - 8) * multiplier & _M, _word(s, n - 16) * _K2 & _M
    return _mixed(
        (_rotated(a + b, 43) + _rotated(c, 30) + d) & _M,
        (a + _rotated(b + _K2, 18) + c) & _M,
        multiplier,
    )


def _to_64(s: bytes) -> int:
    n = len(s)
    multiplier = _K2 + n * 2
    a, b = _word(s, 0) * _K2 & _M, _word(s, 8)
    c, d = _word(s, n - 8) * multiplier & _M, _word(s, n - 16) * _K2 & _M
    y = (_rotated(a + b, 43) + _rotated(c, 30) + d) & _M
    z = _mixed(y, (a + _rotated(b + _K2, 18) + c) & _M, multiplier)
    e, f = _word(s, 16) * multiplier & _M, _word(s, 24)
    g, h = (y + _word(s, n - 32)) * multiplier & _M, (z + _word(s, n - 24)) * multiplier & _M
    return _mixed(
        (_rotated(e + f, 43) + _rotated(g, 30) + h) & _M,
        (e + _rotated(f + a, 18) + g) & _M,
        multiplier,
    )


def _weak(s: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    """WeakHashLen32WithSeeds of 32 bytes."""
    w, x, y, z = (_word(s, at + 8 * i) for i in range(4))
    a = (a + w) & _M
    b = _rotated(b + a + z, 21)
    c = a
    a = (a + x + y) & _M
    return (a + z) & _M, (b + _rotated(a, 44) + c) & _M


def _long(s: bytes) -> int:
    n, seed = len(s), 81
    x, y = seed, (seed * _K1 + 113) & _M
    z = _folded(y * _K2 + 113) * _K2 & _M
    v, w = (0, 0), (0, 0)
    x = (x * _K2 + _word(s, 0)) & _M
    last = (n - 1) // 64 * 64
    end = n - 64
    for at in range(0, last, 64):
        x = _rotated(x + y + v[0] + _word(s, at + 8), 37) * _K1 & _M
        y = _rotated(y + v[1] + _word(s, at + 48), 42) * _K1 & _M
        x ^= w[1]
        y = (y + v[0] + _word(s, at + 40)) & _M
        z = _rotated(z + w[0], 33) * _K1 & _M
        v = _weak(s, at, v[1] * _K1 & _M, (x + w[0]) & _M)
        w = _weak(s, at + 32, (z + w[1]) & _M, (y + _word(s, at + 16)) & _M)
        z, x = x, z
    multiplier = (_K1 + ((z & 0xFF) << 1)) & _M
    w = ((w[0] + (n - 1 & 63)) & _M, w[1])
    v = ((v[0] + w[0]) & _M, v[1])
    w = ((w[0] + v[0]) & _M, w[1])
    x = _rotated(x + y + v[0] + _word(s, end + 8), 37) * multiplier & _M
    y = _rotated(y + v[1] + _word(s, end + 48), 42) * multiplier & _M
    x ^= w[1] * 9 & _M
    y = (y + v[0] * 9 + _word(s, end + 40)) & _M
    z = _rotated(z + w[0], 33) * multiplier & _M
    v = _weak(s, end, v[1] * multiplier & _M, (x + w[0]) & _M)
    w = _weak(s, end + 32, (z + w[1]) & _M, (y + _word(s, end + 16)) & _M)
    z, x = x, z
    return _mixed(
        (_mixed(v[0], w[0], multiplier) + _folded(y) * _K0 + z) & _M,
        (_mixed(v[1], w[1], multiplier) + x) & _M,
        multiplier,
    )
