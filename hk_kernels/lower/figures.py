"""The figures reading: layouts, LDS banks and register maps, as SVG text."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cdnasim.errors import InputError
from cdnasim.isa.lds import BANK_BYTES, LANES, LdsAccess, conflict
from cdnasim.isa.swizzle import Swizzle
from cdnasim.plots.style import NEUTRAL, PALETTE
from cdnasim.trace.model import SIMDS
from hk_kernels.lower.program import Instruction, Loop, Program, RegisterTile, walk
from hk_kernels.lower.registers import (
    RegisterNeed,
    most_live,
    register_needs,
    steady_loop,
)
from hk_kernels.lower.target import target_named
from hk_kernels.tile.language import SUBTILES
from hk_kernels.tile.layouts import Mfma, accumulator_elements, operand_elements

WIDTH = 896  # px of every grid: 64 banks or register columns of 14, 32 words of 28
MARGIN = 44  # px left of it, for row numbers
CELL = 14  # px, of a bank or a register
MOST = 64  # rows, and words in a row, of a tile that can still be read
CONFLICT = "#C00000"


# layouts -----------------------------------------------------------------------------------------


def layout_figure(mfma: Mfma) -> str:
    """SVG: which lane holds which element of an MFMA's operands and of its accumulator."""
    height = 22 if mfma.m <= 16 else 18
    canvas = _Canvas()
    canvas.title(
        mfma.mnemonic,
        f"D[{mfma.m},{mfma.n}] += A[{mfma.m},{mfma.k}] · B[{mfma.n},{mfma.k}]ᵀ, "
        f"{mfma.dtype} → fp32, {mfma.clocks} clk of the matrix pipe",
    )
    if mfma.lanes != LANES:
        raise InputError(f"layout figures are drawn of waves of {LANES} lanes, not {mfma.lanes}")
    groups = LANES // mfma.m
    names = [f"lanes {g * mfma.m}–{(g + 1) * mfma.m - 1}" for g in range(groups)]
    canvas.legend([(PALETTE[g], name) for g, name in enumerate(names)])

    canvas.heading(
        f"A and B: row down, k across; a lane holds {mfma.contiguous} neighbours of a row at a "
        f"time, {mfma.operand_vgprs} registers in all"
    )
    rows, ks = operand_elements(mfma)
    unit = WIDTH / mfma.k
    per_register = 32 // mfma.dtype.bits
    for i in range(0, mfma.k, mfma.contiguous):
        canvas.text(MARGIN + i * unit + 2, canvas.y + 10, str(i), size=9, colour="#666")
    top = canvas.y + 14
    for lane in range(LANES):
        for first in range(0, rows.shape[1], mfma.contiguous):
            row, k = int(rows[lane, first]), int(ks[lane, first])
            registers = (first // per_register, (first + mfma.contiguous - 1) // per_register)
            label = f"{lane}: r{registers[0]}–{registers[1]}"
            x, y = MARGIN + k * unit, top + row * height
            canvas.box(x, y, mfma.contiguous * unit, height, PALETTE[lane // mfma.m], label)
    canvas.row_numbers(range(mfma.m), top, height)
    canvas.y = top + mfma.m * height + 26

    canvas.heading(
        f"Accumulator: row (of A) down, column (row of B) across; lane: register, "
        f"{mfma.accumulator_vgprs} registers a lane"
    )
    rows, cols = accumulator_elements(mfma)
    unit = WIDTH / mfma.n
    for i in range(mfma.n):
        canvas.text(MARGIN + i * unit + 2, canvas.y + 10, str(i), size=9, colour="#666")
    top = canvas.y + 14
    size = 11 if mfma.n <= 16 else 8
    for lane in range(LANES):
        for register in range(rows.shape[1]):
            x = MARGIN + int(cols[lane, register]) * unit
            y = top + int(rows[lane, register]) * height
            label = f"{lane}: r{register}" if mfma.n <= 16 else f"{lane}:{register}"
            canvas.box(x, y, unit, height, PALETTE[lane // mfma.n], label, size=size)
    canvas.row_numbers(range(mfma.m), top, height)
    canvas.y = top + mfma.m * height
    return canvas.svg()


def program_mfma(program: Program) -> Mfma:
    """The matrix instruction that a kernel uses most. Raises InputError if it has none."""
    found = [i.mfma for i in walk(program.body) if isinstance(i, Instruction) and i.mfma]
    if not found:
        raise InputError(f"{program.name} has no matrix instruction")
    return max(found, key=found.count)


# LDS ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LdsTile:
    """A shared subtile: rows x cols elements, row by row, its bytes swizzled."""

    rows: int
    cols: int
    element_bytes: int
    swizzle: Swizzle

    @property
    def bytes(self) -> int:
        """Bytes of the tile."""
        return self.rows * self.cols * self.element_bytes


def lds_figure(tile: LdsTile, accesses: Sequence[LdsAccess]) -> str:
    """SVG: the bank of every word of a swizzled tile, and how each access is served.

    For each access (addresses counted from the start of the tile) first the tile as the kernel sees
    it, coloured by the phase in which a lane touches a word; then the banks of each phase, one row
    a clock. Raises InputError for a tile that is too large to be read.
    """
    words = tile.cols * tile.element_bytes // BANK_BYTES
    if tile.rows > MOST or words > MOST:
        raise InputError(
            f"a figure of {tile.rows} rows of {words} words cannot be read; allowed: {MOST} of each"
        )
    canvas = _Canvas()
    name = tile.swizzle.name
    canvas.title(
        f"{tile.rows}×{tile.cols} elements of {tile.element_bytes} B in LDS, swizzle {name}",
        f"byte offset o in the tile: {tile.swizzle}" if tile.swizzle.steps else "row by row",
    )
    for access in accesses:
        described = access.instruction
        canvas.heading(
            f"{described.name} on {described.arch}: {access.clocks} clk for {described.phases} "
            f"phases, {access.conflict_clocks} of them conflicts"
            + (" (banks or phases assumed)" if described.assumed else "")
        )
        canvas.legend([(PALETTE[p % 8], f"phase {p}") for p in range(described.phases)])
        _tile_panel(canvas, tile, access)
        _bank_panel(canvas, access)
    return canvas.svg()


def _tile_panel(canvas: _Canvas, tile: LdsTile, access: LdsAccess) -> None:
    """The tile in rows and columns; in each word its bank, above it the lane that touches it."""
    described = access.instruction
    words = tile.cols * tile.element_bytes // BANK_BYTES
    unit = min(WIDTH / words, WIDTH / 16)
    height = 28
    canvas.caption(
        "Rows down, columns across; in each word its bank, and the lane (L) that starts there"
    )
    for word in range(words):
        column = str(word * BANK_BYTES // tile.element_bytes)
        canvas.text(MARGIN + word * unit + 2, canvas.y + 10, column, size=9, colour="#666")
    top = canvas.y + 14
    lane_at: dict[int, int] = {}
    for lane in np.flatnonzero(access.active):
        for byte in range(0, described.bytes_per_lane, BANK_BYTES):
            lane_at.setdefault(access.addresses[lane] + byte, int(lane))
    offsets = np.arange(0, tile.bytes, BANK_BYTES)
    for offset, kept in zip(offsets.tolist(), tile.swizzle.apply(offsets).tolist(), strict=True):
        row, word = divmod(offset // BANK_BYTES, words)
        x, y = MARGIN + word * unit, top + row * height
        holder = lane_at.get(kept)
        colour = "#FFFFFF" if holder is None else PALETTE[described.lane_phase[holder] % 8]
        bank = kept // BANK_BYTES % described.banks
        canvas.box(x, y, unit, height, colour, str(bank), drop=6, stroke="#BBB")
        if holder is not None and (kept - access.addresses[holder]) == 0:
            canvas.text(x + 3, y + 10, f"L{holder}", size=8, colour="#333")
    canvas.row_numbers(range(tile.rows), top, height)
    canvas.y = top + tile.rows * height + 16


def _bank_panel(canvas: _Canvas, access: LdsAccess) -> None:
    """For each phase the banks across and its clocks down: which lane is served where."""
    described = access.instruction
    unit = WIDTH / described.banks
    canvas.caption("Banks across, one row a clock: the lanes served; red: must wait for the bank")
    for bank in range(0, described.banks, 4):
        canvas.text(MARGIN + bank * unit + 2, canvas.y + 10, str(bank), size=9, colour="#666")
    canvas.y += 14
    for phase, clocks in enumerate(access.phases):
        canvas.text(MARGIN - 6, canvas.y + 12, f"ph {phase}", size=10, anchor="end")
        canvas.frame(MARGIN, canvas.y, WIDTH, clocks * 18)
        asked: dict[int, dict[int, list[int]]] = {}  # first bank → address → lanes
        for lane in described.lanes(phase).tolist():
            if access.active[lane]:
                address = access.addresses[lane]
                bank = address // BANK_BYTES % described.banks
                asked.setdefault(bank, {}).setdefault(address, []).append(lane)
        for bank, addresses in asked.items():
            for clock, lanes in enumerate(addresses.values()):
                label = str(lanes[0]) if len(lanes) == 1 else f"{lanes[0]}+{len(lanes) - 1}"
                stroke = CONFLICT if clock else "#555"
                width = described.bytes_per_lane // BANK_BYTES * unit
                x, y = MARGIN + bank * unit, canvas.y + clock * 18
                canvas.box(x, y, width, 18, PALETTE[phase % 8], label, size=9, stroke=stroke)
        canvas.y += clocks * 18 + 6
    canvas.y += 20


def program_lds(program: Program) -> tuple[LdsTile, list[LdsAccess]]:
    """A kernel's shared subtile, and one access of each LDS instruction of its k-loop.

    Raises InputError if it has none.
    """
    dtype = program.tensors[0].dtype
    rows, cols, swizzle = SUBTILES[program.arch, dtype.bytes]
    tile = LdsTile(rows, cols, dtype.bytes, swizzle)
    accesses: dict[str, LdsAccess] = {}
    for waves in program.roles():
        body = program.of_wave(waves[0])
        lane = np.arange(program.lanes)
        env = {"wave": waves[0], "lane": lane, "tile_row": 0, "tile_col": 0}
        env |= {node.variable: 0 for node in walk(body) if isinstance(node, Loop)}
        for i in walk(steady_loop(body).body):
            if isinstance(i, Instruction) and i.unit == "lds" and i.mnemonic not in accesses:
                assert i.lds is not None
                places = np.broadcast_to(np.asarray(i.lds.evaluate(env)), lane.shape)
                start = places.min() // tile.bytes * tile.bytes
                accesses[i.mnemonic] = conflict(places - start, i.mnemonic, program.arch)
    if not accesses:
        raise InputError(f"{program.name} has no LDS instruction in its loop")
    return tile, list(accesses.values())


# registers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """Registers of one wave that belong together: a line of the definition, or the addresses.

    tiles: registers alive of each tile. total: registers that the definition asks for.
    """

    kind: str
    line: str
    tiles: tuple[int, ...]
    total: int

    @property
    def colour(self) -> str:
        return KIND_COLOURS.get(self.kind, PALETTE[3])


KIND_COLOURS = {
    "lane addresses": PALETTE[6],
    "operand": PALETTE[1],
    "accumulator": PALETTE[0],
    "staging": PALETTE[2],
}


def registers_figure(program: Program) -> str:
    """SVG: the registers a lane of a SIMD, shared by its waves, at each wave's fullest point.

    The placement is one of many: what a compiler chooses is not known. Values that are dead at that
    point take no place.
    """
    target = target_named(program.arch)
    granule = target.register_granule
    needs = {wave: need for need in register_needs(program) for wave in need.waves}
    canvas = _Canvas()
    canvas.title(
        f"{program.name} on {program.arch}: registers of SIMD 0",
        f"{target.registers} a lane, in columns of {granule}, shared by {program.waves_per_simd} "
        f"wave{'s' * (program.waves_per_simd > 1)}; values alive at the fullest point",
    )
    parts = {need.waves: _parts(program, need) for need in needs.values()}
    x, top = float(MARGIN), canvas.y + 40
    for wave in range(0, program.waves, SIMDS):
        need = needs[wave]
        columns = need.budget // granule
        canvas.text(x + 2, canvas.y + 12, f"wave {wave}", weight="bold")
        canvas.text(x + 2, canvas.y + 28, f"{need.need} needed, {need.budget} available", 11)
        _share(canvas, x, top, columns, granule, parts[need.waves])
        if need.budget > target.architectural_vgprs:
            edge = x + target.architectural_vgprs // granule * CELL
            canvas.line(edge, top - 12, edge, top + granule * CELL + 6)
            canvas.text(edge + 4, top - 3, "AGPRs →", 9, colour="#666")
            canvas.text(edge - 4, top - 3, "← VGPRs", 9, "end", colour="#666")
        x += columns * CELL
    canvas.y = top + granule * CELL + 24
    for shown in dict.fromkeys(parts.values()):
        same = [waves for waves in parts if parts[waves] == shown]
        canvas.heading("Waves " + ", ".join(f"{w[0]}–{w[-1]}" for w in same))
        for number, part in enumerate(shown, 1):
            alive = sum(part.tiles)
            count = f"{alive} of {part.total}" if alive < part.total else f"{alive}"
            _entry(canvas, part.colour, str(number), count, part.kind, part.line)
        free = needs[same[0][0]].budget - needs[same[0][0]].need
        _entry(canvas, "#FFFFFF", "", str(max(0, free)), "free", "")
        canvas.y += 12
    return canvas.svg()


def _parts(program: Program, need: RegisterNeed) -> tuple[_Part, ...]:
    """What a wave keeps: addresses first, accumulators last."""
    _, alive = most_live(program.of_wave(need.waves[0]))
    lines: dict[tuple[str, str], list[RegisterTile]] = {}
    for tile in program.registers:
        where = f"{tile.line.file}: {tile.line.text}"
        lines.setdefault((tile.name, where), []).append(tile)
    parts = [_Part("lane addresses", "", (need.addresses,), need.addresses)]
    for (name, line), tiles in sorted(lines.items(), key=lambda item: item[0][0] == "accumulator"):
        counts = (len(alive & set(range(t.first, t.first + t.count))) for t in tiles)
        parts.append(_Part(name, line, tuple(c for c in counts if c), sum(t.count for t in tiles)))
    return tuple(part for part in parts if sum(part.tiles))


def _share(
    canvas: _Canvas, x: float, top: float, columns: int, granule: int, parts: Sequence[_Part]
) -> None:
    """One wave's registers, column by column; neighbouring tiles in turn darker and lighter."""
    size = columns * granule

    def corner(register: int) -> tuple[float, float]:
        column, row = divmod(register, granule)
        return x + column * CELL, top + row * CELL

    place, is_dark = 0, False
    for number, part in enumerate(parts, 1):
        first = place
        for tile in part.tiles:
            is_dark = not is_dark
            for register in range(place, min(place + tile, size)):
                canvas.cell(*corner(register), part.colour, 0.6 if is_dark else 0.35)
            place += tile
        left, above = corner(min((first + place) // 2, size - 1))
        canvas.text(left + CELL / 2, above + CELL - 3, str(number), 10, "middle", weight="bold")
    for register in range(place, size):
        canvas.cell(*corner(register), "#FFFFFF")
    canvas.frame(x, top, columns * CELL, granule * CELL)


def _entry(canvas: _Canvas, colour: str, number: str, count: str, kind: str, line: str) -> None:
    """A line of the register map's legend."""
    canvas.cell(MARGIN, canvas.y, colour, 0.6)
    canvas.text(MARGIN + 22, canvas.y + 11, number, 11, weight="bold")
    canvas.text(MARGIN + 100, canvas.y + 11, count, 11, "end")
    canvas.text(MARGIN + 112, canvas.y + 11, kind, 11)
    canvas.text(MARGIN + 210, canvas.y + 11, line, 11, colour="#555")
    canvas.y += 18


# drawing -----------------------------------------------------------------------------------------


@dataclass
class _Canvas:
    """SVG elements, placed from top to bottom; `y` is where the next block starts (px)."""

    y: float = 0.0
    parts: list[str] = field(default_factory=list)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: int = 12,
        anchor: str = "start",
        *,
        colour: str = "#222",
        weight: str = "normal",
    ) -> None:
        style = f'font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
        if weight != "normal":
            style += f' font-weight="{weight}"'
        self.parts.append(f'<text x="{x:.5g}" y="{y:.5g}" {style}>{html.escape(text)}</text>')

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        colour: str,
        label: str,
        *,
        size: int = 11,
        drop: float = 0,
        stroke: str = "#888",
    ) -> None:
        """A filled cell with its label in the middle, `drop` px below it."""
        heavy = ' stroke-width="1.6"' if stroke == CONFLICT else ""
        self.parts.append(
            f'<rect x="{x:.5g}" y="{y:.5g}" width="{width:.5g}" height="{height:.5g}" '
            f'fill="{colour}" fill-opacity="0.35" stroke="{stroke}"{heavy}/>'
        )
        middle = y + height / 2 + size * 0.36 + drop
        self.text(x + width / 2, middle, label, size, "middle")

    def cell(self, x: float, y: float, colour: str, opacity: float = 0.4) -> None:
        self.parts.append(
            f'<rect x="{x:.5g}" y="{y:.5g}" width="{CELL}" height="{CELL}" '
            f'fill="{colour}" fill-opacity="{opacity}" stroke="{NEUTRAL}"/>'
        )

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        self.parts.append(
            f'<rect x="{x:.5g}" y="{y:.5g}" width="{width:.5g}" height="{height:.5g}" '
            'fill="none" stroke="#555"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.parts.append(
            f'<line x1="{x1:.5g}" y1="{y1:.5g}" x2="{x2:.5g}" y2="{y2:.5g}" stroke="#222" '
            'stroke-dasharray="4 3"/>'
        )

    def title(self, text: str, note: str) -> None:
        self.text(MARGIN, 28, text, 17, weight="bold")
        self.text(MARGIN, 48, note, 12, colour="#555")
        self.y = 64

    def heading(self, text: str) -> None:
        self.text(MARGIN, self.y + 14, text, 13, weight="bold")
        self.y += 24

    def caption(self, text: str) -> None:
        self.text(MARGIN, self.y + 10, text, 11, colour="#555")
        self.y += 18

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        for i, (colour, name) in enumerate(entries):
            self.cell(MARGIN + i * 104, self.y, colour)
            self.text(MARGIN + i * 104 + 20, self.y + 11, name, 11)
        self.y += 26

    def row_numbers(self, rows: Sequence[int], top: float, height: float) -> None:
        for row in rows:
            y = top + row * height + height / 2 + 4
            self.text(MARGIN - 6, y, str(row), 9, "end", colour="#666")

    def svg(self) -> str:
        width, height = MARGIN + WIDTH + 20, self.y + 16
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.5g}" '
                f'width="{width}" height="{height:.5g}" font-family="system-ui, sans-serif">',
                f'<rect width="{width}" height="{height:.5g}" fill="#FFFFFF"/>',
                *self.parts,
                "</svg>\n",
            ]
        )
