"""Commands that run a server, and what it leaves: `ponn serve`, `ponn decisions`, `ponn studio`."""

import json
from typing import TYPE_CHECKING, Any

import click

from ponn.cli.options import formulas_option, json_option, tell_quoted
from ponn.errors import PonnError, install_line
from ponn.settings import SERVED_BYTES, SERVED_ROWS, STUDIO_UPLOAD

if TYPE_CHECKING:
    from ponn.serving.service import Options


@click.command()
@click.argument("policy", type=click.Path())
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; by default this machine only."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that answer.")
@click.option("--token-file", type=click.Path(), metavar="FILE", help="Requests must bring the token in this file.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="A further name of this server, as behind a proxy.")
@click.option("--sample", is_flag=True, help="Serve draws from the policy instead of the most probable action.")
@click.option(
    "--explore", type=click.FloatRange(0, 1), metavar="EPS", help="Share of rows served a supported action at random."
)
@click.option("--supported-only", is_flag=True, help="Leave out actions hardly ever taken in such cases.")
@click.option(
    "--decisions", type=click.Path(), metavar="FILE", help="Keep a decision log, one file per worker: FILE.<worker>."
)
@click.option(
    "--outcomes",
    type=click.Choice(["refuse", "flag"]),
    default="flag",
    show_default=True,
    help="What becomes of outcomes outside the range of training.",
)
@click.option("--report", type=click.Path(), metavar="FILE", help="An HTML report to show.")
@click.option("--max-rows", "most_rows", type=click.IntRange(min=1), default=SERVED_ROWS, show_default=True)
@click.option("--max-bytes", "most_bytes", type=click.IntRange(min=1), default=SERVED_BYTES, show_default=True)
@click.option("--access-log/--no-access-log", default=True, show_default=True, help="JSON lines on standard error.")
@click.option("--log-features", is_flag=True, help="Write feature values into the access log too.")
@json_option
def serve(
    policy: str, host: str, port: int, workers: int, allow_host: tuple[str, ...], as_json: bool, **asked: Any
) -> None:
    """Serve POLICY over HTTP: recommendations, a page to try it, a decision log to learn from.

    The file may be replaced while the server runs: it takes up the new policy without dropping a request, and
    keeps the old one where the new one is damaged. Ctrl-C or SIGTERM stop it in order.

    \b
    Examples:
      ponn serve clinic.ponn
      ponn serve clinic.ponn --explore 0.1 --decisions decisions.jsonl --workers 2
      ponn serve clinic.ponn --host 0.0.0.0 --token-file token.txt
    \b
    Then:
      curl -X POST http://127.0.0.1:8000/recommend -H "Content-Type: application/json" -d '{"row": {"age": 61}}'
    """
    server, options = served_options(policy, **asked)
    if options.token is None and host not in server.LOOPBACK:
        click.echo(f"Anyone who reaches {host} can use this server: --token-file would ask for a token.", err=True)

    def tell(url: str) -> None:
        told = f"Serving {policy} on {url} (what can be asked: {url}/docs). Ctrl-C stops it."
        click.echo(json.dumps({"url": url, "policy": policy}) if as_json else told)

    server.serve(options, host, port, workers=workers, allow_hosts=allow_host, tell=tell)


def served_options(
    policy: str, *, token_file: str | None, sample: bool, explore: float | None, supported_only: bool, **rest: Any
) -> "tuple[Any, Options]":
    """The server's module, which an extra brings, and its options."""
    from pathlib import Path

    try:
        from ponn.serving import server
        from ponn.serving.service import Options
    except ModuleNotFoundError as error:
        told = f"The server needs {error.name}, which is not installed: {install_line('serve')}"
        raise PonnError(told) from error
    files = {name: Path(rest.pop(name)) for name in ("decisions", "report") if rest[name] is not None}
    token = server.read_token(Path(token_file)) if token_file else None
    mode = server.mode_of(sample, explore, supported_only)
    return server, Options(Path(policy), mode, token, slow_refusals=True, **(rest | files))


@click.command()
@click.argument("decisions", nargs=-1, required=True, type=click.Path())
@click.option(
    "--out", required=True, type=click.Path(), help="Where the log goes (.csv .tsv .parquet .feather .jsonl)."
)
@click.option("--propensity-name", default="propensity", show_default=True, help="Column for the known propensities.")
@click.option("--keep", multiple=True, type=click.Choice(["id", "time"]), help="Keep this as a column; repeat.")
@click.option("--history", type=click.Path(), metavar="FILE", help="Also write all outcomes, in order of arrival.")
@click.option("--strict", is_flag=True, help="Refuse where a line cannot be read, instead of passing over it.")
@formulas_option
@json_option
def decisions(
    decisions: tuple[str, ...],
    out: str,
    propensity_name: str,
    keep: tuple[str, ...],
    history: str | None,
    strict: bool,
    formulas: bool,
    as_json: bool,
) -> None:
    """Make of the decision logs of `ponn serve --decisions` a log to learn from, with known propensities.

    DECISIONS is the name that the server was given, or single files of its workers. Decisions without an outcome
    are left out and counted; of several outcomes the last that arrived counts. Lines that cannot be read are named,
    counted and passed over. Only you can read the files that are written.

    \b
    Examples:
      ponn decisions decisions.jsonl --out log.csv
      ponn decisions decisions.jsonl --out log.csv --history outcomes.csv --strict
    """
    from dataclasses import asdict

    from ponn.serving.decisions import convert_decisions

    asked: dict[str, Any] = {"propensity": propensity_name, "keep": keep, "strict": strict, "formulas": formulas}
    found = convert_decisions(decisions, out, history=history, **asked)
    if as_json:
        click.echo(json.dumps(asdict(found) | {"out": out}))
        return
    click.echo(
        f"{out}: {found.rows:,} of {found.decisions:,} decisions; {found.without_outcome:,} have no outcome.", err=True
    )
    for count, what in (
        (found.replaced, "outcomes were replaced by later ones (--history FILE has them all)"),
        (found.outside, "outcomes are outside the range of training"),
        (found.repeated, "decisions are in the files twice, and were taken once"),
        (found.unknown, "outcomes belong to decisions that are in none of the files"),
        (found.torn, "files end in a line that a crash cut off; nobody was told of that decision"),
    ):
        if count:
            click.echo(f"{count:,} {what}.", err=True)
    tell_quoted(found.quoted)
    if found.unreadable:
        told = "".join(f"\n  {one}" for one in found.unreadable_lines)
        more = found.unreadable - len(found.unreadable_lines)
        told += f"\n  and {more:,} more" if more else ""
        click.echo(f"{found.unreadable:,} lines cannot be read and were passed over:{told}", err=True)
    click.echo(f"Next: ponn learn {out} {found.flags}", err=True)


@click.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    default="ponn-studio",
    show_default=True,
    help="Where files and policies are kept.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8001, show_default=True, help="0 takes a free one.")
@click.option(
    "--max-upload", type=click.IntRange(min=1), default=STUDIO_UPLOAD, show_default=True, help="MB of an upload."
)
@click.option(
    "--learn-memory", type=click.IntRange(min=1), help="MB that learning may take; by default 80 % of this machine's."
)
@json_option
def studio(folder: str, port: int, max_upload: int, learn_memory: int | None, as_json: bool) -> None:
    """Learn and try policies in the browser; everything stays on this machine.

    \b
    Examples:
      ponn studio
      ponn studio --folder clinic --port 8080
    """
    from pathlib import Path

    try:
        from ponn.serving.studio.app import run_studio
    except ModuleNotFoundError as error:
        told = f"The studio needs {error.name}, which is not installed: {install_line('learn', 'serve')}"
        raise PonnError(told) from error

    def tell(url: str) -> None:
        told = f"The studio is open on {url} (files in {folder}). Ctrl-C closes it."
        click.echo(json.dumps({"url": url, "folder": folder}) if as_json else told)

    memory = None if learn_memory is None else learn_memory * 1_000_000
    run_studio(Path(folder), port, max_upload * 1_000_000, tell, memory=memory)
