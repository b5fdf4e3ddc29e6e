"""Links, LLC and HBM: times and bytes that can be counted by hand, and a plain LRU to compare."""

import random
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdnasim.machine.loader import load_machine
from cdnasim.machine.model import Machine
from cdnasim.memory.fabric import Fabric, Link, Llc, SlabSizes

A, B, C = 0, 100, 200  # keys of the two operands and of stored tiles
SIZES = SlabSizes(a=1000, b=500, store=300, first_b=B, first_store=C)


def vary(machine: Machine, section: str, **values: Any) -> Machine:
    return replace(machine, **{section: replace(getattr(machine, section), **values)})


def machine(llc_bytes: int = 10_000, ways: int = 16, ghz: float = 1.0) -> Machine:
    """At 1 GHz: link 10 B/clk, LLC 5 B/clk and 100 clk, HBM 2 B/clk and 300 clk (write 1 B/clk)."""
    described = vary(load_machine("mi355x"), "compute", clock_max_ghz=ghz)
    described = vary(described, "link", bytes_per_clk=10.0)
    described = vary(described, "llc", bytes=llc_bytes, ways=ways, read_tbs=0.005, latency_ns=100.0)
    return vary(
        described, "hbm", stream_tbs=0.002, scattered_tbs=0.002, write_tbs=0.001, latency_ns=300.0
    )


def fabric(described: Machine | None = None, piece_bytes: int = 128) -> Fabric:
    """A piece of 128 B is a line of the machine: HBM delivers hbm.scattered_tbs."""
    return Fabric(described or machine(), SIZES, piece_bytes, seed=0)


def test_sizes_go_by_the_key() -> None:
    assert [SIZES.of(key) for key in (A, B - 1, B, C - 1, C, C + 9)] == [
        *(1000, 1000, 500, 500, 300, 300)
    ]


# ---- times ----


def test_a_miss_passes_link_llc_and_hbm() -> None:
    memory = fabric()
    assert memory.read(Link(), A, 1000, now=50.0) == pytest.approx(50 + 100 + 200 + 500 + 300)
    assert (memory.llc_read_bytes, memory.llc_hit_bytes, memory.hbm_read_bytes) == (1000, 0, 1000)


def test_a_hit_passes_link_and_llc() -> None:
    memory = fabric()
    memory.read(Link(), A, 1000, now=0.0)
    later = 5000.0
    assert memory.read(Link(), A, 1000, later) == pytest.approx(later + 100 + 200 + 100)
    assert (memory.llc_read_bytes, memory.llc_hit_bytes, memory.hbm_read_bytes) == (
        *(2000, 1000, 1000),
    )


def test_a_hit_on_data_still_on_the_way_waits_for_the_same_fill() -> None:
    memory = fabric()
    first = memory.read(Link(), A, 1000, now=0.0)
    assert memory.read(Link(), A, 1000, now=1.0) == first
    assert memory.hbm_read_bytes == 1000
    assert memory.waits_for_hbm(A, first - 1) and not memory.waits_for_hbm(A, first)


def test_one_links_requests_queue_and_two_links_share_what_is_behind() -> None:
    slow_link = vary(vary(machine(), "link", bytes_per_clk=1.0), "llc", read_tbs=1e6)
    slow_link = vary(slow_link, "hbm", stream_tbs=1e6, scattered_tbs=1e6)
    memory, link, other = fabric(slow_link), Link(), Link()
    assert memory.read(link, A, 1000, now=0.0) == pytest.approx(1000 + 300)
    assert memory.read(other, A + 1, 1000, now=0.0) == pytest.approx(1000 + 300)
    assert memory.read(link, A + 2, 1000, now=0.0) == pytest.approx(2000 + 300)

    slow_hbm = vary(vary(machine(), "link", bytes_per_clk=1e9), "llc", read_tbs=1e6)
    memory = fabric(slow_hbm)
    arrivals = [memory.read(Link(), A + i, 1000, now=0.0) for i in range(4)]
    assert arrivals == pytest.approx([500 * (i + 1) + 300 for i in range(4)])


def test_without_an_llc_misses_go_straight_to_hbm() -> None:
    memory = fabric(machine(llc_bytes=0))
    for now in (0.0, 10_000.0):  # nothing is kept
        assert memory.read(Link(), A, 1000, now) == pytest.approx(now + 100 + 500 + 300)
    assert (memory.llc_read_bytes, memory.llc_hit_bytes, memory.hbm_read_bytes) == (0, 0, 2000)
    assert memory.waits_for_hbm(A, 0.0)


def test_stores_take_hbm_time_from_reads_and_count() -> None:
    memory = fabric()
    memory.write(C, 300, now=0.0)  # 300 clk at 1 B/clk
    assert memory.write_bytes == 300
    assert memory.read(Link(), A, 1000, now=0.0) == pytest.approx(300 + 500 + 300)  # at HBM by then
    assert memory.hbm_read_bytes == 1000


def test_a_higher_core_clock_sees_slower_memory_but_the_same_link() -> None:
    memory = fabric(machine(ghz=2.0))
    assert memory.read(Link(), A, 1000, 0.0) == pytest.approx(100 + 2 * (200 + 500 + 300))
    memory.set_clock(1.0)
    assert memory.read(Link(), A + 1, 1000, 10_000.0) == pytest.approx(
        10_000 + 100 + 200 + 500 + 300
    )


@pytest.mark.parametrize(
    ("piece_bytes", "clk_per_byte"), [(64, 4.0), (128, 2.0), (256, 1.0), (512, 0.5), (4096, 0.5)]
)
def test_longer_pieces_read_faster_up_to_the_stream_rate(
    piece_bytes: int, clk_per_byte: float
) -> None:
    described = vary(machine(), "hbm", scattered_tbs=0.0005, stream_tbs=0.002)
    memory = fabric(described, piece_bytes)
    fixed = 100 + 200 + 300
    assert memory.read(Link(), A, 1000, 0.0) == pytest.approx(fixed + 1000 * clk_per_byte)


def test_what_is_read_again_stays_in_the_llc() -> None:
    memory = fabric(machine(llc_bytes=2000, ways=300))
    for key in (A, A + 1, A, A + 2):
        memory.read(Link(), key, 1000, 0.0)
    assert set(memory.llc.ready) == {A, A + 2}


def test_warming_is_free_and_uncounted() -> None:
    memory = fabric()
    memory.warm([A, B, A])
    assert memory.read(Link(), A, 1000, 0.0) == pytest.approx(100 + 200 + 100)
    assert (memory.llc_read_bytes, memory.llc_hit_bytes, memory.hbm_read_bytes) == (1000, 1000, 0)


KEYS = st.one_of(st.integers(A, A + 9), st.integers(B, B + 9))


@given(
    reads=st.lists(st.tuples(st.integers(0, 2), KEYS, st.floats(0, 500)), max_size=60),
    llc_bytes=st.sampled_from([0, 400, 2500, 10_000]),
)
def test_bytes_are_conserved_and_data_never_come_early(
    reads: list[tuple[int, int, float]], llc_bytes: int
) -> None:
    memory, links, now = fabric(machine(llc_bytes)), [Link() for _ in range(3)], 0.0
    asked = 0
    for link, key, pause in reads:
        now += pause
        nbytes = SIZES.of(key)
        asked += nbytes
        least = nbytes / 10 + (nbytes / 5 + 100 if llc_bytes else nbytes / 2 + 300)
        assert memory.read(links[link], key, nbytes, now) >= now + least - 1e-6
    assert memory.llc_read_bytes == (asked if llc_bytes else 0)
    assert memory.hbm_read_bytes == asked - memory.llc_hit_bytes
    assert held(memory.llc) <= llc_bytes or len(memory.llc.ready) == 1


# ---- the LLC as a cache ----


def held(llc: Llc) -> int:
    return sum(SIZES.of(key) for key in llc.ready)


def use(llc: Llc, key: int) -> bool:
    """Read a slab as the fabric does; whether it was there."""
    hit = key in llc.ready
    if hit:
        llc.touch(key)
    else:
        llc.insert(key, 0.0)
    return hit


@given(st.lists(KEYS, max_size=80), st.integers(1, 12_000), st.integers(1, 4))
def test_the_llc_keeps_to_its_capacity(keys: list[int], capacity: int, ways: int) -> None:
    llc = Llc(machine(capacity, ways), SIZES, seed=1)
    for key in keys:
        use(llc, key)
        assert key in llc.ready  # what was just read is there
        assert held(llc) <= capacity or len(llc.ready) == 1


@pytest.mark.parametrize("slabs", range(1, 9))
def test_with_many_ways_it_is_a_plain_lru(slabs: int) -> None:
    keys = random.Random(slabs).choices(range(A, A + 10), k=300)
    llc = Llc(machine(slabs * 1000, ways=300), SIZES, seed=1)
    plain: OrderedDict[int, None] = OrderedDict()
    for key in keys:
        assert use(llc, key) == (key in plain)
        plain[key] = None
        plain.move_to_end(key)
        if len(plain) > slabs:
            plain.popitem(last=False)
        assert set(llc.ready) == set(plain)


def test_reuse_a_little_beyond_the_capacity_still_hits_in_part() -> None:
    """A plain LRU hits nothing here: each slab is dropped just before it is used again."""
    llc = Llc(machine(50 * 1000), SIZES, seed=1)
    for _ in range(5):
        hits = sum(use(llc, key) for key in range(55))
    assert 10 < hits < 55


def test_results_leave_before_operands() -> None:
    llc = Llc(machine(3300, ways=300), SIZES, seed=1)
    use(llc, A)
    use(llc, A + 1)
    llc.insert(C, 0.0, stored=True)
    use(llc, A + 2)
    assert set(llc.ready) == {A, A + 1, A + 2, C}
    use(llc, B)
    assert C not in llc.ready  # before A, although A was used longer ago


def test_a_seed_fixes_what_is_evicted() -> None:
    def trace(seed: int) -> list[bool]:
        llc = Llc(machine(20 * 1000, ways=2), SIZES, seed)
        return [use(llc, key % 30) for key in range(300)]

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)
