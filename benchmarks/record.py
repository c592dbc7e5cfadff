"""Raw results of a benchmark, with what is needed to read them later: machine, versions, commit, seed, times."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PACKAGES = ("ponn-policy", "numpy", "pyarrow", "click", "rich", "scikit-learn", "torch")


def now() -> str:
    """The time as text, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_record(name: str, measured: dict[str, Any], *, seed: int, started: str, folder: Path = RESULTS) -> Path:
    """Write `folder`/`name`.json and return its path."""
    record = {
        "benchmark": name,
        "started": started,
        "finished": now(),
        "seed": seed,
        "commit": commit(),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **versions()},
        "measured": measured,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def versions() -> dict[str, str | None]:
    """Installed version of each package that can matter, None where it is absent."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def machine() -> dict[str, Any]:
    """Processor, cores this process may use, memory, load when asked."""
    return {
        "system": platform.platform(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": os.getloadavg(),
    }


def processor() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def commit() -> dict[str, Any]:
    """Hash of the checked-out commit (None outside of one) and whether the tree differs from it."""
    head = git("rev-parse", "--verify", "--quiet", "HEAD")
    return {"hash": head or None, "changed": bool(git("status", "--porcelain"))}


def git(*arguments: str) -> str:
    """What git prints, empty when it cannot answer."""
    try:
        done = subprocess.run(["git", "-C", str(HERE), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
