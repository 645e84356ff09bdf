"""Products whose sums over k are long and whose results are small.

They have too few blocks of C for threads to share, and all of both operands passes through each: so
k is cut into pieces, each of which gives a partial product of its own; they are added up in order.
"""

from __future__ import annotations

#: Results of up to so many tiles of `TILE` elements are small.
FEW_TILES, TILE = 32, (8, 48)
#: A piece of k has at least so many products, and there are at most so many pieces.
LEAST_DEPTH, MOST_PIECES = 2048, 64


def k_pieces(m: int, n: int, k: int, count: int = 1) -> int:
    """Into how many pieces the sums over k of `count` products of m x k by k x n are cut."""
    tiles = -(-m // TILE[0]) * -(-n // TILE[1])
    if count != 1 or not 0 < tiles <= FEW_TILES or k < 2 * LEAST_DEPTH:
        return 1
    return min(MOST_PIECES, k // LEAST_DEPTH)
