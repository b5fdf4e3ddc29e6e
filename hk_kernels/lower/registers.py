"""How many registers a wave needs, what that leaves for others, and what would spill."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from cdnasim.errors import InputError
from hk_kernels.lower.program import Instruction, Loop, Node, Program, RegisterTile, walk
from hk_kernels.lower.target import target_named

REGISTER_BYTES = 4  # of a lane


@dataclass(frozen=True)
class Spill:
    """Registers of a tile that do not fit. bytes_per_step: a wave's scratch traffic per k-step."""

    tile: RegisterTile
    registers: tuple[int, ...]
    bytes_per_step: int

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.registers)


@dataclass(frozen=True)
class RegisterNeed:
    """Registers (32 bit, per lane) that a wave of one role needs.

    live: most values alive at once. addresses: lane addresses kept over the loop. budget: what the
    waves of a SIMD leave each other. vgprs, agprs: the need split over the two halves of the file.
    """

    waves: tuple[int, ...]
    live: int
    addresses: int
    budget: int
    vgprs: int
    agprs: int
    occupancy: int
    spills: tuple[Spill, ...]
    moved: tuple[int, ...]

    @property
    def need(self) -> int:
        """Live values and addresses."""
        return self.live + self.addresses

    def report(self) -> str:
        """One line on what spills; empty if all fits."""
        if not self.spills:
            return ""
        lines: dict[str, tuple[int, int]] = {}
        for s in self.spills:
            name = f"{s.tile.name} registers ({s.tile.line})"
            spilt, count = lines.get(name, (0, 0))
            lines[name] = spilt + s.count, count + s.tile.count
        tiles = ", ".join(f"{spilt} of {count} {name}" for name, (spilt, count) in lines.items())
        traffic = sum(s.bytes_per_step for s in self.spills)
        return (
            f"{self.need} registers needed ({self.live} live values, {self.addresses} addresses), "
            f"{self.budget} available: {tiles} would spill, {traffic} B of scratch traffic a "
            "k-step and wave"
        )


def register_needs(program: Program) -> list[RegisterNeed]:
    """The need of each role of the program, from the liveness of every register."""
    target = target_named(program.arch)
    granule = target.register_granule
    budget = target.registers // program.waves_per_simd // granule * granule
    budget = min(budget, target.wave_registers)
    needs = []
    for waves in program.roles():
        body = program.of_wave(waves[0])
        live, alive = most_live(body)
        addresses = _addresses(program, body, waves[0])
        need = live + addresses
        rounded = -(-need // granule) * granule
        pinned = [int(t.pinned[1:]) + t.count for t in program.registers if t.pinned[:1] == "a"]
        agprs = max([0, rounded - target.architectural_vgprs, *pinned])
        needs.append(
            RegisterNeed(
                waves=waves,
                live=live,
                addresses=addresses,
                budget=budget,
                vgprs=max(0, rounded - agprs),
                agprs=agprs,
                occupancy=min(target.waves_per_simd, target.registers // max(granule, rounded)),
                spills=_spills(program, body, alive, need - budget),
                moved=_moved(program, body, alive, addresses),
            )
        )
    return needs


def check_registers(program: Program) -> None:
    """Raise InputError with the spill report if a role needs more than its budget."""
    for need in register_needs(program):
        if need.spills:
            raise InputError(
                f"{program.name}: {program.waves} waves, {program.waves_per_simd} a SIMD, split "
                f"its registers evenly; waves {need.waves[0]}-{need.waves[-1]}: {need.report()}"
            )


def most_live(body: list[Node]) -> tuple[int, set[int]]:
    """The most registers alive at one point, and which."""
    most: set[int] = set()

    def flow(nodes: list[Node], live: set[int]) -> set[int]:
        nonlocal most
        for node in reversed(nodes):
            if isinstance(node, Loop):
                entry = flow(node.body, set(live))
                # what the next iteration reads is alive at the end of this one
                live = flow(node.body, live | entry) | live
            elif isinstance(node, Instruction):
                reads = set(node.src) | (set(node.dst) if node.mfma else set())
                if len(live | set(node.dst)) > len(most):
                    most = live | set(node.dst)
                live = (live - set(node.dst)) | reads
                if len(live) > len(most):
                    most = set(live)
        return live

    flow(body, set())
    return len(most), most


def _addresses(program: Program, body: list[Node], wave: int) -> int:
    """Registers for lane addresses.

    Addresses that differ by the same amount in all lanes share a register: the difference is an
    immediate or a scalar. So it is the shapes of the addresses over the lanes that count.
    """
    shapes = set()
    variables = {node.variable: 0 for node in walk(body) if isinstance(node, Loop)}
    lane = np.arange(program.lanes)
    env = {"lane": lane, "wave": wave, "tile_row": 0, "tile_col": 0, **variables}
    for node in walk(body):
        if isinstance(node, Instruction):
            for expr in (node.lds, node.memory.offset if node.memory else None):
                if expr is not None and "lane" in expr.symbols():
                    values = np.asarray(expr.evaluate(env))
                    shapes.add((values - values[0]).tobytes())
    return len(shapes)


def _spills(program: Program, body: list[Node], alive: set[int], over: int) -> tuple[Spill, ...]:
    """What a compiler would keep in scratch: the registers that a k-step touches least."""
    if over <= 0:
        return ()
    touches = _touches(body)
    chosen = sorted(alive, key=lambda register: (touches[register], register))[:over]
    spills = []
    for tile in program.registers:
        mine = [r for r in chosen if tile.first <= r < tile.first + tile.count]
        if mine:
            moved = REGISTER_BYTES * program.lanes * sum(touches[r] for r in mine)
            spills.append(Spill(tile, tuple(mine), moved))
    return tuple(spills)


def _touches(body: list[Node]) -> Counter[int]:
    """How often a k-step reads or writes each register."""
    touches: Counter[int] = Counter()
    for node in walk(steady_loop(body).body):
        if isinstance(node, Instruction):
            touches.update(node.src)
            touches.update(node.dst)
            if node.mfma:
                touches.update(node.dst)
    return touches


def _moved(program: Program, body: list[Node], alive: set[int], addresses: int) -> tuple[int, ...]:
    """What does not fit the VGPRs beside the addresses, accumulators aside: the least touched.

    hipcc takes AGPRs for accumulators but not for the A and B of an MFMA, unless a kernel pins
    them (HipKittens, arXiv:2511.08083).
    """
    accumulators = {
        r
        for tile in program.registers
        if tile.name == "accumulator"
        for r in range(tile.first, tile.first + tile.count)
    }
    others = alive - accumulators
    over = len(others) + addresses - target_named(program.arch).architectural_vgprs
    if over <= 0:
        return ()
    touches = _touches(body)
    return tuple(sorted(others, key=lambda register: (touches[register], register))[:over])


def steady_loop(body: list[Node]) -> Loop:
    """The loop over k-steps: the one with most instructions. Raises InputError if there is none."""
    loops = [node for node in walk(body) if isinstance(node, Loop)]
    if not loops:
        raise InputError("the kernel has no loop: k must be longer")
    return max(loops, key=lambda loop: loop.count * sum(1 for _ in walk(loop.body)))
