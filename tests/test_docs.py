"""README and docs are true: every Python and shell block runs, page by page, and the site builds without warnings."""

import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import ponn

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE_ENDINGS = ("py", "md", "json", "svg", "csv")
LINK = re.compile(r"\]\(([^)#]+)[)#]")
GENERATED = {"command-line.md", "settings.md", "methods.md"}  # pages of docs/reference that the site makes


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text())


def run_shell(lines: str, here: Callable[..., CompletedProcess[str]]) -> None:
    for line in lines.splitlines():
        words = shlex.split(line)
        assert words[0] == "ponn", f"the documents only run ponn, not {line}"
        done = here(*words[1:])
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [one for one in PAGES if blocks_of(one)], ids=name_of)
def test_every_block_runs_in_a_folder_of_its_page(page, here):
    names: dict[str, object] = {}
    for language, code in blocks_of(page):
        if language == "sh":
            run_shell(code, here)
        else:
            exec(compile(code, str(page), "exec"), names)


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/how-to/large-logs.md"])
def test_the_pages_that_people_start_with_have_blocks(page):
    assert blocks_of(ROOT / page)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path):
    for target in LINK.findall(path.read_text()):
        place = path.parent / target
        made = place.name in GENERATED and place.parent.resolve() == ROOT / "docs/reference"
        assert target.startswith("http") or place.exists() or made, target


def test_the_map_of_the_paper_names_things_that_exist():
    text = (ROOT / "docs/paper.md").read_text()
    for file, test in re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", text):
        (path,) = (ROOT / "tests").rglob(file)
        source = path.read_text()
        assert f"def {test}" in source
    for module, name in re.findall(r"`([a-z_]+)\.([A-Za-z_0-9]+)", text):
        if name not in FILE_ENDINGS:
            (path,) = (ROOT / "src/ponn").rglob(f"{module}.py")
            source = path.read_text()
            assert re.search(rf"^((def|class) )?{name}\b", source, re.MULTILINE), f"{module}.{name}"


# The site ------------------------------------------------------------------------------------------------


class Loaded(HTMLParser):
    """The addresses that a page makes the browser load: scripts, styles, pictures, frames."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.addresses += [given.get("src") or ""]
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.addresses += [given.get("href") or ""]


def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in tmp_path.rglob("*.html"):
        loaded = Loaded()
        loaded.feed(page.read_text())
        assert not [one for one in loaded.addresses if one.startswith(("http:", "https:", "//"))], page
    text = (tmp_path / "reference/api.html").read_text()
    members = [name for name in ponn.__all__ if name not in ("METHODS", "simulate", "datasets")]
    assert [name for name in members if f'.{name}"' not in text] == []  # an anchor for every public name


# Examples of public names --------------------------------------------------------------------------------

WITH_EXAMPLES = {
    "ponn.log.reading": ["read_log"],
    "ponn.evaluation.check": ["check"],
    "ponn.learning.learn": ["learn"],
    "ponn.evaluation.evaluate": ["evaluate"],
    "ponn.policy.policy": ["load"],
    "ponn.evaluation.subgroups": ["value_by_group"],
    "ponn.evaluation.confounding": ["hidden_confounding"],
    "ponn.report.page": ["write_report"],
    "ponn.simulate.catalogue": ["world", "to_bandit"],
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in WITH_EXAMPLES.items() for name in names]
)
def test_the_examples_of_public_functions_run(module, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function = getattr(importlib.import_module(module), name)
    (examples,) = doctest.DocTestFinder(recurse=False).find(function, name, globs={})
    assert examples.examples
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=flags).run(examples, out=failures.append)
    assert not failures, "".join(failures)
