"""Figures of one simulated launch: where its workgroups ran, and how its caches did over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cdnasim.gpu.result import Result, WorkgroupLog
from cdnasim.plots.style import PALETTE, style

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_ROUND_STEPS = 12


def rounds_of(log: WorkgroupLog) -> NDArray[np.int64]:
    """The batch of resident workgroups that each one belongs to, shape (workgroups,).

    A workgroup's rank by start time on its XCD, over the CUs that were used there.
    """
    rounds = np.zeros(len(log.xcd), np.int64)
    for xcd in np.unique(log.xcd):
        members = np.flatnonzero(log.xcd == xcd)
        by_start = members[np.argsort(log.start_clk[members], kind="stable")]
        rounds[by_start] = np.arange(len(members)) // len(np.unique(log.cu[members]))
    return rounds


def xcd_map(
    tiles: NDArray[np.integer],
    xcd: NDArray[np.integer],
    round_: NDArray[np.integer],
    shape: tuple[int, int],
) -> Figure:
    """Map of the output tiles by the XCD that computes them, with a slider over the rounds.

    tiles: (row, col) of each workgroup in launch order, shape (workgroups, 2). xcd, round_: where
    and in which batch of resident workgroups each runs, shape (workgroups,). shape: rows and
    columns of the tile grid. The slider has at most 12 rounds, evenly chosen.
    """
    import plotly.graph_objects as go

    def on_grid(values: NDArray[np.integer], empty: float, dtype: Any) -> NDArray[Any]:
        grid = np.full(shape, empty, dtype)
        grid[tiles[:, 0], tiles[:, 1]] = values
        return grid

    last = int(round_.max(initial=0))
    fits = np.min_scalar_type(max(len(xcd), last))  # small integers keep the file light
    ids = [on_grid(values, 0, fits) for values in (np.arange(len(xcd)), round_)]
    owner = on_grid(xcd, np.nan, np.float32)
    xcds = int(xcd.max(initial=0)) + 1
    edges = np.repeat(np.arange(xcds + 1) / xcds, 2)[1:-1]
    colours = [PALETTE[i // 2 % len(PALETTE)] for i in range(2 * xcds)]
    gap = 1 if max(shape) <= 64 else 0
    figure = go.Figure(
        go.Heatmap(
            z=owner,
            customdata=np.stack(ids, axis=-1),
            colorscale=list(zip(edges.tolist(), colours, strict=True)),
            zmin=-0.5,
            zmax=xcds - 0.5,
            xgap=gap,
            ygap=gap,
            colorbar={"title": {"text": "XCD"}, "tickvals": list(range(xcds))},
            hovertemplate="tile row %{y}, column %{x}<br>workgroup %{customdata[0]}<br>"
            "XCD %{z}<br>round %{customdata[1]}<extra></extra>",
        )
    )
    # A round is the whole map under a veil over the other rounds' tiles: it costs a byte per tile.
    rounds = np.unique(np.linspace(0, last, min(MAX_ROUND_STEPS, last + 1)).round().astype(int))
    veils = rounds.tolist() if last else []
    for r in veils:
        figure.add_heatmap(
            z=(ids[1] != r).astype(np.int8),
            colorscale=[[0, "rgba(255,255,255,0)"], [1, "rgba(255,255,255,0.88)"]],
            zmin=0,
            zmax=1,
            showscale=False,
            hoverinfo="skip",
            visible=False,
        )
    steps = [
        {
            "label": "all" if shown is None else str(shown),
            "method": "restyle",
            "args": [{"visible": [True, *(r == shown for r in veils)]}],
        }
        for shown in [None, *veils]
    ]
    if veils:
        prefix = {"prefix": "round shown: "}
        figure.update_layout(
            sliders=[{"steps": steps, "currentvalue": prefix, "pad": {"t": 60}, "len": 0.9}]
        )
    figure.update_xaxes(title_text="tile column", constrain="domain", showgrid=False)
    figure.update_yaxes(title_text="tile row", autorange="reversed", showgrid=False)
    for axis, tiles_along in (("yaxis", shape[0]), ("xaxis", shape[1])):
        if tiles_along < 10:  # no ticks between two tiles
            figure.update_layout({f"{axis}.dtick": 1})
    if max(shape) <= 4 * min(shape):
        figure.update_yaxes(scaleanchor="x", constrain="domain")
    title = "Which XCD computes which output tile"
    note = f"{shape[0]} x {shape[1]} tiles, {len(xcd)} workgroups in {last + 1} rounds"
    return style(figure, title, note, height=820)


def hit_rate_over_time(result: Result) -> Figure:
    """L2 hit rate of each XCD and LLC hit rate (%) between the samples of `result.series`."""
    from plotly.subplots import make_subplots

    series = result.series
    edges = np.concatenate(([0.0], series.clk)) / result.clock_mhz  # clk / MHz = us
    middle = (edges[1:] + edges[:-1]) / 2
    l2, llc = _rate(series.l2_hit, series.l2_read), _rate(series.llc_hit, series.llc_read)
    curves = [(1, f"L2 of XCD {x}", rate, PALETTE[x % len(PALETTE)]) for x, rate in enumerate(l2.T)]
    if series.llc_read.any():  # a machine may have no LLC
        curves.append((2, "LLC", llc, "#555"))
    panels = curves[-1][0]
    figure = make_subplots(rows=panels, shared_xaxes=True, vertical_spacing=0.08)
    for row, name, rate, colour in curves:
        figure.add_scatter(
            x=middle,
            y=rate,
            mode="lines",
            name=name,
            line={"color": colour, "width": 1.5},
            hovertemplate="%{x:.1f} us: %{y:.1f} %",
            row=row,
            col=1,
        )
    for row, cache in enumerate(("L2", "LLC")[:panels], start=1):
        figure.update_yaxes(title_text=f"{cache} hit rate (%)", range=[-3, 103], row=row, col=1)
    figure.update_xaxes(rangemode="tozero")
    figure.update_xaxes(title_text="time (us)", row=panels, col=1)
    title = "Hit rate over time"
    note = f"of the bytes read between two of the {len(series.clk)} samples; gaps: nothing was read"
    return style(figure, title, note, height=190 + 190 * panels)


def _rate(hit: NDArray[np.int64], read: NDArray[np.int64]) -> NDArray[np.float64]:
    """Hits over reads (%) of each interval, from running totals; NaN where nothing was read."""
    hits, reads = np.diff(hit, axis=0, prepend=0), np.diff(read, axis=0, prepend=0)
    rate = np.full(reads.shape, np.nan)
    np.divide(100 * hits, reads, out=rate, where=reads > 0)
    return rate


def xcds_per_block(
    blocks: NDArray[np.integer], xcd: NDArray[np.integer], counts: tuple[int, int]
) -> Figure:
    """How many XCDs fetch each A row block and each B column block: each needs its own L2 copy.

    blocks: (A block, B block) of each workgroup, shape (workgroups, 2). xcd: shape (workgroups,).
    counts: how many blocks A and B have.
    """
    from plotly.subplots import make_subplots

    xcds = int(xcd.max(initial=0)) + 1
    per_block = []
    for operand, count in enumerate(counts):
        pairs = np.unique(blocks[:, operand].astype(np.int64) * xcds + xcd)
        per_block.append(np.bincount(pairs // xcds, minlength=count))
    names = ("A row block", "B column block")
    titles = [f"{n}s: mean {p.mean():.2f} XCDs" for n, p in zip(names, per_block, strict=True)]
    figure = make_subplots(cols=2, subplot_titles=titles, horizontal_spacing=0.06)
    for col, (name, readers) in enumerate(zip(names, per_block, strict=True), start=1):
        figure.add_bar(
            x=np.arange(len(readers)),
            y=readers,
            name=name,
            marker_color=PALETTE[2 * col - 2],
            hovertemplate=f"{name} %{{x}}: %{{y}} XCDs<extra></extra>",
            row=1,
            col=col,
        )
        figure.update_xaxes(title_text=f"{name} (index)", row=1, col=col)
    figure.update_yaxes(range=[0, xcds + 0.3], dtick=max(1, xcds // 8))
    figure.update_yaxes(title_text="XCDs that fetch it", row=1, col=1)
    figure.update_layout(bargap=0.1, showlegend=False)
    note = "every XCD more is one more copy in an L2, and one more fetch from the LLC"
    return style(figure, "XCDs that fetch each operand block", note, height=380, top=110)
