"""The cache model again, line by line: a check on the slab-granular chip model.

It replays the requests of a launch, in the order in which the slab model made them, through
set-associative caches of single lines. There is no timing here, so it checks what slabs leave out:
granularity, associativity and channels. Needs numba, the optional extra `line`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdnasim.errors import InputError
from cdnasim.machine.model import Machine

STORE = 2  # RequestLog.operand of the store of an output tile
EMPTY = -1  # tag of a way that holds no line
MIX = 0x4F1BBCDCBFA53E0B  # 2^63 / golden ratio: an odd multiplier with well mixed bits
MASK = 2**63 - 1  # the products stay non-negative in int64


@dataclass(frozen=True)
class RequestLog:
    """Every slab read and store of a launch in time order; all arrays have shape (requests,).

    operand: 0, 1 = the two streamed operands, 2 = the store of the output tile. block: index of the
    operand's block; for stores the row-major linear index of the output tile. slab: index of the
    slab along k; 0 for stores.
    """

    xcd: NDArray[np.int16]
    operand: NDArray[np.int8]
    block: NDArray[np.int32]
    slab: NDArray[np.int32]


@dataclass(frozen=True)
class TensorLayout:
    """Where the slabs of a tensor lie. base: byte address. pitch: bytes from row to row (B).

    Slab s of block b covers `rows` rows from row b // blocks_per_row * rows on, and of each of them
    the `piece_bytes` bytes from byte (b % blocks_per_row + s) * piece_bytes on. So operands have
    blocks_per_row 1, and the output, whose s is 0, has the number of tiles in a row of tiles.
    """

    base: int
    rows: int
    pitch: int
    piece_bytes: int
    blocks_per_row: int = 1


@dataclass(frozen=True)
class LineCounts:
    """Bytes of whole lines read at each level; reads = hits + misses, misses go one level down.

    l2_channel_imbalance: reads of the busiest L2 channel over the mean of its XCD's channels, in
    the XCD where that is worst; 1 is even. It is of the whole launch, not of any moment in it.
    """

    l2_read_bytes: int
    l2_hit_bytes: int
    llc_read_bytes: int
    llc_hit_bytes: int
    hbm_read_bytes: int
    l2_channel_imbalance: float

    @property
    def l2_hit(self) -> float:
        """L2 hits over L2 reads (fraction); 0 without reads."""
        return self.l2_hit_bytes / max(1, self.l2_read_bytes)

    @property
    def llc_hit(self) -> float:
        """LLC hits over LLC reads (fraction); 0 without reads or without an LLC."""
        return self.llc_hit_bytes / max(1, self.llc_read_bytes)


def simulate_lines(
    log: RequestLog,
    layouts: tuple[TensorLayout, TensorLayout, TensorLayout],
    machine: Machine,
    *,
    warm: bool = False,
) -> LineCounts:
    """Replay `log` through one L2 per XCD and the shared LLC, in lines of machine.l2.line_bytes.

    layouts: of the operands 0 and 1 and of the output. warm: the LLC starts as an identical launch
    before left it; the L2s always start empty. Without an LLC (llc.bytes 0), L2 misses go to HBM.

    Every row of a slab touches each of its lines once, and a line counts whole, even if the row
    covers part of it. Replacement is LRU. Stores allocate in both levels at once, without fetching
    the line, and are not counted. An L2 keeps bytes / copies; capacity beyond whole sets is unused.

    Hash: with n channels of s sets, line address a lies in channel (a + mix(a // n)) mod n, and
    there in set (q + mix(q // s)) mod s with q = a // n. `mix` scatters its argument like a random
    number, so no pitch is special, n and s need not be powers of two, and an aligned run of lines
    as large as the cache still fills each set exactly. The hardware's hash is unpublished. Plain
    a mod n will not do: the rows of a slab are one pitch apart, so with a power-of-two pitch they
    would all lie in one channel and a few of its sets. A plain fold of the address (XOR or sum of
    its digits) only moves that trouble to other pitches, such as the 18432 B of 9216 bf16.

    Raises InputError if numba is missing, a cache of `machine` has no whole set, or `log` or
    `layouts` hold a value out of range.
    """
    try:
        njit = import_module("numba").njit
    except ImportError:
        raise InputError("line-granular mode needs numba: pip install 'cdnasim[line]'") from None
    _check_requests(log, layouts, machine.compute.xcds)
    levels = _levels(machine)
    sizes = [ways * channels * sets for ways, channels, sets in levels]
    l2_lines = machine.compute.xcds * sizes[0]
    tags = np.full(l2_lines + sum(sizes[1:]), EMPTY, np.int64)
    requests = (
        np.ascontiguousarray(log.xcd, np.int16),
        np.ascontiguousarray(log.operand, np.int8),
        np.ascontiguousarray(log.block, np.int32),
        np.ascontiguousarray(log.slab, np.int32),
    )
    layout_rows = np.array([dataclasses.astuple(layout) for layout in layouts], np.int64)
    level_rows = np.array(levels, np.int64)
    line_bytes = machine.l2.line_bytes
    for _ in range(2 if warm else 1):  # the counts are those of the last launch
        tags[:l2_lines] = EMPTY
        l2_reads = np.zeros((machine.compute.xcds, machine.l2.channels), np.int64)
        reads, hits = np.zeros(2, np.int64), np.zeros(2, np.int64)
        _compiled(njit)(*requests, layout_rows, level_rows, line_bytes, tags, l2_reads, reads, hits)
    read_bytes = [int(lines) * line_bytes for lines in reads]
    hit_bytes = [int(lines) * line_bytes for lines in hits]
    last = len(levels) - 1
    busy = l2_reads[l2_reads.any(axis=1)]
    return LineCounts(
        l2_read_bytes=read_bytes[0],
        l2_hit_bytes=hit_bytes[0],
        llc_read_bytes=read_bytes[1],
        llc_hit_bytes=hit_bytes[1],
        hbm_read_bytes=read_bytes[last] - hit_bytes[last],
        l2_channel_imbalance=float((busy.max(axis=1) / busy.mean(axis=1)).max(initial=1.0)),
    )


def _levels(machine: Machine) -> list[tuple[int, int, int]]:
    """(ways, channels, sets of a channel) of an L2 and, if there is one, of the LLC."""
    l2, llc = machine.l2, machine.llc
    caches = [("l2", l2.bytes // max(1, l2.copies), l2.ways, l2.channels)]
    if llc.bytes:
        caches.append(("llc", llc.bytes, llc.ways, llc.channels))
    levels = []
    for name, size, ways, channels in caches:
        set_bytes = l2.line_bytes * ways * channels
        sets = size // set_bytes if set_bytes else 0
        if sets < 1:
            raise InputError(
                f"machine {machine.name}: [{name}] needs at least one set: bytes / copies >= "
                f"line_bytes * ways * channels > 0, got {size} B and {set_bytes} B"
            )
        levels.append((ways, channels, sets))
    return levels


def _check_requests(log: RequestLog, layouts: tuple[TensorLayout, ...], xcds: int) -> None:
    # The compiled loop does not check its indices.
    columns = {"xcd": xcds, "operand": STORE + 1, "block": 2**31, "slab": 2**31}
    for name, limit in columns.items():
        column = getattr(log, name)
        if column.shape != (log.xcd.size,):
            raise InputError(
                f"request log: {name} has shape {column.shape}, needs ({log.xcd.size},)"
            )
        if column.size and not 0 <= column.min() <= column.max() < limit:
            raise InputError(
                f"request log: {name} has values from {column.min()} to {column.max()}; "
                f"allowed: 0 to {limit - 1}"
            )
    for layout in layouts:
        for name, value in dataclasses.asdict(layout).items():
            least = 0 if name == "base" else 1
            if value < least:
                raise InputError(f"tensor layout: {name} is {value}; allowed: {least} or more")


@cache
def _compiled(njit: Any) -> Any:
    return njit(_replay)


def _replay(
    xcd: NDArray[np.int16],
    operand: NDArray[np.int8],
    block: NDArray[np.int32],
    slab: NDArray[np.int32],
    layouts: NDArray[np.int64],
    levels: NDArray[np.int64],
    line_bytes: int,
    tags: NDArray[np.int64],
    l2_reads: NDArray[np.int64],
    reads: NDArray[np.int64],
    hits: NDArray[np.int64],
) -> None:
    """Replay the log, changing tags and adding line reads to the counters. Compiled by numba.

    layouts: a TensorLayout per row. levels: (ways, channels, sets) per row. tags: the line in each
    way, the L2s first, each set from the line used last to the one used longest ago. l2_reads: by
    XCD and channel; reads, hits: by level.
    """
    l2_size = levels[0, 0] * levels[0, 1] * levels[0, 2]
    for i in range(xcd.size):
        layout = layouts[operand[i]]
        base, rows, pitch = layout[0], layout[1], layout[2]
        piece_bytes, per_row = layout[3], layout[4]
        store = operand[i] == STORE
        address = base + block[i] // per_row * rows * pitch
        address += (block[i] % per_row + slab[i]) * piece_bytes
        for _ in range(rows):
            for line in range(address // line_bytes, (address + piece_bytes - 1) // line_bytes + 1):
                for level in range(levels.shape[0]):
                    ways, channels, sets = levels[level, 0], levels[level, 1], levels[level, 2]
                    slot, rest = 0, line
                    for n in (channels, sets):
                        above = rest // n
                        mixed = above * MIX & MASK
                        mixed = (mixed ^ mixed >> 32) * MIX & MASK
                        slot = slot * n + (rest + (mixed >> 32)) % n
                        rest = above

                    front = slot * ways
                    front += l2_size * (xcd[i] if level == 0 else l2_reads.shape[0])
                    way = 0
                    while way < ways and tags[front + way] != line:
                        way += 1
                    hit = way < ways
                    for w in range(min(way, ways - 1), 0, -1):
                        tags[front + w] = tags[front + w - 1]
                    tags[front] = line

                    if store:
                        continue
                    reads[level] += 1
                    if level == 0:
                        l2_reads[xcd[i], slot // sets] += 1
                    if hit:
                        hits[level] += 1
                        break
            address += pitch
