"""Charts are well-formed, complete and safe to embed."""

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ponn
from ponn.evaluation.intervals import Estimate
from ponn.log.encoding import Encoding
from ponn.report.charts import (
    NARROW,
    CalibrationBin,
    balance_chart,
    bar_pairs,
    calibration_chart,
    heat_map,
    line_chart,
    relevance_bars,
    support_chart,
    value_chart,
    weight_bins,
    weight_chart,
)
from ponn.report.drawing import MARK, columns, safe, shortened, spread, tick_texts, ticks
from ponn.steps.propensity import propensities
from ponn.steps.relevance import relevance

SVG = "{http://www.w3.org/2000/svg}"


def found(names=("x", "y"), actions=("u", "v")):
    rng = np.random.default_rng(0)
    n = 200
    columns = {name: rng.normal(size=n) for name in names}
    table = pa.table({**columns, "A": rng.choice(actions, n), "R": rng.integers(0, 2, n), "p": np.full(n, 0.5)})
    log = ponn.read_log(table, action="A", reward="R", propensity="p")
    encoding = Encoding.fit(log)
    return relevance(log, encoding, propensities(log, encoding))


def test_heat_map_has_a_cell_with_numbers_for_every_pair():
    one = found(("x", "y", "z"))
    tree = ET.fromstring(heat_map(one))
    cells = tree.findall(f"{SVG}rect/{SVG}title")
    assert len(cells) == 6
    assert f"relevance {one.G[0, 0]:.4g}" in cells[0].text
    assert tree.get("role") == "img"
    assert tree.get("aria-label")


def test_bars_show_features_in_order_with_threshold_and_bound():
    one = found(("x", "y", "z"))
    tree = ET.fromstring(relevance_bars(one, "v", one.bound(0.05, L=1.0)))
    bars = tree.findall(f"{SVG}rect")
    widths = [float(bar.get("width")) for bar in bars]
    assert len(bars) == 3
    assert widths == sorted(widths, reverse=True)
    assert all("threshold" in bar.find(f"{SVG}title").text and "bound" in bar.find(f"{SVG}title").text for bar in bars)


def test_names_cannot_break_out_of_the_picture():
    one = found(("<script>alert(1)</script>", "a\"b'c&d"), ("<b>", "&"))
    for picture in (heat_map(one), relevance_bars(one, "<b>")):
        ET.fromstring(picture)
        assert "<script>" not in picture


def test_a_line_chart_has_a_dot_with_its_numbers_for_every_point():
    lines = {"a < b": [(0.0, 1.0), (0.5, 3.0)], "flat": [(0.0, 2.0), (0.5, 2.0)]}
    drawn = line_chart(lines, name="two lines", x_name="x", y_name="y")
    root = ET.fromstring(drawn)
    dots = [one for one in root.iter() if one.tag.endswith("circle")]
    assert [dot[0].text for dot in dots] == ["a < b: 1 at 0", "a < b: 3 at 0.5", "flat: 2 at 0", "flat: 2 at 0.5"]
    heights = [float(dot.attrib["cy"]) for dot in dots]
    assert heights[1] < heights[2] == heights[3] < heights[0]  # larger is higher up
    assert float(dots[0].attrib["cx"]) < float(dots[1].attrib["cx"])


def estimate(value, low, high, trusted=True):
    return Estimate(value, low, high, 100, 50.0, "dr", 0.95, trusted=trusted)


def test_values_lie_in_their_intervals_and_doubt_is_seen():
    values = {"a": estimate(0.5, 0.4, 0.6), "b": estimate(0.7, 0.65, 0.76), "c": estimate(0.2, 0.1, 0.9, False)}
    drawn = value_chart(values, name="n", x_name="mean", reference=0.0)
    root = ET.fromstring(drawn)
    dots = root.findall(f"{SVG}circle")
    assert [dot[0].text for dot in dots] == [
        "a: 0.50 (0.40 to 0.60)",
        "b: 0.70 (0.65 to 0.76)",
        "c: 0.20 (0.10 to 0.90): not trusted",
    ]
    assert [dot.get("fill") for dot in dots] == ["#084081", "#084081", "white"]
    whiskers = [one for one in root.findall(f"{SVG}line") if one.get("stroke-width") == "3"]
    for dot, one in zip(dots, whiskers, strict=True):
        assert float(one.get("x1")) < float(dot.get("cx")) < float(one.get("x2"))
    assert [one.get("stroke-dasharray") for one in whiskers] == [None, None, "4 3"]
    assert whiskers[2].get("stroke") == MARK
    assert int(root.get("width")) == NARROW  # fits a phone
    ticks_of_practice = [one for one in root.findall(f"{SVG}line") if one.get("stroke-width") == "2"]
    assert len({one.get("x1") for one in ticks_of_practice}) == 1  # the reference is 0, and drawn
    assert float(ticks_of_practice[0].get("x1")) < float(whiskers[2].get("x1"))


def test_what_is_not_finite_stays_inside_the_picture():
    values = {"one row": estimate(0.5, -math.inf, math.inf), "none": estimate(math.nan, math.nan, math.nan, False)}
    root = ET.fromstring(value_chart(values, name="n", x_name="mean"))
    for one in root.iter():
        assert all(0 <= float(one.get(side, 0)) <= NARROW for side in ("x1", "x2", "cx"))
    ET.fromstring(value_chart({}, name="nothing", x_name="mean"))


@given(st.lists(st.floats(0, 1e6) | st.just(0.0), min_size=1, max_size=50))
def test_weights_are_binned_without_losing_any(w):
    bins = weight_bins(np.array(w))
    assert sum(one.rows for one in bins) == len(w)
    assert sum(one.share_of_rows for one in bins) == pytest.approx(1)
    assert sum(one.share_of_weight for one in bins) == pytest.approx(1 if sum(w) else 0)
    for one in bins:
        inside = [x for x in w if one.low < x <= one.high] if one.high else [x for x in w if x == 0]
        assert len(inside) == one.rows
    ET.fromstring(weight_chart(bins))


def test_bars_are_as_long_as_their_shares_and_the_rest_is_counted():
    bars = {f"action {a}": (a / 10, 0.05) for a in range(5)}
    drawn = bar_pairs(bars, ("recommended", "in the log"), name="n", most=3)
    root = ET.fromstring(drawn)
    found = {one[0].text: float(one.get("width")) for one in root.findall(f"{SVG}rect")}
    per_unit = found["action 2: recommended 20.0\N{NO-BREAK SPACE}%"] / 0.2
    assert found["action 1: recommended 10.0\N{NO-BREAK SPACE}%"] == pytest.approx(0.1 * per_unit, abs=0.1)
    assert found["action 1: in the log 5.0\N{NO-BREAK SPACE}%"] == pytest.approx(0.05 * per_unit, abs=0.1)
    assert "and 2 more, in the table" in drawn
    assert "action 3" not in drawn
    ET.fromstring(support_chart({"<b>": 0.5, "never": 0.0}))


def test_balance_shows_the_worst_features_first_before_and_after():
    root = ET.fromstring(balance_chart(("x", "<y>"), np.array([0.1, 0.5]), np.array([0.02, 0.3]), mark=0.1))
    told = [one[0].text for one in root.findall(f"{SVG}circle")]
    assert told == ["before", "after", "<y>: before 0.5", "<y>: after 0.3", "x: before 0.1", "x: after 0.02"]
    dots = root.findall(f"{SVG}circle")
    assert float(dots[2].get("cx")) > float(dots[3].get("cx")) > float(dots[5].get("cx"))
    (mark,) = [one for one in root.findall(f"{SVG}line") if one.get("stroke-dasharray")]
    assert float(mark.get("x1")) == pytest.approx(float(dots[4].get("cx")))


def test_right_predictions_lie_on_the_line():
    bins = [CalibrationBin(0.2, 0.2, 0.1, 0.3, 40), CalibrationBin(0.8, 0.5, 0.4, 0.6, 40)]
    root = ET.fromstring(calibration_chart(bins, name="n", what="<reward>"))
    one, two = root.findall(f"{SVG}circle")
    assert one[0].text == "predicted 0.2, observed 0.2 (0.1 to 0.3), 40 rows"
    (line,) = [one for one in root.findall(f"{SVG}line") if one.get("stroke-dasharray")]
    x1, y1, x2, y2 = (float(line.get(end)) for end in ("x1", "y1", "x2", "y2"))

    def above(dot):
        x, y = float(dot.get("cx")), float(dot.get("cy"))
        return (y1 + (y2 - y1) * (x - x1) / (x2 - x1)) - y

    assert above(one) == pytest.approx(0, abs=0.1)
    assert above(two) < -10  # promised more than came


@given(st.lists(st.floats(0, 300), min_size=1, max_size=8))
def test_labels_are_moved_apart_in_order(places):
    moved = spread(places, 15)
    order = np.argsort(places, kind="stable")
    gaps = np.diff(np.array(moved)[order])
    assert (gaps >= 15 - 1e-9).all()
    apart = np.diff(np.sort(places))
    if (apart >= 15).all():
        assert moved == pytest.approx(places)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_scales_have_a_few_round_numbers_inside(low, width):
    found = ticks(low, low + width)
    assert 1 <= len(found) <= 9
    assert all(low - 1e-6 * width <= one <= low + width * (1 + 1e-6) for one in found)
    texts = tick_texts(found)
    assert len(set(texts)) == len(found)
    assert [float(one) for one in texts] == pytest.approx(found, rel=1e-5, abs=1e-2 * width)


def test_numbers_of_a_scale_are_round_and_differ():
    assert tick_texts(ticks(0, 1)) == ["0", "0.5", "1"]
    assert tick_texts(ticks(0.581, 0.922, 5)) == ["0.6", "0.7", "0.8", "0.9"]
    assert tick_texts(ticks(58.9, 91.1, 5)) == ["60", "70", "80", "90"]
    assert tick_texts(ticks(10_001, 10_005)) == ["10001", "10002", "10003", "10004", "10005"]
    assert tick_texts(ticks(0, 3e9)) == ["0", "1e+09", "2e+09", "3e+09"]
    assert tick_texts([0.3]) == ["0.3"]


@given(st.text(max_size=60))
def test_any_text_is_safe_and_short(text):
    inside = ET.fromstring(f"<a b='{safe(text)}'>{safe(text)}</a>")
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", inside.text or "")
    assert columns(shortened(text, 10)) <= 10
    if columns(text) <= 10:
        assert shortened(text, 10) == text


def test_a_line_chart_in_a_page_fits_a_phone():
    lines = {"validation": [(0.0, 1.0), (9.0, 3.0)], "training": [(0.0, 1.0), (9.0, 3.0)]}
    drawn = line_chart(lines, name="n", x_name="epoch", y_name="loss", width=NARROW)
    root = ET.fromstring(drawn)
    assert int(root.get("width")) == NARROW
    ends = [float(one.get("y")) for one in root.findall(f"{SVG}text") if one.text in lines]
    assert abs(ends[0] - ends[1]) >= 15  # names of lines that end at the same place do not cover each other
