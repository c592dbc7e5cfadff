"""Make the environments of the peers, each with its own pins: .venv-peers/<peer>. One that cannot be made says why.

obp 0.5.7 refuses Python 3.11 and contextualbandits is built from source against the numpy that is there, so these two
are installed alone after what they need.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
HOMES = ROOT / ".venv-peers"
PEERS = ("obp", "vw", "contextualbandits", "econml")
BUILD = ["--no-build-isolation", "--no-deps"]
ALONE = {
    "obp": [["--no-deps", "--ignore-requires-python", "obp==0.5.7"]],
    "contextualbandits": [[*BUILD, "contextualbandits==0.3.30"], [*BUILD, "costsensitive==0.1.2.13.post15"]],
}
TORCH = ("obp",)  # ponn's own pin of torch holds


def steps(peer: str) -> list[list[str]]:
    """The commands that make an environment."""
    python = str(HOMES / peer / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    torch = [[*pip, "--constraint", str(ROOT / "constraints.txt"), "torch"]] if peer in TORCH else []
    pinned = [*pip, "--requirement", str(HERE / f"{peer}.txt")]
    alone = [[*pip, *one] for one in ALONE.get(peer, ())]
    return [[sys.executable, "-m", "venv", str(HOMES / peer)], *torch, pinned, *alone]


def make(peer: str) -> None:
    """Make an environment that is not there; what went wrong is kept beside it for the leaderboard."""
    done, failed = HOMES / peer / ".ready", HOMES / f"{peer}.failed"
    if done.exists() and done.stat().st_mtime >= (HERE / f"{peer}.txt").stat().st_mtime:
        return
    failed.unlink(missing_ok=True)
    for command in steps(peer):
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["nothing was said"])[-1]
            failed.write_text(f"{' '.join(command[1:4])} ... failed: {last}\n")
            print(f"NO ENVIRONMENT for {peer}: {last}", file=sys.stderr)
            return
    done.touch()


if __name__ == "__main__":
    HOMES.mkdir(exist_ok=True)
    for peer in PEERS:
        make(peer)
