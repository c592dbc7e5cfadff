"""Make the pictures under docs/images again: `make pictures`."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from ponn import simulate
from ponn.holdout import learn_with_holdout
from ponn.report import write_report

IMAGES = Path(__file__).parent / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = "1000,900"  # pixels: the verdict and its picture


def picture_of_report() -> None:
    """The first page of the report on the breast-cancer world."""
    log = simulate.world("breast-cancer", seed=0).log
    made = learn_with_holdout(log, select="fdr")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_report(made.policy, log, page, rows=made.kept, corrections=made.corrections)
        photograph(page, IMAGES / "report.png", folder)


def photograph(page: Path, picture: Path, profile: str) -> None:
    """What a browser shows of a page, as a picture."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise SystemExit(f"No browser was found; expected one of {', '.join(BROWSERS)}. Install chromium.")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")
    where = (f"--user-data-dir={profile}/browser", f"--screenshot={picture}", f"--window-size={SIZE}", page.as_uri())
    subprocess.run([browser, *flags, *where], check=True, capture_output=True)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    picture_of_report()
