"""Hashes of strings in `native_language`: MurmurHash64A and FarmHash's Fingerprint64, as the
references in `ir/ops/strings.py` say, and SipHash-2-4, as that of `ir/ops/text_processing.py` does.

Strings are addresses of CPython's bytes objects, which have their length at `BYTES_SIZE` and their
bytes from `BYTES_DATA` on."""

from __future__ import annotations

from weft.codegen.dynamic.elements import least
from weft.codegen.native_language import load, load8, rem, stack, store, word, word32

_WRAP = 1 << 64
_K0, _K1, _K2 = 0xC3A5C85C97CB3127 - _WRAP, 0xB492B66FBE98F273 - _WRAP, 0x9AE16A3B2F90404F - _WRAP
_SEED, _MURMUR = 0xDECAFCAFFE, 0xC6A4A7935BD1E995 - _WRAP
BYTES_TYPE, BYTES_SIZE, BYTES_DATA = 8, 16, 32
MURMUR, FARM, SIP = 0, 1, 2
#: Which of them.
HASH = 1


def check_bytes(args: int, lo: int, hi: int) -> int:
    """strings, size, chunk, wrong, type: whether one in the chunk is no object of the type."""
    strings = load(args)
    chunk = load(args + 16)
    c = lo
    while c < hi:
        i = c * chunk
        end = least(i + chunk, load(args + 8))
        bad = 0
        while i < end:
            text = load(strings + 8 * i)
            if text == 0:
                bad = 1
            else:
                bad = bad | (load(text + BYTES_TYPE) != load(args + 32))
            i += 1
        store(load(args + 24) + 8 * c, bad)
        c += 1
    return 0


def hash_strings(args: int, lo: int, hi: int) -> int:
    """strings, size, chunk, out, buckets, two keys: the hash of each modulo `buckets`."""
    strings = load(args)
    i = lo * load(args + 16)
    end = least(hi * load(args + 16), load(args + 8))
    out = load(args + 24)
    buckets = load(args + 32)
    while i < end:
        text = load(strings + 8 * i) + BYTES_DATA
        n = load(text + BYTES_SIZE - BYTES_DATA)
        if HASH == MURMUR:
            store(out + 8 * i, rem(murmur64(text, n), buckets))
        elif HASH == FARM:
            store(out + 8 * i, rem(fingerprint(text, n), buckets))
        else:
            found = sip(text, n, load(args + 40), load(args + 48))
            store(out + 8 * i, rem(found, buckets))
        i += 1
    return 0


def murmur64(s: int, n: int) -> int:
    h = _SEED ^ (n * _MURMUR)
    end = s + (n & -8)
    left = n & 7
    while s < end:
        k = word(s) * _MURMUR
        h = (h ^ ((k ^ (k >> 47)) * _MURMUR)) * _MURMUR
        s += 8
    if left != 0:
        rest = 0
        while left > 0:
            left = left - 1
            rest = (rest << 8) | load8(s + left)
        h = (h ^ rest) * _MURMUR
    h = (h ^ (h >> 47)) * _MURMUR
    return h ^ (h >> 47)


def rotated(x: int, by: int) -> int:
    return (x >> by) | (x << (64 - by))


def folded(x: int) -> int:
    return x ^ (x >> 47)


def mixed(u: int, v: int, multiplier: int) -> int:
    a = folded((u ^ v) * multiplier)
    return folded((v ^ a) * multiplier) * multiplier


def fingerprint(s: int, n: int) -> int:
    if n <= 16:
        return to_16(s, n)
    if n <= 32:
        return to_32(s, n)
    if n <= 64:
        return to_64(s, n)
    return long_one(s, n)


def to_16(s: int, n: int) -> int:
    multiplier = _K2 + n * 2
    if n >= 8:
        a = word(s) + _K2
        b = word(s + n - 8)
        c = rotated(b, 37) * multiplier + a
        d = (rotated(a, 25) + b) * multiplier
        return mixed(c, d, multiplier)
    if n >= 4:
        return mixed(n + (word32(s) << 3), word32(s + n - 4), multiplier)
    if n > 0:
        y = load8(s) + (load8(s + (n >> 1)) << 8)
        z = n + (load8(s + n - 1) << 2)
        return folded((y * _K2) ^ (z * _K0)) * _K2
    return _K2


def to_32(s: int, n: int) -> int:
    multiplier = _K2 + n * 2
    a = word(s) * _K1
    b = word(s + 8)
    c = word(s + n - 8) * multiplier
    d = word(s + n - 16) * _K2
    u = rotated(a + b, 43) + rotated(c, 30) + d
    return mixed(u, a + rotated(b + _K2, 18) + c, multiplier)


def to_64(s: int, n: int) -> int:
    multiplier = _K2 + n * 2
    a = word(s) * _K2
    b = word(s + 8)
    c = word(s + n - 8) * multiplier
    d = word(s + n - 16) * _K2
    y = rotated(a + b, 43) + rotated(c, 30) + d
    z = mixed(y, a + rotated(b + _K2, 18) + c, multiplier)
    e = word(s + 16) * multiplier
    f = word(s + 24)
    g = (y + word(s + n - 32)) * multiplier
    h = (z + word(s + n - 24)) * multiplier
    u = rotated(e + f, 43) + rotated(g, 30) + h
    return mixed(u, e + rotated(f + a, 18) + g, multiplier)


def weak(s: int, a: int, b: int, pair: int) -> int:
    """WeakHashLen32WithSeeds of 32 bytes, two words at `pair`."""
    w = word(s)
    z = word(s + 24)
    a = a + w
    b = rotated(b + a + z, 21)
    c = a
    a = a + word(s + 8) + word(s + 16)
    b = b + rotated(a, 44)
    store(pair, a + z)
    store(pair + 8, b + c)
    return 0


def long_one(s: int, n: int) -> int:
    v = stack(2)
    w = stack(2)
    x = 81
    y = 81 * _K1 + 113
    z = folded(y * _K2 + 113) * _K2
    store(v, 0)
    store(v + 8, 0)
    store(w, 0)
    store(w + 8, 0)
    x = x * _K2 + word(s)
    last = s + ((n - 1) & -64)
    end = s + n - 64
    while s < last:
        x = rotated(x + y + load(v) + word(s + 8), 37) * _K1
        y = rotated(y + load(v + 8) + word(s + 48), 42) * _K1
        x = x ^ load(w + 8)
        y = y + load(v) + word(s + 40)
        z = rotated(z + load(w), 33) * _K1
        weak(s, load(v + 8) * _K1, x + load(w), v)
        weak(s + 32, z + load(w + 8), y + word(s + 16), w)
        before = z
        z = x
        x = before
        s += 64
    multiplier = _K1 + ((z & 0xFF) << 1)
    store(w, load(w) + ((n - 1) & 63))
    store(v, load(v) + load(w))
    store(w, load(w) + load(v))
    x = rotated(x + y + load(v) + word(end + 8), 37) * multiplier
    y = rotated(y + load(v + 8) + word(end + 48), 42) * multiplier
    x = x ^ (load(w + 8) * 9)
    y = y + load(v) * 9 + word(end + 40)
    z = rotated(z + load(w), 33) * multiplier
    weak(end, load(v + 8) * multiplier, x + load(w), v)
    weak(end + 32, z + load(w + 8), y + word(end + 16), w)
    u = mixed(load(v), load(w), multiplier) + folded(y) * _K0 + x
    return mixed(u, mixed(load(v + 8), load(w + 8), multiplier) + z, multiplier)


def sip(s: int, n: int, k0: int, k1: int) -> int:
    v = stack(4)
    store(v, k0 ^ 0x736F6D6570736575)
    store(v + 8, k1 ^ 0x646F72616E646F6D)
    store(v + 16, k0 ^ 0x6C7967656E657261)
    store(v + 24, k1 ^ 0x7465646279746573)
    end = s + (n & -8)
    left = n & 7
    while s < end:
        sip_word(v, word(s))
        s += 8
    rest = n << 56
    while left > 0:
        left = left - 1
        rest = rest | (load8(s + left) << (8 * left))
    sip_word(v, rest)
    store(v + 16, load(v + 16) ^ 0xFF)
    sip_round(v)
    sip_round(v)
    sip_round(v)
    sip_round(v)
    return load(v) ^ load(v + 8) ^ load(v + 16) ^ load(v + 24)


def sip_word(v: int, given: int) -> int:
    store(v + 24, load(v + 24) ^ given)
    sip_round(v)
    sip_round(v)
    store(v, load(v) ^ given)
    return 0


def sip_round(v: int) -> int:
    a = load(v) + load(v + 8)
    c = load(v + 16) + load(v + 24)
    b = rotated(load(v + 8), 51) ^ a
    d = rotated(load(v + 24), 48) ^ c
    a = rotated(a, 32)
    c = c + b
    a = a + d
    store(v, a)
    store(v + 8, rotated(b, 47) ^ c)
    store(v + 16, rotated(c, 32))
    store(v + 24, rotated(d, 43) ^ a)
    return 0
