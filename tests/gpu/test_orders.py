"""Grid orders: permutations, published facts checked by hand, and one-line errors."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdnasim.errors import InputError
from cdnasim.gpu.orders import ORDER_HELP, OrderFunction, parse_order

SIDE = st.integers(1, 70)
XCDS = st.one_of(st.sampled_from([1, 8]), st.integers(2, 40))
SMALL = st.integers(1, 80)
SPECS = st.one_of(
    st.sampled_from(["row-major", "col-major", "hilbert", "morton"]),
    SMALL.map(lambda w: f"window:w={w}"),
    SMALL.map(lambda w: f"xcd-contiguous:w={w}"),
    st.tuples(SMALL, st.integers(1, 700)).map(lambda t: f"xcd:w={t[0]},c={t[1]}"),
)


def positions(spec: str, rows: int, cols: int, xcds: int = 8) -> list[int]:
    return [int(index) for index in parse_order(spec).positions(rows, cols, xcds)]


def tiles(spec: str, rows: int, cols: int, xcds: int = 8) -> list[tuple[int, int]]:
    return [(row, col) for row, col in parse_order(spec).tiles(rows, cols, xcds).tolist()]


def message(call: Callable[[], object]) -> str:
    """The text of the InputError that call raises; it must be one line."""
    with pytest.raises(InputError) as caught:
        call()
    text = str(caught.value)
    assert text and len(text.splitlines()) == 1
    return text


def published_xcd(ids: int, rows: int, cols: int, xcds: int, w: int, c: int) -> tuple[int, int]:
    """Algorithm 1 of arXiv 2511.08083 for one workgroup, written as scalar code."""
    blocks = rows * cols
    cycle = xcds * c
    limit = (blocks // cycle) * cycle
    if not ids > limit:
        xcd, local = ids % xcds, ids // xcds
        ids = (local // c) * cycle + xcd * c + local % c
    group = ids // (w * cols)
    first = group * w
    height = min(rows - first, w)
    inside = ids % (w * cols)
    return first + inside % height, inside // height


# ---- properties of every order ----


@settings(max_examples=600, deadline=None)
@given(SPECS, SIDE, SIDE, XCDS)
def test_every_order_is_a_permutation(spec: str, rows: int, cols: int, xcds: int) -> None:
    order = parse_order(spec)
    linear = order.positions(rows, cols, xcds)
    assert linear.dtype == np.int64
    assert np.array_equal(np.sort(linear), np.arange(rows * cols))
    pairs = order.tiles(rows, cols, xcds)
    assert pairs.dtype == np.int32 and pairs.shape == (rows * cols, 2)
    assert np.array_equal(pairs[:, 0].astype(np.int64) * cols + pairs[:, 1], linear)


@pytest.mark.parametrize("xcds", [1, 3, 8])
def test_every_small_grid(xcds: int) -> None:
    specs = ["window:w=3", "xcd:w=2,c=1", "xcd:w=3,c=2", "xcd-contiguous:w=2"]
    for spec in [*specs, "row-major", "col-major", "hilbert", "morton"]:
        for rows in range(1, 13):
            for cols in range(1, 13):
                assert sorted(positions(spec, rows, cols, xcds)) == list(range(rows * cols))


@given(SPECS)
def test_canonical_spec_parses_to_an_equal_order(spec: str) -> None:
    order = parse_order(spec)
    assert order.spec == spec
    assert parse_order(order.spec) == order
    assert hash(parse_order(order.spec)) == hash(order)
    assert pickle.loads(pickle.dumps(order)) == order


@pytest.mark.parametrize(
    ("spec", "canonical", "params"),
    [
        ("window:8", "window:w=8", (("w", 8),)),
        ("xcd-contiguous:8", "xcd-contiguous:w=8", (("w", 8),)),
        ("xcd:c=64,w=8", "xcd:w=8,c=64", (("w", 8), ("c", 64))),
        ("hilbert", "hilbert", ()),
    ],
)
def test_canonical_spec(spec: str, canonical: str, params: tuple[tuple[str, int], ...]) -> None:
    order = parse_order(spec)
    assert order.spec == canonical
    assert order.params == params
    assert order.name == canonical.split(":")[0]


def test_help_names_every_order_on_one_line() -> None:
    for name, text in ORDER_HELP.items():
        assert text.startswith(name) and "\n" not in text


def test_positions_is_an_order_function() -> None:
    function: OrderFunction = parse_order("row-major").positions
    assert function(2, 2, 8).tolist() == [0, 1, 2, 3]


# ---- the simple orders ----


def test_row_and_column_major() -> None:
    assert tiles("row-major", 2, 3) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert tiles("col-major", 2, 3) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_window_goes_down_then_right_and_ends_with_a_lower_group() -> None:
    first = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    second = [(2, 0), (3, 0), (2, 1), (3, 1), (2, 2), (3, 2)]
    assert tiles("window:w=2", 5, 3) == [*first, *second, (4, 0), (4, 1), (4, 2)]


@given(SIDE, SIDE)
def test_window_limits(rows: int, cols: int) -> None:
    assert positions("window:w=1", rows, cols) == positions("row-major", rows, cols)
    for w in (rows, rows + 1, 10**17):
        assert positions(f"window:w={w}", rows, cols) == positions("col-major", rows, cols)


# ---- chunked regrouping ----


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 24), st.integers(1, 24), XCDS, st.integers(1, 30), st.integers(1, 40))
def test_xcd_is_the_published_algorithm(rows: int, cols: int, xcds: int, w: int, c: int) -> None:
    expected = [published_xcd(i, rows, cols, xcds, w, c) for i in range(rows * cols)]
    assert tiles(f"xcd:w={w},c={c}", rows, cols, xcds) == expected


def test_xcd_by_hand() -> None:
    # 2 XCDs, c = 2: cycle 4; ids 0 2 | 1 3 take positions 0 1 | 2 3; ids 8 and 9 are past limit 8.
    assert positions("xcd:w=1,c=2", 1, 10, 2) == [0, 2, 1, 3, 4, 6, 5, 7, 8, 9]


def test_each_xcd_gets_an_8_by_8_patch() -> None:
    """w = 8, c = 64, 32 x 32 tiles: the 64 ids of one XCD in one cycle of 512 form a square."""
    pairs = parse_order("xcd:w=8,c=64").tiles(32, 32, 8)
    walk = parse_order("window:w=8").tiles(32, 32, 8)
    ids = np.arange(1024)
    for cycle in range(2):
        for xcd in range(8):
            mine = pairs[(ids % 8 == xcd) & (ids // 512 == cycle)]
            run = cycle * 8 + xcd
            assert np.array_equal(mine, walk[run * 64 : (run + 1) * 64])
            top, left = run // 4 * 8, run % 4 * 8
            patch = {(top + i, left + j) for i in range(8) for j in range(8)}
            assert {tuple(pair) for pair in mine.tolist()} == patch


def test_chunk_larger_than_the_grid_moves_nothing() -> None:
    """14592 x 14592 with 192 x 256 tiles: 4332 workgroups; 8 * 542 = 4336, 8 * 541 = 4328."""
    rows, cols = 14592 // 192, 14592 // 256
    assert (rows, cols) == (76, 57)
    window = positions("window:w=8", rows, cols)
    assert positions("xcd:w=8,c=542", rows, cols) == window
    assert positions(f"xcd:w=8,c={10**17}", rows, cols) == window
    moved = positions("xcd:w=8,c=541", rows, cols)
    assert moved != window
    assert moved[4328:] == window[4328:]
    assert moved[8] == window[1] and moved[1] == window[541]


@settings(max_examples=300, deadline=None)
@given(SIDE, SIDE, XCDS, SMALL, st.integers(1, 700))
def test_id_equal_to_limit_is_a_fixed_point(
    rows: int, cols: int, xcds: int, w: int, c: int
) -> None:
    """So the published test (id > limit) gives the same order as id >= limit would."""
    n = rows * cols
    limit = n // (xcds * c) * (xcds * c)
    moved = positions(f"xcd:w={w},c={c}", rows, cols, xcds)
    assert moved[limit:] == positions(f"window:w={w}", rows, cols, xcds)[limit:]


@given(SIDE, SIDE, SMALL, SMALL)
def test_one_xcd_needs_no_regrouping(rows: int, cols: int, w: int, c: int) -> None:
    window = positions(f"window:w={w}", rows, cols, 1)
    assert positions(f"xcd:w={w},c={c}", rows, cols, 1) == window
    assert positions(f"xcd-contiguous:w={w}", rows, cols, 1) == window


# ---- one run per XCD ----


def test_xcd_contiguous_when_xcds_does_not_divide_the_grid() -> None:
    # 10 ids on 4 XCDs: XCD 0 receives 0 4 8, XCD 1 receives 1 5 9, XCD 2: 2 6, XCD 3: 3 7.
    assert positions("xcd-contiguous:w=1", 1, 10, 4) == [0, 3, 6, 8, 1, 4, 7, 9, 2, 5]


def test_xcd_contiguous_with_more_xcds_than_tiles() -> None:
    assert positions("xcd-contiguous:w=1", 1, 5, 8) == [0, 1, 2, 3, 4]


@settings(deadline=None)
@given(SIDE, SIDE, XCDS, SMALL)
def test_xcd_contiguous_runs(rows: int, cols: int, xcds: int, w: int) -> None:
    linear = positions(f"xcd-contiguous:w={w}", rows, cols, xcds)
    by_xcd = [index for xcd in range(xcds) for index in linear[xcd::xcds]]
    assert by_xcd == positions(f"window:w={w}", rows, cols, xcds)


@given(st.integers(1, 40), SIDE)
def test_xcd_contiguous_is_the_published_formula_when_divisible(rows: int, cols: int) -> None:
    n = 8 * rows * cols
    linear = positions("xcd-contiguous:w=1", 8 * rows, cols)
    assert linear == [(i % 8) * (n // 8) + i // 8 for i in range(n)]


# ---- curves ----


@pytest.mark.parametrize("side", [1, 2, 4, 8, 16, 32, 64])
def test_hilbert_neighbours_touch_on_a_power_of_two_square(side: int) -> None:
    pairs = parse_order("hilbert").tiles(side, side, 8)
    assert (np.abs(np.diff(pairs, axis=0)).sum(axis=1) == 1).all()
    assert pairs[0].tolist() == [0, 0]
    assert pairs[-1].tolist() == [0, side - 1]


def test_hilbert_first_four_of_a_2_by_2_grid() -> None:
    assert tiles("hilbert", 2, 2) == [(0, 0), (1, 0), (1, 1), (0, 1)]


def test_morton_first_tiles() -> None:
    first = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 0)]
    assert tiles("morton", 4, 4)[:9] == first


@settings(deadline=None)
@given(SIDE, SIDE, st.sampled_from(["hilbert", "morton"]))
def test_curve_on_a_rectangle_is_the_square_curve_less_outside(
    rows: int, cols: int, spec: str
) -> None:
    side = 1 << (max(rows, cols) - 1).bit_length()
    square = tiles(spec, side, side)
    assert tiles(spec, rows, cols) == [(r, c) for r, c in square if r < rows and c < cols]


def test_curve_on_a_long_thin_grid_needs_no_square() -> None:
    for spec in ("hilbert", "morton"):
        assert sorted(positions(spec, 1, 100_000)) == list(range(100_000))


# ---- files ----


@pytest.mark.parametrize("text", ["3 1 2 0 4 5", "3,1,2,0,4,5", "3, 1\n2 0\r\n4,\n\t5\n"])
def test_file_order(tmp_path: Path, text: str) -> None:
    path = tmp_path / "order.txt"
    path.write_bytes(text.encode())
    assert tiles(f"file:{path}", 2, 3) == [(1, 0), (0, 1), (0, 2), (0, 0), (1, 1), (1, 2)]
    assert parse_order(f"file:{path}").spec == f"file:{path}"


@pytest.mark.parametrize("dtype", ["int64", ">i4", "uint16", "uint64"])
def test_npy_order(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "order.npy"
    np.save(path, np.array([3, 1, 2, 0], dtype=dtype))
    order = parse_order(f"file:{path}")
    path.unlink()  # read once, when parsed
    assert order.positions(2, 2, 8).tolist() == [3, 1, 2, 0]
    order.positions(2, 2, 8)[:] = 0
    assert order.positions(2, 2, 8).tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"0 1 2 3 1 5", "entry 4 is a duplicate of 1, and 4 is missing"),
        (b"0 1 2 3 2 2", "entry 4 is a duplicate of 2, and 4 is missing"),
        (b"0 1 2 3 4 6", "entry 5 is 6, out of range; allowed: 0 to 5"),
        (b"0 1 -2 3 4 6", "entry 2 is -2, out of range"),
        (b"0 1 2 3 4", "5 entries, but a grid of 2 x 3 tiles needs 6"),
        (b"0 1 2 3 4 5 6", "7 entries"),
        (b"", "empty; needs one integer per workgroup"),
        (b" \n,\n", "empty; needs one integer per workgroup"),
        (b"0 1.0 2 3 4 5", "entry 1 must be an integer of at most 18 digits, got '1.0'"),
        (b"0 1 2 3 4 five", "got 'five'"),
        (b"0 1 2 3 4 0x5", "got '0x5'"),
        (b"0 1 2 3 4 1_0", "got '1_0'"),
        ("0 1 2 3 4 \u0665".encode(), "entry 5 must be an integer"),
        (b"0 1 2 3 4 " + b"9" * 5000, "entry 5 must be an integer"),
        (b"\xff\xfe0\x00", "not UTF-8 text (byte 0)"),
        (b"0 1 2 \xe9", "not UTF-8 text (byte 6)"),
    ],
)
def test_bad_file(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "order.txt"
    path.write_bytes(content)
    text = message(lambda: parse_order(f"file:{path}").tiles(2, 3, 8))
    assert str(path) in text and expected in text


def test_unreadable_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path / "none.npy", tmp_path):
        text = message(lambda path=path: parse_order(f"file:{path}"))  # type: ignore[misc]
        assert str(path) in text and "cannot read" in text
    for spec in ("file:", "file", "file:a\0b", "file:a\nb", "file:\ud800"):
        message(lambda spec=spec: parse_order(spec))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([0.0, 1.0, 2.0, 3.0]), "array of integers"),
        (np.array([True, False, True, True]), "array of integers"),
        (np.array([[0, 1], [2, 3]]), "shape (2, 2)"),
        (np.array(0), "shape ()"),
        (np.array([0, 1, 2, 2]), "entry 3 is a duplicate of 2, and 3 is missing"),
        (np.array([0, 1, 2, 2**63], dtype=np.uint64), "entry 3 is 9223372036854775808"),
        (np.array([0, 1, 2]), "3 entries"),
        (np.array([], dtype=np.int64), "0 entries"),
    ],
)
def test_bad_npy(tmp_path: Path, array: Any, expected: str) -> None:
    path = tmp_path / "order.npy"
    np.save(path, array)
    text = message(lambda: parse_order(f"file:{path}").tiles(2, 2, 8))
    assert str(path) in text and expected in text


def test_npy_that_is_not_one(tmp_path: Path) -> None:
    path = tmp_path / "order.npy"
    np.save(path, np.array([0, 1, None], dtype=object), allow_pickle=True)
    pickled = path.read_bytes()
    np.save(path, np.arange(4))
    whole = path.read_bytes()
    for content in (b"", b"0 1 2 3", pickled, whole[:-3], whole[:40], b"PK\x03\x04" + bytes(60)):
        path.write_bytes(content)
        assert str(path) in message(lambda: parse_order(f"file:{path}"))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_npy_gives_input_error_or_an_order(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.npy"
    np.save(path, np.arange(4))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    try:
        linear = parse_order(f"file:{path}").positions(2, 2, 8)
    except InputError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert sorted(linear.tolist()) == [0, 1, 2, 3]


# ---- callables ----


def reversed_order(ids: Any, rows: int, cols: int, xcds: int) -> Any:
    return rows * cols - 1 - ids


def test_callable_order() -> None:
    order = parse_order(reversed_order)
    assert order.tiles(2, 2, 8).tolist() == [[1, 1], [1, 0], [0, 1], [0, 0]]
    assert order.name == "callable" and order.spec.endswith(".reversed_order")
    assert parse_order(lambda ids, rows, cols, xcds: ids) != parse_order(
        lambda ids, rows, cols, xcds: ids[::-1]
    )
    assert pickle.loads(pickle.dumps(order)).positions(1, 2, 8).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ([0, 1, 2, 2], "entry 3 is a duplicate of 2, and 3 is missing"),
        ([0, 1, 2, 4], "entry 3 is 4, out of range; allowed: 0 to 3"),
        ([0, 1, 2], "3 entries"),
        ([0.0, 1.0, 2.0, 3.0], "array of integers"),
        ([[0, 1], [2]], "must return an array"),
        (None, "array of integers"),
        ("0123", "array of integers"),
    ],
)
def test_bad_callable(result: Any, expected: str) -> None:
    order = parse_order(lambda ids, rows, cols, xcds: result)
    text = message(lambda: order.tiles(2, 2, 8))
    assert order.spec in text and expected in text


# ---- bad specs and shapes ----


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("", "unknown order ''"),
        ("spiral", "unknown order 'spiral'; allowed: row-major, col-major, window"),
        ("Row-Major", "unknown order"),
        (" row-major", "unknown order"),
        ("row-major\n", "unknown order 'row-major\\n'"),
        ("window\u2028:8", "unknown order"),
        ("x" * 5000, "unknown order"),
        ("row-major:", "row-major takes no parameters"),
        ("hilbert:w=8", "hilbert takes no parameters"),
        ("hilbert:xcd=1", "hilbert takes no parameters"),
        ("window", "key w is missing"),
        ("window:", "key w is missing"),
        ("xcd-contiguous", "key w is missing"),
        ("xcd", "key w is missing"),
        ("xcd:w=8", "key c is missing"),
        ("xcd:c=64", "key w is missing"),
        ("xcd:8", "'8' is not key=value"),
        ("xcd:8,64", "'8' is not key=value"),
        ("window:w", "'w' is not key=value"),
        ("window:8,8", "'8' is not key=value"),
        ("window:w=0", "w must be an integer >= 1"),
        ("window:0", "w must be an integer >= 1"),
        ("window:w=-3", "got '-3'"),
        ("xcd:w=8,c=0", "c must be an integer >= 1"),
        ("window:w=8.0", "got '8.0'"),
        ("window:w=1e1", "got '1e1'"),
        ("window:w=eight", "got 'eight'"),
        ("window:w=", "got ''"),
        ("window:w= 8", "got ' 8'"),
        ("window:w=8\n", "got '8\\n'"),
        ("window:w=1_0", "got '1_0'"),
        ("window:w=\u0668", "w must be an integer"),
        ("window:w=" + "9" * 5000, "at most 18 digits"),
        ("window:w=8=8", "got '8=8'"),
        ("window:w=8,", "empty item"),
        ("window:8,", "empty item"),
        ("xcd:,w=8,c=64", "empty item"),
        ("xcd:w=8,,c=64", "empty item"),
        ("xcd:w=8,c=64,w=8", "key w is given twice"),
        ("xcd:w=8,c=64,x=8", "unknown key 'x', allowed: w, c"),
        ("window:w=8,c=64", "unknown key 'c', allowed: w"),
        ("window:W=8", "unknown key 'W'"),
        ("window: w=8", "unknown key ' w'"),
    ],
)
def test_bad_spec(spec: str, expected: str) -> None:
    text = message(lambda: parse_order(spec))
    assert expected in text
    assert len(text) < 400
    name = spec.partition(":")[0]
    if name in ORDER_HELP:
        assert ORDER_HELP[name] in text


@pytest.mark.parametrize("spec", [None, 8, 8.0, b"row-major", ["row-major"], np.zeros((9, 9))])
def test_spec_of_another_type(spec: Any) -> None:
    assert "must be a text or a callable" in message(lambda: parse_order(spec))


@pytest.mark.parametrize("value", [0, -1, 2.0, "2", True, None])
def test_bad_shape(value: Any) -> None:
    order = parse_order("window:w=8")
    assert "rows must be an integer >= 1" in message(lambda: order.tiles(value, 2, 8))
    assert "cols must be an integer >= 1" in message(lambda: order.tiles(2, value, 8))
    assert "xcds must be an integer >= 1" in message(lambda: order.positions(2, 2, value))


def test_numpy_integers_are_fine_as_shape() -> None:
    rows: Any = np.int64(2)
    cols: Any = np.int8(100)
    assert np.array_equal(
        parse_order("col-major").tiles(rows, cols, 8), parse_order("col-major").tiles(2, 100, 8)
    )
