"""Charts are well-formed, complete and safe to embed."""

import xml.etree.ElementTree as ET

import numpy as np
import pyarrow as pa

import ponn
from ponn.charts import heat_map, line_chart, relevance_bars
from ponn.encode import Encoding
from ponn.propensity import propensities
from ponn.relevance import relevance

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
