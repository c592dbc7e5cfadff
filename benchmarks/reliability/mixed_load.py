"""Do honest clients lose anything while hostile ones do their worst?

`ponn serve --decisions` with two workers, on loopback. 16 honest clients ask for recommendations, some of them for many
rows or with reasons, and tell outcomes, a request each some 30 ms. Phases in which they are alone take turns with
phases in which 8 hostile clients are there too, each of which does one thing of `KINDS` after the other as fast as it
can. Whoever is honest must get what was asked for: no 5xx, no connection cut, the 99th percentile of all their answers'
times at most twice that of the phases without the others; and the server's processes must stay under 600 MB together.
At the end every decision that an honest client was told is in the decision log, and all its lines can be read.

Hostile clients would be on other machines; here they have a lower priority, so that what they compute takes little from
the server and the honest ones. `--without score` leaves out what is done to /score. Linux only.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from record import RESULTS, now, write_record  # noqa: E402
from serving_load import made_policy, ponn  # noqa: E402

SEED = 20_261_120
HONEST, HOSTILE = 16, 8
NICE = 10  # of the hostile clients
PAUSE = 0.03  # seconds between an honest client's answer and its next request
PHASE = 10.0  # seconds
KIND_SECONDS = 2.0  # that a hostile client does one thing
PATIENCE = 30.0  # seconds that an honest client waits for an answer
MOST_RATIO, MOST_BYTES = 2.0, 600e6


# Clients -------------------------------------------------------------------------------------------------


def head(path: str, length: int | None, kind: str = "application/json", more: str = "") -> bytes:
    """The head of a request."""
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{more}{size}\r\n\r\n".encode()


def request(path: str, value: Any) -> bytes:
    """A whole request."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return head(path, len(body)) + body


class Link:
    """A connection that stays open, and is opened again where it was closed."""

    def __init__(self, port: int) -> None:
        self.port, self.reader, self.writer = port, None, None

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        """Status and body of an answer."""
        if self.writer is None or self.writer.is_closing():
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writer.write(data)
        top = await self.reader.readuntil(b"\r\n\r\n")
        length = int(top.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = await self.reader.readexactly(length)
        if b"connection: close" in top.lower():
            self.close()
        return int(top.split()[1]), body

    def close(self) -> None:
        """Forget the connection."""
        if self.writer is not None:
            self.writer.close()
        self.writer = None


async def honest(port: int, rows: list[Any], random_: random.Random, until: float, found: dict[str, Any]) -> None:
    """Ask and tell outcomes; note how long each answer took and whatever went wrong."""
    link, ids = Link(port), []
    while time.monotonic() < until:
        kind, data = honest_request(rows, random_, ids)
        started = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                status, body = await link.ask(data)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            found["wrong"][f"{kind}: {type(error).__name__}"] += 1
            link.close()
            continue
        found["times"].append(time.monotonic() - started)
        if status != 200:
            found["wrong"][f"{kind}: {status}"] += 1
        elif kind != "outcome":
            ids += [one["id"] for one in json.loads(body)["recommendations"]]
            found["ids"] += ids[-1:]
        await asyncio.sleep(random_.uniform(0, 2 * PAUSE))
    link.close()


def honest_request(rows: list[Any], random_: random.Random, ids: list[str]) -> tuple[str, bytes]:
    """What an honest client asks next."""
    draw = random_.random()
    if draw < 0.3 and ids:
        return "outcome", request("/outcome", {"id": ids.pop(), "reward": random_.choice([0, 1])})
    if draw < 0.4:
        return "ten rows", request("/recommend", {"rows": random_.sample(rows, 10)})
    return "row", request("/recommend", {"row": random_.choice(rows), "reasons": draw > 0.9})


# What hostile clients do; each returns when it has done it once ------------------------------------------

Kind = Callable[[int, list[Any], random.Random], Awaitable[None]]


async def said(port: int, data: bytes) -> None:
    """Send something, read the answer."""
    link = Link(port)
    try:
        async with asyncio.timeout(PATIENCE):
            await link.ask(data)
    finally:
        link.close()


async def big_numbers(port: int, rows: list[Any], random_: random.Random) -> None:
    """Whole numbers that no column holds, with reasons."""
    numbers = [name for name, value in rows[0].items() if isinstance(value, int | float)]
    row = rows[0] | {random_.choice(numbers): random_.choice([2**53 + 1, 2**63, 2**64 - 1, 10**30, -(10**300), 1e308])}
    await said(port, request("/recommend", {"row": row, "reasons": True}))


async def many_rows(port: int, rows: list[Any], random_: random.Random) -> None:
    """As many rows as are allowed, with reasons."""
    await said(port, request("/recommend", {"rows": random_.choices(rows, k=1_000), "reasons": True}))


async def garbage(port: int, rows: list[Any], random_: random.Random) -> None:
    """A megabyte of anything."""
    await said(port, request("/recommend", random_.randbytes(random_.choice([10, 1_000, 1 << 20]))))


async def deep(port: int, rows: list[Any], random_: random.Random) -> None:
    """JSON that is nested as deeply as the limit of size allows."""
    await said(port, request("/recommend", random_.choice([b"[", b'{"row":']) * 140_000))


async def empty_rows(port: int, rows: list[Any], random_: random.Random) -> None:
    """A megabyte of JSON that becomes as many objects as possible."""
    inner = random_.choice([b"{}", b"[]", b"0"])
    await said(port, request("/recommend", b'{"rows":[' + (inner + b",") * 340_000 + inner + b"]}"))


async def wrong_types(port: int, rows: list[Any], random_: random.Random) -> None:
    """Cells, rows and fields that are something else."""
    value = random_.choice([[], {}, "x" * 100_000, "\x00", True, 1e300, [[1]]])
    body = random_.choice(
        [{"row": dict.fromkeys(rows[0], value)}, {"rows": value}, {"row": rows[0], "eligible": [value]}]
    )
    await said(port, request("/recommend", body))


async def forged_ids(port: int, rows: list[Any], random_: random.Random) -> None:
    """Outcomes of decisions that nobody made."""
    tag, secret = random_.randbytes(8).hex(), random_.randbytes(16).hex()
    id = random_.choice(
        [f"{tag}-{secret}-{random_.randrange(1 << 20):012x}", f"{tag[:12]}-0-{secret[:8]}-9999999", "../x"]
    )
    await said(port, request("/outcome", {"id": id, "reward": 1}))


async def slow_bodies(port: int, rows: list[Any], random_: random.Random) -> None:
    """Fifty bodies that arrive byte by byte."""
    links = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
    for _, writer in links:
        writer.write(head("/recommend", 1_000_000))
    for _ in range(20):
        for _, writer in links:
            writer.write(b" ")
        await asyncio.sleep(0.1)
    for _, writer in links:
        writer.close()


async def stalled_readers(port: int, rows: list[Any], random_: random.Random) -> None:
    """Ten long answers that nobody reads."""
    links = [await asyncio.open_connection("127.0.0.1", port, limit=1_000) for _ in range(10)]
    for _, writer in links:
        writer.transport.pause_reading()
        writer.write(request("/recommend", {"rows": random_.choices(rows, k=1_000)}))
    await asyncio.sleep(KIND_SECONDS)
    for _, writer in links:
        writer.transport.abort()


async def endless_chunks(port: int, rows: list[Any], random_: random.Random) -> None:
    """A body that never ends, in large chunks or in crumbs."""
    size = random_.choice([65_536, 1])
    piece = (b"%x\r\n" % size + b"x" * size + b"\r\n") * (65_536 // size // 6 + 1)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(random_.choice(["/recommend", "/outcome", "/healthz"]), None))
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(KIND_SECONDS):
            while True:
                writer.write(piece)
                await writer.drain()
    writer.close()


async def many_headers(port: int, rows: list[Any], random_: random.Random) -> None:
    """Heads that are too long."""
    line = random_.choice(["a: b\r\n" * 5_000, f"a: {'b' * 100_000}\r\n"])
    await said(port, head("/recommend", 2, more=line) + b"{}")


async def many_connections(port: int, rows: list[Any], random_: random.Random) -> None:
    """Connections that say nothing."""
    links = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
    await asyncio.sleep(0.2)
    for _, writer in links:
        writer.close()


async def commas(port: int, rows: list[Any], random_: random.Random) -> None:
    """A file for /score with a million columns."""
    body = b"," * random_.choice([100_000, 1_000_000, 4_000_000]) + b"\n"
    await said(port, head("/score", len(body), "text/csv") + body)


async def wide_files(port: int, rows: list[Any], random_: random.Random) -> None:
    """A file for /score with many columns and rows."""
    names = ",".join(f"c{j}" for j in range(20_000)).encode()
    body = names + b"\n" + (b"1," * 19_999 + b"1\n") * 50
    await said(port, head("/score", len(body), "text/csv") + body)


async def unread_files(port: int, rows: list[Any], random_: random.Random) -> None:
    """A good file for /score, whose answer nobody reads."""
    names = list(rows[0])
    lines = [",".join("" if row[name] is None else str(row[name]) for name in names) for row in rows]
    body = "\n".join([",".join(names), *lines * 20_000]).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_000)
    writer.transport.pause_reading()
    writer.write(head("/score", len(body), "text/csv") + body)
    await asyncio.sleep(KIND_SECONDS)
    writer.transport.abort()


KINDS: tuple[Kind, ...] = (
    *(big_numbers, many_rows, garbage, deep, empty_rows, wrong_types, forged_ids, slow_bodies, stalled_readers),
    *(endless_chunks, many_headers, many_connections, commas, wide_files, unread_files),
)
TO_SCORE = (commas, wide_files, unread_files)


async def hostile(
    number: int, port: int, rows: list[Any], kinds: list[Kind], until: float, done: "Counter[str]"
) -> None:
    """One thing after the other, each for some time."""
    random_ = random.Random(SEED + number)
    place = number * len(kinds) // HOSTILE
    while time.monotonic() < until:
        kind, end = kinds[place % len(kinds)], min(until, time.monotonic() + KIND_SECONDS)
        while time.monotonic() < end:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError):
                await kind(port, rows, random_)
            done[kind.__name__] += 1
            await asyncio.sleep(0)
        place += 1


# Processes -----------------------------------------------------------------------------------------------


def honest_process(port: int, rows: list[Any], seconds: float, seed: int, answers: Any) -> None:
    """All honest clients for one phase."""

    async def run() -> None:
        found: dict[str, Any] = {"times": [], "wrong": Counter(), "ids": []}
        until = time.monotonic() + seconds
        await asyncio.gather(
            *(honest(port, rows, random.Random(f"{seed} {number}"), until, found) for number in range(HONEST))
        )
        answers.put(found)

    asyncio.run(run())


def hostile_process(port: int, rows: list[Any], seconds: float, kinds: list[Kind], counts: Any) -> None:
    """All hostile clients for one phase."""
    os.nice(NICE)

    async def run() -> None:
        done: Counter[str] = Counter()
        until = time.monotonic() + seconds
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds + 5):
                await asyncio.gather(*(hostile(number, port, rows, kinds, until, done) for number in range(HOSTILE)))
        counts.put(done)

    asyncio.run(run())


def phase(port: int, rows: list[Any], seconds: float, seed: int, kinds: list[Kind]) -> tuple[dict[str, Any], Any]:
    """What honest clients met, alone or beside hostile ones."""
    start = multiprocessing.get_context("spawn")
    answers, counts = start.Queue(), start.Queue()
    good = start.Process(target=honest_process, args=(port, rows, seconds, seed, answers))
    bad = start.Process(target=hostile_process, args=(port, rows, seconds, kinds, counts)) if kinds else None
    for one in (good, bad):
        if one:
            one.start()
    late = seconds + 4 * PATIENCE  # a process that fell tells nothing
    found, done = answers.get(timeout=late), counts.get(timeout=late) if bad else Counter()
    for one in (good, bad):
        if one:
            one.join()
    return found, done


def memory(process: int) -> int:
    """Bytes of a process and those it started, what they share divided among them."""
    total = 0
    with suppress(OSError, ValueError, IndexError):
        for one in [process, *children(process)]:
            told = Path(f"/proc/{one}/smaps_rollup").read_text()
            total += 1024 * int(told.partition("\nPss:")[2].split()[0])
    return total


def children(process: int) -> list[int]:
    """All processes below one."""
    own = [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return own + [below for one in own for below in children(one)]


class MemoryWatch:
    """The most memory that a server had, looked at now and then; and how long /healthz took to answer."""

    def __init__(self, process: int, port: int) -> None:
        import threading

        self.process, self.port, self.most, self.stopped = process, port, 0, threading.Event()
        self.health: list[float] = []
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self) -> None:
        """Look until told to stop."""
        import urllib.request

        while not self.stopped.wait(0.1):
            self.most = max(self.most, memory(self.process))
            started = time.monotonic()
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=30) as told:
                told.read()
                self.health.append(time.monotonic() - started)

    def stop(self) -> None:
        """Enough."""
        self.stopped.set()
        self.thread.join()


def measured(folder: Path, seconds: float, kinds: list[Kind]) -> dict[str, Any]:
    """Phases in turns, then what the decision log holds."""
    from ponn.serving.advice import load_adviser

    policy = made_policy(folder)
    rows = load_adviser(policy).about["examples"]
    rows = [row | {"age": 30 + j} if "age" in row else row for j in range(20) for row in rows]
    log = folder / "decisions.jsonl"
    words = ("serve", str(policy), "--port", "0", "--workers", "2", "--decisions", str(log), "--no-access-log")
    with (folder / "stderr").open("w") as told:
        process = subprocess.Popen(ponn(*words), stdout=subprocess.PIPE, stderr=told, text=True)
    try:
        return asked_in_turns(process, folder, rows, seconds, kinds)
    finally:
        process.kill()
        process.wait()


def asked_in_turns(
    process: "subprocess.Popen[str]", folder: Path, rows: list[Any], seconds: float, kinds: list[Kind]
) -> dict[str, Any]:
    """The phases, and what is left when the server has stopped."""
    from ponn.serving.decisions import convert_decisions

    assert process.stdout
    port = int(process.stdout.readline().partition("http://127.0.0.1:")[2].split()[0])
    wait_for_workers(folder, 2)
    phase(port, rows, 2.0, -1, [])  # warm
    watch, phases, done = MemoryWatch(process.pid, port), [], Counter[str]()
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(phases) < 3:
        mixed = len(phases) % 2 == 1
        seen = len(watch.health)
        found, counts = phase(port, rows, min(PHASE, seconds / 3), len(phases), kinds if mixed else [])
        done += counts
        phases.append(found | {"mixed": mixed, "health": watch.health[seen:]})
    watch.stop()
    process.terminate()
    status = process.wait(60)
    converted = convert_decisions([folder / "decisions.jsonl"], folder / "log.csv")
    known = {
        json.loads(line)["id"] for file in folder.glob("decisions.*") for line in file.open() if '"decision"' in line
    }
    return {
        "alone": summary([one for one in phases if not one["mixed"]]),
        "mixed": summary([one for one in phases if one["mixed"]]),
        "hostile": dict(done),
        "most_bytes": watch.most,
        "exit_status": status,
        "unreadable_lines": converted.unreadable,
        "torn_files": converted.torn,
        "lost_decisions": sum(one not in known for found in phases for one in found["ids"]),
        "log": Counter(json.loads(line).get("told", "")[:80] for line in (folder / "stderr").open()).most_common(10),
    }


def wait_for_workers(folder: Path, workers: int) -> None:
    """Until each has begun its decision log."""
    for _ in range(600):
        if len(list(folder.glob("decisions.*.jsonl"))) >= workers:
            return
        time.sleep(0.1)
    raise RuntimeError("the server did not start")


def summary(phases: list[dict[str, Any]]) -> dict[str, Any]:
    """Answers and their times in milliseconds."""
    times = 1e3 * np.array([one for found in phases for one in found["times"]])
    health = 1e3 * np.array([one for found in phases for one in found["health"]] or [0.0])
    wrong = sum((found["wrong"] for found in phases), Counter())
    return {
        "answers": len(times),
        "wrong": dict(wrong),
        **{f"p{q}_ms": float(np.quantile(times, q / 100)) for q in (50, 90, 99)},
        "most_ms": float(times.max()),
        "health_p99_ms": float(np.quantile(health, 0.99)),
        "health_most_ms": float(health.max()),
    }


def verdict(told: dict[str, Any]) -> int:
    """Say whether the bars hold; the exit status."""
    ratio = told["mixed"]["p99_ms"] / told["alone"]["p99_ms"]
    wrong = {**told["alone"]["wrong"], **told["mixed"]["wrong"]}
    lost = told["lost_decisions"] + told["unreadable_lines"] + told["torn_files"]
    held = ratio <= MOST_RATIO and not wrong and not lost and told["most_bytes"] <= MOST_BYTES
    for name in ("alone", "mixed"):
        print(name, {key: round(value, 1) if isinstance(value, float) else value for key, value in told[name].items()})
    print("hostile", told["hostile"])
    print(
        f"{'Held' if held else 'NOT HELD'}: p99 {ratio:.2f} times that without them (at most {MOST_RATIO:g}); "
        f"{sum(wrong.values())} honest requests went wrong; {lost} decisions or lines lost; "
        f"{told['most_bytes'] / 1e6:.0f} MB (at most {MOST_BYTES / 1e6:.0f})"
    )
    return 0 if held else 1


def main() -> int:
    """Measure, keep the results, say whether the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--without", choices=["score"], help="what the hostile clients leave alone")
    parser.add_argument("--results", type=Path, default=RESULTS / "reliability")
    asked = parser.parse_args()
    kinds = [kind for kind in KINDS if not (asked.without == "score" and kind in TO_SCORE)]
    started = now()
    with tempfile.TemporaryDirectory() as folder:
        told = measured(Path(folder), asked.seconds, kinds)
    told |= {"kinds": [kind.__name__ for kind in kinds], "seconds": asked.seconds}
    path = write_record("mixed_load", told, seed=SEED, started=started, folder=asked.results)
    status = verdict(told)
    print(f"Raw results: {path}")
    return status


if __name__ == "__main__":
    sys.exit(main())
