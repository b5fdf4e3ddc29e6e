"""The hot loop with its clocks: which instruction waits for what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cdnasim.cu.model import CuResult
from cdnasim.trace.model import KernelTrace, TraceInstruction, TraceLoop, TraceNode, flat_length


@dataclass(frozen=True)
class ListedInstruction:
    """An instruction of a role's k-loop.

    hits: executions by all waves of the role. clocks: mean clk of one, its issue included. stalls:
    cause → mean clk of them.
    """

    mnemonic: str
    line: str
    hits: int
    clocks: float
    stalls: dict[str, float]


def list_loop(trace: KernelTrace, result: CuResult, wave: int) -> list[ListedInstruction]:
    """The k-loop of the role that `wave` belongs to, in order, with the clocks of `result`."""
    listed = []
    for key, i in _numbered(trace, wave):
        cost = result.instructions.get(key)
        if cost is None:
            continue
        stalls = {cause: clk / cost.hits for cause, clk in cost.stalls.items()}
        clocks = cost.issue / cost.hits + sum(stalls.values())
        line = trace.lines[i.line]
        listed.append(ListedInstruction(i.mnemonic, line, cost.hits, clocks, stalls))
    return listed


def stall_shares(result: CuResult) -> dict[str, float]:
    """What all waves spend their lives on: cause → fraction, `issue` of instructions included."""
    life = sum(w.end - w.start for w in result.waves)
    shares = {"issuing": sum(w.busy for w in result.waves) / life}
    for wave in result.waves:
        for cause, clk in wave.stalls.items():
            shares[cause] = shares.get(cause, 0.0) + clk / life
    return shares


def _numbered(trace: KernelTrace, wave: int) -> Iterator[tuple[int, TraceInstruction]]:
    """The k-loop instructions of the wave's role with their numbers in the flattened streams."""
    offset = 0
    for role in trace.roles:
        if wave in role.waves:
            yield from _k_loop(role.body, offset, False)
        offset += flat_length(role.body)


def _k_loop(
    body: list[TraceNode], offset: int, inside: bool
) -> Iterator[tuple[int, TraceInstruction]]:
    for node in body:
        if isinstance(node, TraceLoop):
            yield from _k_loop(node.body, offset, inside or node.is_k_loop)
            offset += flat_length(node.body)
        else:
            if inside:
                yield offset, node
            offset += 1
