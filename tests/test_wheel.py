"""The wheel installs into a clean environment without extras, and works there."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wheel_works_in_a_clean_environment(tmp_path):
    source = tmp_path / "source"  # a copy, so that nothing stale from an earlier build gets in
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("ponn_policy-*.whl")
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    install = ["-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), str(wheel)]
    subprocess.run([python, *install], check=True)
    outside = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ponn = tmp_path / "clean" / "bin" / "ponn"
    done = subprocess.run([ponn, "--help"], check=True, capture_output=True, text=True, env=outside, cwd=tmp_path)
    assert "check" in done.stdout
    page = "import pathlib, ponn.serving as it; assert (pathlib.Path(it.__path__[0]) / 'page/studio.html').is_file()"
    subprocess.run([python, "-c", page], check=True, env=outside, cwd=tmp_path)
    make = [ponn, "simulate", "satimage", "--rows", "200", "--out", "log.csv"]
    subprocess.run(make, check=True, env=outside, cwd=tmp_path)  # the shipped data are in the wheel
    check = [ponn, "check", "log.csv", "--action", "action", "--reward", "reward"]
    done = subprocess.run(check, check=True, capture_output=True, text=True, env=outside, cwd=tmp_path)
    assert "Ready" in done.stdout
