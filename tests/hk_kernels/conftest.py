"""Small GEMM programs, data on which results are exact, and how to read what an error says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cdnasim.errors import InputError
from hk_kernels import gemm
from hk_kernels.lower.program import Program
from hk_kernels.tile.dtypes import bf16
from hk_kernels.tile.language import Kernel, lower

Matrix = NDArray[np.float32]

# The smallest tile of each kernel that still has every part of the schedule.
SMALL: dict[str, tuple[Kernel, str, tuple[int, int, int]]] = {
    "pingpong8": (gemm.pingpong8, "gfx950", (128, 128, 64)),
    "pingpong8_whole": (gemm.pingpong8, "gfx950", (192, 128, 64)),  # A is not fetched in halves
    "pingpong8_registers": (gemm.pingpong8_registers, "gfx942", (64, 64, 64)),
    "interleave4": (gemm.interleave4, "gfx950", (64, 64, 64)),
    "specialized": (gemm.specialized, "gfx950", (64, 64, 64)),
}


@dataclass(frozen=True)
class Problem:
    """Inputs a (m, k), b (n, k) of small whole numbers, and the C that they give.

    Sums stay below 2**24, so fp32 accumulation is exact in any order and C is exact but for the one
    rounding to bf16: results can be compared bit by bit.
    """

    a: Matrix
    b: Matrix
    c: Matrix


@cache
def _small_program(name: str, steps: int, grid: tuple[int, int]) -> Program:
    definition, arch, (bm, bn, bk) = SMALL[name]
    m, n, k = grid[0] * bm, grid[1] * bn, steps * bk
    return lower(definition, arch, m, n, k, bm=bm, bn=bn, bk=bk)


@cache
def _problem(m: int, n: int, k: int) -> Problem:
    rng = np.random.default_rng(m + n + k)
    a = rng.integers(-3, 4, (m, k)).astype(np.float32)
    b = rng.integers(-3, 4, (n, k)).astype(np.float32)
    return Problem(a, b, bf16.decode(bf16.encode(a @ b.T)))


@pytest.fixture
def small_program() -> Callable[..., Program]:
    """`small_program(name, steps=4, grid=(1, 1))`: one of SMALL, lowered."""

    def get(name: str, steps: int = 4, grid: tuple[int, int] = (1, 1)) -> Program:
        return _small_program(name, steps, grid)

    return get


@pytest.fixture
def problem() -> Callable[[Program], Problem]:
    """`problem(program)`: inputs and the exact result of a GEMM program."""

    def get(program: Program) -> Problem:
        a, b, _ = program.tensors
        return _problem(a.rows, b.rows, a.cols)

    return get


@pytest.fixture
def refusal() -> Callable[..., str]:
    """`refusal(function, *args)`: the message of the InputError that it raises, of one line."""

    def get(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
        with pytest.raises(InputError) as caught:
            function(*args, **kwargs)
        message = str(caught.value)
        assert message
        assert "\n" not in message
        return message

    return get
