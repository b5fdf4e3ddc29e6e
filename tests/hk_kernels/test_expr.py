"""Index expressions: the same value from numpy, from plain ints and from the C++ text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hk_kernels.tile.expr import Constant, Expr, Symbol, as_expr
from hk_kernels.tile.tiles import swizzled

LANES = 64
LARGEST = 2**62  # of an intermediate value: numpy computes in 64 bits

OPERATORS: dict[str, Callable[[int, int], int]] = {
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "<": lambda a, b: int(a < b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "&": lambda a, b: a & b,
    "^": lambda a, b: a ^ b,
}
# Of C++, tightest first. Not Python's: there & and ^ bind tighter than comparisons, which chain.
PRECEDENCE = (("*", "/", "%"), ("+", "-"), ("<<", ">>"), ("<",), ("==",), ("&",), ("^",))

# A tree is a name, an int, or (operator, left, right).
Tree = Any


def python_value(tree: Tree, env: Mapping[str, int]) -> int:
    """The value by Python's ints alone; refuses what 64 bits do not hold."""
    if isinstance(tree, str):
        return env[tree]
    if isinstance(tree, int):
        return tree
    operator, left, right = tree
    value = OPERATORS[operator](python_value(left, env), python_value(right, env))
    assume(0 <= value < LARGEST)
    return value


def expression(tree: Tree) -> Any:
    """The tree through the operators of Expr; ints stay ints where Python allows it."""
    if isinstance(tree, str):
        return Symbol(tree)
    if isinstance(tree, int):
        return tree
    operator, left, right = tree
    a, b = expression(left), expression(right)
    if isinstance(a, int) and (isinstance(b, int) or operator not in ("+", "*")):
        a = as_expr(a)
    return {
        "*": lambda: a * b,
        "/": lambda: a // b,
        "%": lambda: a % b,
        "+": lambda: a + b,
        "-": lambda: a - b,
        "<<": lambda: a << b,
        ">>": lambda: a >> b,
        "<": lambda: a < b,
        ">=": lambda: a >= b,
        "==": lambda: a.equals(b),
        "&": lambda: a & b,
        "^": lambda: a ^ b,
    }[operator]()


def cpp_tree(text: str) -> Tree:
    """C++ text parsed by C++'s precedence."""
    tokens = re.findall(r"\d+|[A-Za-z_]\w*|<<|>>|==|\S", text)

    def primary() -> Tree:
        token = tokens.pop(0)
        if token == "(":
            inner = level(len(PRECEDENCE) - 1)
            assert tokens.pop(0) == ")"
            return inner
        return int(token) if token.isdigit() else token

    def level(index: int) -> Tree:
        if index < 0:
            return primary()
        left = level(index - 1)
        while tokens and tokens[0] in PRECEDENCE[index]:
            operator = tokens.pop(0)
            left = (operator, left, level(index - 1))
        return left

    tree = level(len(PRECEDENCE) - 1)
    assert not tokens
    return tree


def grow(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    """Larger trees. A difference is (a + b) - b / c, so that nothing gets below zero."""
    return st.one_of(
        st.tuples(st.sampled_from(["+", "^", "&", "<", ">=", "=="]), inner, inner),
        st.tuples(st.sampled_from(["*"]), inner, st.integers(0, 24)),
        st.tuples(st.sampled_from(["/", "%"]), inner, st.integers(1, 24)),
        st.tuples(st.sampled_from(["<<", ">>"]), inner, st.integers(0, 4)),
        st.builds(lambda a, b, c: ("-", ("+", a, b), ("/", b, c)), inner, inner, st.integers(1, 9)),
    )


TREES = st.recursive(
    st.one_of(st.sampled_from(["lane", "wave", "t"]), st.integers(0, 80)), grow, max_leaves=12
)


@settings(max_examples=300)
@given(tree=TREES, wave=st.integers(0, 15), t=st.integers(0, 300))
def test_numpy_ints_and_cpp_text_agree(tree: Tree, wave: int, t: int) -> None:
    envs = [{"lane": lane, "wave": wave, "t": t} for lane in range(LANES)]
    values = [python_value(tree, env) for env in envs]
    expr = as_expr(expression(tree))

    at_once = expr.evaluate({"lane": np.arange(LANES), "wave": wave, "t": t})
    assert np.broadcast_to(at_once, (LANES,)).tolist() == values

    text = cpp_tree(expr.cpp())
    for lane in (0, 1, 37, 63):
        assert expr.evaluate(envs[lane]) == values[lane]
        assert python_value(text, envs[lane]) == values[lane]
    assert expr.symbols() <= {"lane", "wave", "t"}


def test_conditions_add_up_as_numbers_under_numpy() -> None:
    """Where numpy's own `bool + bool` would be a logical or."""
    lane = Symbol("lane")
    count = (lane < 3) + (lane < 5) + lane.equals(0)
    assert count.evaluate({"lane": np.array([0, 2, 4, 6])}).tolist() == [3, 2, 1, 0]


def text(expr: Expr | int) -> str:
    return as_expr(expr).cpp()


T, LANE = Symbol("t"), Symbol("lane")


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        ((T * 2 + 1) % 2, "1"),
        ((T * 2) % 2, "0"),
        ((T * 4 + LANE + 6) % 2, "lane % 2"),
        ((T * 3 + 1) % 2, "(t * 3 + 1) % 2"),
        (LANE % 1, "0"),
        (LANE // 1, "lane"),
        (LANE * 1, "lane"),
        (LANE * 0, "0"),
        (0 + LANE, "lane"),
        (3 + LANE + 4, "lane + 7"),
        (LANE ^ 0, "lane"),
        (LANE << 0, "lane"),
        (LANE - (T + 1), "lane - (t + 1)"),
        (LANE // 16 * 16, "lane / 16 * 16"),
        ((LANE ^ T) % 8, "(lane ^ t) % 8"),
        (LANE >= 4, "lane < 4 == 0"),
        (as_expr(5) ^ 3, "6"),
    ],
)
def test_folding_and_parentheses(expr: Expr, wanted: str) -> None:
    assert text(expr) == wanted


def test_the_stage_of_an_unrolled_loop_is_a_constant() -> None:
    """What makes buffer addresses of `for t in k.loop(n, unroll=2)` constants."""
    stages = [(T * 2 + copy) % 2 for copy in range(4)]
    assert all(isinstance(stage, Constant) for stage in stages)
    assert [text(stage) for stage in stages] == ["0", "1", "0", "1"]


def test_symbols_are_those_that_remain() -> None:
    assert ((T * 2 + LANE) % 2).symbols() == {"lane"}
    with pytest.raises(KeyError):
        (T + LANE).evaluate({"lane": 1})


def test_a_swizzle_as_an_expression_is_the_swizzle() -> None:
    from cdnasim.isa.swizzle import PUBLISHED

    offset = Symbol("offset")
    for swizzle in PUBLISHED.values():
        offsets = np.arange(2048)
        as_text = swizzled(offset, swizzle).evaluate({"offset": offsets})
        assert np.array_equal(as_text, swizzle.apply(offsets))
