"""The SVG figures: what they draw agrees with layouts, banks and register needs."""

import re
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest

from cdnasim.errors import InputError
from cdnasim.isa.lds import LANES, LdsAccess
from cdnasim.isa.swizzle import check_tile, row_operand, swizzle_named
from hk_kernels.catalog import gemm_program
from hk_kernels.lower.figures import (
    CONFLICT,
    MARGIN,
    WIDTH,
    LdsTile,
    layout_figure,
    lds_figure,
    program_lds,
    program_mfma,
    registers_figure,
)
from hk_kernels.lower.program import Program
from hk_kernels.lower.registers import register_needs
from hk_kernels.lower.target import target_named
from hk_kernels.tile.dtypes import DTYPES
from hk_kernels.tile.layouts import accumulator_elements, operand_elements

KERNELS = {
    "pingpong8": ("pingpong8", "gfx950", "bf16", (256, 256, 64)),
    "pingpong8 gfx942": ("pingpong8", "gfx942", "bf16", (256, 256, 64)),
    "interleave4": ("interleave4", "gfx950", "fp8", (256, 256, 128)),
    "specialized": ("specialized", "gfx950", "bf16", (128, 256, 64)),
}
MFMAS = [
    ("gfx950", "bf16", (16, 16)),
    ("gfx950", "bf16", (32, 32)),
    ("gfx950", "fp8", (16, 16)),
    ("gfx942", "bf16", (16, 16)),
]
Box = tuple[float, float, float, str, str]  # x, y, width, stroke, label


@pytest.fixture(params=KERNELS)
def program(request: pytest.FixtureRequest) -> Program:
    return gemm_program(*KERNELS[request.param])


def elements(svg: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg))


def boxes(svg: str) -> list[Box]:
    """Rectangles with the text that follows them."""
    found = []
    all_elements = elements(svg)
    for element, following in zip(all_elements, [*all_elements[1:], None], strict=True):
        if element.tag.endswith("rect") and following is not None and following.text:
            x, y, width = (float(element.get(key, "0")) for key in ("x", "y", "width"))
            found.append((x, y, width, element.get("stroke", ""), following.text))
    return found


@pytest.mark.parametrize(("arch", "dtype", "shape"), MFMAS)
def test_the_layout_names_lane_and_registers_of_every_element(
    arch: str, dtype: str, shape: tuple[int, int]
) -> None:
    mfma = target_named(arch).mfma(DTYPES[dtype], shape)
    drawn = boxes(layout_figure(mfma))
    operand = [box for box in drawn if re.fullmatch(r"\d+: r\d+–\d+", box[4])]
    accumulator = [box for box in drawn if re.fullmatch(r"\d+:( r)?\d+", box[4])]

    rows, ks = operand_elements(mfma)
    top, height = min(box[1] for box in operand), 22 if mfma.m == 16 else 18
    assert len(operand) == LANES * rows.shape[1] // mfma.contiguous
    for x, y, width, _, label in operand:
        lane, first, last = (int(number) for number in re.findall(r"\d+", re.sub("r", "", label)))
        element = first * 32 // mfma.dtype.bits
        assert round((y - top) / height) == rows[lane, element]
        assert round((x - MARGIN) * mfma.k / WIDTH) == ks[lane, element]
        assert round(width * mfma.k / WIDTH) == mfma.contiguous
        assert (last - first + 1) * 32 == mfma.contiguous * mfma.dtype.bits

    rows, cols = accumulator_elements(mfma)
    top = min(box[1] for box in accumulator)
    assert len(accumulator) == mfma.m * mfma.n
    for x, y, _, _, label in accumulator:
        lane, register = (int(number) for number in re.findall(r"\d+", label))
        assert round((y - top) / height) == rows[lane, register]
        assert round((x - MARGIN) * mfma.n / WIDTH) == cols[lane, register]


def test_a_figure_uses_the_kernels_instruction(program: Program) -> None:
    mnemonic = program_mfma(program).mnemonic
    assert f">{mnemonic}<" in layout_figure(program_mfma(program))


def access(swizzle: str, instruction: str = "ds_read_b128") -> LdsAccess:
    return check_tile(16, 32, 2, swizzle, instruction, "gfx950")


@pytest.mark.parametrize(
    ("swizzle", "instruction"),
    [("st_16x32", "ds_read_b128"), ("none", "ds_read_b128"), ("none", "ds_write_b64")],
)
def test_the_lds_figure_shows_banks_lanes_and_clocks(swizzle: str, instruction: str) -> None:
    read = access(swizzle, instruction)
    banks = read.instruction.banks
    svg = lds_figure(LdsTile(16, 32, 2, swizzle_named(swizzle)), [read])
    drawn = boxes(svg)
    words = [box for box in drawn if box[3] == "#BBB"]
    assert Counter(int(box[4]) for box in words) == dict.fromkeys(range(banks), 256 // banks)
    served = [box for box in drawn if box[3] in ("#555", CONFLICT) and box[4].isdigit()]
    assert sorted(int(box[4]) for box in served) == list(range(LANES))
    assert len({box[1] for box in served}) == read.clocks
    waiting = [box for box in served if box[3] == CONFLICT]
    assert bool(waiting) == bool(read.conflict_clocks)
    for x, _, _, _, label in served:
        bank = read.addresses[int(label)] // 4 % banks
        assert round((x - MARGIN) * banks / WIDTH) == bank
    assert f"{read.clocks} clk for {read.instruction.phases} phases" in svg


def test_a_kernels_reads_follow_the_operand_layout_and_have_no_conflict(program: Program) -> None:
    tile, accesses = program_lds(program)
    mfma = program_mfma(program)
    assert accesses
    for one in accesses:
        assert one.conflict_clocks == 0
        assert max(one.addresses) + one.instruction.bytes_per_lane <= tile.bytes
        if "read" in one.instruction.name:
            offsets = tile.swizzle.inverse(np.array(one.addresses))
            row, column = np.divmod(offsets, tile.cols * tile.element_bytes)
            expected = row_operand(mfma.m, mfma.contiguous)
            assert (row == expected[0]).all()
            assert (column == expected[1] * tile.element_bytes).all()
    ElementTree.fromstring(lds_figure(tile, accesses))


def test_a_tile_too_large_to_read_is_refused() -> None:
    with pytest.raises(InputError, match="128 rows of 16 words"):
        lds_figure(LdsTile(128, 32, 2, swizzle_named("none")), [access("none")])


def test_the_register_map_shares_the_file_and_fills_what_is_needed(program: Program) -> None:
    svg = registers_figure(program)
    needs = {wave: need for need in register_needs(program) for wave in need.waves}
    on_simd = [needs[wave] for wave in range(0, program.waves, 4)]
    drawn = [e for e in elements(svg) if e.get("width") == "14" and e.tag.endswith("rect")]
    top = min(float(e.get("y", "0")) for e in drawn)
    file = [e for e in drawn if float(e.get("y", "0")) < top + 8 * 14]
    assert len(file) == sum(need.budget for need in on_simd) <= 512
    filled = [e for e in file if e.get("fill") != "#FFFFFF"]
    assert len(filled) == sum(need.need for need in on_simd)
    assert ("AGPRs" in svg) == any(need.budget > 256 for need in on_simd)
    legend = {element.text for element in elements(svg)}
    for tile in program.registers:
        if tile.name == "accumulator":
            assert f"{tile.line.file}: {tile.line.text}" in legend


def test_a_program_without_matrix_instructions_has_no_layout(program: Program) -> None:
    program.body.clear()
    with pytest.raises(InputError, match="no matrix instruction"):
        program_mfma(program)
