"""A case's slab requests replayed line by line (memory/lines.py)."""

from __future__ import annotations

import numpy as np

from cdnasim.experiment.case import GemmCase
from cdnasim.gpu.chip import Chip, Options
from cdnasim.machine.model import ELEMENT_BYTES
from cdnasim.memory.lines import LineCounts, RequestLog, TensorLayout, simulate_lines


def check_lines(case: GemmCase, seed: int = 0) -> LineCounts:
    """Line-granular counts of the requests that the slab model makes for `case`.

    A, B and C lie one after the other, row by row, without padding. Raises InputError without
    numba.
    """
    launch = case.launch()
    chip = Chip(case.machine, launch, Options(case.warm, seed, log_requests=True))
    chip.run()
    gemm, (bm, bn, bk) = case.gemm, case.gemm.tile
    element, out = ELEMENT_BYTES[gemm.dtype], ELEMENT_BYTES["bf16"]
    a = TensorLayout(base=0, rows=bm, pitch=gemm.k * element, piece_bytes=bk * element)
    b = TensorLayout(gemm.m * a.pitch, rows=bn, pitch=a.pitch, piece_bytes=a.piece_bytes)
    c = TensorLayout(
        base=b.base + gemm.n * b.pitch,
        rows=bm,
        pitch=gemm.n * out,
        piece_bytes=bn * out,
        blocks_per_row=gemm.grid[1],
    )
    return simulate_lines(request_log(chip), (a, b, c), case.machine, warm=case.warm)


def request_log(chip: Chip) -> RequestLog:
    """The logged requests of a chip that has run, with slab keys taken apart."""
    xcd, key = np.array(chip.requests, dtype=np.int64).reshape(-1, 2).T
    sizes, steps = chip.sizes, chip.launch.profile.iterations
    operand = (key >= sizes.first_b).astype(np.int8) + (key >= sizes.first_store)
    place = key - np.array([0, sizes.first_b, sizes.first_store])[operand]
    is_store = operand == 2
    return RequestLog(
        xcd=xcd.astype(np.int16),
        operand=operand.astype(np.int8),
        block=np.where(is_store, place, place // steps).astype(np.int32),
        slab=np.where(is_store, 0, place % steps).astype(np.int32),
    )
