"""Strictly read CSV tables: where each line stands, its cells by column, numbers."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdnasim.errors import InputError

_WHOLE = re.compile(r"[0-9]{1,20}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BINARY = {
    b"SQLite format 3\0": "is an SQLite database (rocpd), not CSV",
    b"NVR\0": "is a binary Nsight Compute report, not CSV",
    b"\x1f\x8b": "is a gzip file, not CSV",
    b"PK\x03\x04": "is a zip file, not CSV",
}


@dataclass(frozen=True)
class Row:
    """One line of a table: its cells by column name; `where` is its file and line."""

    where: str
    cells: dict[str, str]

    def text(self, column: str) -> str:
        """The cell, which must not be empty."""
        cell = self.cells[column]
        if not cell:
            raise InputError(f"{self.where}: column '{column}' is empty")
        return cell

    def whole(self, column: str, least: int = 0) -> int:
        """The cell as a whole number of at least `least`."""
        cell = self.text(column)
        if not _WHOLE.fullmatch(cell) or int(cell) < least:
            raise InputError(
                f"{self.where}: {column} {shown(cell)} must be a whole number from {least}"
            )
        return int(cell)

    def whole_if_given(self, column: str, least: int = 0) -> int | None:
        """The whole number; None if the column is missing or the cell is empty."""
        return self.whole(column, least) if self.cells.get(column) else None

    def number(self, column: str) -> float:
        """The cell as a finite number from 0."""
        cell = self.text(column)
        value = float(cell) if _NUMBER.fullmatch(cell) else math.nan
        if not 0 <= value < math.inf:
            raise InputError(f"{self.where}: {column} {shown(cell)} must be a finite number from 0")
        return value


@dataclass(frozen=True)
class Table:
    """A CSV file: the columns of its header and its lines below."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def read_table(
    path: Path,
    hint: str,
    needed: Callable[[Sequence[str]], Sequence[str]],
    prepare: Callable[[str], str] = str,
    *,
    may_lack_last: bool = False,
) -> Table:
    """The table in `path`, any order of columns.

    hint: how to write such a file, for errors. needed: the columns that a header must have, given
    those it has. prepare: blanks out lines of the text that do not belong to the table.
    may_lack_last: lines may end after the last needed column.
    Raises InputError (file, line, reason) for what is not UTF-8 CSV text, a column missing or given
    twice, a ragged line, and a table without lines.
    """
    lines = csv_lines(path, prepare(read_text(path, hint)))
    line, columns = next(lines, (1, []))
    if not columns:
        raise InputError(f"{path}:1: the file is empty; {hint}")
    where = f"{path}:{line}"
    must = needed(columns)
    for column in must:
        if column not in columns:
            have = shown(",".join(columns))
            raise InputError(f"{where}: column '{column}' is missing, got {have}; {hint}")
    for column in columns:
        if column and columns.count(column) > 1:
            raise InputError(f"{where}: column {shown(column)} is given twice")
    shortest = max(columns.index(c) for c in must) + 1 if may_lack_last else len(columns)
    rows = []
    for line, cells in lines:
        if not shortest <= len(cells) <= len(columns):
            raise InputError(
                f"{path}:{line}: {len(cells)} cells, but the header has {len(columns)}"
            )
        rows.append(Row(f"{path}:{line}", dict(zip(columns, cells, strict=False))))
    if not rows:
        raise InputError(f"{where}: the table has a header but no line; {hint}")
    return Table(path, tuple(columns), tuple(rows))


def read_text(path: Path, hint: str) -> str:
    """The text of a file; raises InputError for what is not UTF-8 text, or is JSON or binary."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    for start, what in _BINARY.items():
        if data.startswith(start):
            raise InputError(f"{path}:1: {what}; {hint}")
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise InputError(f"{path}:{line}: has a NUL byte, so it is not CSV text; {hint}")
    try:
        text = data.decode("utf-8-sig")  # spreadsheet programs write a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: is not UTF-8 text") from None
    if text.lstrip()[:1] in ("{", "["):
        raise InputError(f"{path}:1: is JSON, not CSV; {hint}")
    return text


def csv_lines(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Each CSV line that is not blank: its number and its stripped cells."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, [cell.strip() for cell in cells]
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}:{line}: is not valid CSV: {error}") from None


def shown(text: str) -> str:
    """Text from a file as errors show it: quoted, on one line, cut if long."""
    quoted = repr(text)
    return quoted if len(quoted) <= 80 else quoted[:77] + "..."
