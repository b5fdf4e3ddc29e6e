"""The figures show what the records say, and a report is one safe file that fetches nothing."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest

from cdnasim import __version__
from cdnasim.errors import InputError
from cdnasim.gpu.result import Result, TimeSeries, Traffic, WorkgroupLog
from cdnasim.plots import figures
from cdnasim.plots.figures import Row
from cdnasim.plots.launch_figures import hit_rate_over_time, rounds_of, xcd_map, xcds_per_block
from cdnasim.plots.report import Report
from cdnasim.plots.scenario_page import DETAILED, LaunchGroup, scenario_report

GRID = (8, 6)
XCDS, CUS = 8, 2
SAMPLES = 5
EVIL = "<script>alert('x')</script><b>&amp;"


def make_result(order="row-major", time_us=1000.0, llc=True, **params):
    """A launch of one workgroup per tile of GRID: three on each CU, in the order of their ids."""
    ids = np.arange(GRID[0] * GRID[1])
    local = ids // XCDS
    start = (local // CUS * 100.0 + ids % 7).astype(np.float64)
    read = np.cumsum(np.full((SAMPLES, XCDS), 1_000_000), axis=0)
    hit = np.cumsum(np.full((SAMPLES, XCDS), 600_000), axis=0)
    missed = (read - hit).sum(axis=1)
    llc_read = missed if llc else np.zeros_like(missed)
    llc_hit = llc_read // 4
    hbm = missed - llc_hit
    clk = np.linspace(200.0, 1000.0, SAMPLES)
    return Result(
        machine="mi355x",
        kernel="gemm",
        params={"m": 2048, "n": 1536, "k": 512, "order": order, **params},
        time_us=time_us,
        tflops=1e6 / time_us,
        clock_mhz=2000.0,
        cycles=1000.0,
        traffic=Traffic(
            requested_bytes=int(read[-1].sum()),
            l2_read_bytes=int(read[-1].sum()),
            l2_hit_bytes=int(hit[-1].sum()),
            l2_merged_bytes=0,
            llc_read_bytes=int(llc_read[-1]),
            llc_hit_bytes=int(llc_hit[-1]),
            hbm_read_bytes=int(hbm[-1]),
            hbm_write_bytes=1000,
        ),
        mfma_utilisation=0.5,
        occupancy=1.0,
        stalls={"hbm": 0.3, "tail": 0.2, "busy": 0.5},
        k_step_clk=100.0,
        load_latency_clk={"A": 500.0, "B": 400.0},
        series=TimeSeries(clk, read, hit, llc_read, llc_hit, hbm, np.full(SAMPLES, 2.0)),
        log=WorkgroupLog(
            *((ids % XCDS).astype(np.int32), (local % CUS).astype(np.int32)),
            *(start, start + 5, start + 80, start + 90),
        ),
    )


def row_major_blocks():
    return np.stack(np.divmod(np.arange(GRID[0] * GRID[1]), GRID[1]), axis=1).astype(np.int32)


def make_rows():
    orders = {"row-major": 1000.0, "window:w=8": 800.0, "hilbert": 1250.0}
    rows = [Row(order, make_result(order, time).summary()) for order, time in orders.items()]
    rows[1] = Row(rows[1].label, rows[1].summary, {"l2_hit": 0.7, "time_us": 810.0})
    return rows


def axis_titles(figure):
    axes = [*figure.select_xaxes(), *figure.select_yaxes()]
    return [axis.title.text for axis in axes if axis.title.text]


def make_case(metric="tflops", unit="TFLOPS", predicted=90.0, measured=100.0, **other):
    return {
        "suite": "s",
        "machine": "mi355x",
        "kernel": "gemm",
        "params": "m=1;n=2",
        "metric": metric,
        "unit": unit,
        "predicted": predicted,
        "measured": measured,
        "role": "test",
    } | other


class Page(HTMLParser):
    """The elements, links and visible text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.references, self.scripts, self.texts, self.data = [], [], 0, [], {}
        self.open = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.open.append((tag, attributes.get("id", "")))
        self.references += [v for k, v in attributes.items() if k in ("src", "href", "srcset")]

    def handle_endtag(self, tag):
        while self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if not self.open or self.open[-1][0] in ("script", "style"):
            if self.open and self.open[-1][1]:
                self.data[self.open[-1][1]] = json.loads(data)
        else:
            self.texts.append(data)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "new" / "report.html"
    results = [make_result("row-major"), make_result("hilbert", 900.0), make_result(EVIL)]
    blocks = [row_major_blocks()] * 3
    measured = [{"l2_hit": 0.55, "tflops": 1113.0}, {}, {}]
    question = "Which order?\n\nAnd " + EVIL
    group = LaunchGroup("All", results, blocks, [GRID] * 3, measured)
    written = scenario_report("Orders", question, [group], path)
    assert written == path
    return path.read_text(encoding="utf-8")


def test_rounds_rank_start_times_on_each_xcd():
    rounds = rounds_of(make_result().log)
    assert rounds.tolist() == (np.arange(48) // (XCDS * CUS)).tolist()


def test_rounds_of_fewer_workgroups_than_cus():
    start = np.array([5.0, 1.0, 3.0])
    xcd, cu = np.zeros(3, np.int32), np.arange(3, dtype=np.int32)
    log = WorkgroupLog(xcd, cu, start, start, start + 1, start + 1)
    assert rounds_of(log).tolist() == [0, 0, 0]


def test_map_puts_each_workgroup_on_its_tile():
    result, tiles = make_result(), row_major_blocks()[::-1]
    rounds = rounds_of(result.log)
    base, *veils = xcd_map(tiles, result.log.xcd, rounds, GRID).data
    for workgroup, (row, col) in enumerate(tiles):
        assert base.z[row, col] == result.log.xcd[workgroup]
        assert base.customdata[row, col].tolist() == [workgroup, rounds[workgroup]]
        assert [veil.z[row, col] for veil in veils] == [r != rounds[workgroup] for r in range(3)]


def test_map_has_few_rounds_to_choose_from_and_stays_light():
    tiles = np.stack(np.divmod(np.arange(128 * 128), 128), axis=1)
    rounds = np.arange(128 * 128) // 256
    figure = xcd_map(tiles, np.arange(128 * 128) % 8, rounds, (128, 128))
    labels = [step.label for step in figure.layout.sliders[0].steps]
    assert labels[:2] == ["all", "0"] and labels[-1] == "63"
    assert len(labels) == 13
    for step in figure.layout.sliders[0].steps:
        assert len(step.args[0]["visible"]) == len(figure.data)
    assert len(figure.to_json()) < 600_000


def test_map_of_one_round_has_no_slider_and_leaves_tiles_without_workgroup_empty():
    figure = xcd_map(np.array([[0, 1]]), np.array([0]), np.array([0]), (2, 2))
    assert not figure.layout.sliders
    assert np.isnan(figure.data[0].z).tolist() == [[True, False], [True, True]]


def test_hit_rate_over_time_differences_the_totals():
    figure = hit_rate_over_time(make_result())
    assert len(figure.data) == XCDS + 1
    for trace in figure.data:
        expected = 25.0 if trace.name == "LLC" else 60.0
        assert trace.y == pytest.approx([expected] * SAMPLES, abs=0.01)
        assert trace.x == pytest.approx([0.05, 0.15, 0.25, 0.35, 0.45])  # us at 2000 MHz
    assert axis_titles(figure) == ["time (us)", "L2 hit rate (%)", "LLC hit rate (%)"]


def test_machine_without_llc_gets_no_llc_panel():
    figure = hit_rate_over_time(make_result(llc=False))
    assert axis_titles(figure) == ["time (us)", "L2 hit rate (%)"]
    assert len(figure.data) == XCDS


def test_xcds_per_block_counts_distinct_xcds():
    blocks = np.array([[0, 0], [0, 1], [0, 1], [1, 1]])
    figure = xcds_per_block(blocks, np.array([0, 1, 1, 3]), (3, 2))
    assert [trace.y.tolist() for trace in figure.data] == [[2, 1, 0], [1, 2]]
    assert axis_titles(figure)[:2] == ["A row block (index)", "B column block (index)"]


def test_bars_show_predicted_and_measured_values():
    rows = make_rows()
    for make, metrics in (
        (figures.hit_rates_by_order, {"l2_hit": 100, "llc_hit": 100}),
        (figures.time_by_order, {"time_us": 1, "tflops": 1}),
    ):
        figure = make(rows)
        bars = [trace for trace in figure.data if trace.type == "bar"]
        for bar, (metric, scale) in zip(bars, metrics.items(), strict=True):
            assert list(bar.x) == pytest.approx([scale * row.summary[metric] for row in rows])
            assert list(bar.y) == [row.label for row in rows]
        (diamonds,) = (trace for trace in figure.data if trace.name == "measured")
        assert list(diamonds.y) == ["window:w=8"]
        assert len(axis_titles(figure)) == 3


def test_traffic_bars_add_up_to_the_bytes_read():
    rows = make_rows()
    figure = figures.traffic_by_order(rows)
    total = np.sum([trace.x for trace in figure.data], axis=0)
    assert total == pytest.approx([row.summary["l2_read_bytes"] / 1e9 for row in rows])
    assert axis_titles(figure) == ["bytes read (GB)", "order"]


def test_stall_bars_add_up_to_all_time():
    figure = figures.stall_breakdown(make_rows(), by="case")
    assert [trace.name for trace in figure.data] == ["busy", "hbm", "tail"]
    assert np.sum([trace.x for trace in figure.data], axis=0) == pytest.approx([100] * 3)
    assert axis_titles(figure)[-1] == "case"


def test_ranking_sorts_by_gain_over_the_baseline():
    (bars,) = figures.gain_ranking(make_rows()).data
    assert list(bars.y) == ["window:w=8", "row-major", "hilbert"]
    assert list(bars.x) == pytest.approx([25.0, 0.0, -20.0])
    many = [Row(str(i), {"time_us": 10.0 + i}) for i in range(30)]
    assert len(figures.gain_ranking(many, baseline="29").data[0].x) == figures.BEST_SHOWN
    with pytest.raises(InputError, match="'morton' is not among"):
        figures.gain_ranking(make_rows(), baseline="morton")


def test_scatter_shows_one_metric_at_a_time():
    cases = [
        make_case(),
        make_case(predicted=120.0, role="calibration"),
        make_case(predicted=None),
        make_case("l2_hit", "fraction", 0.0, 0.1, suite="t"),
    ]
    figure = figures.predicted_measured_scatter(cases)
    points = {trace.name: trace for trace in figure.data if trace.mode == "markers"}
    assert set(points) == {"s (test)", "s (calibration)", "t (test)"}
    assert points["s (test)"].visible and not points["t (test)"].visible
    assert points["s (calibration)"].marker.symbol.endswith("-open")
    assert (points["s (test)"].x, points["s (test)"].y) == ((100.0,), (90.0,))
    assert "1 without a prediction" in figure.layout.title.subtitle.text
    assert axis_titles(figure) == ["measured tflops (TFLOPS)", "predicted tflops (TFLOPS)"]
    tflops, hits = (button.args for button in figure.layout.updatemenus[0].buttons)
    assert [a or b for a, b in zip(tflops[0]["visible"], hits[0]["visible"], strict=True)] == [
        True
    ] * len(figure.data)
    assert (tflops[1]["xaxis.type"], hits[1]["xaxis.type"]) == ("log", "linear")


def test_scatter_of_no_cases_is_an_empty_figure():
    assert not figures.predicted_measured_scatter([]).data


def test_page_fetches_nothing(scenario):
    page = Page(scenario)
    assert page.references == []
    assert not {"link", "iframe", "img", "base", "object"} & set(page.tags)
    assert "default-src 'none'" in scenario
    assert page.tags.count("script") == len(page.data) + 2  # plotly.js and the drawing code


def test_page_shows_every_part(scenario):
    page = Page(scenario)
    for text in ("Orders", "Which order?", "Summary", "Stalls", "XCD map", "hbm (30.0 %)"):
        assert text in page.texts
    assert f"cdnasim {__version__}" in page.texts
    assert any("cdnasim simulate gemm m=2048" in text for text in page.texts)
    assert page.tags.count("details") == 3
    assert len(page.data) == 4 + 3 * 3
    for figure in page.data.values():
        assert figure["layout"]["title"]["text"]


def test_user_text_is_escaped(scenario):
    assert "<script>alert" not in scenario
    page = Page(scenario)
    assert f"order: {EVIL}" in page.texts
    labels = [label for f in page.data.values() for t in f["data"] for label in t.get("y", [])]
    assert "&lt;script&gt;alert('x')&lt;/script&gt;&lt;b&gt;&amp;amp;" in labels


def test_launches_without_a_workgroup_per_tile_have_no_map(tmp_path):
    result = make_result()
    args = ("t", "q", [LaunchGroup("g", [result], [row_major_blocks()], [(8, 7)], [{}])])
    page = Page(scenario_report(*args, tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "XCD map" not in page.texts
    assert "Operand blocks" in page.texts


def test_labels_tell_results_apart_by_what_differs(tmp_path):
    results = [make_result(m=4096), make_result("hilbert", m=8192), make_result(m=4096)]
    args = ("t", "q", [LaunchGroup("g", results, [row_major_blocks()] * 3, [GRID] * 3, [{}] * 3)])
    page = Page(scenario_report(*args, tmp_path / "r.html").read_text(encoding="utf-8"))
    for label in (
        "m=4096, row-major",
        "m=8192, hilbert",
        "m=4096, row-major (2)",
    ):
        assert f"m, order: {label}" in page.texts


def test_only_the_first_results_get_a_section(tmp_path):
    results = [make_result(f"window:w={w}") for w in range(DETAILED + 1)]
    n = len(results)
    args = ("t", "q", [LaunchGroup("g", results, [row_major_blocks()] * n, [GRID] * n, [{}] * n)])
    page = Page(scenario_report(*args, tmp_path / "r.html").read_text(encoding="utf-8"))
    assert page.tags.count("details") == DETAILED


def test_table_aligns_and_rounds_numbers(tmp_path):
    report = Report("t")
    rows = [["a", 1406.6, 0.55, 12345], ["b", None, 12.345, 7], ["c", float("nan"), 0, 0]]
    report.add_table("T", ["name", "us", "x", "n"], rows)
    text = report.write(tmp_path / "r.html").read_text(encoding="utf-8")
    number = '<td class="number">{}</td>'.format
    cells = [["1,407", "0.55", "12,345"], ["–", "12.35", "7"], ["–", "0.00", "0"]]
    for name, row in zip("abc", cells, strict=True):
        assert f"<tr><td>{name}</td>{''.join(map(number, row))}</tr>" in text
    assert "<script>" not in text  # a page without figures needs none


def test_same_input_gives_the_same_bytes(tmp_path):
    args = ("t", "q", [LaunchGroup("g", [make_result()], [row_major_blocks()], [GRID], [{}])])
    first, second = (scenario_report(*args, tmp_path / name) for name in ("a.html", "b.html"))
    assert first.read_bytes() == second.read_bytes()


def test_unwritable_path_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path, tmp_path / "file" / "r.html", "", "nul\0.html"):
        with pytest.raises(InputError, match="cannot be written"):
            Report("t").write(path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert not list(tmp_path.parent.glob(".*.part"))


def test_text_that_is_not_unicode_is_written_with_marks(tmp_path):
    assert "a?b" in Report("a\udc80b").write(tmp_path / "r.html").read_text(encoding="utf-8")
