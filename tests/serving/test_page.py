"""The page of a served policy in a real browser."""

import csv
import subprocess
from dataclasses import replace

import pytest

import ponn
from browsing import assert_readable, opened_page, running, tab_to
from commands import PONN
from ponn.log.eligibility import Eligibility
from served import made_policy

HOSTILE = "<img src=x onerror=alert(1)>"  # as an action, a level, a column
WORTH = {"value": 0.7, "low": 0.6, "high": 0.8, "n": 360, "trusted": True, "warnings": []}
EVALUATION = {
    "value": {"policy": WORTH, "logging": WORTH},
    "verdict": "better",
    "over_best_fixed": {"told": f"No clear gain over giving everyone {HOSTILE}."},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A policy whose log tries to be markup, and rows to score."""
    place = tmp_path_factory.mktemp("page")
    ponn_command("simulate", "breast-cancer", "--rows", "1200", "--out", "log.csv", cwd=place)
    text = (place / "log.csv").read_text().replace('"CMF"', f'"{HOSTILE}"').replace('"asian"', f'"{HOSTILE}"')
    (place / "log.csv").write_text(text.replace('"histology"', f'"histology {HOSTILE}"'))
    log = ponn.read_log(place / "log.csv", action="regimen", reward="survived")
    learned = ponn.learn(log, "ponn-b", hidden=(8,), epochs=5, lambda1=0.01)
    replace(learned, evaluation=EVALUATION).save(place / "policy.ponn")
    (place / "report.html").write_text("<!doctype html><title>r</title><h1>All about it</h1>")
    (place / "token").write_text("a-token-of-some-length")
    return place


def ponn_command(*words, cwd):
    subprocess.run([*PONN, *words], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="module")
def address(folder):
    with running("serve", "policy.ponn", "--port", "0", "--report", "report.html", "--no-access-log", cwd=folder) as (
        _,
        found,
    ):
        yield found


@pytest.fixture(scope="module")
def policy(folder):
    return ponn.load(folder / "policy.ponn")


def shown_row(page, policy):
    """The case in the form, read from the fields."""
    row = {}
    for feature in policy.encoding.features:
        field = page.get_by_label(feature.name.replace("_", " "), exact=True)
        if feature.kind == "number":
            row[feature.name] = [float(field.input_value())]
        else:
            row[feature.name] = [field.evaluate("one => one.selectedOptions[0].textContent")]
    return row


def test_the_verdict_says_whether_one_action_for_all_would_do(browser, address):
    with opened_page(browser, address) as page:
        page.goto("/")
        page.wait_for_selector(".verdict", state="attached")
        told = page.locator(".verdict").first.text_content()
        assert "On 360 past cases kept aside" in told
        assert EVALUATION["over_best_fixed"]["told"] in told


def test_what_is_shown_is_what_the_policy_says(browser, address, policy):
    with opened_page(browser, address) as page:
        page.goto("/")
        page.wait_for_selector(".action")
        for more in page.locator("form.case details").all():
            more.locator("summary").click()
        row = shown_row(page, policy)
        expected = policy.recommend(row, probabilities=True).to_pylist()[0]
        assert page.inner_text(".action") == expected["action"]
        for line, action in zip(page.locator(".bars li").all(), policy.actions, strict=True):
            assert line.locator(".name").inner_text() == action
            assert line.locator(".share").inner_text() in (f"{100 * expected[f'p_{action}']:.0f} %", "under 1 %")
        assert f"{expected['expected_reward']:.3g}" in page.inner_text(".outlook")
        assert ("often enough" in page.inner_text(".support")) == expected["supported"]
        assert page.locator("img").count() == 0  # markup in data stays text
        assert page.get_by_text(HOSTILE).count() > 0
        assert_readable(page, 1280)


def test_the_form_has_fields_for_what_rules_look_at(browser, tmp_path):
    """A column of available actions and rules on columns that are no features, by which actions are left out."""
    rules = ("operate if frail == true", "pill if stage >= 3")
    replace(made_policy(), eligibility=Eligibility("open", rules)).save(tmp_path / "p.ponn")
    served = running("serve", "p.ponn", "--port", "0", "--no-access-log", cwd=tmp_path)
    with served as (_, found), opened_page(browser, found) as page:
        page.goto("/")
        page.wait_for_selector(".action")
        assert page.get_by_label("open", exact=True).input_value() == "0"
        page.get_by_label("stage", exact=True).fill("4")
        page.get_by_label("frail", exact=True).select_option("0")  # true
        page.locator(".action", has_text="wait").wait_for()
        page.get_by_label("stage", exact=True).fill("1")
        page.get_by_label("open", exact=True).select_option("pill")
        page.locator(".action", has_text="pill").wait_for()


def test_a_slider_changes_the_answer_and_undo_brings_it_back(browser, address):
    with opened_page(browser, address) as page:
        page.goto("/")
        page.wait_for_selector(".action")
        before = page.inner_text(".bars")
        page.get_by_label("age, slider", exact=True).fill("75")
        page.wait_for_selector(".whatif")
        assert "age" in page.inner_text(".whatif")
        assert "→ 75" in page.inner_text(".whatif")
        assert page.get_by_label("age", exact=True).input_value() == "75"
        assert page.inner_text(".bars") != before
        page.get_by_role("button", name="Undo my changes").click()
        page.wait_for_selector(".whatif", state="detached")
        assert page.inner_text(".bars") == before


def test_the_last_question_wins_however_slow_the_first_answer_is(browser, address):
    with opened_page(browser, address, allow=("ERR_FAILED",)) as page:
        page.goto("/")
        page.wait_for_selector(".action")
        held = []

        def hold_first(route):
            held.append(route) if not held else route.continue_()

        page.route("**/recommend", hold_first)
        page.get_by_label("age", exact=True).fill("30")
        page.wait_for_function("() => document.querySelector('.answer').classList.contains('stale')")
        while not held:
            page.wait_for_timeout(20)
        page.get_by_label("age", exact=True).fill("80")
        page.wait_for_selector(".whatif")
        held[0].continue_()  # nobody waits for it any more
        page.wait_for_timeout(300)
        assert "→ 80" in page.inner_text(".whatif")


@pytest.mark.parametrize(("moves", "told"), [("probability", "+12"), ("expected_reward", "+0.12")])
def test_reasons_are_told(browser, address, moves, told):
    effects = [
        {"feature": "age", "value": 61, "usual": 54, "effect": 0.12, "seen": True},
        {"feature": "race", "value": HOSTILE, "usual": "white", "effect": -0.03, "seen": False},
        {"feature": "her2", "value": "no", "usual": "no", "effect": 0.0, "seen": True},
    ]
    runner_up = {"action": "AC", "probability": 0.2, "expected_reward": 0.8123}
    reasons = {"moves": moves, "features": effects, "similar": {"rows": 412, "took_action": 96}, "runner_up": runner_up}

    def with_reasons(route):
        answer = route.fetch()
        body = answer.json()
        body["recommendations"][0] |= {
            "reasons": reasons,
            "supported": False,
            "expected_low": 0.1,
            "expected_high": 0.9,
        }
        route.fulfill(response=answer, json=body)

    with opened_page(browser, address) as page:
        page.route("**/recommend", with_reasons)
        page.goto("/")
        page.wait_for_selector(".reasons")
        lines = page.locator(".moved li").all_inner_texts()
        assert [line.split(":")[0] for line in lines] == ["age", "race"]  # what moves nothing is not told
        assert told in lines[0]
        assert "never seen in the log" in lines[1]
        assert "412 past cases" in page.inner_text(".reasons")
        assert "expected 0.812" in page.inner_text(".next")
        assert "hardly ever got" in page.inner_text(".support")
        assert "the log cannot tell" in page.inner_text(".support")
        assert "between 0.1 and 0.9" in page.inner_text(".outlook")
        assert_readable(page, 1280)
        page.set_viewport_size({"width": 360, "height": 800})
        assert_readable(page, 360)


def test_missing_and_odd_values_are_told(browser, address):
    with opened_page(browser, address) as page:
        page.goto("/")
        page.wait_for_selector(".action")
        page.get_by_label("age", exact=True).fill("")
        page.wait_for_selector(".notes")
        assert "age: missing, which training never saw" in page.inner_text(".notes")
        page.get_by_label("age", exact=True).fill("130")
        page.wait_for_function("() => document.querySelector('.notes')?.textContent.includes('130')")
        assert "outside the log" in page.inner_text("form.case")


def test_a_file_is_scored_and_saved(browser, address, folder, tmp_path, policy):
    with opened_page(browser, address) as page:
        page.goto("/")
        page.wait_for_selector(".action")
        page.locator("#score input[type=file]").set_input_files(folder / "log.csv")
        page.get_by_role("button", name="Recommend for every row").click()
        with page.expect_download() as waiting:
            page.get_by_role("link", name="Save log-recommended.csv").click()
        waiting.value.save_as(tmp_path / "out.csv")
        rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
        assert "1,200 rows" in page.inner_text("#score")
    assert [row["action"] for row in rows] == policy.predict(folder / "log.csv").tolist()


def test_heat_map_and_report(browser, address, policy):
    with opened_page(browser, address) as page:
        page.goto("/")
        page.wait_for_selector(".heat")
        assert page.locator(".heat td[title]").count() == len(policy.relevance)
        assert page.locator(".heat .dot", has_text="●").count() == sum(one.selected for one in policy.relevance)
        page.get_by_label("Show the numbers").check()
        assert_readable(page, 1280)
        page.locator("iframe").scroll_into_view_if_needed()
        page.frame_locator("iframe").get_by_role("heading", name="All about it").wait_for()


def test_with_the_keyboard_alone(browser, address):
    with opened_page(browser, address) as page:
        page.goto("/")
        page.wait_for_selector(".action")
        tab_to(page, ".skip")
        page.keyboard.press("Enter")
        tab_to(page, ".chip:nth-of-type(2)")
        page.keyboard.press("Enter")
        page.wait_for_function("() => !document.querySelector('.answer').classList.contains('stale')")
        tab_to(page, "input[type=range][aria-label='age, slider']")
        before = page.get_by_label("age", exact=True).input_value()
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(".whatif")
        assert float(page.get_by_label("age", exact=True).input_value()) == float(before) + 1
        assert page.locator("[role=status]").first.inner_text().startswith("Recommended: ")


def test_on_a_phone(browser, address):
    with opened_page(browser, address, width=360) as page:
        page.goto("/")
        page.wait_for_selector(".action")
        assert_readable(page, 360)
        assert page.locator(".brief").is_visible()
        assert page.inner_text(".action") in page.inner_text(".brief")


def test_the_token_is_asked_for(browser, folder):
    serve = ("serve", "policy.ponn", "--port", "0", "--token-file", "token", "--no-access-log")
    with (
        running(*serve, cwd=folder) as (_, found),
        opened_page(browser, found, allow=("401",)) as page,
    ):
        page.goto("/")
        page.get_by_label("Token").fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_text("not accepted").wait_for()
        page.get_by_label("Token").fill("a-token-of-some-length")
        page.keyboard.press("Enter")
        page.wait_for_selector(".action")
