"""Figures that compare simulated launches with each other and with measurements.

Pure functions from records to a plotly `Figure`; plotly is imported when a figure is made, never
when this module is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cdnasim.errors import InputError
from cdnasim.plots.style import NEUTRAL, PALETTE, escaped, style, style_rows

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BEST_SHOWN = 20

FRACTION = "fraction"  # the unit of metrics that are compared in points, not as a ratio
BAND = 0.10  # half width of the band around the diagonal: a ratio, or points of a fraction


@dataclass(frozen=True)
class Row:
    """One bar of a comparison.

    label: what tells it from the others; unique within a figure. summary: as `Result.summary()`.
    measured: the metrics that are known, named and in units as in the summary.
    """

    label: str
    summary: Mapping[str, Any]
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Panel:
    """One of the panels side by side in a comparison: a metric times `scale`."""

    metric: str
    name: str
    unit: str
    scale: float
    number: str
    colour: str


def hit_rates_by_order(rows: Sequence[Row], by: str = "order") -> Figure:
    """L2 and LLC hit rate (%) of each row, measured values as diamonds where known."""
    panels = [
        _Panel("l2_hit", "L2 hit rate", "% of the bytes read", 100, ".1f", PALETTE[0]),
        _Panel("llc_hit", "LLC hit rate", "% of the bytes that missed L2", 100, ".1f", PALETTE[2]),
    ]
    figure = _bar_panels(rows, panels, by, f"L2 and LLC hit rate by {by}")
    return figure.update_xaxes(tickvals=[0, 20, 40, 60, 80, 100])


def time_by_order(rows: Sequence[Row], by: str = "order") -> Figure:
    """Time (us) and throughput (TFLOPS) of each row, measured values as diamonds where known."""
    panels = [
        _Panel("time_us", "time", "us", 1, ",.1f", PALETTE[0]),
        _Panel("tflops", "throughput", "TFLOPS", 1, ",.0f", PALETTE[2]),
    ]
    return _bar_panels(rows, panels, by, f"Time and throughput by {by}")


def _bar_panels(rows: Sequence[Row], panels: Sequence[_Panel], by: str, title: str) -> Figure:
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=len(panels), shared_yaxes=True, horizontal_spacing=0.04)
    labels = escaped([row.label for row in rows])
    any_measured = any(p.metric in row.measured for p in panels for row in rows)
    legend_has_measured = False
    for col, panel in enumerate(panels, start=1):
        values = [panel.scale * row.summary[panel.metric] for row in rows]
        known = {
            label: panel.scale * row.measured[panel.metric]
            for label, row in zip(labels, rows, strict=True)
            if panel.metric in row.measured
        }
        texts = [f"{value:{panel.number}}" for value in values]
        for i, label in enumerate(labels):
            if label in known:
                texts[i] += f" (measured {known[label]:{panel.number}})"
        cell = {"row": 1, "col": col}
        number = f"%{{x:{panel.number}}} ({panel.unit})<extra></extra>"
        figure.add_bar(
            x=values,
            y=labels,
            orientation="h",
            name=f"{panel.name}, predicted",
            marker_color=panel.colour,
            hovertemplate=f"%{{y}}<br>predicted {number}",
            **cell,
        )
        if known:
            figure.add_scatter(
                x=list(known.values()),
                y=list(known),
                mode="markers",
                name="measured",
                legendgroup="measured",
                legendrank=2000,
                showlegend=not legend_has_measured,
                marker={"symbol": "diamond", "size": 11, "color": "white"},
                marker_line={"color": "black", "width": 2},
                hovertemplate=f"%{{y}}<br>measured {number}",
                **cell,
            )
            legend_has_measured = True
        # The texts are a trace of their own: they must clear both the bar and the diamond.
        ends = [max(x, known.get(label, x)) for label, x in zip(labels, values, strict=True)]
        figure.add_scatter(
            x=ends,
            y=labels,
            mode="text",
            text=[3 * "\N{NO-BREAK SPACE}" + text for text in texts],
            textposition="middle right",
            cliponaxis=False,
            hoverinfo="skip",
            showlegend=False,
            **cell,
        )
        room = 1.6 if any_measured else 1.2
        axis = f"{panel.name} ({panel.unit})"
        limit = room * max(ends, default=0) or 1
        figure.update_xaxes(title_text=axis, range=[0, limit], **cell)
    return style_rows(figure, title, labels, by)


def traffic_by_order(rows: Sequence[Row], by: str = "order") -> Figure:
    """Stacked bars of where the bytes read came from (GB): L2, LLC, HBM."""
    parts = [
        ("L2 hit", "l2_hit_bytes", PALETTE[0]),
        ("LLC hit", "llc_hit_bytes", PALETTE[2]),
        ("HBM", "hbm_read_bytes", PALETTE[5]),
    ]
    bars = [(name, [row.summary[key] / 1e9 for row in rows], colour) for name, key, colour in parts]
    title = f"Where the bytes that the workgroups read came from, by {by}"
    return _stacked(rows, bars, by, title, "bytes read (GB)", ",.2f")


def stall_breakdown(rows: Sequence[Row], by: str = "order") -> Figure:
    """Stacked bars of the summary's `stalls` (% of the time of all CU slots), busy time first."""
    names = list(dict.fromkeys(name for row in rows for name in row.summary["stalls"]))
    causes = [name for name in names if name != "busy"]
    colours = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(causes)} | {"busy": NEUTRAL}
    bars = [
        (name, [100 * row.summary["stalls"].get(name, 0.0) for row in rows], colours[name])
        for name in sorted(names, key=lambda name: name != "busy")
    ]
    title = f"What the CU slots spend their time on, by {by}"
    figure = _stacked(rows, bars, by, title, "share of the time of all CU slots (%)", ".1f")
    return figure.update_xaxes(range=[0, 100.5])


def _stacked(
    rows: Sequence[Row],
    bars: Iterable[tuple[str, Sequence[float], str]],
    by: str,
    title: str,
    axis: str,
    number: str,
) -> Figure:
    """Horizontal bars, each part given as (name, values, colour)."""
    import plotly.graph_objects as go

    figure = go.Figure(layout={"barmode": "stack"})
    labels = escaped([row.label for row in rows])
    for name, values, colour in bars:
        figure.add_bar(
            x=values,
            y=labels,
            orientation="h",
            name=escaped([name])[0],
            marker_color=colour,
            texttemplate=f"%{{x:{number}}}",
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            hovertemplate=f"%{{y}}<br>%{{fullData.name}} %{{x:{number}}}<extra></extra>",
        )
    figure.update_xaxes(title_text=axis)
    figure.update_layout(uniformtext={"minsize": 10, "mode": "hide"})
    return style_rows(figure, title, labels, by)


def gain_ranking(rows: Sequence[Row], baseline: str = "row-major") -> Figure:
    """Predicted gain in throughput (%) over the row labelled `baseline`, best 20 first.

    Raises InputError if no row has that label.
    """
    import plotly.graph_objects as go

    times = {row.label: float(row.summary["time_us"]) for row in rows}
    if baseline not in times:
        raise InputError(f"ranking of orders: the baseline '{baseline}' is not among the orders")
    gains = {label: 100 * (times[baseline] / time - 1) for label, time in times.items()}
    best = sorted(gains, key=lambda label: -gains[label])[:BEST_SHOWN]
    labels = escaped(best)
    (name,) = escaped([baseline])
    figure = go.Figure(
        go.Bar(
            x=[gains[label] for label in best],
            y=labels,
            customdata=[times[label] for label in best],
            orientation="h",
            name="predicted gain",
            marker_color=[PALETTE[0] if gains[label] >= 0 else PALETTE[5] for label in best],
            texttemplate="%{x:+.1f} %",
            textangle=0,
            hovertemplate="%{y}<br>%{x:+.2f} %<br>%{customdata:,.1f} us<extra></extra>",
        )
    )
    figure.update_xaxes(title_text=f"predicted gain in throughput over {name} (%)")
    title = f"Predicted gain over {name}: the best {len(best)} of {len(rows)} orders"
    return style_rows(figure, title, labels, "order")


def predicted_measured_scatter(cases: Iterable[Mapping[str, Any]]) -> Figure:
    """Predicted against measured, a metric at a time, chosen from a menu.

    cases: records as `validate --json` lists them. Fractions stand on linear axes with a band of
    10 points, other metrics on logarithmic axes with a band of 10 %. Cases without a prediction
    are counted below the title. Calibration cases are hollow.
    """
    import plotly.graph_objects as go

    by_metric: dict[str, list[Mapping[str, Any]]] = {}
    for case in cases:
        by_metric.setdefault(case["metric"], []).append(case)
    suites = list(dict.fromkeys(c["suite"] for group in by_metric.values() for c in group))
    figure = style(go.Figure(), "Predicted against measured", height=680)
    views = []
    for metric, group in by_metric.items():
        fraction = group[0]["unit"] == FRACTION
        shown = [case for case in group if _can_stand(case, fraction)]
        first = len(figure.data)
        ends = _ends(shown, fraction)
        figure.add_traces(_diagonal(ends, fraction))
        for suite in suites:
            for role in ("test", "calibration"):
                points = [c for c in shown if c["suite"] == suite and c["role"] == role]
                if points:
                    figure.add_trace(_points(points, suites.index(suite), fraction))
        (label,) = escaped([f"{metric} ({group[0]['unit']})"])
        layout: dict[str, Any] = {
            "title.text": f"Predicted against measured: {label}",
            "title.subtitle.text": f"{len(shown)} cases"
            + (
                f"; {len(group) - len(shown)} without a prediction"
                if len(shown) < len(group)
                else ""
            ),
        }
        for axis, side in (("xaxis", "measured"), ("yaxis", "predicted")):
            layout[f"{axis}.title.text"] = f"{side} {label}"
            layout[f"{axis}.type"] = "linear" if fraction else "log"
            layout[f"{axis}.range"] = np.log10(ends).tolist() if not fraction else ends
            layout[f"{axis}.dtick"] = 0.1 if fraction else "D2"
            layout[f"{axis}.tickformat"] = ".1f" if fraction else "~s"
        views.append((label, range(first, len(figure.data)), layout))
    buttons = []
    for label, traces, layout in views:
        visible = [i in traces for i in range(len(figure.data))]
        buttons.append({"label": label, "method": "update", "args": [{"visible": visible}, layout]})
    if views:
        menu = {"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}
        figure.update_layout({"updatemenus": [menu], **views[0][2]})
        for i, trace in enumerate(figure.data):
            trace.visible = i in views[0][1]
    return figure


def _can_stand(case: Mapping[str, Any], fraction: bool) -> bool:
    """Whether there is a prediction, and values of 0 do not meet a logarithmic axis."""
    predicted, measured = case["predicted"], case["measured"]
    return predicted is not None and (fraction or min(predicted, measured) > 0)


def _ends(cases: Sequence[Mapping[str, Any]], fraction: bool) -> list[float]:
    """The range of both axes."""
    if fraction:
        return [0.0, 1.0]
    values = [case[side] for case in cases for side in ("predicted", "measured")]
    return [min(values, default=1) / 1.2, max(values, default=1) * 1.2]


def _diagonal(ends: list[float], fraction: bool) -> list[Any]:
    """The line of equal values and the band around it."""
    import plotly.graph_objects as go

    if fraction:
        name = f"within {100 * BAND:.0f} points"
        edges = [x + BAND for x in ends] + [x - BAND for x in ends[::-1]]
    else:
        name = f"within {100 * BAND:.0f} %"
        edges = [x * (1 + BAND) for x in ends] + [x * (1 - BAND) for x in ends[::-1]]
    band = go.Scatter(
        x=ends + ends[::-1],
        y=edges,
        mode="none",
        fill="toself",
        fillcolor="rgba(0,0,0,0.08)",
        name=name,
        hoverinfo="skip",
    )
    line = {"color": "#555", "width": 1, "dash": "dash"}
    equal = go.Scatter(x=ends, y=ends, mode="lines", name="equal", line=line, hoverinfo="skip")
    return [band, equal]


def _points(cases: Sequence[Mapping[str, Any]], suite: int, fraction: bool) -> Any:
    """Markers of cases of one metric, role and suite; the suite's index picks colour and shape."""
    import plotly.graph_objects as go

    shapes = ("circle", "square", "diamond", "cross")
    shape = shapes[suite // len(PALETTE) % len(shapes)]
    number = ".3f" if fraction else ".4~s"
    hollow = cases[0]["role"] == "calibration"
    texts = [[f"{c['machine']} {c['kernel']}", *c["params"].split(";")] for c in cases]
    (name,) = escaped([f"{cases[0]['suite']} ({cases[0]['role']})"])
    return go.Scatter(
        x=[case["measured"] for case in cases],
        y=[case["predicted"] for case in cases],
        mode="markers",
        name=name,
        marker={
            "symbol": f"{shape}-open" if hollow else shape,
            "color": PALETTE[suite % len(PALETTE)],
            "size": 9,
            "line": {"width": 2 if hollow else 0.5},
        },
        text=["<br>".join(escaped(lines)) for lines in texts],
        hovertemplate=f"%{{text}}<br>measured %{{x:{number}}}<br>predicted %{{y:{number}}}",
    )
