"""Pieces of a page: names that cannot break it, tables, and pictures with the table of their numbers behind them."""

from collections.abc import Iterable, Sequence
from typing import Literal

from ponn.report.drawing import safe, shortened

TABLE_ROWS = 400  # of a table; the rest is counted
SENTENCES, SENTENCE = 12, 400  # of one kind, and characters of one; the rest is counted
CELL = 300  # characters in a cell


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def name(text: object) -> Html:
    """A user's name for something, safe and not too long."""
    return Html(safe(shortened(text)))


def figures(number: float | None) -> str:
    """A number to four figures."""
    return "" if number is None else f"{number:,.0f}" if 10_000 <= abs(number) < 1e15 else f"{number:.4g}"


def each(tag: str, contents: Iterable[str]) -> str:
    """Every piece of markup in an element of its own."""
    return "".join(f"<{tag}>{one}</{tag}>" for one in contents)


def some(sentences: Sequence[str]) -> str:
    """Sentences in a list, the first few of them."""
    shown = each("li", (safe(shortened(one, SENTENCE)) for one in sentences[:SENTENCES]))
    return f"<ul>{shown}</ul>{and_more(len(sentences), SENTENCES)}"


def and_more(count: int, most: int) -> str:
    """What is left out, counted."""
    return f"<p class='pale'>and {count - most:,} more.</p>" if count > most else ""


def columns_of(*parts: str) -> str:
    """Parts beside each other where there is room."""
    return f"<div class='figures'>{''.join(parts)}</div>"


def folded(line: str, content: str, *, on_paper: Literal["nothing", "line", "all"] = "nothing") -> str:
    """A line that opens; on_paper: how much of it is printed where nobody opened it."""
    shown = line if isinstance(line, Html) else name(line)
    return f"<details class='paper-{on_paper}'><summary>{shown}</summary>{content}</details>"


def figure(svg: str, caption: str, hint: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A picture with its caption, and behind it the table of its numbers."""
    below = f"<span>{safe(hint)}</span>" if hint else ""
    behind = folded(f"Table: {shortened(caption, 90)}", table(columns, rows))
    return f"<figure><figcaption>{name(caption)}{below}</figcaption>{scroll(svg, caption)}{behind}</figure>"


def scroll(markup: str, what: str) -> str:
    """Something that may be wider than the page, in a box that scrolls by itself, also with the keyboard."""
    return f"<div class='scroll' tabindex='0' role='group' aria-label='{name(what)}'>{markup}</div>"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; columns whose name starts with # hold numbers. Long ones end with a count of what is left out."""
    looks = [" class='number'" if column.startswith("#") else "" for column in columns]
    heads = zip(looks, columns, strict=True)
    head = "".join(f"<th scope='col'{look}>{name(column.removeprefix('#'))}</th>" for look, column in heads)
    body = "".join(
        "<tr>" + "".join(f"<td{look}>{cell(one)}</td>" for look, one in zip(looks, row, strict=True)) + "</tr>\n"
        for row in rows[:TABLE_ROWS]
    )
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
    return scroll(whole, f"Table of {', '.join(one.removeprefix('#') for one in columns if one)}") + and_more(
        len(rows), TABLE_ROWS
    )


def cell(value: object) -> str:
    """What stands in a table, escaped unless it is markup."""
    return value if isinstance(value, Html) else safe(shortened(value, CELL))


def cut_told(count: int, what: str, most: int) -> str:
    """How many are in the picture, where not all are."""
    return f"{most} of {count} {what} are shown. " if count > most else ""
