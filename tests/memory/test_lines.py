"""The line-granular replay against relations, a naive LRU and facts that can be counted by hand."""

import dataclasses
import sys
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdnasim.errors import InputError
from cdnasim.machine.loader import load_machine
from cdnasim.machine.model import Machine
from cdnasim.memory.lines import LineCounts, RequestLog, TensorLayout, simulate_lines

LINE = 128
MIB = 2**20
Request = tuple[int, int, int, int]  # xcd, operand, block, slab

# One line per block: operands 0 and 1 far apart, the output in the place of operand 0.
ONE_LINE = TensorLayout(base=0, rows=1, pitch=LINE, piece_bytes=LINE)
ONE_LINE_EACH = (ONE_LINE, dataclasses.replace(ONE_LINE, base=MIB), ONE_LINE)


def small_machine(
    l2_lines: int = 4,
    llc_lines: int = 16,
    *,
    ways: int | None = None,
    channels: int = 1,
    copies: int = 1,
) -> Machine:
    """Two XCDs; each cache is one set (fully associative) unless the ways of both are given."""
    machine = load_machine("mi355x")
    l2_ways = l2_lines // channels if ways is None else ways
    llc_ways = llc_lines if ways is None else ways
    return dataclasses.replace(
        machine,
        compute=dataclasses.replace(machine.compute, xcds=2),
        l2=dataclasses.replace(
            machine.l2,
            bytes=l2_lines * copies * LINE,
            copies=copies,
            line_bytes=LINE,
            ways=l2_ways,
            channels=channels,
        ),
        llc=dataclasses.replace(machine.llc, bytes=llc_lines * LINE, ways=llc_ways, channels=1),
    )


def log_of(requests: list[Request]) -> RequestLog:
    table = np.array(requests, np.int64).reshape(-1, 4)
    return RequestLog(
        table[:, 0].astype(np.int16),
        table[:, 1].astype(np.int8),
        table[:, 2].astype(np.int32),
        table[:, 3].astype(np.int32),
    )


def touch(machine: Machine, lines: list[int], *, warm: bool = False) -> LineCounts:
    """XCD 0 reads single lines in this order."""
    pytest.importorskip("numba")
    log = log_of([(0, 0, line, 0) for line in lines])
    return simulate_lines(log, ONE_LINE_EACH, machine, warm=warm)


def run(
    machine: Machine, requests: list[Request], layouts: tuple[TensorLayout, ...] = ONE_LINE_EACH
) -> LineCounts:
    pytest.importorskip("numba")
    a, b, c = layouts
    return simulate_lines(log_of(requests), (a, b, c), machine)


def check_conservation(counts: LineCounts, machine: Machine) -> None:
    l2_misses = counts.l2_read_bytes - counts.l2_hit_bytes
    assert 0 <= counts.l2_hit_bytes <= counts.l2_read_bytes
    if machine.llc.bytes:
        assert counts.llc_read_bytes == l2_misses
        assert counts.hbm_read_bytes == counts.llc_read_bytes - counts.llc_hit_bytes >= 0
    else:
        assert (counts.llc_read_bytes, counts.llc_hit_bytes) == (0, 0)
        assert counts.hbm_read_bytes == l2_misses


REQUESTS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 7), st.integers(0, 2)),
    max_size=80,
)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(1, 12), st.integers(0, 24))
def test_fully_associative_is_a_naive_lru(
    requests: list[Request], l2_lines: int, llc_lines: int
) -> None:
    requests = [(x, o, b, 0 if o == 2 else s) for x, o, b, s in requests]
    machine = small_machine(l2_lines, llc_lines)
    # Rows that start inside a line, pieces of other sizes than a line, tiles side by side.
    layouts = (
        TensorLayout(base=64, rows=2, pitch=448, piece_bytes=96),
        TensorLayout(base=40 * LINE, rows=1, pitch=1024, piece_bytes=256),
        TensorLayout(base=80 * LINE, rows=2, pitch=512, piece_bytes=128, blocks_per_row=4),
    )
    reads, hits = [0, 0], [0, 0]
    caches: dict[str, OrderedDict[int, None]] = {n: OrderedDict() for n in ("0", "1", "llc")}

    def access(name: str, capacity: int, line: int) -> bool:
        cache = caches[name]
        hit = line in cache
        cache[line] = None
        cache.move_to_end(line)
        if len(cache) > capacity:
            cache.popitem(last=False)
        return hit

    for xcd, operand, block, slab in requests:
        at = layouts[operand]
        for row in range(at.rows):
            first = at.base + (block // at.blocks_per_row * at.rows + row) * at.pitch
            first += (block % at.blocks_per_row + slab) * at.piece_bytes
            for line in sorted({byte // LINE for byte in range(first, first + at.piece_bytes)}):
                hit = access(str(xcd), l2_lines, line)
                reads[0] += operand < 2
                hits[0] += operand < 2 and hit
                if llc_lines and (operand == 2 or not hit):
                    hit = access("llc", llc_lines, line)
                    reads[1] += operand < 2
                    hits[1] += operand < 2 and hit
    counts = run(machine, requests, layouts)
    assert [counts.l2_read_bytes, counts.llc_read_bytes] == [n * LINE for n in reads]
    assert [counts.l2_hit_bytes, counts.llc_hit_bytes] == [n * LINE for n in hits]
    check_conservation(counts, machine)


@settings(max_examples=30, deadline=None)
@given(REQUESTS, st.integers(1, 3), st.integers(1, 4), st.sampled_from([0, 24]))
def test_conservation(requests: list[Request], ways: int, channels: int, llc: int) -> None:
    machine = small_machine(24, llc, ways=ways, channels=channels)
    counts = run(machine, requests)
    assert counts.l2_read_bytes == LINE * sum(operand < 2 for _, operand, _, _ in requests)
    assert 1 <= counts.l2_channel_imbalance <= channels
    check_conservation(counts, machine)


def test_slab_that_fits_hits_on_second_touch() -> None:
    layout = TensorLayout(base=0, rows=256, pitch=16384, piece_bytes=128)
    machine = load_machine("mi355x")
    first = run(machine, [(0, 0, 3, 5)], (layout,) * 3)
    assert (first.l2_read_bytes, first.l2_hit_bytes) == (256 * 128, 0)
    assert first.hbm_read_bytes == 256 * 128
    twice = run(machine, [(0, 0, 3, 5)] * 2, (layout,) * 3)
    assert twice.l2_hit == 0.5
    assert twice.hbm_read_bytes == first.hbm_read_bytes
    elsewhere = run(machine, [(0, 0, 3, 5), (1, 0, 3, 5)], (layout,) * 3)
    assert (elsewhere.l2_hit, elsewhere.llc_hit) == (0, 0.5)


def test_short_pieces_share_lines() -> None:
    """Rows of 64 B (64 of fp8): slab 1 lies in the lines that slab 0 fetched."""
    layout = TensorLayout(base=0, rows=16, pitch=4096, piece_bytes=64)
    counts = run(load_machine("mi355x"), [(0, 0, 0, 0), (0, 0, 0, 1)], (layout,) * 3)
    assert counts.l2_read_bytes == 2 * 16 * LINE
    assert counts.hbm_read_bytes == 16 * LINE


def test_least_recently_used_line_goes_first() -> None:
    machine = small_machine(l2_lines=3)
    for last, hit in ((0, True), (2, True), (3, True), (1, False)):
        counts = touch(machine, [0, 1, 2, 0, 3, last])  # 0 was used again, so 3 drives out 1
        assert counts.l2_hit_bytes == LINE * (1 + hit)


def test_cyclic_reads_beyond_capacity_never_hit() -> None:
    assert touch(small_machine(l2_lines=4), list(range(5)) * 3).l2_hit == 0
    assert touch(small_machine(l2_lines=5), list(range(5)) * 3).l2_hit == pytest.approx(2 / 3)


def test_more_capacity_never_hits_less() -> None:
    rng = np.random.default_rng(1)
    lines = rng.zipf(1.3, 2000) % 200
    # LRU of one set is a stack algorithm: a larger cache holds all that a smaller one holds.
    hits = [touch(small_machine(n, 0), lines.tolist()).l2_hit_bytes for n in (1, 2, 8, 32, 200)]
    assert hits == sorted(set(hits))
    misses = [
        touch(small_machine(4, n), lines.tolist()).hbm_read_bytes for n in (0, 8, 32, 64, 200)
    ]
    assert misses == sorted(misses, reverse=True)


def test_stores_allocate_in_both_levels() -> None:
    machine = small_machine()
    here = run(machine, [(0, 2, 5, 0), (0, 0, 5, 0)])
    assert (here.l2_read_bytes, here.l2_hit_bytes) == (LINE, LINE)
    elsewhere = run(machine, [(0, 2, 5, 0), (1, 0, 5, 0)])
    assert (elsewhere.l2_hit_bytes, elsewhere.llc_hit_bytes) == (0, LINE)
    assert elsewhere.hbm_read_bytes == 0
    # A store takes the place of a line that was read.
    assert run(small_machine(1), [(0, 0, 1, 0), (0, 2, 5, 0), (0, 0, 1, 0)]).l2_hit_bytes == 0


def test_a_set_holds_no_more_than_its_ways() -> None:
    """Eight lines of capacity; an aligned run of eight lines has one in each set."""
    direct = small_machine(8, 0, ways=1)
    conflicts = [y for y in range(8, 16) if touch(direct, [3, y, 3]).l2_hit == 0]
    assert len(conflicts) == 1
    assert touch(small_machine(8, 0, ways=2), [3, *conflicts, 3]).l2_hit > 0


@pytest.mark.parametrize(("channels", "ways", "sets"), [(16, 2, 32), (10, 3, 7), (1, 4, 1)])
def test_aligned_run_as_large_as_the_cache_fits(channels: int, ways: int, sets: int) -> None:
    lines = channels * ways * sets
    start = 1000 * channels * sets
    counts = touch(
        small_machine(lines, 0, ways=ways, channels=channels),
        list(range(start, start + lines)) * 2,
    )
    assert counts.l2_hit == 0.5
    assert counts.l2_channel_imbalance == 1


def test_aligned_run_of_one_line_per_channel_is_even() -> None:
    machine = small_machine(64, 0, ways=2, channels=4)
    assert touch(machine, [20, 21, 22, 23]).l2_channel_imbalance == 1
    assert touch(machine, [20, 21, 22, 23, 20, 20]).l2_channel_imbalance == 2
    assert touch(machine, [20]).l2_channel_imbalance == 4


def test_copies_divide_the_capacity() -> None:
    halved = small_machine(4, copies=2)
    assert halved.l2.bytes == 8 * LINE
    assert touch(halved, list(range(4)) * 2).l2_hit == 0.5
    assert touch(halved, list(range(5)) * 2).l2_hit == 0


@pytest.mark.parametrize("pitch", [8192, 16384, 32768, 18432, 29184])
@pytest.mark.parametrize("name", ["mi355x", "h200"])
def test_rows_one_pitch_apart_spread(name: str, pitch: int) -> None:
    machine = load_machine(name)
    layout = TensorLayout(base=0, rows=256, pitch=pitch, piece_bytes=128)
    # Half of the L2 in slabs of one column: the worst case of an index that is not hashed.
    blocks = machine.l2.bytes // machine.l2.copies // 2 // (256 * 128)
    counts = run(machine, [(0, 0, block, 0) for block in range(blocks)] * 2, (layout,) * 3)
    assert counts.l2_channel_imbalance < 1.5
    assert counts.l2_hit > 0.5 * 0.95


def test_warm_keeps_the_llc_and_empties_the_l2() -> None:
    machine = small_machine(4, 16)
    warm = touch(machine, list(range(4)), warm=True)
    assert (warm.l2_hit, warm.llc_hit, warm.hbm_read_bytes) == (0, 1, 0)
    assert warm.l2_read_bytes == 4 * LINE  # of one launch, not of both
    streaming = touch(machine, list(range(17)), warm=True)
    assert streaming.llc_hit == 0


def test_empty_log() -> None:
    counts = run(small_machine(), [])
    assert dataclasses.astuple(counts) == (0, 0, 0, 0, 0, 1.0)
    assert (counts.l2_hit, counts.llc_hit) == (0, 0)


def test_missing_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(InputError) as error:
        simulate_lines(log_of([]), ONE_LINE_EACH, small_machine())
    wanted = "line-granular mode needs numba: pip install 'cdnasim[line]'"
    assert str(error.value) == wanted


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ((2, 0, 0, 0), "xcd has values from 2 to 2; allowed: 0 to 1"),
        ((0, 3, 0, 0), "operand has values from 3 to 3; allowed: 0 to 2"),
        ((0, 0, -1, 0), "block has values from -1"),
        ((0, 0, 0, -1), "slab has values from -1"),
    ],
)
def test_log_out_of_range(request_: Request, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        run(small_machine(), [request_])


def test_log_of_unequal_lengths() -> None:
    pytest.importorskip("numba")
    log = dataclasses.replace(log_of([(0, 0, 0, 0)] * 2), slab=np.zeros(1, np.int32))
    with pytest.raises(InputError, match=r"slab has shape \(1,\), needs \(2,\)"):
        simulate_lines(log, ONE_LINE_EACH, small_machine())


@pytest.mark.parametrize("field", ["base", "rows", "pitch", "piece_bytes", "blocks_per_row"])
def test_layout_out_of_range(field: str) -> None:
    bad = dataclasses.replace(ONE_LINE, **{field: -1})
    with pytest.raises(InputError, match=f"tensor layout: {field} is -1"):
        run(small_machine(), [], (ONE_LINE, bad, ONE_LINE))


def test_cache_without_a_set() -> None:
    for machine, name in (
        (small_machine(4, 16, ways=5), "l2"),
        (small_machine(0, 16), "l2"),
        (small_machine(4, 3, ways=4), "llc"),
    ):
        with pytest.raises(InputError, match=rf"\[{name}\] needs at least one set"):
            run(machine, [])
