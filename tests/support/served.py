"""A small policy with every kind of feature, and a client that talks to the application in this process."""

import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.log.draft import read_log
from ponn.log.encoding import Encoding
from ponn.policy.inference import Architecture
from ponn.policy.models import LinearRewards, Model, Network
from ponn.policy.policy import Policy
from ponn.serving.server import create_app
from ponn.serving.service import Options
from ponn.settings import Settings

ACTIONS = ("wait", "pill", "operate")


def cases(n: int, seed: int) -> pa.Table:
    """Rows with numbers, few-valued numbers, booleans, dates and texts, some of them missing."""
    rng = np.random.default_rng(seed)

    def some(values: list[Any], share: float = 0.2) -> list[Any]:
        return [None if rng.random() < share else value for value in values]

    days = np.datetime64("2020-01-01") + rng.integers(0, 900, n)
    columns = {
        "age": some(rng.normal(50, 12, n).round(1).tolist()),
        "dose": rng.choice([1.0, 2.5, 5.0], n).tolist(),
        "smoker": pa.array(some(rng.choice([True, False], n).tolist()), pa.bool_()),
        "seen": pa.array(some(days.tolist()), pa.date32()),
        "town": some(rng.choice(list("abcdefgh"), n, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.03, 0.02]).tolist()),
        "ward": rng.choice(["north", "söuth"], n).tolist(),
    }
    return pa.table(columns)


def made_policy(seed: int = 0, *, greedy: bool = False, labels: tuple[Any, ...] = ACTIONS) -> Policy:
    """A policy with random weights; greedy: one that takes the action that promises most, so h is 0 or 1."""
    rng = np.random.default_rng(seed)
    table = cases(400, 1)
    table = table.append_column("did", pa.array(rng.choice(np.array(labels), 400).tolist()))
    table = table.append_column("cost", pa.array(rng.normal(10, 3, 400)))
    log = read_log(table, action="did", reward="cost", minimize=True)
    encoding = Encoding.fit(log, Settings(max_levels=4))
    D, k = len(encoding.owner), len(labels)

    def network(hidden: tuple[int, ...], size: float) -> Network:
        shape = Architecture(k, D, hidden)
        return Network(
            shape, {name: size * rng.normal(size=one).astype(np.float32) for name, one in shape.shapes.items()}
        )

    rewards = LinearRewards(rng.normal(size=(D, k)), rng.normal(size=k))
    model: Model = rewards if greedy else network((8, 8), 1.0)
    companions: dict[str, Model] = {"reward": rewards, "logging": network((), 2.0)}
    provenance = {
        "reward": {"range": list(log.reward_range), "minimize": True},
        "columns": {"action": "did", "reward": "cost", "features": list(log.features)},
    }
    selected = np.ones((k, len(encoding.features)), bool)
    return Policy(log.actions, encoding, model, selected, (), "ponn", {}, provenance, None, companions)


def as_json(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as a client sends them."""
    return json.loads(json.dumps(table.to_pylist(), default=str))


@dataclass
class Answer:
    """What the server said."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Talks to an application without a socket."""

    def __init__(self, app: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.app, self.loop, self.service = app, loop, app.state.service

    def ask(self, method: str, path: str, body: bytes = b"", **more: Any) -> Answer:
        return self.loop.run_until_complete(self.asked(method, path, body, **more))

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, value: Any, **headers: str) -> Answer:
        return self.ask("POST", path, json.dumps(value).encode(), headers=headers)

    async def asked(
        self,
        method: str,
        path: str,
        body: bytes | None = b"",
        *,
        headers: dict[str, str] | None = None,
        pieces: int = 1,
        declared: bool = True,
    ) -> Answer:
        """One request; body None never arrives, pieces: it arrives in so many."""
        given = {"host": "127.0.0.1:8000", "content-type": "application/json"}
        given |= {"content-length": str(len(body))} if body is not None and declared else {}
        given |= {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": ""}
        scope |= {"method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
        scope |= {"headers": [(name.encode(), value.encode()) for name, value in given.items()]}
        scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000)}
        size = -(-len(body or b"") // pieces) or 1
        parts = [(body or b"")[start : start + size] for start in range(0, len(body or b""), size)] or [b""]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if body is None or not parts:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, b"".join(one.get("body", b"") for one in sent[1:]))


@contextmanager
def served(policy: Policy | Path, folder: Path, **options: Any):
    """A client of an application that serves a policy."""
    path = folder / "policy.ponn"
    if isinstance(policy, Policy):
        policy.save(path)
    options.setdefault("poll_seconds", 0.01)
    loop = asyncio.new_event_loop()
    app = create_app(Options(path, **options))
    lifespan = app.router.lifespan_context(app)
    loop.run_until_complete(lifespan.__aenter__())
    try:
        yield Client(app, loop)
    finally:
        loop.run_until_complete(lifespan.__aexit__(None, None, None))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
