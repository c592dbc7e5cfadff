"""The command line. Nothing heavy is imported before a command needs it."""

import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from ponn import __version__
from ponn.cli.learn_commands import compare, learn
from ponn.cli.log_commands import check, simulate
from ponn.cli.options import json_option
from ponn.cli.policy_commands import evaluate, explain, recommend, report_on
from ponn.cli.serve_commands import decisions, serve, studio
from ponn.errors import PonnError

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
COMMANDS = [check, simulate, learn, compare, explain, evaluate, report_on, recommend, serve, decisions, studio]


@click.group(context_settings=CONTEXT, commands=COMMANDS)
@click.version_option(__version__, prog_name="ponn")
def ponn() -> None:
    """Turn a biased log of past decisions into a better policy that people can trust.

    Start with a table (CSV, Parquet, ...) that has one row per past case: what was known about it, which action
    was taken, how it turned out. `ponn check` says what is in it and whether a policy can be learned from it.

    No table at hand? `ponn simulate breast-cancer --out log.csv` makes one, and `ponn demo` shows the whole way.
    Rather in the browser? `ponn studio`.

    \b
    Every command has --json: one JSON object on standard output, all else on standard error.
    Exit status: 0 done; 1 it cannot be done, and why; 2 the command was not understood;
    3 --require-improvement, and there is none that the log can show; 130 interrupted; 128 + n ended by signal n.
    """


def main() -> None:
    """Run a command: user errors are told in one paragraph, with exit status 1."""
    end_in_order()
    try:
        ponn.main(prog_name="ponn", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("Interrupted.", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except PonnError as error:
        click.echo(f"{click.style('Error:', fg='red', bold=True)} {error}", err=True)
        sys.exit(1)


def end_in_order() -> None:
    """Clear up, as after an error, when somebody ends this process or closes its terminal.

    Unless it was told not to mind, as by nohup. The exit status is the one that a shell gives to a process that such a
    signal has ended.
    """
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, end)


def end(number: int, _: "FrameType | None") -> None:
    """Leave whatever is being done; a second signal does not keep it from being cleared up."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


@ponn.command()
@click.argument("folder", type=click.Path(file_okay=False), required=False)
@click.option("--rows", type=click.IntRange(min=200), default=10_000, show_default=True, help="Patients to simulate.")
@json_option
def demo(folder: str | None, rows: int, as_json: bool) -> None:
    """Run the whole way once: simulate a clinic, check its log, learn a policy, value it, recommend.

    Files go to FOLDER, by default a new temporary one. The patients are simulated, the effects invented.

    \b
    Examples:
      ponn demo
      ponn demo here --rows 2000
    """
    import tempfile
    from pathlib import Path

    place = Path(folder or tempfile.mkdtemp(prefix="ponn-demo-"))
    place.mkdir(parents=True, exist_ok=True)
    told = {step[0]: demo_step(step, as_json) for step in demo_steps(place, rows)}
    if as_json:
        click.echo(json.dumps({"folder": str(place), **told}))
        return
    click.echo("\n".join((place / "recommendations.csv").read_text().splitlines()[:6]))
    click.echo(f"Next: ponn serve {place / 'policy.ponn'}, and open http://127.0.0.1:8000", err=True)


def demo_steps(place: "Path", rows: int) -> list[list[str]]:
    """The commands of the README, with their files in one folder."""
    log, policy, report = (str(place / name) for name in ("log.csv", "policy.ponn", "report.html"))
    roles = ["--action", "regimen", "--reward", "survived"]
    advice = str(place / "recommendations.csv")
    return [
        ["simulate", "breast-cancer", "--rows", str(rows), "--out", log, "--truth", str(place / "truth.csv")],
        ["check", log, *roles],
        ["learn", log, *roles, "--set", "select=fdr", "--out", policy, "--report", report],
        ["evaluate", policy, log],
        ["recommend", policy, log, "--out", advice, "--keep", "age"],
    ]


def demo_step(words: list[str], as_json: bool) -> Any:
    """Run one command as if it had been typed; a log that cannot tell is an answer, not the end of the story."""
    from contextlib import redirect_stdout
    from io import StringIO

    typed, said = click.style(f"$ ponn {' '.join(words)}", bold=True), StringIO()
    click.echo(typed, err=True)
    try:
        with redirect_stdout(said if as_json else sys.stdout):
            ponn.main([*words, "--json"] if as_json else words, prog_name="ponn", standalone_mode=False)
    except PonnError as error:
        if words[0] != "evaluate":
            raise
        click.echo(str(error), err=True)
        return {"error": str(error)}
    return json.loads(said.getvalue()) if as_json else None


@ponn.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def completion(shell: str, as_json: bool) -> None:
    """Print what makes SHELL complete ponn's commands and options with the Tab key.

    \b
    Examples:
      ponn completion bash >> ~/.bashrc
      ponn completion zsh >> ~/.zshrc
      ponn completion fish > ~/.config/fish/completions/ponn.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    source = found(ponn, {}, "ponn", "_PONN_COMPLETE").source()
    click.echo(json.dumps({"shell": shell, "source": source}) if as_json else source)
