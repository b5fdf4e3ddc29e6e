"""What the chip model replays: the profile of a workgroup, and where each workgroup's slabs lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class OperandStream:
    """One operand that a workgroup streams through its loop, a slab per iteration.

    slab_bytes: bytes of one slab (B). piece_bytes: contiguous bytes of each of its rows (B).
    lead_clk: the load latency that the schedule tolerates. ahead: iterations from the issue of a
    slab's load to the wait for it: a latency beyond the lead adds (latency - lead) / ahead to each
    iteration.
    """

    name: str
    slab_bytes: int
    piece_bytes: int
    lead_clk: float
    ahead: float


@dataclass(frozen=True)
class WorkgroupProfile:
    """Core clocks of one workgroup whose loads all come in time, and the traffic it makes.

    prologue, `iterations` of the loop, epilogue; `matrix_clk` of each iteration's `loop_clk` keep
    the matrix pipe busy. The first loads are issued after first_load_clk, and the loop starts no
    earlier than fill_clk after the first slabs are there. In iteration t the loads of slab
    t + ceil(ahead) are issued. store_bytes leave in the epilogue (B). shared_loop_clk: a k-step
    while the CU holds two, three, … workgroups.
    """

    name: str
    first_load_clk: float
    fill_clk: float
    prologue_clk: float
    loop_clk: float
    epilogue_clk: float
    iterations: int
    matrix_clk: float
    operands: tuple[OperandStream, OperandStream]
    store_bytes: int
    shared_loop_clk: tuple[float, ...] = ()

    @property
    def residents(self) -> int:
        """How many workgroups a CU holds at a time at most."""
        return 1 + len(self.shared_loop_clk)


@dataclass(frozen=True)
class Launch:
    """A grid of workgroups that run one profile.

    blocks: for each workgroup in launch order the block index of each operand, shape (workgroups,
    2): slab k of operand o of workgroup w is slab `blocks[w, o] * iterations + k` of that operand.
    block_counts: how many blocks each operand has.
    """

    profile: WorkgroupProfile
    blocks: NDArray[np.int32]
    block_counts: tuple[int, int]
    flops: float
