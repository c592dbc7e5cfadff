"""Whose turn it is: small requests are answered together at once, large ones piece by piece beside them.

What takes long is done by one thread of the process, in pieces of some milliseconds, a piece of each request in turn.
As long as others are answered meanwhile, it rests after each piece as long as it took: so whoever asks little waits
little, whatever others ask. How long rows take is learned from those before: policies differ a hundredfold in it.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ponn.serving.advice import Advice, Adviser, Checked
from ponn.serving.messages import RefusedError

AT_ONCE = 0.003  # seconds that the event loop computes in one go at most: nobody notices to have waited so long
PIECE = 0.005  # seconds of a piece of a large request: long beside what a piece costs by itself
MOST_TURNS = 16  # of the loop that a request waits for others
MOST_BEGUN = 4  # large requests that are in memory at a time
MOST_WAITING = 64  # large requests that wait for that, beyond which others are told to come again
FIRST_GUESS = 0.0005  # seconds for a row, before the first was seen
REFUSED_AT_ONCE = 10  # requests a second that are refused at once: people make mistakes now and then
REFUSED_LATE = 0.5  # seconds that further refusals wait: who floods the server with mistakes waits, and nobody else
FASTER, SLOWER = 0.5, 0.05  # steps towards what was seen: what disturbs a measurement only ever makes it longer


class Refusals:
    """How long a refusal waits: not at all while they are few; whoever sends one mistake after the other is held up."""

    def __init__(self) -> None:
        self.second, self.count = 0, 0

    def wait(self) -> float:
        """Seconds that the next refusal waits."""
        now = int(time.monotonic())
        self.second, self.count = now, (self.count if now == self.second else 0) + 1
        return 0.0 if self.count <= REFUSED_AT_ONCE else REFUSED_LATE


class Pace:
    """How long an adviser computes for so many rows, with reasons or without, by powers of two."""

    def __init__(self) -> None:
        self.seen: dict[tuple[bool, int], float] = {}

    def learn(self, rows: int, reasons: bool, seconds: float) -> None:
        """Remember how long some rows took."""
        key = reasons, rows.bit_length()
        before = self.seen.get(key, seconds)
        step = FASTER * (seconds - before) if seconds < before else SLOWER * (min(seconds, 2 * before) - before)
        self.seen[key] = before + step

    def estimate(self, rows: int, reasons: bool) -> float:
        """Seconds for so many rows: of as many, or in proportion from fewer."""
        if not rows:
            return 0.0
        size = rows.bit_length()
        for smaller in range(size, 0, -1):
            if (reasons, smaller) in self.seen:
                return self.seen[reasons, smaller] * 2.0 ** (size - smaller)
        return FIRST_GUESS * rows * (1 + reasons)

    def rows_in(self, seconds: float, reasons: bool) -> int:
        """As many rows as can be done in this time, at least one."""
        rows = 1
        while self.estimate(2 * rows, reasons) <= seconds:
            rows *= 2
        return rows

    def measured(self, adviser: Adviser, asked: Sequence[Checked]) -> list[Advice]:
        """What an adviser answers, with its time remembered where all rows are of one kind."""
        started = time.thread_time()
        found = adviser.advise(asked)
        with_reasons = sum(one.ask.reasons for one in asked)
        if with_reasons in (0, len(asked)):
            self.learn(sum(len(one.ask.rows) for one in asked), bool(with_reasons), time.thread_time() - started)
        return found


class Together:
    """Requests that arrive together are answered together: most of the cost of one row is not the row's."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Adviser, Pace, Checked, asyncio.Future[Advice]]] = []
        self.answered = 0  # requests

    def advise(self, adviser: Adviser, pace: Pace, checked: Checked) -> "asyncio.Future[Advice]":
        """The answer to a request, as soon as those that have arrived with it were read."""
        loop = asyncio.get_running_loop()
        if not self.waiting:
            loop.call_soon(self.gather, 0, 0)
        future: asyncio.Future[Advice] = loop.create_future()
        self.waiting.append((adviser, pace, checked, future))
        return future

    def gather(self, seen: int, turn: int) -> None:
        """Wait another turn of the loop, some microseconds, as long as requests keep coming; then answer all."""
        if len(self.waiting) > seen and turn < MOST_TURNS:
            asyncio.get_running_loop().call_soon(self.gather, len(self.waiting), turn + 1)
        else:
            self.answer()

    def answer(self) -> None:
        """Answer those that wait, as many as can be answered at once; a policy that was just replaced its own."""
        now = self.first_ones()
        self.waiting = self.waiting[len(now) :]
        for adviser, pace in dict.fromkeys((one, pace) for one, pace, _, _ in now):
            self.answer_by(adviser, pace, [(c, future) for one, _, c, future in now if one is adviser])
        if self.waiting:
            asyncio.get_running_loop().call_soon(self.answer)

    def first_ones(self) -> list[tuple[Adviser, Pace, Checked, "asyncio.Future[Advice]"]]:
        """Those that have waited longest, up to a time that the loop may compute."""
        rows = [0, 0]  # without reasons, with
        for place, (_, pace, checked, _) in enumerate(self.waiting):
            rows[checked.ask.reasons] += len(checked.ask.rows)
            if place and pace.estimate(rows[0], False) + pace.estimate(rows[1], True) > AT_ONCE:
                return self.waiting[:place]
        return self.waiting

    def answer_by(
        self, adviser: Adviser, pace: Pace, asked: Sequence[tuple[Checked, "asyncio.Future[Advice]"]]
    ) -> None:
        """Answer requests together; where that fails, one by one, so that only the culprit is told."""
        asked = [(checked, future) for checked, future in asked if not future.done()]
        if not asked:
            return
        try:
            found = pace.measured(adviser, [checked for checked, _ in asked])
        except Exception as error:
            if len(asked) == 1:
                asked[0][1].set_exception(error)
                return
            for one in asked:
                self.answer_by(adviser, pace, [one])
            return
        self.answered += len(asked)
        for (_, future), advice in zip(asked, found, strict=True):
            future.set_result(advice)


Pieces = Generator[None, None, Any]  # yields where it may be interrupted


class Beside:
    """Large requests, answered in a thread piece by piece."""

    def __init__(self, others: Callable[[], int]) -> None:
        self.others = others  # how many small requests were answered so far
        self.thread = ThreadPoolExecutor(1, "large")
        self.begun, self.turn = asyncio.Semaphore(MOST_BEGUN), asyncio.Lock()
        self.under_way = 0

    async def finish(self, work: Pieces) -> Any:
        """Do all pieces, others in between."""
        if self.under_way >= MOST_BEGUN + MOST_WAITING:
            raise RefusedError(503, "Too many large requests are waiting. Try again later, or with fewer rows.")
        self.under_way += 1
        try:
            async with self.begun:
                while True:
                    async with self.turn:  # whoever waits longest is next
                        ended, found = await self.piece(work)
                    if ended:
                        return found
        finally:
            self.under_way -= 1

    async def piece(self, work: Pieces) -> tuple[bool, Any]:
        """Do one piece; then rest if others wanted to compute."""
        before, started = self.others(), time.perf_counter()
        found = await asyncio.get_running_loop().run_in_executor(self.thread, one_piece, work)
        if self.others() > before:
            await asyncio.sleep(time.perf_counter() - started)
        return found

    def close(self) -> None:
        """Let go of the thread."""
        self.thread.shutdown(wait=False)


def one_piece(work: Pieces) -> tuple[bool, Any]:
    """Do the next piece: was it the last, and then what was found?"""
    try:
        next(work)
    except StopIteration as end:
        return True, end.value
    return False, None
