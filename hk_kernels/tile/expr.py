"""Integer expressions of lane, wave, workgroup and loop indices.

One expression serves all readings of a kernel: numpy evaluates it for all 64 lanes at once, and it
prints as C++.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Value: TypeAlias = "int | NDArray[np.int64]"
Index: TypeAlias = "Expr | int"
Environment: TypeAlias = Mapping[str, Any]

# symbol → (function on ints and arrays, C++ precedence)
_OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "*": (lambda a, b: a * b, 10),
    "/": (lambda a, b: a // b, 10),
    "%": (lambda a, b: a % b, 10),
    "+": (lambda a, b: a + b, 9),
    "-": (lambda a, b: a - b, 9),
    "<<": (lambda a, b: a << b, 8),
    ">>": (lambda a, b: a >> b, 8),
    "<": (lambda a, b: (a < b) * 1, 7),  # a number: numpy's bool + bool would be an or
    "==": (lambda a, b: (a == b) * 1, 6),
    "&": (lambda a, b: a & b, 5),
    "^": (lambda a, b: a ^ b, 4),
}


@dataclass(frozen=True, eq=False)
class Expr:
    """An expression; build it with Python's operators from `Symbol`s and ints.

    All values are non-negative, so `//` and C++ division agree.
    """

    def evaluate(self, env: Environment) -> Any:
        """The value with the symbols of `env` (ints or arrays); KeyError for a missing symbol."""
        raise NotImplementedError

    def cpp(self) -> str:
        """The expression as C++ text."""
        return self._cpp()[0]

    def _cpp(self) -> tuple[str, int]:
        raise NotImplementedError

    def symbols(self) -> frozenset[str]:
        """Names of the symbols in it."""
        raise NotImplementedError

    def __add__(self, other: Index) -> Expr:
        return _add(self, as_expr(other))

    def __radd__(self, other: int) -> Expr:
        return _add(as_expr(other), self)

    def __sub__(self, other: Index) -> Expr:
        other = as_expr(other)
        return _fold("-", self, other)

    def __mul__(self, other: Index) -> Expr:
        return _multiply(self, as_expr(other))

    def __rmul__(self, other: int) -> Expr:
        return _multiply(self, as_expr(other))

    def __floordiv__(self, other: int) -> Expr:
        return self if other == 1 else _fold("/", self, Constant(other))

    def __mod__(self, other: int) -> Expr:
        return _modulo(self, other)

    def __xor__(self, other: Index) -> Expr:
        return _fold("^", self, as_expr(other))

    def __and__(self, other: Index) -> Expr:
        return _fold("&", self, as_expr(other))

    def __lshift__(self, other: int) -> Expr:
        return _fold("<<", self, Constant(other))

    def __rshift__(self, other: int) -> Expr:
        return _fold(">>", self, Constant(other))

    def __lt__(self, other: Index) -> Expr:
        return _fold("<", self, as_expr(other))

    def __ge__(self, other: Index) -> Expr:
        return _fold("==", self < other, Constant(0))

    def equals(self, other: Index) -> Expr:
        """1 where both are equal, else 0 (`==` on expressions stays Python's identity)."""
        return _fold("==", self, as_expr(other))


@dataclass(frozen=True, eq=False)
class Constant(Expr):
    """A known integer."""

    value: int

    def evaluate(self, env: Environment) -> Any:
        return self.value

    def _cpp(self) -> tuple[str, int]:
        return str(self.value), 20

    def symbols(self) -> frozenset[str]:
        return frozenset()


@dataclass(frozen=True, eq=False)
class Symbol(Expr):
    """A named index: `lane`, `wave`, `tile_row`, `tile_col` or a loop's variable."""

    name: str

    def evaluate(self, env: Environment) -> Any:
        return env[self.name]

    def _cpp(self) -> tuple[str, int]:
        return self.name, 20

    def symbols(self) -> frozenset[str]:
        return frozenset({self.name})


@dataclass(frozen=True, eq=False)
class Binary(Expr):
    """`left operator right`."""

    operator: str
    left: Expr
    right: Expr

    def evaluate(self, env: Environment) -> Any:
        function, _ = _OPERATORS[self.operator]
        return function(self.left.evaluate(env), self.right.evaluate(env))

    def _cpp(self) -> tuple[str, int]:
        _, precedence = _OPERATORS[self.operator]
        left, left_precedence = self.left._cpp()
        right, right_precedence = self.right._cpp()
        if left_precedence < precedence:
            left = f"({left})"
        if right_precedence <= precedence:
            right = f"({right})"
        return f"{left} {self.operator} {right}", precedence

    def symbols(self) -> frozenset[str]:
        return self.left.symbols() | self.right.symbols()


def as_expr(value: Index) -> Expr:
    """An int as a Constant; an Expr as it is."""
    return value if isinstance(value, Expr) else Constant(int(value))


def _fold(operator: str, left: Expr, right: Expr) -> Expr:
    if isinstance(left, Constant) and isinstance(right, Constant):
        return Constant(int(_OPERATORS[operator][0](left.value, right.value)))
    if isinstance(right, Constant) and right.value == 0 and operator in ("+", "-", "^", "<<", ">>"):
        return left
    return Binary(operator, left, right)


def _add(left: Expr, right: Expr) -> Expr:
    if isinstance(left, Constant):
        left, right = right, left  # constants go to the right, where they meet
    if isinstance(right, Constant) and isinstance(left, Binary) and left.operator == "+":
        inner = left.right
        if isinstance(inner, Constant):
            return _add(left.left, Constant(inner.value + right.value))
    return _fold("+", left, right)


def _multiply(left: Expr, right: Expr) -> Expr:
    if isinstance(left, Constant):
        left, right = right, left
    if isinstance(right, Constant) and right.value in (0, 1):
        return right if right.value == 0 else left
    return _fold("*", left, right)


def _modulo(left: Expr, modulus: int) -> Expr:
    """`left % modulus`, without the terms that are multiples of the modulus."""
    if modulus == 1:
        return Constant(0)
    rest: Expr = Constant(0)
    for term in _terms(left):
        if isinstance(term, Constant):
            rest = rest + term.value % modulus
        elif not _is_multiple(term, modulus):
            rest = rest + term
    if isinstance(rest, Constant):
        return Constant(rest.value % modulus)
    return _fold("%", rest, Constant(modulus))


def _terms(expr: Expr) -> list[Expr]:
    if isinstance(expr, Binary) and expr.operator == "+":
        return _terms(expr.left) + _terms(expr.right)
    return [expr]


def _is_multiple(expr: Expr, modulus: int) -> bool:
    return (
        isinstance(expr, Binary)
        and expr.operator == "*"
        and isinstance(expr.right, Constant)
        and expr.right.value % modulus == 0
    )
