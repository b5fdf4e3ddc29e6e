"""Addresses as code wants them: a part of the lane, a uniform part, a constant.

A lane address `A.row * pitch + …` mixes what differs from lane to lane with what is the same for
the wave. Instructions take the two apart: a VGPR that stays for the whole loop, and a scalar or an
immediate that moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cdnasim.isa.lds import LANES
from hk_kernels.tile.expr import Binary, Constant, Expr, Symbol

SAMPLES = 16  # of loop variables and tiles, to see whether an address has a uniform part
Range = tuple[int, int]  # least and greatest value


@dataclass(frozen=True)
class Space:
    """The values that symbols take. waves: those that execute the instruction.

    ranges: least and greatest value of the other symbols: loop variables, tile indices.
    """

    waves: tuple[int, ...]
    ranges: Mapping[str, Range]
    lanes: int = LANES

    def all_ranges(self) -> dict[str, Range]:
        """Of lane and wave as well."""
        waves = min(self.waves), max(self.waves)
        return {"lane": (0, self.lanes - 1), "wave": waves, **self.ranges}


@dataclass(frozen=True)
class Address:
    """lane + uniform + constant, in bytes.

    lane: of lane and wave. uniform: of loop variables and tile indices. shape: what `lane` is over
    the waves and lanes, 0 at the first; addresses of equal shape can share a register.
    """

    lane: Expr
    uniform: Expr
    constant: int
    shape: bytes


def split(expr: Expr, space: Space) -> Address | None:
    """The parts of a lane address, or None if lane and uniform symbols do not separate by a sum."""
    first = {"lane": 0, "wave": space.waves[0]}
    others = dict.fromkeys(expr.symbols() - first.keys(), 0)
    ranges = space.all_ranges()
    lane = simplify(expr, ranges, others)
    uniform, constant = _without_constant(simplify(expr, ranges, first))
    env = {"lane": np.arange(space.lanes)[:, None], "wave": np.array(space.waves)}
    values = np.broadcast_to(np.asarray(lane.evaluate(env)), (space.lanes, len(space.waves)))
    samples = _samples(space)
    moving = {name: value[:, None, None] for name, value in samples.items()}
    whole = np.asarray(expr.evaluate(env | moving))
    scalar = np.asarray(uniform.evaluate(samples)).reshape(-1, 1, 1)
    start = int(expr.evaluate(first | others))
    if (whole != values + scalar + (constant - start)).any():
        return None
    shape = (values - values[0, 0]).astype(np.int64).tobytes()
    lane, in_lane = _without_constant(lane)
    return Address(lane, uniform, in_lane + constant - start, shape)


def _without_constant(expr: Expr) -> tuple[Expr, int]:
    if isinstance(expr, Constant):
        return Constant(0), expr.value
    sum_ = _sum_of(expr)
    return _Sum(sum_.terms, 0).expr(), sum_.constant


def _samples(space: Space) -> dict[str, NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    samples = {}
    for name, (least, most) in space.ranges.items():
        values = rng.integers(least, most + 1, SAMPLES)
        values[0], values[1] = least, most
        samples[name] = values
    return samples


def simplify(
    expr: Expr, ranges: Mapping[str, Range], values: Mapping[str, int] | None = None
) -> Expr:
    """The same number with fewer operations, for symbols within `ranges`; `values` are put in.

    Sums are flattened, products with constants distributed, quotients and remainders of what is
    known to be small or a multiple dropped.
    """
    if isinstance(expr, Symbol):
        return Constant(values[expr.name]) if values and expr.name in values else expr
    if not isinstance(expr, Binary):
        return expr
    left, right = (simplify(side, ranges, values) for side in (expr.left, expr.right))
    operator = expr.operator
    if isinstance(right, Constant) and operator in ("<<", ">>"):
        right = Constant(1 << right.value)
        operator = "*" if operator == "<<" else "/"
    if isinstance(left, Constant) and isinstance(right, Constant):
        return Constant(int(Binary(operator, left, right).evaluate({})))
    if operator in ("+", "-"):
        return _sum_of(Binary(operator, left, right)).expr()
    if operator == "*" and (isinstance(left, Constant) or isinstance(right, Constant)):
        return _sum_of(Binary(operator, left, right)).expr()
    if operator in ("/", "%") and isinstance(right, Constant):
        return _quotient(operator, left, right.value, ranges)
    if operator == "^" and isinstance(left, Constant) and left.value == 0:
        return right
    if operator == "^" and isinstance(right, Constant) and right.value == 0:
        return left
    return Binary(operator, left, right)


@dataclass
class _Sum:
    """constant + Σ factor · term; `terms`: text of the term → term, factor."""

    terms: dict[str, tuple[Expr, int]] = field(default_factory=dict)
    constant: int = 0

    def add(self, expr: Expr, factor: int) -> None:
        """Add factor · expr."""
        if isinstance(expr, Constant):
            self.constant += factor * expr.value
        elif isinstance(expr, Binary) and expr.operator in ("+", "-"):
            self.add(expr.left, factor)
            self.add(expr.right, factor if expr.operator == "+" else -factor)
        elif isinstance(expr, Binary) and expr.operator == "*" and _is_constant(expr.right):
            self.add(expr.left, factor * int(expr.right.evaluate({})))
        elif isinstance(expr, Binary) and expr.operator == "*" and _is_constant(expr.left):
            self.add(expr.right, factor * int(expr.left.evaluate({})))
        else:
            key = expr.cpp()
            _, before = self.terms.get(key, (expr, 0))
            self.terms[key] = expr, before + factor

    def expr(self) -> Expr:
        """The sum, what is subtracted last."""
        total: Expr = Constant(0)
        for term, factor in sorted(self.terms.values(), key=lambda pair: pair[1] < 0):
            if factor > 0:
                total = total + term * factor
            elif factor < 0:
                total = total - term * -factor
        if self.constant < 0:
            return total - -self.constant
        return total + self.constant


def _is_constant(expr: Expr) -> bool:
    return isinstance(expr, Constant)


def _sum_of(expr: Expr) -> _Sum:
    total = _Sum()
    total.add(expr, 1)
    return total


def _quotient(operator: str, expr: Expr, divisor: int, ranges: Mapping[str, Range]) -> Expr:
    """`expr / divisor` or `expr % divisor`; multiples of the divisor are taken out."""
    whole, rest = _Sum(), _Sum()
    total = _sum_of(expr)
    for term, factor in total.terms.values():
        (rest if factor % divisor else whole).add(term, factor)
    below = total.constant % divisor
    rest.constant, whole.constant = below, total.constant - below
    remainder, multiple = rest.expr(), whole.expr()
    least, most = bounds(remainder, ranges)
    if least < 0 or bounds(multiple, ranges)[0] < 0:
        return Binary(operator, expr, Constant(divisor))
    is_small = most < divisor
    if operator == "%":
        return remainder if is_small else Binary("%", remainder, Constant(divisor))
    result = _Sum()
    for term, factor in whole.terms.values():
        result.add(term, factor // divisor)
    result.constant = whole.constant // divisor
    if not is_small:
        result.add(Binary("/", remainder, Constant(divisor)), 1)
    return result.expr()


def bounds(expr: Expr, ranges: Mapping[str, Range]) -> Range:
    """Least and greatest value that `expr` can have (it may not reach them)."""
    if isinstance(expr, Constant):
        return expr.value, expr.value
    if isinstance(expr, Symbol):
        return ranges[expr.name]
    assert isinstance(expr, Binary)
    (a, b), (c, d) = bounds(expr.left, ranges), bounds(expr.right, ranges)
    if expr.operator == "+":
        return a + c, b + d
    if expr.operator == "-":
        return a - d, b - c
    if expr.operator == "*":
        products = [a * c, a * d, b * c, b * d]
        return min(products), max(products)
    if expr.operator == "/" and c > 0:
        return a // d if a >= 0 else a // c, b // c
    if expr.operator == "%" and a >= 0:
        return 0, min(b, d - 1)
    if expr.operator in ("<", "=="):
        return 0, 1
    return 0, (1 << max(b, d, 0).bit_length()) - 1
