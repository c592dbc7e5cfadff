"""The pictures of the docs, made by the tools themselves: `make pictures`. Needs Chromium."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMAGES = Path(__file__).parent / "images"
sys.path.insert(0, str(ROOT / "tests"))

from browsing import ARGUMENTS, MISSING, browser_path, running  # noqa: E402
from commands import PONN  # noqa: E402

WIDE, TALL, PHONE = ({"width": w, "height": h} for w, h in ((1180, 860), (1180, 1500), (390, 844)))
ROLES = ("--action", "regimen", "--reward", "survived")


def main() -> None:
    """Make every picture again."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        place = Path(folder)
        ponn("simulate", "breast-cancer", "--out", "visits.csv", cwd=place)
        learned = ("--out", "policy.ponn", "--report", "report.html")
        ponn("learn", "visits.csv", *ROLES, *learned, cwd=place)
        report_picture(browser, place)
        page_pictures(browser, place)
        studio_pictures(browser, place)


def ponn(*words: str, cwd: Path) -> None:
    """Run a command."""
    subprocess.run([*PONN, *words], cwd=cwd, check=True)


@contextmanager
def launched() -> Iterator:
    """A browser."""
    from playwright.sync_api import sync_playwright

    path = browser_path()
    if path is None:
        sys.exit(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


def shoot(page, name: str, part: str | None = None) -> None:
    """Keep what is in sight, or one part of the page."""
    page.wait_for_timeout(300)  # bars settle
    path = IMAGES / f"{name}.png"
    page.locator(part).screenshot(path=path) if part else page.screenshot(path=path)
    print(path.relative_to(ROOT), f"{path.stat().st_size / 1000:.0f} kB")


def report_picture(browser, place: Path) -> None:
    """The first page of the report: the verdict and its picture."""
    page = browser.new_page(viewport=WIDE)
    page.goto((place / "report.html").as_uri())
    shoot(page, "report")
    page.close()


# The page of a served policy -----------------------------------------------------------------------------


def page_pictures(browser, place: Path) -> None:
    """The page at two widths, a what-if, the heat map."""
    with running("serve", "policy.ponn", "--port", "0", "--no-access-log", cwd=place) as (_, address):
        page = browser.new_page(viewport=WIDE)
        page.goto(address)
        page.wait_for_selector(".action")
        shoot(page, "page")
        page.get_by_label("age, slider", exact=True).fill("78")
        page.wait_for_selector(".whatif")
        shoot(page, "page-what-if", ".result")
        shoot(page, "page-heat-map", "#heat-part")
        page.set_viewport_size(PHONE)
        page.evaluate("document.querySelector('form.case').scrollIntoView()")
        shoot(page, "page-phone")
        page.close()


# The studio ----------------------------------------------------------------------------------------------


def studio_pictures(browser, place: Path) -> None:
    """From the columns to a policy."""
    with running("studio", "--folder", "clinic", "--port", "0", cwd=place) as (_, address):
        page = browser.new_page(viewport=TALL)
        page.set_default_timeout(300_000)
        page.goto(address)
        page.get_by_label("Upload a CSV").set_input_files(place / "visits.csv")
        page.get_by_text("Yes: 10000 rows").wait_for()
        shoot(page, "studio-columns", "#columns-part")
        shoot(page, "studio-check", "#check-part")
        page.get_by_role("button", name="Learn a policy").click()
        page.get_by_text(re.compile("Reward models .*, [1-9] of")).wait_for()
        shoot(page, "studio-progress", "#job-view")
        page.wait_for_selector(".action")
        page.set_viewport_size(WIDE)
        shoot(page, "studio-policy")
        page.close()


if __name__ == "__main__":
    main()
