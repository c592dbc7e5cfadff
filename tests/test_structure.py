"""The package is flat and its imports go one way, along the data."""

import ast
import subprocess
import sys
from pathlib import Path

import ponn

SOURCE = Path(ponn.__file__).parent
ORDER = (
    *(
        "errors",
        "storage",
        "settings",
        "remote",
        "source",
        "delimited",
        "files",
        "streams",
        "table",
        "profile",
        "roles",
        "rules",
    ),
    *(
        "eligibility",
        "log",
        "encode",
        "engine",
        "clusters",
        "shards",
        "acquaintance",
        "survey",
        "sharded",
        "frames",
    ),
    *("inference", "trees", "similar", "models", "reasons", "policy"),
    *("propensity", "tally", "bounds", "discovery", "relevance", "pairs"),
    *("estimators", "intervals", "sensitivity", "readiness", "drawing", "charts"),
    "scoring",
    *("network", "objective", "checkpoint", "team", "train", "many"),
    *("reward", "evaluation", "confounding", "subgroups", "worth", "forests", "partition"),
    *("heads", "scores", "pieces", "stacking", "robust", "learners", "learning"),
    *("holdout", "surrogate", "findings", "glossary", "markup"),
    *("report_worth", "report_log", "report_policy", "report"),
    *("logistic", "shard_steps", "shard_training", "trainers", "shard_learning"),
    *("shard_evaluation", "shard_scoring", "anysize"),
    *("datasets", "world", "normal", "breast_cancer", "synthetic", "simulate"),
    *("rows", "advice", "decisions", "metrics", "interface"),
    *("messages", "service", "gate", "connections", "serve"),
    *("guesses", "project", "studio"),
    *("terminal", "value_tables", "command_options"),
    *("commands_log", "commands_policy", "commands_learn", "commands_serve", "cli"),
)


def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ponn":
            below = node.module.split(".")[1:]
            found |= {below[0]} if below else {alias.name for alias in node.names} & set(ORDER)
    return found


def test_imports_only_go_down_the_list():
    files = {path.stem: path for path in SOURCE.glob("*.py") if path.stem != "__init__"}
    assert set(files) == set(ORDER)
    for place, name in enumerate(ORDER):
        assert imported(files[name]) <= set(ORDER[:place]), f"{name}.py imports upwards"


def test_public_names_are_there():
    assert set(ponn.__all__) == set(ponn.PUBLIC) | set(ponn.MODULES)
    for name in ponn.__all__:
        assert getattr(ponn, name) is not None


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from ponn.cli import main; sys.argv = ['ponn', '--help']\ntry: main()\nexcept SystemExit: pass\n"
    )
    code += "print('|'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "check" in done.stdout
    heavy = {"torch", "sklearn", "pandas", "pyarrow", "numpy", "rich"}
    assert not heavy & set(done.stderr.strip().split("|"))
