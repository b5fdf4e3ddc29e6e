"""Everything below the L2s: XCD links, the shared LLC and HBM, at slab granularity."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from cdnasim.machine.model import Machine


@dataclass(frozen=True)
class SlabSizes:
    """Slab keys and sizes. Keys below `first_b` are operand 0's, below `first_store` operand 1's.

    a, b, store: bytes of a slab of operand 0, of operand 1 and of a stored output tile.
    """

    a: int
    b: int
    store: int
    first_b: int
    first_store: int

    def of(self, key: int) -> int:
        """Bytes of the slab `key`."""
        if key < self.first_b:
            return self.a
        return self.b if key < self.first_store else self.store


class Link:
    """The read path of one XCD; a server that is busy until `free` (clk)."""

    __slots__ = ("free",)

    def __init__(self) -> None:
        self.free = 0.0


class Llc:
    """The LLC as a cache of slabs: evicts the least recently used of `ways` random entries.

    That is what hashed sets with LRU inside each set come to: an entry competes with the few that
    share its set, so reuse a little beyond the capacity still hits in part, where LRU over the
    whole cache would drop to zero. `ready` holds the clk at which a slab's data are there.
    """

    def __init__(self, machine: Machine, sizes: SlabSizes, seed: int) -> None:
        self.ready: dict[int, float] = {}
        self._capacity = machine.llc.bytes
        self._ways = range(machine.llc.ways)
        self._used = 0
        self._sizes = sizes
        self._keys: list[int] = []
        self._place: dict[int, int] = {}
        self._last_use: list[int] = []
        self._clock = 0
        self._random = random.Random(seed).random

    def touch(self, key: int) -> None:
        """Note a use of a slab that is in the cache."""
        self._clock += 1
        self._last_use[self._place[key]] = self._clock

    def insert(self, key: int, ready: float, *, stored: bool = False) -> None:
        """Add a slab that is not in the cache, evicting others until it fits.

        A stored slab enters as the least recently used one: results do not drive out operands.
        """
        self._used += self._sizes.of(key)
        while self._used > self._capacity and self._keys:
            self._evict()
        self._clock += 1
        self.ready[key] = ready
        self._place[key] = len(self._keys)
        self._keys.append(key)
        self._last_use.append(0 if stored else self._clock)

    def _evict(self) -> None:
        keys, last_use, draw = self._keys, self._last_use, self._random
        count = len(keys)
        place = min([int(draw() * count) for _ in self._ways], key=last_use.__getitem__)
        victim, moved = keys[place], keys[-1]
        keys[place], last_use[place] = moved, last_use[-1]
        self._place[moved] = place
        keys.pop()
        last_use.pop()
        del self.ready[victim], self._place[victim]
        self._used -= self._sizes.of(victim)


class Fabric:
    """Links → LLC → HBM as bandwidth servers in series, the LLC as a cache of slabs.

    Requests come in order of time, so a server needs no event of its own: it starts a request when
    it is free and is busy for bytes / bandwidth. An LLC entry holds the clock at which its data are
    there; a request that finds them still on the way from HBM waits for the same fill.
    `llc_free` is the clk at which the LLC has served what it was asked for so far.
    All times in core clocks; bandwidths and latencies follow the core clock through `set_clock`.
    """

    def __init__(self, machine: Machine, sizes: SlabSizes, piece_bytes: int, seed: int) -> None:
        self.machine = machine
        self.llc = Llc(machine, sizes, seed)
        self._has_llc = machine.llc.bytes > 0
        self.llc_read_bytes = 0
        self.llc_hit_bytes = 0
        self.hbm_read_bytes = 0
        self.write_bytes = 0
        self.llc_free = 0.0
        self._hbm_free = 0.0
        self._link_clk = 1.0 / machine.link.bytes_per_clk
        # A DRAM row activation that yields one short piece costs what a full one costs: the rate
        # grows with the piece until the stream rate is reached.
        hbm, line_bytes = machine.hbm, machine.l2.line_bytes
        self._hbm_read_tbs = min(hbm.stream_tbs, hbm.scattered_tbs * piece_bytes / line_bytes)
        self.set_clock(machine.compute.clock_max_ghz)

    def set_clock(self, ghz: float) -> None:
        """Restate bandwidths (clk/B) and latencies (clk) for a core clock of `ghz`."""
        machine = self.machine
        # 1 TB/s at 1 GHz = 1000 B/clk
        self._llc_clk = ghz / (1000.0 * machine.llc.read_tbs) if self._has_llc else 0.0
        self._hbm_read_clk = ghz / (1000.0 * self._hbm_read_tbs)
        self._hbm_write_clk = ghz / (1000.0 * machine.hbm.write_tbs)
        self.llc_latency = machine.llc.latency_ns * ghz
        self.hbm_latency = machine.hbm.latency_ns * ghz

    def warm(self, keys: Iterable[int]) -> None:
        """Touch slabs in the LLC in this order before the launch; nothing is counted or timed."""
        llc = self.llc
        for key in keys:
            if key in llc.ready:
                llc.touch(key)
            else:
                llc.insert(key, 0.0)

    def read(self, link: Link, key: int, nbytes: int, now: float) -> float:
        """Fetch a slab that missed an L2 at `now`; returns the clk at which its data arrive."""
        free = link.free
        at = (free if free > now else now) + nbytes * self._link_clk
        link.free = at
        if self._has_llc:
            self.llc_read_bytes += nbytes
            free = self.llc_free
            at = (free if free > at else at) + nbytes * self._llc_clk
            self.llc_free = at
            ready = self.llc.ready.get(key)
            if ready is not None:
                self.llc_hit_bytes += nbytes
                self.llc.touch(key)
                at += self.llc_latency
                return at if at > ready else ready
        self.hbm_read_bytes += nbytes
        free = self._hbm_free
        at = (free if free > at else at) + nbytes * self._hbm_read_clk
        self._hbm_free = at
        at += self.hbm_latency
        if self._has_llc:
            self.llc.insert(key, at)
        return at

    def write(self, key: int, nbytes: int, now: float) -> None:
        """Store a slab: it takes HBM time and an LLC place; nobody waits for it."""
        self.write_bytes += nbytes
        free = self._hbm_free
        self._hbm_free = (free if free > now else now) + nbytes * self._hbm_write_clk
        if self._has_llc and key not in self.llc.ready:
            self.llc.insert(key, now, stored=True)

    def waits_for_hbm(self, key: int, at: float) -> bool:
        """Whether the data of `key`, needed at `at`, were then still coming from HBM."""
        if not self._has_llc:
            return True
        return self.llc.ready.get(key, 0.0) > at
