"""The studio: its routes, and the way from an upload to a recommendation in a real browser."""

import asyncio
import gzip
import json
import re
import time
from collections import Counter
from urllib.parse import urlsplit

import httpx
import pytest

import apart
import ponn
from browsing import assert_readable, opened_page, running, tab_to
from ponn import simulate
from ponn.serving.studio import app as studios
from ponn.serving.studio import project as projects
from ponn.serving.studio.app import studio_app
from ponn.serving.studio.project import DONE, Job, Order, Project, Reading
from ponn.tables.files import write_table
from served import made_policy

ROLES = {"action": "treatment", "reward": "success"}
QUICK = "hidden=(4,)\nepochs=3"


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("logs") / "stones.csv"
    write_table(simulate.world("kidney-stones", seed=0).log.table, path)
    return path


# Routes


class Client:
    """Asks an application without a network."""

    def __init__(self, app):
        self.transport = httpx.ASGITransport(app)

    async def send(self, *words, **more):
        async with httpx.AsyncClient(transport=self.transport, base_url="http://127.0.0.1:8001") as client:
            return await client.request(*words, **more)

    def request(self, *words, **more):
        return asyncio.run(self.send(*words, **more))

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, **more):
        return self.request("POST", path, **more)


@pytest.fixture
def project(tmp_path):
    found = Project(tmp_path / "studio")
    yield found
    found.close()


@pytest.fixture
def client(project):
    return Client(studio_app(project, largest=200_000))


async def pieces(*some):
    for one in some:
        yield one


def test_upload_columns_and_check(client, log):
    kept = client.post("/studio/files", params={"name": "../a log.csv"}, content=log.read_bytes()).json()
    assert kept == {"name": "a log.csv", "bytes": log.stat().st_size}
    assert client.get("/studio/files").json() == [kept]
    about = client.get("/studio/files/a log.csv").json()
    assert about["rows"] == 700
    assert about["guess"] == {**ROLES, "propensity": None, "group": None, "minimize": False}
    found = client.post("/studio/check", params={"file": "a log.csv"}, json=ROLES)
    assert found.json() == json.loads(json.dumps(ponn.check(log, **ROLES).as_json()))


def test_what_comes_from_elsewhere_is_refused(client, log):
    upload = {"params": {"name": "x.csv"}, "content": b"a,b\n1,2\n"}
    assert client.post("/studio/files", **upload, headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.post("/studio/files", **upload, headers={"Origin": "http://localhost:9"}).status_code == 403
    assert client.post("/studio/files", **upload, headers={"Origin": "null"}).status_code == 403
    assert client.post("/studio/files", **upload, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.post("/studio/files", **upload, headers={"Host": "evil.example"}).status_code == 421
    assert client.get("/studio/files", headers={"Host": "evil.example:8001"}).status_code == 421
    assert client.get("/studio/files").json() == []
    own = {"Origin": "http://127.0.0.1:8001", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/studio/files", **upload, headers=own).status_code == 200


def test_a_large_upload_is_refused_with_what_to_do(client, project):
    big = client.post("/studio/files", params={"name": "big.csv"}, content=b"x" * 200_001)
    assert big.status_code == 413
    assert "--max-upload" in big.json()["error"]
    chunks = client.post("/studio/files", params={"name": "big.csv"}, content=pieces(*[b"x" * 150_000] * 2))
    assert chunks.status_code == 413
    order = {"file": "x", "columns": ROLES, "settings": ["x" * 2_000_000]}
    assert client.post("/studio/jobs", json=order).status_code == 413
    for odd in ("\u00b2", "9" * 5_000):  # digits that are no number, and a number that Python does not read
        found = client.post(
            "/studio/files", params={"name": "big.csv"}, headers={"Content-Length": odd.encode("latin-1")}
        )
        assert found.status_code in (413, 422)
    assert list(project.files_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/studio/files/nothing.csv", None, 404),
        ("GET", "/studio/files/..%2f..%2fetc%2fpasswd", None, 404),
        ("GET", "/studio/jobs/%2e%2e%2f/report", None, 404),
        ("GET", "/studio/jobs/abc/policy", None, 404),
        ("POST", "/studio/jobs/abc/cancel", {}, 404),
        ("POST", "/studio/jobs/abc/restart", {}, 404),
        ("POST", "/studio/jobs/abc/recommend", {"row": {}}, 404),
        ("POST", "/studio/jobs", {"file": "nothing.csv", "columns": ROLES}, 404),
        ("POST", "/studio/jobs", {"file": "nothing.csv", "columns": {"action": 1}}, 422),
        ("POST", "/studio/jobs", [], 422),
        ("POST", "/studio/check?file=nothing.csv", ROLES, 404),
        ("POST", "/studio/check", ROLES, 422),
        ("POST", "/studio/files", {}, 422),
        ("POST", "/studio/files?name=x.exe", {}, 422),
        ("GET", "/static/../studio.py", None, 404),
        ("GET", "/static/%2e%2e/studio.py", None, 404),
    ],
)
def test_mistakes_are_told_as_json(client, method, path, body, status):
    found = client.request(method, path, json=body)
    assert found.status_code == status
    assert found.json()["error"]


def test_a_finished_job_is_served_like_any_policy(client, project, log):
    learned = ponn.learn(ponn.read_log(log, **ROLES), "ponn-b", hidden=(4,), epochs=3)
    job = Job("0123456789ab", Order("stones.csv", Reading(**ROLES)), DONE, report=True)
    project.folder(job).mkdir()
    project.keep(job)
    learned.save(project.folder(job) / "policy.ponn")
    (project.folder(job) / "report.html").write_text("<h1>r</h1>")
    path = f"/studio/jobs/{job.id}"
    about = client.get(f"{path}/about").json()
    assert about["digest"] == learned.digest
    asked = client.post(f"{path}/recommend", json={"rows": about["examples"]}).json()["recommendations"]
    rows = {name: [row[name] for row in about["examples"]] for name in about["examples"][0]}
    h = learned.predict_proba(rows)
    assert [list(one["probabilities"].values()) for one in asked] == [pytest.approx(row, abs=1e-6) for row in h]
    scored = client.post(f"{path}/score", content=log.read_bytes(), headers={"Content-Type": "text/csv"})
    assert len(scored.text.splitlines()) == 701
    saved = client.get(f"{path}/policy")
    assert saved.content == (project.folder(job) / "policy.ponn").read_bytes()
    assert "stones.ponn" in saved.headers["content-disposition"]
    assert "sandbox" in client.get(f"{path}/report").headers["content-security-policy"]
    assert client.post(f"{path}/restart").status_code == 409


# Hostile tables and clients


def upload(client, name, content):
    return client.post("/studio/files", params={"name": name}, content=content).json()["name"]


HOSTILE = {
    "a segmentation fault in the library": ("null.jsonl", b"null\n{}", 422, "crashed the library|JSON lines"),
    "a header of commas": ("commas.csv", b"," * 100_000 + b"\n", 413, "100,001 columns"),
    "a bomb": ("bomb.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 30_000_000, 1), 413, "memory|bytes"),
    "not even text": ("noise.parquet", bytes(range(256)) * 20, 422, "could not be read as Parquet"),
}


@pytest.mark.parametrize(("name", "content", "status", "told"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_table_is_an_error_message(project, monkeypatch, name, content, status, told):
    monkeypatch.setattr(studios, "READING_MEMORY", 250 << 20)
    client = Client(studio_app(project, largest=1_000_000))
    upload(client, name, content)
    for answer in (
        client.get(f"/studio/files/{name}"),
        client.post("/studio/check", params={"file": name}, json=ROLES),
    ):
        assert answer.status_code == status
        assert re.search(told, answer.json()["error"])
    assert client.get("/studio/files").status_code == 200


def test_time_is_limited(project, log, monkeypatch):
    monkeypatch.setattr(studios, "READING_SECONDS", 0.01)
    client = Client(studio_app(project, largest=1_000_000))
    found = client.get(f"/studio/files/{upload(client, 'log.csv', log.read_bytes())}")
    assert (found.status_code, "longer than 0.01 seconds" in found.text) == (413, True)


def test_many_who_want_something_read_do_not_keep_others_waiting(project, log, monkeypatch):
    monkeypatch.setattr(studios, "PATIENCE", 0.3)
    monkeypatch.setattr(studios, "READING_SECONDS", 2.0)
    monkeypatch.setattr(studios, "describe_upload", apart.never_read)
    client = Client(studio_app(project, largest=1_000_000))
    name = upload(client, "log.csv", log.read_bytes())

    async def crowd():
        reading = [asyncio.ensure_future(client.send("GET", f"/studio/files/{name}")) for _ in range(8)]
        await asyncio.sleep(0.1)
        started = time.monotonic()
        assert (await client.send("GET", "/studio/jobs")).status_code == 200
        assert time.monotonic() - started < 1
        return await asyncio.gather(*reading)

    answers = asyncio.run(crowd())
    assert sorted(one.status_code for one in answers) == [413] * 2 + [503] * 6
    assert {one.headers.get("retry-after") for one in answers if one.status_code == 503} == {"1"}


def test_what_nobody_waits_for_is_not_read_to_the_end(project, log, monkeypatch):
    monkeypatch.setattr(studios, "describe_upload", apart.never_read)
    app = studio_app(project, largest=1_000_000)
    name = upload(Client(app), "log.csv", log.read_bytes())
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": f"/studio/files/{name}"}
    scope |= {"query_string": b"", "headers": [(b"host", b"localhost")], "client": None}
    sent = []

    async def leave():
        messages = [{"type": "http.request", "body": b""}]

        async def receive():
            if messages:
                return messages.pop()
            await asyncio.sleep(0.3)
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        await app(scope, receive, send)

    started = time.monotonic()
    asyncio.run(leave())
    assert sent[0]["status"] == 400
    assert time.monotonic() - started < 10  # of READING_SECONDS, which are 120


@pytest.mark.parametrize("path", ["/studio/check?file=x", "/studio/jobs"])
def test_a_long_question_is_refused_however_it_comes(client, path):
    content = json.dumps({"file": "x", "columns": ROLES, "settings": ["x" * 2_000_000]}).encode()
    json_type = {"Content-Type": "application/json"}
    assert client.post(path, content=content, headers=json_type).status_code == 413
    chunks = pieces(*(content[start : start + 50_000] for start in range(0, len(content), 50_000)))
    assert client.post(path, content=chunks, headers=json_type).status_code == 413


def test_an_upload_that_stops_coming_is_given_up(client, project, monkeypatch):
    monkeypatch.setattr(studios, "STALLED", 0.2)

    async def stalls():
        yield b"a,b\n"
        await asyncio.sleep(60)

    found = client.post("/studio/files", params={"name": "slow.csv"}, content=stalls())
    assert (found.status_code, "did not arrive" in found.text) == (408, True)
    assert list(project.files_folder.iterdir()) == []


def test_a_full_disk_is_told(client, project, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(projects, "open_unfinished", full)
    found = client.post("/studio/files", params={"name": "x.csv"}, content=b"a,b\n")
    assert (found.status_code, "No space left" in found.json()["error"]) == (507, True)
    assert list(project.files_folder.iterdir()) == []


def finished_job(project, policy=b""):
    job = Job("0123456789ab", Order("stones.csv", Reading(**ROLES)), DONE)
    project.folder(job).mkdir()
    project.keep(job)
    (project.folder(job) / "policy.ponn").write_bytes(policy)
    return f"/studio/jobs/{job.id}", project.folder(job) / "policy.ponn"


def test_a_damaged_policy_is_an_error_message_until_it_is_mended(client, project, tmp_path):
    path, policy = finished_job(project, b"damaged")
    for _ in range(2):
        for found in (
            client.get(f"{path}/about"),
            client.post(f"{path}/recommend", json={"row": {}}),
            client.post(f"{path}/score", content=b"a\n", headers={"Content-Type": "text/csv"}),
        ):
            assert found.status_code == 409
            assert "not a policy file, or is damaged" in found.json()["error"]
    made_policy().save(policy)
    assert client.get(f"{path}/about").status_code == 200
    policy.unlink()
    assert client.get(f"{path}/about").status_code == 404


def test_schemathesis_finds_no_server_error(project, log, monkeypatch, tmp_path):
    """Requests made from the schema, and requests that break it: no 5xx, only declared statuses and bodies."""
    import jsonschema
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings

    monkeypatch.setattr(projects, "command", lambda _: ["-c", "print('Error: not now')"])  # learns nothing
    app = studio_app(project, largest=100_000)
    client, statuses = Client(app), Counter()
    names = [upload(client, "log.csv", log.read_bytes()), upload(client, "odd.jsonl", b"null\n{}")]
    path, policy = finished_job(project)
    made_policy().save(policy)
    ids = [path.rpartition("/")[2], "damaged"]
    (project.jobs_folder / "damaged").mkdir()
    (project.jobs_folder / "damaged" / "job.json").write_text("{")
    described = app.openapi()

    def send(case):
        count = sum(statuses.values())  # every other request names a file or job that is there
        if count % 2:
            for where, key, some in ((case.path_parameters, "id", ids), (case.path_parameters, "name", names)):
                if where and key in where:
                    where[key] = some[count // 2 % 2]
            if case.query and "file" in case.query:
                case.query["file"] = names[count // 2 % 2]
        values = case.as_transport_kwargs(base_url="http://127.0.0.1:8001")
        more = {key: values[key] for key in ("params", "json", "headers") if values.get(key) is not None}
        if values.get("data") is not None:
            more["content"] = values["data"]
        answer = client.request(case.method, urlsplit(values["url"]).path or "/", **more)
        statuses[answer.status_code] += 1
        assert answer.status_code < 500, (case.method, case.path, answer.text)
        told = case.operation.definition.raw["responses"][str(answer.status_code)]["content"]
        kind = answer.headers["content-type"].partition(";")[0]
        assert kind in told
        if kind == "application/json":
            jsonschema.validate(answer.json(), told[kind]["schema"])

    limits = settings(
        max_examples=6,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    described["paths"] = {path: one for path, one in described["paths"].items() if path.startswith("/studio/")}
    for found in schemathesis.openapi.from_dict(described).get_all_operations():
        operation = found.ok()
        for mode in modes if operation.body else modes[:1]:
            limits(given(operation.as_strategy(generation_mode=mode))(lambda case: send(case)))()
    assert statuses[200] > 8, statuses
    assert statuses[404] > 8
    assert statuses[422] > 8


# In the browser


@pytest.fixture
def studio(tmp_path):
    with running("studio", "--folder", "project", "--port", "0", cwd=tmp_path) as (process, address):
        yield process, address


def test_from_upload_to_recommendation_by_mouse(browser, studio, log, tmp_path):
    _, address = studio
    with opened_page(browser, address) as page:
        page.goto("/")
        page.get_by_label("Upload a CSV").set_input_files(log)
        page.get_by_label("What was done?").wait_for()
        assert page.get_by_label("What was done?").input_value() == "treatment"
        assert page.get_by_label("How did it turn out?").input_value() == "success"
        page.get_by_text("Yes: 700 rows, 2 actions").wait_for()
        page.get_by_label("What was done?").select_option("success")  # cannot be both: nothing to learn from
        page.wait_for_function("() => document.getElementById('learn-part').hidden")
        page.get_by_label("What was done?").select_option("treatment")
        page.get_by_text("Yes: 700 rows, 2 actions").wait_for()
        assert_readable(page, 1280)
        page.get_by_text("More choices").click()
        page.get_by_label("Settings").fill(QUICK)
        page.get_by_role("button", name="Learn a policy").click()
        page.locator("progress").wait_for()
        page.wait_for_selector(".action", timeout=150_000)
        assert_readable(page, 1280)
        told = page.inner_text("#job-view .verdict")
        assert "past cases kept aside" in told
        assert ("giving everyone" in told) is ("do not trust" not in told)
        page.locator("form.case select").first.select_option(index=1)
        page.wait_for_selector(".whatif")
        with page.expect_download() as waiting:
            page.get_by_role("link", name="Download the policy").click()
        waiting.value.save_as(tmp_path / "mine.ponn")
        shown = page.inner_text(".action")
        page.set_viewport_size({"width": 360, "height": 800})
        assert_readable(page, 360)
        page.reload()
        page.wait_for_selector(".action")
    assert shown in ponn.load(tmp_path / "mine.ponn").actions


def test_from_upload_to_recommendation_with_the_keyboard_and_after_an_interruption(browser, tmp_path, log):
    with (
        running("studio", "--folder", "project", "--port", "0", cwd=tmp_path) as (process, address),
        opened_page(browser, address, allow=("ERR_CONNECTION",)) as page,
    ):
        choosers = []  # listened for from the start: a dialog that nobody listens for opens for real
        page.on("filechooser", lambda one: choosers.append(one))
        page.goto("/")
        page.wait_for_selector("input[type=file]")
        tab_to(page, "input[type=file]")
        page.keyboard.press("Enter")
        while not choosers:
            page.wait_for_timeout(20)
        choosers[0].set_files(log)
        page.get_by_text("Yes: 700 rows, 2 actions").wait_for()
        tab_to(page, "#learn summary")
        page.keyboard.press("Enter")
        tab_to(page, "#learn textarea")
        page.keyboard.insert_text("hidden=(4,)\nepochs=100000")
        tab_to(page, "#learn button")
        page.keyboard.press("Enter")
        page.locator("progress").wait_for()
        process.kill()
        page.get_by_text("does not answer").wait_for()
    with (
        running("studio", "--folder", "project", "--port", "0", cwd=tmp_path) as (_, address),
        opened_page(browser, address) as page,
    ):
        page.goto("/")
        tab_to(page, "#jobs a")
        assert "interrupted" in page.inner_text("#jobs")
        shorten(tmp_path / "project")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Interrupted").wait_for()
        tab_to(page, ".button.main")
        page.keyboard.press("Enter")
        page.wait_for_selector(".action", timeout=150_000)
        tab_to(page, "form.case select, form.case input")
        page.keyboard.press("ArrowDown")
        page.wait_for_selector(".whatif")
        status = page.locator("[role=status]", has_text=re.compile("Recommended: "))
        status.wait_for(state="attached")


def shorten(folder):
    """Fewer epochs for the second try."""
    (path,) = (folder / "jobs").glob("*/job.json")
    path.write_text(path.read_text().replace("100000", "3"))


def test_rows_without_an_outcome_are_left_out_at_a_click(browser, studio, log, tmp_path):
    lines = log.read_text().splitlines()
    (tmp_path / "gaps.csv").write_text("\n".join([*lines[:-1], lines[-1].rpartition(",")[0] + ","]) + "\n")
    _, address = studio
    with opened_page(browser, address) as page:
        page.goto("/")
        page.get_by_label("Upload a CSV").set_input_files(tmp_path / "gaps.csv")
        page.get_by_role("button", name="Leave these rows out").click()
        page.get_by_text("Yes: 699 rows, 2 actions").wait_for()


def test_a_table_that_kills_its_reader_is_told_in_the_page(browser, studio, log, tmp_path):
    (tmp_path / "odd.jsonl").write_text("null\n{}")
    (tmp_path / "wide.csv").write_bytes(b"," * 200_000 + b"\n")
    _, address = studio
    with opened_page(browser, address, allow=("422", "413")) as page:
        page.goto("/")
        for name, told in (("odd.jsonl", "crashed the library|JSON lines"), ("wide.csv", "200,001 columns")):
            page.get_by_label("Upload a CSV").set_input_files(tmp_path / name)
            page.get_by_text(re.compile(told)).wait_for()
            assert_readable(page, 1280)
        page.get_by_label("Upload a CSV").set_input_files(log)
        page.get_by_text("Yes: 700 rows, 2 actions").wait_for()


def test_a_damaged_policy_is_told_in_the_page(browser, log, tmp_path):
    project = Project(tmp_path / "project")
    path, _ = finished_job(project, b"damaged")
    project.close()
    with (
        running("studio", "--folder", "project", "--port", "0", cwd=tmp_path) as (_, address),
        opened_page(browser, address, allow=("409",)) as page,
    ):
        page.goto(f"/studio#job-{path.rpartition('/')[2]}")
        page.get_by_text("not a policy file, or is damaged").wait_for()
        assert_readable(page, 1280)


def test_jobs_wait_for_their_turn(browser, studio, log):
    _, address = studio
    with opened_page(browser, address) as page:
        page.goto("/")
        page.get_by_label("Upload a CSV").set_input_files(log)
        for settings in ("epochs=100000\npatience=100000", QUICK):
            page.get_by_text("Yes: 700 rows, 2 actions").wait_for()
            if not page.get_by_label("Settings").is_visible():
                page.get_by_text("More choices").click()
            page.get_by_label("Settings").fill(settings)
            page.get_by_role("button", name="Learn a policy").click()
            page.get_by_role("button", name="Stop").wait_for()
            page.get_by_role("link", name="New policy").click()
        page.get_by_text("waiting", exact=True).wait_for()
        waiting, running = page.locator("#jobs a").all()
        waiting.click()
        page.get_by_text("One policy is learned before this one.").wait_for()
        assert_readable(page, 1280)
        running.click()
        page.locator("progress").wait_for()
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("Stopped on request.").wait_for()
        waiting.click()
        page.wait_for_selector(".action", timeout=150_000)
        assert "waiting" not in page.inner_text("#jobs")


def test_stopping_a_job(browser, studio, log):
    _, address = studio
    with opened_page(browser, address) as page:
        page.goto("/")
        page.get_by_label("Upload a CSV").set_input_files(log)
        page.get_by_text("Yes: 700 rows, 2 actions").wait_for()
        page.get_by_role("button", name="Learn a policy").click()
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("Stopped on request.").wait_for()
        page.get_by_role("button", name="Start it again").click()
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("Stopped on request.").wait_for()
        time.sleep(0.1)
        assert "interrupted" in page.inner_text("#jobs")
