"""What the command line prints: tables, progress, and nothing that a pipe cannot take."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

Progress = Callable[[int, int], None]


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """An aligned table on stdout; columns of numbers are right-aligned."""
    print(f"\n{title}" if title else "")
    table = [list(columns), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    right = [all(_is_number(row[i]) for row in table[1:]) for i in range(len(columns))]
    for number, row in enumerate(table):
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-|[-+]?[0-9][0-9.,]*(e[-+][0-9]+)?( (%|pt))?", text) is not None


@contextmanager
def progress_bar(label: str) -> Iterator[Progress | None]:
    """A callback `(done, all)` that draws a bar on stderr, or None if that is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
