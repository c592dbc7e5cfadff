"""The architecture: packages whose imports go one way, along the data; nothing that a newcomer could confuse."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import ponn

SOURCE = Path(ponn.__file__).parent
# Small modules of the package itself that everyone may import
TOP = ("errors", "storage", "processes", "settings", "methods")
PACKAGES = (
    *("tables", "engine", "log", "policy", "steps", "training", "evaluation", "learning", "report", "simulate"),
    *("serving", "cli"),
)
ORDER = (*TOP, *PACKAGES)
MOST_FILES = 14  # in a package: about a dozen


def modules() -> dict[str, Path]:
    """Dotted name below `ponn` → file."""
    found = (path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py"))
    return {".".join(path.parts): SOURCE / path.with_suffix(".py") for path in found if path.name != "__init__"}


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of the package that a file imports anywhere, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
        elif isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        yield from (name.removeprefix("ponn.") for name in names if name.removeprefix("ponn.") in known)


def test_imports_only_go_down_the_list_of_packages():
    known = modules()
    assert {name.partition(".")[0] for name in known} == set(ORDER)
    for name, path in known.items():
        place = ORDER.index(name.partition(".")[0])
        above = [one for one in imported(path, known) if ORDER.index(one.partition(".")[0]) > place]
        assert not above, f"{name} imports upwards: {above}"


def test_no_two_modules_import_each_other():
    known = modules()
    TopologicalSorter({name: set(imported(path, known)) - {name} for name, path in known.items()}).prepare()


def test_a_package_has_about_a_dozen_files():
    for package in (*PACKAGES, "learning/dr", "serving/studio"):
        files = [path for path in (SOURCE / package).glob("*.py") if path.stem != "__init__"]
        assert len(files) <= MOST_FILES, package


def test_public_names_are_there():
    assert set(ponn.__all__) == set(ponn.PUBLIC) | set(ponn.MODULES)
    for name in ponn.__all__:
        assert getattr(ponn, name) is not None


def test_no_public_name_is_also_a_package():
    assert not set(PACKAGES) & (set(ponn.PUBLIC) - set(ponn.MODULES))


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from ponn.cli import main; sys.argv = ['ponn', '--help']\ntry: main()\nexcept SystemExit: pass\n"
    )
    code += "print('|'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "check" in done.stdout
    heavy = {"torch", "sklearn", "pandas", "pyarrow", "numpy", "rich"}
    assert not heavy & set(done.stderr.strip().split("|"))
