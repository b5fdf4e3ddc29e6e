"""What a kernel asks for, beside what it does: the price of a schedule."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING

from cdnasim.experiment.case import GemmCase
from cdnasim.isa.instructions import encoding_of
from cdnasim.trace.model import TraceInstruction, TraceLoop

if TYPE_CHECKING:
    from hk_kernels.lower.program import Line
    from hk_kernels.tile.language import Kernel

HEADINGS = (
    "waves",
    "registers",
    "spilled",
    "LDS KB",
    "hot loop lines",
    "instructions",
    "KB",
    "k-step clk",
    "MFMA %",
    "latency tolerated clk",
    "FLOP/B",
)


def kernel_facts(case: GemmCase) -> list[str] | None:
    """A row under HEADINGS; None for the generic pipeline, which has no kernel.

    registers, hot loop (lines of the definition, instructions and KB of their encoding): of the
    role that needs most. FLOP/B: of a k-step's loads.
    """
    trace = case.trace()
    if trace is None:
        return None
    from hk_kernels.catalog import gemm_program, parse_schedule
    from hk_kernels.lower.registers import register_needs, steady_loop

    gemm, profile = case.gemm, case.profile()
    program = gemm_program(gemm.schedule, trace.arch, gemm.dtype, gemm.tile, allow_spills=True)
    needs = register_needs(program)
    definition = parse_schedule(gemm.schedule)[0].kernels[trace.arch]
    lines = [
        hot_loop_lines(definition, steady_loop(program.of_wave(need.waves[0])).line)
        for need in needs
    ]
    loops = [_k_loop(role.body) for role in trace.roles]
    sizes = [sum(_bytes(i) for i in loop) for loop in loops]
    rows, cols, depth = gemm.tile
    loaded = sum(operand.slab_bytes for operand in trace.operands)
    return [
        str(trace.waves),
        str(max(need.need for need in needs)),
        str(max(sum(spill.count for spill in need.spills) for need in needs)),
        f"{trace.lds_bytes / 1024:.0f}",
        str(max(lines)),
        str(max(len(loop) for loop in loops)),
        f"{max(sizes) / 1024:.1f}",
        f"{profile.loop_clk:.0f}",
        f"{100 * profile.matrix_clk / profile.loop_clk:.1f}",
        f"{min(operand.lead_clk for operand in profile.operands):.0f}",
        f"{2 * rows * cols * depth / loaded:.0f}",
    ]


def hot_loop_lines(definition: Kernel, loop: Line) -> int:
    """Lines of a definition that make up the loop at `loop`, helpers it calls included.

    Blank lines and comments do not count.
    """
    texts, first = inspect.getsourcelines(definition.function)
    tree = ast.parse(textwrap.dedent("".join(texts)))
    helpers = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    todo: list[ast.For | ast.FunctionDef] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and node.lineno + first - 1 == loop.number
    ]
    numbers: set[int] = set()
    for node in todo:  # grows by the helpers found
        numbers |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        todo += [helpers[name] for name in sorted(names) if helpers.get(name, node) not in todo]
    lines = (texts[number - 1].strip() for number in numbers)
    return sum(1 for line in lines if line and not line.startswith("#"))


def _k_loop(body: list[TraceInstruction | TraceLoop]) -> list[TraceInstruction]:
    loop = next(n for n in body if isinstance(n, TraceLoop) and n.is_k_loop)
    return [n for n in loop.body if isinstance(n, TraceInstruction)]


def _bytes(i: TraceInstruction) -> int:
    encoding = encoding_of(i.mnemonic)
    return encoding.bytes if encoding else 0
