"""HTML reports: one file with tables and interactive figures that opens without a network."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdnasim import __version__
from cdnasim.errors import InputError

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# The policy lets the page run what it carries and forbids it to fetch anything.
_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
"""
_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1240px;
       margin: 24px auto; padding: 0 16px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 8px; }
h2 { font-size: 19px; margin: 36px 0 8px; }
p, li, summary { overflow-wrap: anywhere; }
.note { color: #555; font-size: 14px; margin: 4px 0 12px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th, td { padding: 5px 12px; text-align: left; border-bottom: 1px solid #ddd; }
th { border-bottom: 2px solid #888; vertical-align: bottom; }
td { white-space: nowrap; }
tbody tr:hover { background: #f3f6f9; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
details { border: 1px solid #ddd; border-radius: 6px; margin: 10px 0; padding: 0 14px; }
summary { cursor: pointer; font-weight: 600; padding: 9px 0; }
details h2 { font-size: 17px; margin-top: 12px; }
footer { margin-top: 48px; padding-top: 12px; border-top: 1px solid #ccc;
         color: #555; font-size: 13px; }
dt { font-weight: 600; margin-top: 6px; } dd { margin: 0; overflow-wrap: anywhere; }
"""
# A figure in a closed section has no width yet: it is drawn when the section opens.
_DRAW = """
function draw(div) {
  if (div.childElementCount || div.closest("details:not([open])")) return;
  const figure = JSON.parse(document.getElementById(div.id + "-data").textContent);
  Plotly.newPlot(div, figure.data, figure.layout, {responsive: true, displaylogo: false});
}
const figures = document.querySelectorAll(".figure");
figures.forEach(draw);
document.querySelectorAll("details").forEach(
  section => section.addEventListener("toggle", () => figures.forEach(draw)));
"""


class Report:
    """A page that grows from top to bottom and is then written as one HTML file.

    title, intro: plain text. facts: name -> text of the footer, such as the machine and the
    parameters behind the numbers. Every text is escaped; paragraphs are parted by empty lines.
    """

    def __init__(self, title: str, intro: str = "", facts: Mapping[str, str] | None = None) -> None:
        self._title = title
        self._facts = dict(facts or {})
        self._parts = [f"<h1>{html.escape(title)}</h1>"]
        self._figures = 0
        self.add_text(intro)

    def add_text(self, text: str) -> None:
        """Append paragraphs."""
        self._parts += [f"<p>{html.escape(p)}</p>" for p in _paragraphs(text)]

    def add_table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str = ""
    ) -> None:
        """Append a table. Numbers are rounded and stand right; None and NaN show as a dash.

        A column is a column of numbers if it holds no text; its heading should name the unit.
        """
        texts = [_column([row[i] for row in rows]) for i in range(len(columns))]
        numeric = [all(not isinstance(row[i], str) for row in rows) for i in range(len(columns))]
        marks = [' class="number"' if is_numeric else "" for is_numeric in numeric]

        def line(tag: str, cells: Sequence[str]) -> str:
            pairs = zip(cells, marks, strict=True)
            items = (f"<{tag}{mark}>{html.escape(cell)}</{tag}>" for cell, mark in pairs)
            return f"<tr>{''.join(items)}</tr>"

        self.add_heading(title, note)
        body = "\n".join(line("td", row) for row in zip(*texts, strict=True))
        self._parts.append(
            f'<div class="wide"><table><thead>{line("th", columns)}</thead>\n'
            f"<tbody>\n{body}\n</tbody></table></div>"
        )

    def add_figure(self, title: str, figure: Figure, note: str = "") -> None:
        """Append a plotly figure."""
        self.add_heading(title, note)
        self._figures += 1
        # "<" inside JSON texts could end the script element or open a comment.
        data = figure.to_json().replace("<", "\\u003c")
        name = f"figure-{self._figures}"
        height = figure.layout.height or 450
        self._parts.append(
            f'<div class="figure" id="{name}" style="min-height:{height}px"></div>\n'
            f'<script type="application/json" id="{name}-data">{data}</script>'
        )

    @contextmanager
    def details(self, title: str, *, is_open: bool = False) -> Iterator[None]:
        """What is appended inside the `with` stands in a section that the reader opens."""
        mark = " open" if is_open else ""
        self._parts.append(f"<details{mark}><summary>{html.escape(title)}</summary>")
        yield
        self._parts.append("</details>")

    def write(self, path: Path | str) -> Path:
        """Write the page, whole or not at all; raises InputError if `path` cannot be written."""
        path = Path(path)
        try:
            draft = path.with_name(f".{path.name}.{os.getpid()}.part")
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                draft.write_text(self._page(), encoding="utf-8", errors="replace")
                os.replace(draft, path)
            finally:
                draft.unlink(missing_ok=True)
        except (OSError, ValueError) as error:  # ValueError: a path that no file can have
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{path}: cannot be written: {reason}") from None
        return path

    def add_heading(self, title: str, note: str = "") -> None:
        """Append a heading, and a note below it."""
        self._parts.append(f"<h2>{html.escape(title)}</h2>")
        self._parts += [f'<p class="note">{html.escape(p)}</p>' for p in _paragraphs(note)]

    def _page(self) -> str:
        from plotly.offline import get_plotlyjs

        facts = {"made with": f"cdnasim {__version__}", **self._facts}
        items = "".join(
            f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>\n"
            for name, text in facts.items()
        )
        scripts = [f"<script>{get_plotlyjs()}</script>", f"<script>{_DRAW}</script>"]
        return "\n".join(
            [
                f"{_HEAD}<title>{html.escape(self._title)}</title>\n<style>{_CSS}</style>\n</head>",
                "<body>",
                *self._parts,
                f"<footer><dl>\n{items}</dl></footer>",
                *(scripts if self._figures else []),
                "</body>\n</html>\n",
            ]
        )


def _paragraphs(text: str) -> list[str]:
    return [part for part in re.split(r"\n\s*\n", text.strip()) if part]


def _column(values: Sequence[Any]) -> list[str]:
    """Cells as texts; numbers with as many decimals as give the largest four digits."""
    numbers = [v for v in values if not isinstance(v, str | None) and v == v]
    numbers = [round(abs(float(v)), 9) for v in numbers]  # 100 * 0.55 counts as whole
    digits = 4 - len(f"{max(numbers, default=0):.0f}")
    decimals = max(0, digits) if any(not n.is_integer() for n in numbers) else 0

    def text(value: Any) -> str:
        if value is None or value != value:
            return "–"
        if isinstance(value, str):
            return value
        is_small = 0 < abs(value) < 10 ** (1 - decimals) and not float(value).is_integer()
        return f"{value:.2g}" if is_small else f"{value:,.{decimals}f}"

    return [text(value) for value in values]
