"""Grid orders: which output tile each workgroup computes.

A kernel whose output is split into rows x cols tiles (rows = M / BM, cols = N / BN) launches
n = rows * cols workgroups with ids 0..n-1. The hardware gives workgroup i to XCD i mod xcds. A grid
order is a pure function from the workgroup id to a tile, so it decides which tiles share the L2 of
an XCD and which run side by side on different XCDs.

Orders are named by a short text ("spec"), such as "row-major", "window:w=8" or "xcd:w=8,c=64";
ORDER_HELP lists them all. All indices count from 0 and are in units of tiles.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from numbers import Integral
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdnasim.errors import InputError

Positions = NDArray[np.int64]
# (rows, cols, xcds) -> shape (rows * cols,): row-major linear index of the tile of each workgroup.
# GridOrder.positions is one.
OrderFunction = Callable[[int, int, int], Positions]
# What a user may pass instead of a spec: (workgroup ids, rows, cols, xcds) -> the same array.
UserOrder = Callable[[Positions, int, int, int], Positions]

ORDER_HELP: dict[str, str] = {
    "row-major": "row-major: row 0 left to right, then row 1, and so on",
    "col-major": "col-major: column 0 top to bottom, then column 1, and so on",
    "window": "window:w=W: down W tile rows, one column right, again; then the next W rows",
    "xcd": "xcd:w=W,c=C: runs of C consecutive window positions on one XCD (arXiv 2511.08083)",
    "xcd-contiguous": "xcd-contiguous:w=W: one contiguous run of window positions for each XCD",
    "hilbert": "hilbert: Hilbert curve on the enclosing power-of-two square",
    "morton": "morton: Morton (Z) curve on the enclosing power-of-two square",
    "file": "file:PATH: text or .npy; entry i is the row-major index of the tile of workgroup i",
}


@dataclass(frozen=True)
class GridOrder:
    """One grid order, as made by parse_order.

    spec: canonical spec text, e.g. "xcd:w=8,c=64" (for a Python callable: "callable:" and its name)
    name: the part of the spec before ":"
    params: integer parameters as (key, value) pairs, in canonical order
    function: called as function(rows, cols, xcds, **params) for the row-major tile indices
    """

    spec: str
    name: str
    params: tuple[tuple[str, int], ...]
    function: Callable[..., Positions]

    def positions(self, rows: int, cols: int, xcds: int) -> Positions:
        """Row-major linear tile index of each workgroup: int64, shape (rows * cols,).

        Raises InputError if rows, cols or xcds is not an integer of 1 or more, or if a file or a
        callable does not give a permutation of 0..rows * cols - 1.
        """
        for key, value in (("rows", rows), ("cols", cols), ("xcds", xcds)):
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                got = _quote(value)
                raise InputError(f"order {self.spec!r}: {key} must be an integer >= 1, got {got}")
        return self.function(int(rows), int(cols), int(xcds), **dict(self.params))

    def tiles(self, rows: int, cols: int, xcds: int) -> NDArray[np.int32]:
        """Tile of each workgroup: int32, shape (rows * cols, 2); entry i is (row, col).

        Raises InputError like positions.
        """
        row, col = np.divmod(self.positions(rows, cols, xcds), int(cols))
        return np.stack((row, col), axis=1).astype(np.int32)


def parse_order(spec: str | UserOrder) -> GridOrder:
    """The grid order that a spec text (see ORDER_HELP) or a Python callable describes.

    "window:8" and "xcd-contiguous:8" are short for "window:w=8" and "xcd-contiguous:w=8". A file
    is read here; whether its length fits the grid is checked when the grid is known.

    Raises InputError for an unknown order; an unknown, missing or repeated key; a value that is not
    an integer of 1 or more; a file that cannot be read or does not hold integers.
    """
    if callable(spec):
        label = f"{spec.__module__}.{getattr(spec, '__qualname__', type(spec).__qualname__)}"
        text = f"callable:{label}"
        return GridOrder(text, "callable", (), partial(_from_callable, spec, f"order {text!r}"))
    if not isinstance(spec, str):
        raise InputError(f"order must be a text or a callable, got {_quote(spec)}")
    name, colon, rest = spec.partition(":")
    if name not in ORDER_HELP:
        raise InputError(f"unknown order {_quote(spec)}; allowed: {', '.join(ORDER_HELP)}")
    if name == "file":
        where = f"order file {rest!r}"
        return GridOrder(spec, name, (), partial(_from_table, _read_table(rest, where), where))
    function, keys = _ORDERS[name]
    values = _parse_params(spec, name, keys, rest) if colon or keys else {}
    params = tuple((key, values[key]) for key in keys)
    text = ",".join(f"{key}={value}" for key, value in params)
    return GridOrder(f"{name}:{text}" if text else name, name, params, function)


def _parse_params(spec: str, name: str, keys: tuple[str, ...], text: str) -> dict[str, int]:
    """The integers of "w=8,c=64": exactly the given keys, in any order."""

    def bad(what: str) -> InputError:
        return InputError(f"order {_quote(spec)}: {what}; use {ORDER_HELP[name]}")

    if not keys:
        raise bad(f"{name} takes no parameters")
    if len(keys) == 1 and _is_integer(text):
        text = f"{keys[0]}={text}"
    values: dict[str, int] = {}
    items = text.split(",") if text else []
    if not all(items):
        raise bad("empty item before or after a comma")
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise bad(f"{_quote(item)} is not key=value")
        if key not in keys:
            raise bad(f"unknown key {_quote(key)}, allowed: {', '.join(keys)}")
        if key in values:
            raise bad(f"key {key} is given twice")
        if not _is_integer(value) or int(value) < 1:
            raise bad(f"{key} must be an integer >= 1 of at most 18 digits, got {_quote(value)}")
        values[key] = int(value)
    for key in keys:
        if key not in values:
            raise bad(f"key {key} is missing")
    return values


def _is_integer(text: str) -> bool:
    """Plain decimal digits with an optional minus sign, short enough for 64 bits."""
    return re.fullmatch(r"-?[0-9]{1,18}", text) is not None


def _quote(value: object) -> str:
    """A value as shown in an error: on one line, cut if long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def _row_major(rows: int, cols: int, xcds: int) -> Positions:
    return np.arange(rows * cols, dtype=np.int64)


def _col_major(rows: int, cols: int, xcds: int) -> Positions:
    col, row = np.divmod(_row_major(rows, cols, xcds), rows)
    return row * cols + col


def _window(rows: int, cols: int, xcds: int, w: int) -> Positions:
    return _windowed(_row_major(rows, cols, xcds), rows, cols, w)


def _windowed(position: Positions, rows: int, cols: int, w: int) -> Positions:
    """Tile at each position of the walk "down w rows, then one column right".

    The last group of rows is lower than w when w does not divide rows.
    """
    w = min(w, rows)  # same walk, and w * cols stays small
    group, local = np.divmod(position, w * cols)
    first = group * w
    height = np.minimum(rows - first, w)
    tile: Positions = (first + local % height) * cols + local // height
    return tile


def _xcd(rows: int, cols: int, xcds: int, w: int, c: int) -> Positions:
    """Chunked regrouping, then the window: arXiv 2511.08083, Algorithm 1.

    Within each full cycle of xcds * c ids, the c ids that one XCD receives become c consecutive
    positions. Ids past the last full cycle stay: the published test is id > limit, which leaves
    id == limit to the formula, but that maps limit to itself, because limit is a multiple of
    xcds * c: limit mod xcds = 0, chunk = limit / (xcds * c), place = 0. With c so large that no
    cycle fits (xcds * c > n), limit is 0 and nothing moves.
    """
    ids = _row_major(rows, cols, xcds)
    cycle = xcds * c
    limit = len(ids) // cycle * cycle
    if limit == 0:
        return _windowed(ids, rows, cols, w)
    local, xcd = np.divmod(ids, xcds)
    chunk, place = np.divmod(local, c)
    moved = chunk * cycle + xcd * c + place
    return _windowed(np.where(ids > limit, ids, moved), rows, cols, w)


def _xcd_contiguous(rows: int, cols: int, xcds: int, w: int) -> Positions:
    """One contiguous run of positions per XCD, then the window.

    For n divisible by xcds this is the published (id mod xcds) * (n / xcds) + id / xcds. Otherwise
    the first n mod xcds XCDs receive one id more, and their runs are one longer.
    """
    ids = _row_major(rows, cols, xcds)
    local, xcd = np.divmod(ids, xcds)
    share, extra = divmod(len(ids), xcds)
    return _windowed(xcd * share + np.minimum(xcd, extra) + local, rows, cols, w)


def _side_bits(rows: int, cols: int) -> int:
    """log2 of the side of the smallest power-of-two square that holds the grid."""
    return (max(rows, cols) - 1).bit_length()


def _hilbert(rows: int, cols: int, xcds: int) -> Positions:
    """Tiles sorted by distance along the Hilbert curve from (0, 0) to (0, side - 1)."""
    y, x = np.divmod(_row_major(rows, cols, xcds), cols)
    side = 1 << _side_bits(rows, cols)
    distance = np.zeros_like(x)
    for bit in reversed(range(_side_bits(rows, cols))):
        right, low = x >> bit & 1, y >> bit & 1
        distance = distance * 4 + ((3 * right) ^ low)
        # Turn the quadrant so that its part of the curve looks like the whole curve.
        flip = (right == 1) & (low == 0)
        x, y = np.where(flip, side - 1 - x, x), np.where(flip, side - 1 - y, y)
        x, y = np.where(low == 0, y, x), np.where(low == 0, x, y)
    return np.argsort(distance).astype(np.int64)


def _morton(rows: int, cols: int, xcds: int) -> Positions:
    """Tiles sorted by their interleaved row and column bits, column lowest."""
    row, col = np.divmod(_row_major(rows, cols, xcds), cols)
    code = np.zeros_like(row)
    for bit in range(_side_bits(rows, cols)):
        code |= (col >> bit & 1) << (2 * bit) | (row >> bit & 1) << (2 * bit + 1)
    return np.argsort(code).astype(np.int64)


# Spec name -> (function, keys in canonical order); every key is a required integer >= 1.
_ORDERS: dict[str, tuple[Callable[..., Positions], tuple[str, ...]]] = {
    "row-major": (_row_major, ()),
    "col-major": (_col_major, ()),
    "window": (_window, ("w",)),
    "xcd": (_xcd, ("w", "c")),
    "xcd-contiguous": (_xcd_contiguous, ("w",)),
    "hilbert": (_hilbert, ()),
    "morton": (_morton, ()),
}


def _from_table(table: Positions, where: str, rows: int, cols: int, xcds: int) -> Positions:
    return _checked(table, where, rows, cols)


def _from_callable(function: UserOrder, where: str, rows: int, cols: int, xcds: int) -> Positions:
    result = function(_row_major(rows, cols, xcds), rows, cols, xcds)
    try:
        array = np.asarray(result)
    except ValueError:  # nested lists of unequal lengths
        raise InputError(f"{where}: must return an array, got {_quote(result)}") from None
    return _checked(_integers(array, where), where, rows, cols)


def _integers(values: NDArray[np.generic], where: str) -> Positions:
    """The same values as int64, after a check that they are a flat array of integers."""
    if values.ndim != 1 or values.dtype.kind not in "iu":
        got = f"shape {values.shape} of {values.dtype}"
        raise InputError(f"{where}: must be a 1-dimensional array of integers, got {got}")
    result = values.astype(np.int64)
    changed = np.flatnonzero(result != values)  # only uint64 values of 2**63 or more
    if len(changed):
        i = changed[0]
        raise InputError(f"{where}: entry {i} is {values[i]}, too large for a tile index")
    return result


def _checked(values: Positions, where: str, rows: int, cols: int) -> Positions:
    """A copy of the values, after a check that they are a permutation of 0..rows * cols - 1."""
    n = rows * cols
    if len(values) != n:
        raise InputError(
            f"{where}: {len(values)} entries, but a grid of {rows} x {cols} tiles needs {n}"
        )
    outside = np.flatnonzero((values < 0) | (values >= n))
    if len(outside):
        i = outside[0]
        raise InputError(f"{where}: entry {i} is {values[i]}, out of range; allowed: 0 to {n - 1}")
    missing = np.flatnonzero(np.bincount(values, minlength=n) == 0)
    if len(missing):
        first_uses = np.unique(values, return_index=True)[1]
        i = np.setdiff1d(np.arange(n), first_uses)[0]
        raise InputError(
            f"{where}: entry {i} is a duplicate of {values[i]}, and {missing[0]} is missing;"
            f" each of 0 to {n - 1} must appear once"
        )
    return values.copy()


def _read_table(path: str, where: str) -> Positions:
    """The integers of a .npy file or of a text file (separated by whitespace or commas)."""
    if not path:
        raise InputError(f"order 'file:': no path given; use {ORDER_HELP['file']}")
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{where}: cannot read: {reason}") from None
    if Path(path).suffix == ".npy":
        try:
            array = np.lib.format.read_array(BytesIO(data), allow_pickle=False)
        except Exception as error:  # numpy promises no particular type for a damaged header
            raise InputError(f"{where}: not a .npy file of integers: {_quote(error)}") from None
        return _integers(array, where)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text (byte {error.start})") from None
    words = text.replace(",", " ").split()
    if not words:
        raise InputError(f"{where}: empty; needs one integer per workgroup")
    for i, word in enumerate(words):
        if not _is_integer(word):
            raise InputError(
                f"{where}: entry {i} must be an integer of at most 18 digits, got {_quote(word)}"
            )
    return np.array([int(word) for word in words], dtype=np.int64)
