"""The report is one safe, complete file whose numbers are those of the library, and says what it does not know."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from pyarrow.csv import write_csv

import ponn
from commands import run
from logs_on_disk import names, write
from logs_on_disk import table as logged_rows
from ponn.cli.policy_commands import how_it_learned
from ponn.evaluation.confounding import what_overturns
from ponn.evaluation.estimators import ESTIMATORS
from ponn.evaluation.intervals import Estimate
from ponn.evaluation.valuation import LEARNED_FROM_THESE, CurrentPractice, FixedAction, nuisances
from ponn.evaluation.verdict import told_over_fixed
from ponn.evaluation.worth import worth
from ponn.learning.holdout import learn_with_holdout
from ponn.learning.learners import CURVE_POINTS, curve
from ponn.report.charts import LINES, in_figures
from ponn.report.drawing import ACCENT, INK, MARK, PALE, in_percent, safe
from ponn.report.findings import findings
from ponn.report.markup import TABLE_ROWS, figures, table
from ponn.report.page import SECTIONS, report_page, write_report
from ponn.report.surrogate import Leaf, Question, imitate
from ponn.report.value_sections import told
from ponn.training.loop import Epoch, Trained

MOST_BYTES = 3_000_000
ATTRIBUTES = {
    *("lang", "charset", "name", "content", "http-equiv", "href", "id", "class", "role", "tabindex", "scope", "xmlns"),
    *("aria-label", "aria-labelledby", "viewbox", "width", "height", "font-family", "font-size", "fill", "stroke"),
    *("stroke-width", "stroke-dasharray", "text-anchor", "transform", "points"),
    *("x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r"),
}
VOID = {"meta", "br", "hr", "img", "input", "link"}
HOSTILE = ("<script>alert(1)</script>", "a\"b'c&d", "é漢字🙂", "x" * 5_000, "\u202eright to left\x07", "${title} $body")
QUOTED = '$body <b> o\'clock "5"'


class Page(HTMLParser):
    """What a page holds: its elements, links, headings and visible text; unclosed elements are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def tags(self, *names):
        return [(tag, attributes) for tag, attributes in self.seen if tag in names]


def log_of(n=600, seed=0, *, actions=("stay", "go"), names=("age", "kind"), minimize=False, rare=0.5):
    """Age decides which action is good; the log takes the second action with probability `rare`, whatever it is."""
    rng = np.random.default_rng(seed)
    age, kind = rng.normal(50, 10, n).round(1), rng.choice(["a", "b", "c"], n)
    A = (rng.random(n) < rare).astype(int)
    good = rng.random(n) < np.where((age > 50) == (A == 1), 0.9, 0.2)
    columns = {names[0]: age, names[1]: kind, "A": np.array(actions)[A], "R": good ^ minimize}
    return ponn.read_log(pa.table(columns), action="A", reward="R", minimize=minimize)


@cache
def learned(minimize):
    return learn_with_holdout(log_of(minimize=minimize), "lr-l1", seed=3)


def outcome(minimize=False):
    return learned(minimize)


@cache
def whole(minimize=False):
    made = outcome(minimize)
    found = findings(made.policy, log_of(minimize=minimize), rows=made.kept, corrections=made.corrections)
    return found, report_page(found)


def check_page(text):
    """Everything that holds of every report."""
    page = Page(text)
    assert len(text.encode()) < MOST_BYTES
    assert not page.tags("script", "iframe", "object", "embed", "link", "img")
    for _, attributes in page.seen:
        for name, value in attributes.items():
            assert name in ATTRIBUTES  # a name that breaks out of its quotes would make others
            assert name != "href" or (value or "").startswith("#")
    assert not re.search(r"@import|url\(", text)
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    for picture in pictures:
        root = ET.fromstring(picture)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        assert root[0].tag.endswith("title")
        assert all(float(size) >= 12 for size in re.findall(r"font-size='([\d.]+)'", picture))
    ids = [attributes["id"] for _, attributes in page.seen if "id" in attributes]
    assert ids == [id for id, _, _ in SECTIONS if id != "gains" or "gains" in ids]
    links = [attributes["href"] for _, attributes in page.tags("a")]
    assert links == [f"#{id}" for id in ids]
    levels = [int(tag[1]) for tag, _ in page.tags("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    for one in re.findall(r"<figure>.*?</figure>", text, re.DOTALL):
        assert "<svg" in one
        assert "<details class='paper-nothing'><summary>Table" in one
        assert "<td" in one
    return page


def test_every_section_is_there_in_order_and_the_page_is_whole():
    page = check_page(whole()[1])
    assert len(page.tags("figure")) == 8  # values, weights, support, balance, shares, estimators, Gamma, calibration
    headings = [
        "verdict",
        "log",
        "overlap",
        "relevance",
        "does",
        "estimators",
        "sensitivity",
        "gains",
        "training",
        "calibration",
    ]
    assert [id for id, _, _ in SECTIONS] == [*headings, "settings", "glossary"]


def test_the_numbers_are_those_of_the_library():
    found, text = whole()
    made = outcome()
    rows, fixed = made.kept, made.best_fixed
    for who in (made.policy, CurrentPractice(), FixedAction(fixed)):
        assert told(ponn.evaluate(who, rows, seed=3)) in text
    assert told(worth(made.policy, rows, seed=3).verdict.difference) in text
    assert found.worth.over_fixed == made.over_best_fixed
    for name in ESTIMATORS:
        one = ponn.evaluate(made.policy, rows, name, seed=3)
        numbers = "".join(f"<td class='number'>{figures(value)}</td>" for value in (one.value, one.low, one.high))
        assert f"<td>{name}</td>{numbers}" in text
    fitted = nuisances(rows, seed=3)
    assert what_overturns(made.worth.sensitivity.breaking_gamma) in unescape(text)  # as `ponn learn` prints it
    for one in found.worth.doubted:
        assert one == ponn.hidden_confounding(made.policy, rows, one.gamma, corrections=fitted)
        assert f"<td class='number'>{figures(one.gamma)}</td><td class='number'>{figures(one.value.least)}</td>" in text
    for name in ("policy", "logging", "verdict", "unsupported", "supported_only", "drawn"):
        assert getattr(found.worth, name) == getattr(made.worth, name)
    recommended = np.mean(made.policy.predict(rows) == "go")
    assert found.shares["go"] == pytest.approx((recommended, np.mean(rows.A == rows.actions.index("go"))))
    assert found.support.recommended == np.mean(made.policy.recommend(rows)["supported"].to_numpy())


def test_calibration_and_balance_are_about_what_was_done():
    found, made = whole()[0], outcome()
    rows = made.kept
    promised = made.policy.expected_reward(made.policy.encoding.design(rows), rows.A)
    order, bins = np.argsort(promised, kind="stable"), found.calibration
    assert [one.rows for one in bins] == [20] * 9
    assert [one.predicted for one in bins] == pytest.approx(
        [promised[order[j : j + 20]].mean() for j in range(0, 180, 20)]
    )
    assert [one.observed for one in bins] == pytest.approx(
        [rows.outcome[order[j : j + 20]].mean() for j in range(0, 180, 20)]
    )
    age = np.array(rows.X["age"])
    gap = abs(age[rows.A == 0].mean() - age.mean()) / age.std()
    assert found.overlap.balance_before[0, 0] == pytest.approx(gap, rel=1e-5)  # design columns are single precision
    assert f"<td>{found.overlap.actions[0]}</td><td>age</td><td class='number'>{gap:.3f}</td>" in whole()[1]


def test_the_report_on_the_log_it_was_learned_from_uses_the_rows_kept_aside():
    made = outcome()
    alone = findings(made.policy, log_of())
    assert report_page(alone) == whole()[1]
    assert alone.kept_aside
    assert (alone.rows, alone.log_rows) == (180, 600)


def test_small_is_good():
    found, text = whole(minimize=True)
    check_page(text)
    assert found.worth.verdict.kind == "better"
    assert found.worth.policy.value < found.worth.logging.value
    assert "Small is good" in text
    assert "small is good" in text
    assert all(one.value.low <= one.value.least <= one.value.largest <= one.value.high for one in found.worth.doubted)
    mirrored = whole()[0]  # the same log with the reward turned round
    assert found.worth.over_fixed.value == pytest.approx(mirrored.worth.over_fixed.value)
    assert found.worth.policy.value == pytest.approx(1 - mirrored.worth.policy.value)
    assert [one.predicted for one in found.calibration] == pytest.approx(
        [1 - one.predicted for one in mirrored.calibration[::-1]]
    )


def box(found):
    """The text of the report's first box."""
    return unescape(re.sub(r"<.*?>", "", re.search(r"<p class='verdict.*?</p>", report_page(found)).group()))


@pytest.mark.parametrize("minimize", [False, True])
def test_the_first_box_says_whether_it_beats_the_best_single_action(minimize):
    found = whole(minimize)[0]
    clear, doubt = found.worth.over_fixed, "few rows <b>"
    assert clear.low > 0
    assert box(found).endswith(f" {told_over_fixed(clear, outcome(minimize).best_fixed)}")
    small = replace(clear, value=0.009, low=-0.006, high=0.024)
    for gain, said in ((clear, "Better than giving"), (small, "No clear gain over"), (clear.distrusted(doubt), doubt)):
        assert said in box(replace(found, worth=replace(found.worth, over_fixed=gain)))
    assert "x" * 300 not in box(replace(found, worth=replace(found.worth, fixed_action="x" * 300)))
    doubted = replace(found.worth, policy=found.worth.policy.distrusted("few rows"))
    for worth_, last in ((replace(found.worth, over_fixed=None), " %)."), (doubted, " %).")):
        assert box(replace(found, worth=worth_)).replace("\xa0", " ").endswith(last)


@pytest.mark.parametrize("method", ["ponn-b", "direct-forest", "logging", "mlp-l1"])
def test_every_kind_of_method_has_a_report(method):
    settings = {"trees": 5} if method == "direct-forest" else {"epochs": 3} if method in ("ponn-b", "mlp-l1") else {}
    made = learn_with_holdout(log_of(300), method, **settings)
    text = report_page(findings(made.policy, log_of(300), rows=made.kept, corrections=made.corrections))
    page = check_page(text)
    assert ("Loss per epoch" in text) == (method in ("ponn-b", "mlp-l1"))
    assert ("does not select features" in text) == (method != "ponn-b")
    assert f"Method {method}" in "".join(page.text)
    drawn = made.worth.drawn
    assert (drawn is not None) == (method in ("ponn-b", "logging"))
    assert ("Drawing goes on learning" in text) == (drawn is not None)
    assert drawn is None or f"the most probable one, it is worth {told(drawn)}." in text
    assert ("<td>this policy, actions drawn</td>" in text) == (drawn is not None)


def test_hostile_names_are_shown_and_do_nothing():
    names, actions = HOSTILE[:2], (HOSTILE[1] + HOSTILE[4], HOSTILE[3])
    log = log_of(300, names=names, actions=actions)
    table = log.table.set_column(1, names[1], pa.array(np.array(HOSTILE[2:5])[np.arange(300) % 3]))
    log = ponn.read_log(table.rename_columns([*names, "A", QUOTED]), action="A", reward=QUOTED)
    made = learn_with_holdout(log, "ponn-b", epochs=3)
    text = report_page(findings(made.policy, log, rows=made.kept, corrections=made.corrections))
    page = check_page(text)
    shown = "".join(page.text)
    assert "<script>alert(1)</script>" in shown  # as text
    assert "a\"b'c&d" in shown
    assert QUOTED in shown
    assert "\u202e" not in text
    assert "\x07" not in text
    assert "x" * 99 + "…" in shown
    assert "x" * 300 not in text


def test_a_number_that_is_not_trusted_is_never_bare():
    log = log_of(400, rare=0.03)
    made = learn_with_holdout(log, "lr-l1")
    found = findings(made.policy, log, rows=made.kept, corrections=made.corrections)
    assert not found.worth.policy.trusted
    text = report_page(found)
    page = check_page(text)
    assert "The log says too little to tell what this policy is worth" in "".join(page.text)
    doubted = [one for one in found.worth.estimators.values() if isinstance(one, Estimate)]
    doubted += [one for one in (found.worth.policy, found.worth.fixed) if not one.trusted]
    for one in doubted:
        assert not one.trusted
        for shape in (in_figures(one), figures(one.value) + "</td>", f"<b>{in_figures(one).split()[0]}</b>"):
            for place in re.finditer(re.escape(shape), text):
                assert "not trusted" in text[place.start() : place.start() + 250]
    assert "<p class='warning'><span class='doubt'>Not trusted</span>" in text  # the bounds under confounding


def test_few_rows_and_unknown_actions_are_said_not_raised():
    policy = outcome().policy
    log = log_of(60, seed=9)
    few = log.take(np.flatnonzero(log.A == 0)[:6])
    for rows, why in ((few, "hardly more than one action was taken"), (few.take(np.arange(3)), "only 3 rows")):
        found = findings(policy, rows)
        assert found.worth is None
        assert why in found.why_no_worth
        with pytest.raises(ponn.PonnError, match=rf"cannot be corrected .*{why}"):
            ponn.evaluate(policy, rows)
        assert why in "".join(check_page(report_page(found)).text)
    other = log_of(200, seed=9, actions=("stay", "leave"))
    found = findings(policy, other)  # recommends "go", which this log never has
    assert found.shares["go"][1] == 0
    assert not found.worth.policy.trusted
    assert "the log only in 0 of them" in "".join(check_page(report_page(found)).text)


def test_who_gains_is_told_where_it_was_asked():
    made = outcome()
    asked = {"rows": made.kept, "corrections": made.corrections}
    assert "Who gains" not in whole()[1]
    found = findings(made.policy, log_of(), **asked, by=("age", "kind"))
    text = report_page(found)
    shown = "".join(check_page(text).text)
    same = ponn.value_by_group(made.policy, made.kept, ["age", "kind"], corrections=made.corrections)
    assert found.worth.subgroups.groups == same.groups
    assert f"All {3 * len(same.groups)} intervals of the table hold together" in shown
    assert {one.column for one in same.groups} == {"age", "kind"}
    for one in same.groups:
        gain = "".join(f"<td class='number'>{figures(x)}</td>" for x in (one.difference.value, one.difference.low))
        assert gain in text
        assert in_figures(one.difference) in text  # in the picture
    with pytest.raises(ponn.PonnError, match="no column 'ward'"):
        findings(made.policy, log_of(), **asked, by="ward")


def test_rules_are_kept_to_counted_and_listed():
    table = log_of(2_000).table
    table = table.filter(
        pa.array(
            [
                a != "go" or age < 65
                for age, a in zip(
                    *map(pa.Array.to_pylist, (table["age"].combine_chunks(), table["A"].combine_chunks())), strict=True
                )
            ]
        )
    )
    log = ponn.read_log(table, action="A", reward="R", rules=["go if age >= 65"])
    made = learn_with_holdout(log, "lr-l1")
    found = findings(made.policy, log, rows=made.kept, corrections=made.corrections)
    text = report_page(found)
    shown = "".join(check_page(text).text)
    assert "Never go if age >= 65" in shown
    often = np.mean(np.array(log.X["age"]) < 65)
    assert in_percent(often) in shown
    old = np.array(made.kept.X["age"]) >= 65
    answers = np.array([walk(found.surrogate.root, row) for row in made.kept.X.to_pylist()])
    assert old.any()
    assert (answers[old] == "stay").mean() > 0.8  # without the rule all of them would go
    assert found.shares["go"][0] == pytest.approx(np.mean(made.policy.predict(made.kept) == "go"))
    other = ponn.read_log(
        table.append_column("more", pa.array(np.where(np.arange(len(table)) % 2, "x", "y"))),
        action="more",
        reward="R",
        features=["age", "kind"],
        rules=["x if age > 1000"],
    )
    strange = findings(made.policy, other)  # none of the policy's actions is in this log
    assert strange.shares["x"][0] == strange.shares["go"][1] == 0


def test_many_actions_and_features_stay_small_and_are_counted():
    rng = np.random.default_rng(0)
    n, k, d = 1_000, 50, 45
    columns = {f"feature {i} with a rather long name to lay out": rng.normal(size=n) for i in range(d)}
    A = rng.integers(k, size=n)
    table = pa.table({**columns, "A": A, "R": rng.integers(2, size=n), "p": np.full(n, 1 / k)})
    log = ponn.read_log(table, action="A", reward="R", propensity="p")
    made = learn_with_holdout(log, "ponn-b", epochs=1, hidden=())
    text = report_page(findings(made.policy, log, rows=made.kept, corrections=made.corrections))
    shown = "".join(check_page(text).text)
    assert "40 of 45 features are shown" in shown
    assert "40 of 50 actions are shown" in shown
    assert "20 of 45 features are shown" in shown
    assert "and 30 more, in the table" in shown
    assert f"and {k * d - TABLE_ROWS:,} more." in shown
    heat = re.search(r"aria-label='Relevance of each feature for each action' .*?</svg>", text, re.DOTALL).group()
    assert heat.count("<rect") == 40 * 40


def test_the_summary_says_what_the_policy_does_and_how_often():
    log = log_of(900)
    made = learn_with_holdout(log, "lr-l1")
    found = imitate(made.policy, made.kept, seed=0)
    fitted, rest = made.kept.split_rows(0.7, 0)
    assert (found.rows_fitted, found.rows_measured) == (len(fitted), len(rest))
    answers = [walk(found.root, row) for row in made.kept.take(rest).X.to_pylist()]
    assert found.fidelity == pytest.approx(np.mean(np.array(answers) == made.policy.predict(made.kept.take(rest))))
    assert found.fidelity > 0.95 > found.constant


def walk(node, row):
    """Follow the questions as a reader would."""
    if isinstance(node, Leaf):
        return node.action
    name, value = re.fullmatch(r"(age|kind) is (?:under |)(.*)", node.yes_if).groups()
    yes = row[name] < float(value) if name == "age" else (row[name] != value.removeprefix("not "))
    return walk(node.yes if yes else node.no, row)


def test_a_summary_asks_nothing_whose_answer_changes_nothing():
    found = imitate(outcome().policy, outcome().kept)

    def check(node):
        if isinstance(node, Question):
            leaves = isinstance(node.yes, Leaf) and isinstance(node.no, Leaf)
            assert not (leaves and node.yes.action == node.no.action)
            check(node.yes)
            check(node.no)

    check(found.root)


def test_a_policy_keeps_its_training_curves_short():
    history = tuple(Epoch(1 / (e + 1), 2 / (e + 1) + (e > 700), None) for e in range(1_001))
    done = Trained(None, {}, history, 700, None, 0, 1e-3, True, 1.0)
    kept = curve(done)
    assert len(kept["epoch"]) in (CURVE_POINTS, CURVE_POINTS + 1)
    assert kept["epoch"][0] == 0
    assert kept["epoch"][-1] == 1_000
    best = kept["epoch"].index(700)
    assert kept["valid_loss"][best] == pytest.approx(2 / 701, rel=1e-3)
    assert curve(replace(done, history=history[:3], best_epoch=2))["epoch"] == [0, 1, 2]


def contrast(one, other="#ffffff"):
    """WCAG 2: (lighter + 0.05) / (darker + 0.05) of relative luminances."""

    def luminance(colour):
        parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_stands_out_from_its_ground():
    style = whole()[1]
    colours = dict(re.findall(r"--(\w+): (#\w{6})", style))
    assert {colours[name] for name in ("ink", "pale", "accent", "mark")} == {INK, PALE, ACCENT, MARK}
    for colour in (INK, PALE, ACCENT, MARK, *LINES):
        assert contrast(colour) >= 4.5
    assert contrast(INK, colours["wash"]) >= 4.5
    assert contrast(MARK, colours["wash"]) >= 4.5


def test_a_table_escapes_cells_and_counts_what_it_leaves_out():
    text = table(("<a>", "#n"), [("<b>", 1)] * (TABLE_ROWS + 7))
    assert safe("<a>") in text
    assert "<b>" not in text
    assert text.count("<tr>") == TABLE_ROWS + 1
    assert "and 7 more." in text


def test_a_stack_of_reward_models_is_told():
    made = learn_with_holdout(log_of(300), "ponn-dr", trees=5, epochs=2, folds=2, hidden=(4,))
    text = report_page(findings(made.policy, log_of(300), rows=made.kept, corrections=made.corrections))
    check_page(text)
    assert "in 2 parts" in text
    assert "<td>share network</td>" in text
    assert "<td>all together</td>" in text
    assert ">chosen</td>" in text
    assert ", each in turn held out." in text
    line, rows = how_it_learned(made.policy), made.policy.provenance["rows"]
    assert line.startswith(f"{rows['train']:,} rows, each in turn held out, seed 0. Features by ")
    assert "%" in line
    assert len([note for note in made.policy.provenance["notes"] if "were cut" in note]) <= 1


def test_the_command_line_writes_the_same_report_twice(tmp_path):
    write_csv(log_of(400).table, tmp_path / "log.csv")
    roles = ("--action", "A", "--reward", "R", "--method", "lr-l1", "--json")
    learned = run("learn", "log.csv", *roles, "--report", "one.html", cwd=tmp_path)
    assert learned.returncode == 0, learned.stderr
    answer = json.loads(learned.stdout)
    assert answer["report"] == "one.html"
    assert "Report: " in learned.stderr
    reported = run("report", "policy.ponn", "log.csv", "--out", "two.html", "--json", cwd=tmp_path)
    assert reported.returncode == 0, reported.stderr
    told = json.loads(reported.stdout)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    value = answer["value"]["policy"]
    assert (told["report"], told["worth"]["value"]) == ("two.html", value["value"])
    shown = (tmp_path / "one.html").read_text()
    assert f"<td class='number'>{figures(value['value'])}</td><td class='number'>{figures(value['low'])}</td>" in shown


def test_a_report_that_cannot_be_written_says_why(tmp_path):
    made = outcome()
    with pytest.raises(ponn.PonnError, match=r"could not be written: .*No such file"):
        write_report(
            made.policy, log_of(), tmp_path / "no" / "where.html", rows=made.kept, corrections=made.corrections
        )


def test_a_report_on_the_very_directory_that_was_learned_from_is_not_trusted(tmp_path):
    folder = write(tmp_path / "log", logged_rows(600), 2)
    log = ponn.read_log(folder, **names())
    policy = ponn.learn(log, "lr-l1")
    nameless = replace(policy, provenance=policy.provenance | {"source": {"digest": log.digest, "rows": len(log)}})
    with pytest.raises(ponn.LowOverlap, match="the very rows that the policy learned from"):
        ponn.evaluate(nameless, log)
    found = findings(nameless, log).worth
    assert not found.policy.trusted
    assert LEARNED_FROM_THESE in found.policy.warnings
