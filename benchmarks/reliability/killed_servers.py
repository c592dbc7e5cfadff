"""What is lost or damaged when servers are killed, disks are full, policies are swapped, and process ids are equal?

Four parts, each with its own bar; all of them want that whatever a client was told is on disk, once and whole:

kills       SIGKILL of a worker, or of the whole server, again and again while clients ask and tell outcomes
full disk   a small disk (tmpfs, as root; else a limit on the size of files) that fills up while the server writes and
            while commands write: nobody is told of what is not there, /readyz says so, the server goes on when there is
            room again, commands leave the old file and no other
swaps       the policy file is replaced again and again under load, every other time by a damaged one
namespaces  two servers, and two commands, with equal process ids in two namespaces and one folder (`unshare`, as root)

What cannot be done on a machine is said loudly and kept in the results. Linux only.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from record import RESULTS, now, write_record  # noqa: E402
from serving_load import made_policy, ponn  # noqa: E402

SEED = 20_261_120
CLIENTS = 6
DISK = 128 << 20  # bytes of the small disk: the decision log grows by a megabyte or so between two fills
# As `ponn serve`, but with an eye on the policy file that makes 500 swaps take a minute
SWIFT = (
    "import sys; from pathlib import Path\n"
    "from ponn.serving.server import serve; from ponn.serving.service import Options\n"
    "options = Options(Path(sys.argv[1]), poll_seconds=0.02, access_log=False)\n"
    "serve(options, port=0, tell=lambda url: print(url, flush=True))"
)


# Servers and clients -------------------------------------------------------------------------------------


class Server:
    """A server in processes of its own group."""

    def __init__(self, *command: str, folder: Path, **more: Any) -> None:
        with (folder / "stderr").open("a") as told:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=told, text=True, start_new_session=True, **more
            )
        assert self.process.stdout
        self.port = int(self.process.stdout.readline().partition("http://127.0.0.1:")[2].split()[0].strip('"}, '))

    @property
    def workers(self) -> list[int]:
        """Process ids of the workers."""
        pid = self.process.pid
        try:
            found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            return [one for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
        except OSError:
            return []

    def kill(self) -> None:
        """End all of it at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """End it in order."""
        self.process.terminate()
        return self.process.wait(60)

    def ask(self, path: str, value: Any = None, seconds: float = 30) -> tuple[int, Any]:
        """Status and answer."""
        body = None if value is None else json.dumps(value).encode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=seconds) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def wait_until(self, path: str, status: int, seconds: float = 60) -> bool:
        """Until a route answers so."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(OSError, HTTPException, ValueError):
                if self.ask(path)[0] == status:
                    return True
            time.sleep(0.02)
        return False


class Clients:
    """Threads that ask for recommendations and tell outcomes, and remember what they were told."""

    def __init__(self, server: Callable[[], Server | None], rows: list[Any]) -> None:
        self.server, self.rows = server, rows
        self.decisions: list[dict[str, Any]] = []
        self.outcomes: dict[str, list[float]] = {}  # id → rewards, in the order in which they were acknowledged
        self.statuses: Counter[str] = Counter()
        self.policies: Counter[str] = Counter()
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(number,)) for number in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def run(self, number: int) -> None:
        """Ask until told to stop."""
        random_ = random.Random(SEED + number)
        while not self.stopped.is_set():
            server = self.server()
            try:
                self.ask_once(server, random_) if server else time.sleep(0.02)
            except (OSError, HTTPException, ValueError) as error:
                self.statuses[type(error).__name__] += 1
                time.sleep(0.02)

    def ask_once(self, server: Server, random_: random.Random) -> None:
        """A request with some rows, and perhaps outcomes of it."""
        status, told = server.ask("/recommend", {"rows": random_.choices(self.rows, k=random_.choice([1, 1, 3, 30]))})
        self.statuses[f"/recommend {status}"] += 1
        if status != 200:
            return
        self.policies[told["policy"]] += 1
        self.decisions += told["recommendations"]
        for one in told["recommendations"][:2]:
            for reward in random_.choice([[], [0.0], [1.0, 0.0]]):
                status, _ = server.ask("/outcome", {"id": one["id"], "reward": reward})
                self.statuses[f"/outcome {status}"] += 1
                if status == 200:
                    self.outcomes.setdefault(one["id"], []).append(reward)

    def stop(self) -> None:
        """Enough."""
        self.stopped.set()
        for thread in self.threads:
            thread.join()


def losses(log: Path, clients: Clients) -> dict[str, Any]:
    """What the decision log lacks of what clients were told; all should be 0 but for the first two."""
    from ponn.serving.decisions import convert_decisions

    converted = convert_decisions([log], log.with_name("converted.csv"))
    known: dict[str, dict[str, Any]] = {}
    told: dict[str, list[float]] = {}
    twice = 0
    for file in log.parent.glob(f"{log.stem}.*.jsonl"):
        for text in file.read_bytes().split(b"\n")[:-1]:
            with suppress(ValueError):
                one = json.loads(text) if text else {}
                twice += one.get("kind") == "decision" and one["id"] in known
                if one.get("kind") == "decision":
                    known[one["id"]] = one
                elif one.get("kind") == "outcome":
                    told.setdefault(one["id"], []).append(one["reward"])
    return {
        "decisions_told": len(clients.decisions),
        "outcomes_told": sum(map(len, clients.outcomes.values())),
        "lost_decisions": sum(one["id"] not in known for one in clients.decisions),
        "changed_decisions": sum(known.get(one["id"], one)["action"] != one["action"] for one in clients.decisions),
        "lost_outcomes": sum(not holds_in_order(told.get(id, []), all_) for id, all_ in clients.outcomes.items()),
        "ids_twice": twice + len(clients.decisions) - len({one["id"] for one in clients.decisions}),
        "unreadable_lines": converted.unreadable,
        "server_errors": sum(count for name, count in clients.statuses.items() if name.endswith(" 500")),
    }


def holds_in_order(there: list[float], wanted: list[float]) -> bool:
    """Are the wanted rewards there, in their order?"""
    rest = iter(there)
    return all(one in rest for one in wanted)


def lost(found: dict[str, Any]) -> int:
    """How much is lost or damaged."""
    return sum(value for name, value in found.items() if name not in ("decisions_told", "outcomes_told"))


# The parts -----------------------------------------------------------------------------------------------


def kills(folder: Path, policy: Path, rows: list[Any], times: int) -> dict[str, Any]:
    """SIGKILL of workers and servers under load."""
    log, random_ = folder / "d.jsonl", random.Random(SEED)
    temporary = folder / "tmp"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    command = ponn("serve", str(policy), "--port", "0", "--workers", "2", "--decisions", str(log), "--no-access-log")

    def start() -> Server:
        return Server(*command, folder=folder, env=environment)

    present: list[Server | None] = [start()]
    clients = Clients(lambda: present[0], rows)
    what: Counter[str] = Counter()
    for _ in range(times):
        time.sleep(random_.uniform(0.2, 1.5))
        server = present[0]
        assert server
        if random_.random() < 0.6 and server.workers:
            os.kill(random_.choice(server.workers), signal.SIGKILL)
            what["workers"] += 1
        else:
            present[0] = None
            server.kill()
            what["servers"] += 1
            present[0] = start()
            present[0].wait_until("/readyz", 200)
    clients.stop()
    server = present[0]
    assert server
    server.stop()
    found = losses(log, clients) | {"left_in_tmp": len(list(temporary.iterdir()))}
    torn = sum(not file.read_bytes().endswith(b"\n") for file in folder.glob("d.*.jsonl"))
    return {
        "held": not lost(found),
        **found,
        "kills": dict(what),
        "torn_files": torn,
        "answers": dict(clients.statuses),
    }


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A disk of some megabytes; None where none can be mounted."""
    place = folder / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)], stderr=subprocess.DEVNULL, check=False
    )
    if mounted.returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def fill(place: Path) -> Path:
    """A file that takes all the room there is."""
    path = place / "filling"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return path


def full_disk(folder: Path, policy: Path, rows: list[Any], times: int) -> dict[str, Any]:
    """A disk that fills up and is freed again, under a server and under commands."""
    with small_disk(folder) as place:
        if place is None:
            print("NOT DONE: no small disk can be mounted here (it takes root).", file=sys.stderr)
            return {"held": None, "skipped": "no tmpfs can be mounted"}
        found = full_disk_under_server(place, folder, policy, rows, times)
        found |= full_disk_under_commands(place, policy)
    found["held"] = not lost(found["log"]) and all(
        found[name] == 0 for name in ("not_ready_told_wrong", "did_not_go_on", "empty_files", "commands_wrong")
    )
    return found


def full_disk_under_server(place: Path, folder: Path, policy: Path, rows: list[Any], times: int) -> dict[str, Any]:
    """Decision log, counters and temporary files on a disk that is full now and then, also when the server starts."""
    log = place / "d.jsonl"
    environment = os.environ | {"TMPDIR": str(place)}
    command = ponn("serve", str(policy), "--port", "0", "--decisions", str(log), "--no-access-log")
    filling = fill(place)
    present = [Server(*command, folder=folder, env=environment)]
    wrong = int(not present[0].wait_until("/readyz", 503))
    filling.unlink()
    did_not = int(not present[0].wait_until("/readyz", 200))
    clients = Clients(lambda: present[0], rows)
    for _ in range(times):
        time.sleep(0.3)
        filling = fill(place)
        wrong += not present[0].wait_until("/readyz", 503, 20)
        wrong += not present[0].wait_until("/healthz", 200, 20)
        time.sleep(0.3)
        filling.unlink()
        did_not += not present[0].wait_until("/readyz", 200, 20)
    clients.stop()
    present[0].stop()
    files = list(place.glob("d.*.jsonl"))
    for file in files:  # off the small disk, so that what is made of them has room
        shutil.move(file, folder / file.name)
    empty = sum((folder / file.name).stat().st_size == 0 for file in files)
    return {
        "fills": times,
        "not_ready_told_wrong": wrong,
        "did_not_go_on": did_not,
        "files": len(files),
        "empty_files": empty,
        "log": losses(folder / "d.jsonl", clients),
        "answers": dict(clients.statuses),
    }


def full_disk_under_commands(place: Path, policy: Path) -> dict[str, Any]:
    """Commands that find no room leave the old file as it was, and no other."""
    log = policy.with_name("log.csv")
    commands = {
        "advice.csv": ("recommend", str(policy), str(log), "--out"),
        "advice.parquet": ("recommend", str(policy), str(log), "--out"),
        "report.html": ("report", str(policy), str(log), "--out"),
        "log2.csv": ("simulate", "breast-cancer", "--rows", "20000", "--out"),
    }
    wrong, said = 0, {}
    for name, words in commands.items():
        (place / name).write_bytes(b"the old content")
        filling = fill(place)
        done = subprocess.run(ponn(*words, str(place / name)), capture_output=True, text=True, check=False)
        filling.unlink()
        there = sorted(one.name for one in place.iterdir())
        good = done.returncode == 1 and (place / name).read_bytes() == b"the old content" and there == [name]
        said[name] = {"status": done.returncode, "good": good, "told": done.stderr.strip()[-200:], "there": there}
        wrong += not good
        for one in place.iterdir():
            shutil.rmtree(one) if one.is_dir() else one.unlink()
    return {"commands_wrong": wrong, "commands": said}


def swaps(folder: Path, policy: Path, rows: list[Any], times: int) -> dict[str, Any]:
    """Another policy, and a damaged one, in turns under load."""
    from ponn.policy.policy import load

    served, random_ = folder / "served.ponn", random.Random(SEED)
    good = [policy.read_bytes(), changed_policy(policy, folder).read_bytes()]
    digests = {load(path).digest for path in (policy, folder / "changed.ponn")}
    served.write_bytes(good[0])
    server = Server(sys.executable, "-c", SWIFT, str(served), folder=folder)
    clients = Clients(lambda: server, rows)
    refusals = 0
    for number in range(times):
        content = good[number // 2 % 2]
        if number % 2:
            cut = random_.randrange(len(content))
            content = content[:cut] + random_.choice([b"", random_.randbytes(8), b"\0" * 64]) + content[cut + 8 :]
            content = content if random_.random() < 0.5 else content[: cut or 1]
        part = folder / "part"
        part.write_bytes(content)
        os.replace(part, served)
        time.sleep(0.1)
        refusals += server.ask("/readyz")[1]["refused"] is not None
    part.write_bytes(good[0])
    os.replace(part, served)
    wanted = load(policy).digest
    until = time.monotonic() + 10
    while server.ask("/readyz")[1]["policy"] != wanted and time.monotonic() < until:
        time.sleep(0.05)
    at_end = server.ask("/readyz")[1]
    clients.stop()
    server.stop()
    wrong = sum(count for name, count in clients.statuses.items() if name not in ("/recommend 200", "/outcome 404"))
    held = not wrong and set(clients.policies) <= digests and at_end["policy"] == wanted and not at_end["refused"]
    return {
        "held": held,
        "swaps": times,
        "seen_refused": refusals,
        "answers": dict(clients.statuses),
        "policies_that_answered": len(clients.policies),
        "unknown_policies": len(set(clients.policies) - digests),
        "good_one_taken_at_end": at_end["policy"] == wanted,
    }


def changed_policy(policy: Path, folder: Path) -> Path:
    """The same policy with other weights."""
    from dataclasses import replace

    from ponn.policy.policy import load

    found = load(policy)
    provenance = found.provenance | {"reward": {**found.provenance["reward"], "range": [-1.0, 2.0]}}
    replace(found, provenance=provenance).save(folder / "changed.ponn")
    return folder / "changed.ponn"


def namespaces(folder: Path, policy: Path, rows: list[Any], times: int) -> dict[str, Any]:
    """Two servers with equal process ids on one decision log, then two commands that write one file."""
    unshare = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        print("NOT DONE: process ids cannot be made equal here (unshare takes root).", file=sys.stderr)
        return {"held": None, "skipped": "unshare is not allowed"}
    log = folder / "d.jsonl"
    command = ponn("serve", str(policy), "--port", "0", "--decisions", str(log), "--no-access-log")
    servers = [Server(*unshare, *command, folder=folder) for _ in range(2)]
    turn = iter(range(1 << 30))
    clients = Clients(lambda: servers[next(turn) % 2], rows)
    time.sleep(0.5 * times)
    clients.stop()
    for server in servers:
        server.kill()
    found = losses(log, clients)
    out, content = folder / "advice.csv", set()
    words = ponn("recommend", str(policy), str(policy.with_name("log.csv")), "--out", str(out))
    for _ in range(max(1, times // 2)):
        both = [subprocess.Popen([*unshare, *words], stderr=subprocess.DEVNULL) for _ in range(2)]
        found["commands_failed"] = found.get("commands_failed", 0) + sum(one.wait() != 0 for one in both)
        content.add(out.read_bytes())
    found["answers_that_differ"] = len(content) - 1
    found["left_over"] = len(list(folder.glob(".ponn-*")))
    return {"held": not lost(found), **found, "answers": dict(clients.statuses)}


PARTS = {"kills": kills, "full disk": full_disk, "swaps": swaps, "namespaces": namespaces}


def main() -> int:
    """Do all parts, keep the results, say whether the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--fills", type=int, default=30, help="of the small disk")
    parser.add_argument("--swaps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=20, help="of processes with equal ids")
    parser.add_argument("--only", choices=list(PARTS), action="append")
    parser.add_argument("--results", type=Path, default=RESULTS / "reliability")
    asked = parser.parse_args()
    times = {"kills": asked.kills, "full disk": asked.fills, "swaps": asked.swaps, "namespaces": asked.rounds}
    started, told = now(), {}
    from ponn.serving.advice import load_adviser

    with tempfile.TemporaryDirectory() as top:
        policy = made_policy(Path(top))
        rows = load_adviser(policy).about["examples"]
        for name in asked.only or PARTS:
            folder = Path(top) / name.replace(" ", "-")
            folder.mkdir()
            told[name] = PARTS[name](folder, policy, rows, times[name])
            said = {True: "Held", False: "NOT HELD", None: "NOT DONE"}[told[name]["held"]]
            print(f"{said}: {name}: {json.dumps(told[name])[:1500]}", flush=True)
    path = write_record("killed_servers", told, seed=SEED, started=started, folder=asked.results)
    print(f"Raw results: {path}")
    return 1 if any(one["held"] is False for one in told.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
