"""README and guide are true: every Python and shell block is executed, in order, in one folder."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE_ENDINGS = ("py", "md", "json", "svg", "csv")
LINK = re.compile(r"\]\(([^)#]+)\)")


def run_shell(lines: str, here: Callable[..., CompletedProcess[str]]) -> None:
    for line in lines.splitlines():
        words = shlex.split(line)
        assert words[0] == "ponn", f"the documents only run ponn, not {line}"
        done = here(*words[1:])
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md", "docs/scale.md"])
def test_every_block_runs(name, here):
    names: dict[str, object] = {}
    blocks = BLOCK.findall((ROOT / name).read_text())
    assert blocks
    for language, code in blocks:
        if language == "sh":
            run_shell(code, here)
        else:
            exec(compile(code, name, "exec"), names)


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in LINK.findall(path.read_text()):
        assert target.startswith("http") or (path.parent / target).exists(), target


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
