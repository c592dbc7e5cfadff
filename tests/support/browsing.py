"""A real browser for tests: Debian's Chromium, or another that is there. Watches for errors and for strangers."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from commands import PONN

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
MISSING = (
    "NO BROWSER: the pages were NOT tested. Install Chromium (as root on Debian: apt-get install chromium), or name "
    "one in PONN_BROWSER."
)


def browser_path() -> str | None:
    return os.environ.get("PONN_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")
def browser():
    """Chromium, started once for a file: while it runs, asyncio can run nothing else in this thread."""
    path = browser_path()
    if path is None:
        print(f"\n{MISSING}\n", file=sys.stderr)
        pytest.skip(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield found
        found.close()


@contextlib.contextmanager
def opened_page(browser, origin, *, width=1280, allow=()):
    """A page that must stay quiet and at home: no console errors but those allowed, no request elsewhere."""
    context = browser.new_context(viewport={"width": width, "height": 900}, base_url=origin, accept_downloads=True)
    page, errors, strangers = context.new_page(), [], []
    page.set_default_timeout(60_000)  # machines that run tests are busy
    page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda asked: None if at_home(asked.url, origin) else strangers.append(asked.url))
    yield page
    context.close()
    unexpected = [one for one in errors if not any(re.search(text, one) for text in allow)]
    assert not unexpected, unexpected
    assert not strangers, strangers


def at_home(url: str, origin: str) -> bool:
    return url.startswith(("blob:", "data:")) or urlsplit(url).netloc == urlsplit(origin).netloc


@contextlib.contextmanager
def running(*words, cwd):
    """A ponn command that serves, and its address."""
    process = subprocess.Popen([*PONN, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        address = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
        assert address, "the server told no address"
        yield process, address.group()
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def tab_to(page, selector, most=60):
    """Move the focus with the Tab key until it is on an element; it must be visible there."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"the focus on {selector} cannot be seen"
            return
    raise AssertionError(f"the Tab key never reached {selector}")


FAINT_TEXTS = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const shown = element.checkVisibility() && !element.closest(".unseen, option, :disabled, svg");
    if (!shown || !walker.currentNode.textContent.trim()) continue;
    const [one, two] = [light(parts(getComputedStyle(element).color)), light(ground(element))];
    const contrast = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (contrast < 4.5) found.push(`${walker.currentNode.textContent.trim()}: ${contrast.toFixed(2)}`);
  }
  return found;
}"""

UNNAMED_FIELDS = """() => [...document.querySelectorAll("input, select, textarea, button, a")]
  .filter((one) => one.checkVisibility())
  .filter((one) => !(one.labels?.length || one.ariaLabel || one.textContent.trim()))
  .map((one) => one.outerHTML)"""


def assert_readable(page, width):
    """Every text stands out, every field has a name, nothing sticks out sideways."""
    for look in (FAINT_TEXTS, UNNAMED_FIELDS):
        found = page.evaluate(look)
        assert not found, found
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, f"{wide} pixels"
