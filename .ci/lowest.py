"""Print a constraint for the oldest version of every dependency that pyproject.toml promises to work with."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCH = re.search(
    r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE
)  # older ones have no small build


def main() -> None:
    """One line per dependency of the package and of its extras, but for those of development and clusters."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for one in [*project["dependencies"], *extras["learn"], *extras["serve"]]:
        name, version = re.fullmatch(r"([\w-]+)(?:\[[^]]*\])?>=([\d.]+)", one).groups()
        print(TORCH[0] if name == "torch" else f"{name}=={version}")


if __name__ == "__main__":
    main()
