"""How many single-row recommendations does the server make per second, against the same server with nothing to do?

`ponn serve` answers on loopback with a policy of the breast-cancer world, as a user would start it: one worker, checks,
counters and access log. Beside it runs the other side: FastAPI and uvicorn with the same settings and one worker, whose
only route reads the body and sends a constant of the size of the policy's answer. Both are asked in turns by one client
process with 1, 8 and 64 connections that each send the next request when they have the answer. The client is asked the
same of a server that does not even look at the request, to show how far it is from being what limits the others. Also
told: the time that a server's main thread computes per answer, which other work on the machine disturbs less; the
server with a decision log on disk; its start and its memory. Linux only.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from record import RESULTS, now, write_record

SEED = 20_261_116
CONNECTIONS = (1, 8, 64)
LEAST_SHARE = 0.60  # of the constant server's throughput at 8 connections
MOST_SECONDS, MOST_MEMORY = 2.0, 200e6  # from start to first answer, resident
SECONDS, ROUNDS = 2.0, 5


# The client ----------------------------------------------------------------------------------------------


class Asker(asyncio.Protocol):
    """One connection: asks, waits for the whole answer, asks again until the time is up."""

    def __init__(self, request: bytes, until: float) -> None:
        self.request, self.until = request, until
        self.times: list[float] = []
        self.wrong = 0
        self.data = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        """Send the request."""
        self.sent = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        """Note the time when the answer is complete."""
        self.data += data
        end = self.data.find(b"\r\n\r\n")
        if end < 0 or len(self.data) < end + 4 + content_length(self.data, end):
            return
        moment = time.perf_counter()
        self.times.append(moment - self.sent)
        self.wrong += not self.data.startswith(b"HTTP/1.1 200")
        self.data = b""
        if moment < self.until:
            self.ask()
        else:
            self.transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        """The end, in time or not."""
        if not self.done.done():
            self.done.set_result(None)


def content_length(data: bytes, end: int) -> int:
    """The declared length of an answer."""
    start = data.lower().find(b"content-length:", 0, end) + 15
    return int(data[start : data.find(b"\r\n", start)])


async def ask_many(port: int, request: bytes, connections: int, seconds: float) -> dict[str, float]:
    """Answers per second and their times."""
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    askers = [Asker(request, started + seconds) for _ in range(connections)]
    for asker in askers:
        await loop.create_connection(lambda one=asker: one, "127.0.0.1", port)
    await asyncio.gather(*(asker.done for asker in askers))
    took = time.perf_counter() - started
    times = np.array([one for asker in askers for one in asker.times])
    wrong = sum(asker.wrong for asker in askers)
    return {
        "per_second": len(times) / took,
        "p50_ms": 1e3 * float(np.quantile(times, 0.5)),
        "p99_ms": 1e3 * float(np.quantile(times, 0.99)),
        "answers": len(times),
        "not_200": wrong,
    }


def client(port: int, body: str, connections: int, seconds: float) -> None:
    """Print what one run measured."""
    content = body.encode()
    head = f"POST /recommend HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
    print(json.dumps(asyncio.run(ask_many(port, request, connections, seconds))))


# The servers ---------------------------------------------------------------------------------------------


def serve_constant(size: int) -> None:
    """FastAPI and uvicorn with a route that reads the body and sends `size` bytes of JSON."""
    import uvicorn
    from fastapi import FastAPI
    from starlette.routing import Route

    from ponn.serving.connections import Connection
    from ponn.serving.server import bound_socket

    content = b'"' + b"x" * (size - 2) + b'"'
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % size)]

    class Constant:
        """The route."""

        async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
            while (await receive()).get("more_body"):
                pass
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": content})

    app = FastAPI()
    app.router.routes.append(Route("/recommend", Constant(), methods=["POST"]))
    listening = bound_socket("127.0.0.1", 0)
    print(f"on http://127.0.0.1:{listening.getsockname()[1]} ", flush=True)
    config = uvicorn.Config(
        app,
        http=partial(Connection, seconds=10.0),
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ws="none",
        timeout_keep_alive=30,
    )
    uvicorn.Server(config).run([listening])


def serve_canned(size: int) -> None:
    """A server that sends `size` bytes for every piece of data it gets: what the client can do at most."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size

    class Canned(asyncio.Protocol):
        """One connection."""

        def connection_made(self, transport: Any) -> None:
            """Keep it."""
            self.transport = transport

        def data_received(self, _: bytes) -> None:
            """Answer."""
            self.transport.write(answer)

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Canned, "127.0.0.1", 0)
        print(f"on http://127.0.0.1:{server.sockets[0].getsockname()[1]} ", flush=True)
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def server(*command: str) -> Iterator[tuple[int, int]]:
    """Run a server; its port and process."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout
            told = process.stdout.readline()
            yield int(told.partition("http://127.0.0.1:")[2].split("/")[0].split()[0]), process.pid
        finally:
            process.terminate()


def ponn(*words: str) -> tuple[str, ...]:
    """The command line of ponn."""
    return (sys.executable, "-c", "from ponn.cli import main; main()", *words)


def own(*words: str) -> tuple[str, ...]:
    """Another part of this script."""
    return (sys.executable, __file__, *words)


# What is measured ----------------------------------------------------------------------------------------


def made_policy(folder: Path) -> Path:
    """A policy of the breast-cancer world."""
    log, policy = folder / "log.csv", folder / "policy.ponn"
    subprocess.run(ponn("simulate", "breast-cancer", "--rows", "3000", "--out", str(log)), check=True)
    roles = ("--action", "regimen", "--reward", "survived", "--set", "epochs=30")
    subprocess.run(ponn("learn", str(log), *roles, "--out", str(policy)), check=True, stdout=subprocess.DEVNULL)
    return policy


def first_answer(policy: Path, body: str) -> dict[str, float]:
    """Seconds from start to first answer (by the clock, and of processor time), and memory after it."""
    started = time.perf_counter()
    with server(*ponn("serve", str(policy), "--port", "0")) as (port, process):
        asked(port, body, 1, 0.0)
        seconds = time.perf_counter() - started
        processor = processor_seconds(process)
        status = Path(f"/proc/{process}/status").read_text()
        peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        torch = "libtorch" in Path(f"/proc/{process}/maps").read_text()
    return {"seconds": seconds, "processor_seconds": processor, "peak_bytes": peak, "torch": torch}


def processor_seconds(process: int) -> float:
    """Time that a process has computed so far."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


def asked(port: int, body: str, connections: int, seconds: float) -> dict[str, float]:
    """One run of the client, in a process of its own."""
    command = own("--client", str(port), body, str(connections), str(seconds))
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def example(policy: Path) -> tuple[str, int]:
    """A request with one row, and the size of its answer."""
    import urllib.request

    from ponn.serving.advice import load_adviser

    body = json.dumps({"row": load_adviser(policy).about["examples"][0]})
    with server(*ponn("serve", str(policy), "--port", "0")) as (port, _):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/recommend", body.encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request) as answer:
            return body, len(answer.read())


def measured(policy: Path, body: str, size: int, seconds: float, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Runs of every server at every number of connections, in turns."""
    found: dict[str, list[dict[str, float]]] = {}
    log = str(policy.with_name("decisions.jsonl"))
    with (
        server(*ponn("serve", str(policy), "--port", "0")) as of_policy,
        server(*ponn("serve", str(policy), "--port", "0", "--decisions", log)) as of_decisions,
        server(*own("--constant", str(size))) as of_constant,
        server(*own("--canned", str(size))) as of_canned,
    ):
        servers = {"policy": of_policy, "constant": of_constant, "decisions": of_decisions, "canned": of_canned}
        for port, _ in servers.values():
            asked(port, body, 8, 0.5)  # warm
        for _ in range(rounds):
            for connections in CONNECTIONS:
                for name, (port, process) in servers.items():
                    before = processor_seconds(process)
                    one = asked(port, body, connections, seconds)
                    one["processor_us"] = 1e6 * (processor_seconds(process) - before) / one["answers"]
                    found.setdefault(f"{name} {connections}", []).append(one)
    return found


def summary(found: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Medians over the rounds, and the median share of the constant server of the same round."""
    told = {}
    for name, runs in found.items():
        constant = found[f"constant {name.split()[1]}"]
        shares = [one["per_second"] / other["per_second"] for one, other in zip(runs, constant, strict=True)]
        names = ("per_second", "p50_ms", "p99_ms", "processor_us")
        told[name] = {key: median(one[key] for one in runs) for key in names}
        told[name] |= {"share": median(shares), "not_200": sum(one["not_200"] for one in runs)}
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each run of the client")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--client", nargs=4, metavar=("PORT", "BODY", "CONNECTIONS", "SECONDS"), help=argparse.SUPPRESS)
    parser.add_argument("--constant", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--canned", type=int, help=argparse.SUPPRESS)
    asked_for = parser.parse_args()
    if asked_for.client:
        port, body, connections, seconds = asked_for.client
        client(int(port), body, int(connections), float(seconds))
        return 0
    if asked_for.constant or asked_for.canned:
        serve_constant(asked_for.constant) if asked_for.constant else serve_canned(asked_for.canned)
        return 0

    started = now()
    with tempfile.TemporaryDirectory() as folder:
        policy = made_policy(Path(folder))
        body, size = example(policy)
        starts = [first_answer(policy, body) for _ in range(asked_for.rounds)]
        raw = measured(policy, body, size, asked_for.seconds, asked_for.rounds)
    told = summary(raw)
    head = f"{'server':<12}{'connections':>12}{'per second':>12}{'p50 ms':>9}{'p99 ms':>9}"
    print(f"{head}{'busy us':>9}{'of constant':>13}")
    for name, one in told.items():
        what, connections = name.split()
        print(
            f"{what:<12}{connections:>12}{one['per_second']:>12,.0f}{one['p50_ms']:>9.2f}{one['p99_ms']:>9.2f}"
            f"{one['processor_us']:>9.0f}{one['share']:>13.0%}"
        )
    measured_all = {"summary": told, "starts": starts, "raw": raw, "answer_bytes": size}
    path = write_record("serving_load", measured_all, seed=SEED, started=started, folder=asked_for.results)
    print(f"Raw results: {path}")
    return verdict(told, starts)


def verdict(told: dict[str, dict[str, float]], starts: list[dict[str, float]]) -> int:
    """Say whether the bars hold; the exit status."""
    share = told["policy 8"]["share"]
    seconds = min(one["seconds"] for one in starts)
    processor = median(one["processor_seconds"] for one in starts)
    memory = max(one["peak_bytes"] for one in starts)
    held = share >= LEAST_SHARE and seconds <= MOST_SECONDS and memory <= MOST_MEMORY
    held = held and not any(one["not_200"] for one in told.values()) and not any(one["torch"] for one in starts)
    print(
        f"{'Held' if held else 'NOT HELD'}: {share:.0%} of the constant server at 8 connections (at least "
        f"{LEAST_SHARE:.0%}); first answer after {seconds:.2f} s, {processor:.2f}"
        f" s of processor time (at most {MOST_SECONDS:g}); {memory / 1e6:.0f} MB (at most {MOST_MEMORY / 1e6:.0f})"
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
