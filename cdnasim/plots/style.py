"""The look that all figures share: palette, titles, margins."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Eight colours told apart with the common kinds of colour blindness: Okabe and Ito, "Color
# Universal Design" (2008). A ninth XCD, suite or stall takes the first colour again.
PALETTE = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7"),  # blue, orange, green, pink
    *("#56B4E9", "#D55E00", "#F0E442", "#000000"),  # light blue, red, yellow, black
)
NEUTRAL = "#C8CCD0"  # for the part of a bar that is no cost


def style(figure: Figure, title: str, note: str = "", *, height: int, top: int = 90) -> Figure:
    """Give `figure` the common template, a title with a `note` below it, and a height (px).

    top: room for the title and whatever stands above the plot (px).
    """
    return figure.update_layout(
        template="plotly_white",
        title={"text": title, "x": 0, "y": 1, "yref": "container"},
        title_yanchor="top",
        title_pad={"t": 14},
        title_font_size=17,
        title_subtitle={"text": note, "font": {"size": 13, "color": "#555"}},
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#222"},
        colorway=PALETTE,
        height=height,
        margin={"l": 70, "r": 30, "t": top, "b": 60},
        hoverlabel={"align": "left"},
    )


def style_rows(figure: Figure, title: str, labels: Sequence[str], by: str) -> Figure:
    """`style` for horizontal bars, one row each: first row on top, height by their number."""
    legend = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"}
    figure.update_layout(legend=legend, bargap=0.25, yaxis_title_text=by)
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=labels[::-1], automargin=True
    )
    figure.update_layout(yaxis_ticksuffix="  ")
    return style(figure, title, height=170 + 36 * len(labels))


def escaped(labels: Sequence[str]) -> list[str]:
    """Labels as plotly shows them literally: it reads tags and entities in texts as HTML."""
    return [html.escape(label, quote=False) for label in labels]
