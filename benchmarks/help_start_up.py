"""How long does `ponn --help` take, against a bare Python with an option parser, and what does it import?

    python benchmarks/help_start_up.py [--repeats 21]

The two take turns, each in a process of its own. The bar: at most 3 times `python -c "import argparse"` plus 0.2 s,
and none of torch, sklearn, pandas is imported; nor pyarrow or numpy, which `--help` does not need.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from record import RESULTS, now, write_record

MOST_TIMES, MOST_EXTRA = 3.0, 0.2  # issue 2, "Must hold"
HEAVY = ("torch", "sklearn", "pandas", "pyarrow", "numpy", "scipy", "polars", "duckdb")
PROGRAMS = {
    "argparse": "import argparse",
    "ponn --help": "import sys; sys.argv = ['ponn', '--help']; from ponn.cli import main; main()",
}


def seconds(program: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def heavy_imports() -> list[str]:
    """Heavy packages among all that `ponn --help` imports, by the interpreter's own account."""
    command = [sys.executable, "-X", "importtime", "-c", PROGRAMS["ponn --help"]]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in told.splitlines()}
    if "click" not in imported:
        raise RuntimeError("-X importtime does not name click, which `ponn --help` imports: it cannot be trusted")
    return sorted(imported.intersection(HEAVY))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the raw results")
    asked = parser.parse_args()

    started = now()
    raw: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for program in PROGRAMS.values():
        seconds(program)  # compiles, and fills the file cache
    for _ in range(asked.repeats):
        for name, program in PROGRAMS.items():
            raw[name].append(seconds(program))
    heavy = heavy_imports()

    bare, ours = (median(times) for times in raw.values())
    bar = MOST_TIMES * bare + MOST_EXTRA
    held = ours <= bar and not heavy
    for name, times in raw.items():
        print(f"{name:<12} median {median(times) * 1e3:4.0f} ms, {min(times) * 1e3:.0f} to {max(times) * 1e3:.0f}")
    print(f"heavy packages imported: {', '.join(heavy) or 'none'}")
    measured = {"summary": {"argparse": bare, "ponn --help": ours, "bar": bar, "heavy": heavy}, "raw": raw}
    path = write_record("help_start_up", measured, seed=0, started=started, folder=asked.results)
    print(f"Raw results: {path}")
    print(f"{'Held' if held else 'NOT HELD'}: {ours * 1e3:.0f} ms, at most {bar * 1e3:.0f} ms")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
