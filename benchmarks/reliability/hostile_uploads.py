"""Do honest requests notice that six clients have hostile files scored?

`ponn serve` answers on loopback with a small policy. Eight connections ask `/recommend` for one row, 200 times a second
at most each: first alone, then while six other clients, in a process of their own, send files to `/score` without a
pause, each its kind: a header of commas, millions of empty rows, the largest plain file, ten thousand columns, texts of
megabytes in cells, one cell of 64 MB. Told: times and refusals of the honest requests, statuses of the others, the
memory of the server and the most that all its processes had together, folders and processes that are left. Linux only.

    python benchmarks/reliability/hostile_uploads.py [--seconds 20]
"""

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

HERE = Path(__file__).parent
sys.path += [str(HERE.parent), str(HERE.parent.parent / "tests/support")]

from record import RESULTS, now, write_record  # noqa: E402
from served import cases, made_policy  # noqa: E402

SEED = 3
CONNECTIONS, PAUSE = 8, 0.005
LARGEST = 1 << 26  # bytes of a file
ROW = {"age": 51.5, "dose": 2.5, "smoker": True, "seen": "2021-03-04", "town": "a", "ward": "north"}


def hostile_files() -> dict[str, bytes]:
    """The files, by their kind."""
    sink = pa.BufferOutputStream()
    pacsv.write_csv(cases(20_000, SEED), sink)
    header, _, rows = sink.getvalue().to_pybytes().partition(b"\n")
    wide = b",".join(b"c%d" % i for i in range(10_000))
    long = b'51,1.0,true,2020-01-01,a,b,"' + b"x" * 3_000_000 + b'"\n'
    return {
        "header of commas": b"," * 2_000_000,
        "empty rows": header + b"\n" * 60_000_000,
        "largest plain file": header + b"\n" + rows * ((LARGEST - len(header) - 1) // len(rows)),
        "ten thousand columns": wide + b"\n" + (b",".join([b"1"] * 10_000) + b"\n") * 200,
        "long texts": header + b",note\n" + long * 15,
        "one cell": b"a" * (LARGEST - 1),
    }


def ask_honestly(port: int, seconds: float) -> dict[str, Any]:
    """Times in milliseconds of requests for one row, and how many were refused."""
    times: list[float] = []
    refused = Counter[int]()

    def one() -> None:
        connection, until = http.client.HTTPConnection("127.0.0.1", port), time.monotonic() + seconds
        while time.monotonic() < until:
            started = time.perf_counter()
            connection.request("POST", "/recommend", json.dumps({"row": ROW}), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            times.append(1e3 * (time.perf_counter() - started))
            refused.update([answer.status] * (answer.status != 200))
            time.sleep(PAUSE)

    threads = [threading.Thread(target=one) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = {f"p{q}": round(float(np.percentile(times, q)), 2) for q in (50, 99, 99.9)}
    return {"requests": len(times), "refused": dict(refused), **told, "longest": round(max(times), 2)}


def attack(port: int, seconds: float) -> None:
    """Send every file again and again; print the statuses that came back."""
    seen: dict[str, Counter[str]] = {}
    until = time.monotonic() + seconds

    def one(kind: str, content: bytes) -> None:
        seen[kind] = Counter()
        while time.monotonic() < until:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            try:
                connection.request("POST", "/score", content, {"Content-Type": "text/csv"})
                answer = connection.getresponse()
                while answer.read(1 << 20):
                    pass
                seen[kind][str(answer.status)] += 1
            except OSError as error:
                seen[kind][type(error).__name__] += 1
            finally:
                connection.close()

    threads = [threading.Thread(target=one, args=each) for each in hostile_files().items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({kind: dict(counts) for kind, counts in seen.items()}))


def megabytes_below(pid: int) -> float:
    """What a process and all below it have in memory, shared pages in parts."""
    found, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        try:
            found += int(re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{one}/smaps_rollup").read_text(), re.M)[1])  # type: ignore[index]
            for thread in Path(f"/proc/{one}/task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
        except (OSError, TypeError):
            continue
    return found / 1024


def measure(seconds: float) -> dict[str, Any]:
    """All of it."""
    with tempfile.TemporaryDirectory() as folder:
        made_policy().save(Path(folder, "p.ponn"))
        environment = os.environ | {"TMPDIR": folder}
        command = [sys.executable, "-c", "from ponn.cli import main; main()", "serve", f"{folder}/p.ponn"]
        command += ["--port", "0", "--no-access-log"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert server.stdout
            port = int(re.search(r"http://[\d.]+:(\d+)", server.stdout.readline())[1])  # type: ignore[index]
            time.sleep(1)
            alone = ask_honestly(port, seconds)
            me = [sys.executable, __file__, "--attack", str(port), "--seconds", str(seconds + 3)]
            attacker = subprocess.Popen(me, stdout=subprocess.PIPE, text=True)
            time.sleep(3)
            most, over = [0.0], threading.Event()
            looking = threading.Thread(target=lambda: look(server.pid, most, over))
            looking.start()
            attacked = ask_honestly(port, seconds)
            over.set()
            looking.join()
            told, _ = attacker.communicate()
            own = int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text())[1]) // 1024  # type: ignore[index]
        finally:
            server.terminate()
            server.wait(60)
        left = [path.name for path in Path(folder).glob("ponn-*")]
    return {
        "alone": alone,
        "attacked": attacked,
        "hostile": json.loads(told),
        "server_megabytes": own,
        "all_processes_megabytes": round(most[0]),
        "folders_left": left,
    }


def look(pid: int, most: list[float], over: threading.Event) -> None:
    """Note the most memory until it is over."""
    while not over.wait(0.25):
        most[0] = max(most[0], megabytes_below(pid))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--attack", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        os.nice(10)  # they would be on other machines: what they compute shall take little from the others
        attack(given.attack, given.seconds)
    else:
        started = now()
        measured = measure(given.seconds)
        print(json.dumps(measured, indent=1))
        write_record("hostile_uploads", measured, seed=SEED, started=started, folder=RESULTS / "reliability")
