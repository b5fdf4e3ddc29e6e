"""Swizzles: published conflict counts, what a swizzle must preserve, and what the search proves."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cdnasim.errors import InputError
from cdnasim.isa.lds import LANES, conflict
from cdnasim.isa.swizzle import (
    PUBLISHED,
    Swizzle,
    XorStep,
    check_tile,
    row_operand,
    search,
    swizzle_named,
    tile_addresses,
    transposed_operand,
)

DATA = Path(__file__).parent / "data"
LANE = np.arange(LANES)
NONE = PUBLISHED["none"]
# rows, cols, element bytes
SHAPES = {
    "st_16x16": (16, 16, 2),
    "st_8x32": (8, 32, 2),
    "st_16x16_swizzled": (16, 16, 2),
    "st_32x32": (32, 32, 2),
    "st_16x32": (16, 32, 2),
    "st_32x16": (32, 16, 2),
    "st_16x128": (16, 128, 1),
}

Lanes = NDArray[np.int64]


def rows_of(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def offsets(operand: tuple[Lanes, Lanes], rows: int = 16, cols: int = 32) -> Lanes:
    """Offsets of a bf16 operand in a row-major tile."""
    return tile_addresses(*operand, rows, cols, 2, NONE)


@st.composite
def swizzles(draw: st.DrawFn, bits: int = 10) -> Swizzle:
    steps = []
    for _ in range(draw(st.integers(0, 3))):
        width = draw(st.integers(1, bits // 2))
        shift = draw(st.integers(0, bits - width))
        places = [i for i in range(bits - width + 1) if abs(i - shift) >= width]
        if places:
            steps.append(XorStep(1 << (shift + width), shift, draw(st.sampled_from(places))))
    return Swizzle("drawn", tuple(steps))


@pytest.mark.parametrize(
    "row", rows_of("lds_swizzle_checks.csv"), ids=lambda row: row["access"].replace(" ", "-")
)
def test_published_conflicts(row: dict[str, str]) -> None:
    for swizzle, extra in (
        (row["swizzle"], row["extra_swizzled"]),
        ("none", row["extra_plain"]),
    ):
        access = check_tile(
            int(row["rows"]),
            int(row["cols"]),
            int(row["element_bytes"]),
            swizzle,
            row["instruction"],
            "gfx950",
            operand=int(row["operand"]),
            row_stride=int(row["row_stride"]),
            part=int(row["part"]),
        )
        if extra:  # blank: the subtile has no swizzle
            assert access.conflict_clocks == int(extra)


@pytest.mark.parametrize("row", rows_of("lds_fp6_checks.csv"), ids=lambda row: row["access"])
def test_published_conflicts_of_fp6(row: dict[str, str]) -> None:
    """16x128 tiles of 6-bit elements, 32 per lane: packed, or 16 of them in each 16 bytes.

    The packed tile swizzles element indices, o ^= ((o % 2048) >> 10) << 6. The swizzle of the
    padded one is not known here, so the search has to find one.
    """
    row_of, column = row_operand(16, 32)
    elements, part = row_of * 128 + column, int(row["part"])
    if row["access"].startswith("packed"):
        swizzled = XorStep(2048, 10, 6).apply(elements) * 6 // 8 + 8 * part
        plain = elements * 6 // 8 + 8 * part
    else:
        plain = elements + 16 * part
        found = search(16, 128, 1, [(row["instruction"], plain)], "gfx950").found
        assert any(swizzle.steps == (XorStep(1024, 7, 4),) for swizzle in found)
        swizzled = found[0].apply(plain)
    for addresses, extra in ((swizzled, "extra_swizzled"), (plain, "extra_plain")):
        access = conflict(addresses, row["instruction"], "gfx950")
        assert access.conflict_clocks == int(row[extra])


def test_published_swizzles_permute_their_subtile() -> None:
    assert SHAPES.keys() == PUBLISHED.keys() - {"none"}
    for name, (rows, cols, element_bytes) in SHAPES.items():
        swizzle, size = swizzle_named(name), rows * cols * element_bytes
        assert swizzle.is_bijective(size)
        offset = np.arange(size)
        assert (swizzle.inverse(swizzle.apply(offset)) == offset).all()
    assert str(swizzle_named("st_16x32")) == "o ^= ((o % 1024) >> 9) << 5"
    assert str(NONE) == "none"


@given(swizzles(), st.sampled_from([1, 2, 4, 8, 16]))
def test_a_swizzle_can_be_undone_and_knows_what_it_tears_apart(
    swizzle: Swizzle, piece: int
) -> None:
    offset = np.arange(1024)
    kept = swizzle.apply(offset)
    assert swizzle.is_bijective(1024)
    assert (swizzle.inverse(kept) == offset).all()
    pieces = kept.reshape(-1, piece)
    whole = (pieces == pieces[:, :1] + np.arange(piece)).all() and (pieces[:, 0] % piece == 0).all()
    assert swizzle.keeps_whole(piece, 1024) == whole


def test_a_step_out_of_the_tile_does_not_permute_it() -> None:
    assert not Swizzle("up", (XorStep(2, 0, 9),)).is_bijective(512)
    assert not Swizzle("merge", (XorStep(512, 8, 4),)).is_bijective(272)


@pytest.mark.parametrize(
    "step", [(1000, 7, 3), (512, 9, 3), (512, 7, 8), (512, -1, 3), (0, 0, 3), (512, 7, -3)]
)
def test_bad_steps_are_refused(step: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="swizzle step"):
        XorStep(*step)


@pytest.mark.parametrize(("rows", "elements", "cols"), [(16, 8, 64), (32, 4, 32), (16, 4, 16)])
def test_parts_of_a_row_operand_cover_it_once(rows: int, elements: int, cols: int) -> None:
    step = elements * LANES // rows
    parts = [row_operand(rows, elements, part) for part in range(cols // step)]
    seen = [
        (row, column + element)
        for part in parts
        for row, column in zip(*part, strict=True)
        for element in range(elements)
    ]
    assert sorted(seen) == [(row, column) for row in range(rows) for column in range(cols)]


@pytest.mark.parametrize(
    ("columns", "row_stride", "rows"), [(32, 4, 16), (32, 8, 16), (16, 4, 32), (16, 8, 32)]
)
def test_parts_of_a_transposed_operand_cover_it_once(
    columns: int, row_stride: int, rows: int
) -> None:
    parts = [transposed_operand(columns, row_stride, part) for part in range(2)]
    seen = [
        (row, column + element)
        for part in parts
        for row, column in zip(*part, strict=True)
        for element in range(4)
    ]
    assert sorted(seen) == [(row, column) for row in range(rows) for column in range(columns)]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((16, 32, 2, "st_9x9", "ds_read_b128"), {}, "allowed: none, st_16x16"),
        ((16, 32, 2, "none", "ds_read_b1"), {}, "allowed: ds_read_b128"),
        ((16, 16, 2, "st_16x16_swizzled", "ds_read_b128"), {}, "tears apart the 16 B"),
        ((0, 32, 2, "none", "ds_read_b128"), {}, "rows 0 must be 1 or more"),
        ((4096, 4096, 2, "none", "ds_read_b128"), {}, "is more than 262144 B"),
        ((16, 4, 2, "none", "ds_read_b128"), {}, "aligned pieces of 16 B"),
        ((16, 32, 3, "none", "ds_read_b128"), {}, "must hold whole elements"),
        ((11, 24, 2, "st_32x32", "ds_read_b128"), {"operand": 8}, "does not permute"),
        ((16, 32, 2, "none", "ds_read_b128"), {"operand": 24}, "must divide 64"),
        ((16, 32, 2, "none", "ds_read_b128"), {"operand": 32}, "reaches row 31"),
        ((16, 32, 2, "none", "ds_read_b128"), {"part": -1}, "part -1"),
        ((16, 64, 1, "none", "ds_read_b64_tr_b16"), {"operand": 16}, "elements of 2 B"),
        ((16, 64, 2, "none", "ds_read_b64_tr_b16"), {}, "got 2 B, 64 columns, stride 4"),
        ((8, 32, 2, "none", "ds_read_b64_tr_b16"), {"row_stride": 8}, "reaches row 11"),
    ],
)
def test_bad_tiles_are_one_clear_line(
    arguments: tuple[int, int, int, str, str], options: dict[str, int], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        check_tile(*arguments, "gfx950", **options)
    assert "\n" not in str(caught.value)


READ = [("ds_read_b128", offsets(row_operand(16, 8)))]
WRITE = [("ds_write_b64", offsets(row_operand(16, 4, part))) for part in range(2)]
TRANSPOSED = [("ds_read_b64_tr_b16", offsets(transposed_operand(32, 8, part))) for part in range(2)]


def test_no_single_swizzle_serves_all_three_on_16x32() -> None:
    """The published claim for a bf16 16x32 tile, by exhaustion; any other pair can be served."""
    result = search(16, 32, 2, [*READ, *WRITE, *TRANSPOSED], "gfx950")
    assert result.found == ()
    assert min(result.alone) > 0
    assert not search(16, 32, 2, READ + WRITE, "gfx950").found
    assert search(16, 32, 2, WRITE + TRANSPOSED, "gfx950").found
    steps = [swizzle.steps for swizzle in search(16, 32, 2, READ + TRANSPOSED, "gfx950").found]
    assert swizzle_named("st_16x32").steps in steps


@given(st.permutations(range(64)))
def test_nothing_that_keeps_16_bytes_whole_serves_the_write(places: list[int]) -> None:
    """Why: the 16 lanes of a phase write the same half of 16 B, and 32 banks hold 8 such halves.

    So the claim holds for every rearrangement of a 16x32 tile, not only for XOR swizzles.
    """
    for instruction, offset in WRITE:
        kept = np.array(places)[offset // 16] * 16 + offset % 16
        assert min(conflict(kept, instruction, "gfx950").phases) >= 2


def test_search_finds_the_published_swizzle_of_the_write() -> None:
    accesses = [
        ("ds_write_b64", offsets(row_operand(16, 4), 16, 16)),
        ("ds_read_b64_tr_b16", offsets(transposed_operand(16), 16, 16)),
    ]
    found = search(16, 16, 2, accesses, "gfx950").found
    assert found[0].steps == swizzle_named("st_16x16_swizzled").steps


def test_search_results_hold_and_are_complete() -> None:
    """On a small tile: all of the family is tried, and each member is judged as the model does."""
    offset = 16 * (LANE % 16)  # 256 B, each piece read by 4 lanes
    accesses = [("ds_write_b64", offset), ("ds_write_b64", offset + 8)]
    result = search(8, 16, 2, accesses, "gfx950")
    single = [
        XorStep(1 << (shift + width), shift, left)
        for width in range(1, 9)
        for shift in range(9 - width)
        for left in range(9 - width)
        if abs(shift - left) >= width
    ]
    assert result.examined == 1 + len(single) + len(single) ** 2
    family = [(), *((a,) for a in single), *((a, b) for a in single for b in single)]
    good = set()
    for steps in family:
        swizzle = Swizzle("", steps)
        bits = swizzle.apply(1 << np.arange(8))
        if swizzle.keeps_whole(8, 256) and not any(
            conflict(swizzle.apply(lanes), name, "gfx950").conflict_clocks
            for name, lanes in accesses
        ):
            good.add(tuple(bits))
    assert good
    assert {tuple(found.apply(1 << np.arange(8))) for found in result.found} == good
    assert len(result.found) == len(good)
    assert sorted(len(found.steps) for found in result.found) == [
        len(found.steps) for found in result.found
    ]


@pytest.mark.parametrize(
    ("shape", "accesses", "message"),
    [
        ((24, 32, 2), [("ds_read_b128", LANE * 16)], "power of two"),
        ((16, 32, 2), [], "one access or more"),
        ((16, 16, 2), [("ds_read_b128", LANE * 16)], "within the tile of 512 B"),
        ((16, 32, 2), [("ds_read_b128", LANE * 8)], "multiples of 16 B"),
        ((16, 32, 2), [("ds_read_b128", LANE[1:])], "64 integers"),
        ((16, 32, 2), [("ds_read_b7", LANE)], "allowed: ds_read_b128"),
    ],
)
def test_bad_searches_are_one_clear_line(
    shape: tuple[int, int, int], accesses: list[tuple[str, Lanes]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        search(*shape, accesses, "gfx950")
