"""The executor's memory: blocks for frames and iterations, cells for tensors. In
`weft.codegen.native_language`: never run by Python."""

from __future__ import annotations

from weft.codegen.native_language import call, load, store
from weft.runtime.dataflow import layout as at


def take_block(state: int, free: int, all_blocks: int, size: int) -> int:
    """A block of the free list at `free`, or a new one; 0 if there is no memory. The word before
    it links all blocks, its first word the free ones."""
    block = load(free)
    if block != 0:
        store(free, load(block))
        return block
    raw = call(load(state + at.S_MALLOC), size + 16)
    if raw == 0:
        store(state + at.S_FAILED, at.NO_MEMORY)
        return 0
    store(raw + 8, load(all_blocks))
    store(all_blocks, raw)
    return raw + 16


def give_block(free: int, block: int) -> int:
    store(block, load(free))
    store(free, block)
    return 0


def class_of(size: int) -> int:
    number = 0
    while (64 << number) < size:
        number += 1
    return number


def new_cell(state: int, number: int) -> int:
    """A cell with room for 64 << number bytes, counted once; 0 if there is no memory."""
    free = load(state + at.S_CELLS) + 8 * number
    cell = load(free)
    if cell != 0:
        store(free, load(cell + at.C_NEXT))
        store(cell + at.C_COUNT, 1)
        return cell
    cell = call(load(state + at.S_MALLOC), at.CELL_HEADER + 64 + (64 << number))
    if cell == 0:
        store(state + at.S_FAILED, at.NO_MEMORY)
        return 0
    store(cell + at.C_CLASS, number)
    store(cell + at.C_DATA, (cell + at.CELL_HEADER + 63) & (0 - 64))
    store(cell + at.C_ALL, load(state + at.S_ALL_CELLS))
    store(state + at.S_ALL_CELLS, cell)
    store(cell + at.C_COUNT, 1)
    return cell


def release(state: int, cell: int) -> int:
    if cell == 0:
        return 0
    count = load(cell + at.C_COUNT) - 1
    store(cell + at.C_COUNT, count)
    number = load(cell + at.C_CLASS)
    if count == 0 and number >= 0:
        free = load(state + at.S_CELLS) + 8 * number
        store(cell + at.C_NEXT, load(free))
        store(free, cell)
    return 0


def give_back(state: int) -> int:
    """Forget a step, whole or half: all cells and blocks go to the system, the state is as new."""
    cell = load(state + at.S_ALL_CELLS)
    while cell != 0:
        following = load(cell + at.C_ALL)
        call(load(state + at.S_FREE), cell)
        cell = following
    raw = load(state + at.S_ALL_BLOCKS)
    while raw != 0:
        following = load(raw + 8)
        call(load(state + at.S_FREE), raw)
        raw = following
    return 0
