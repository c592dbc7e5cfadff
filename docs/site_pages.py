"""What the site has beside its Markdown: pages made from the program itself, and files outside docs/ that pages name.

MkDocs calls the functions `on_...` (hooks). The command line's page is made from click, those of settings and methods
from the tables that the program uses, so none of them can say anything else than the program does.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")  # of a Markdown link, without its anchor; no addresses
OUTSIDE = "outside"  # the site's folder for what stands outside docs/


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and what pages link to outside docs/."""
    for name, text in (
        ("command-line", command_line_page()),
        ("settings", settings_page()),
        ("methods", methods_page()),
    ):
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for path in linked_outside():
        files.append(File.generated(config, site_place(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links that leave docs/ to the copies in the site."""
    source = page.file.src_uri
    copied = source.startswith(f"{OUTSIDE}/")
    place = ROOT / source.removeprefix(f"{OUTSIDE}/") if copied else DOCS / source

    def led(match: re.Match[str]) -> str:
        target = real_path(place.parent / match[1])
        if target.is_relative_to(DOCS) and not copied:
            return match[1]
        inside = target.relative_to(DOCS).as_posix() if target.is_relative_to(DOCS) else site_place(target)
        return os.path.relpath(inside, Path(source).parent)

    return LINK.sub(led, markdown)


# Files outside docs/ -------------------------------------------------------------------------------------


def linked_outside() -> list[Path]:
    """The files outside docs/ that its pages link to, and those that these link to."""
    found: dict[Path, None] = {}
    waiting = sorted(DOCS.rglob("*.md"))
    while waiting:
        page = waiting.pop()
        for target in links_of(page):
            if not target.is_relative_to(DOCS) and target not in found:
                found[target] = None
                waiting += [target] if target.suffix == ".md" else []
    return [*found]


def links_of(page: Path) -> Iterator[Path]:
    """Where a page links to, as absolute paths."""
    for target in LINK.findall(page.read_text()):
        yield real_path(page.parent / target)


def real_path(path: Path) -> Path:
    """The path without dots."""
    return Path(os.path.normpath(path))


def site_place(path: Path) -> str:
    """Where the site keeps a file that stands outside docs/."""
    return f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}"


# The command line ----------------------------------------------------------------------------------------


def command_line_page() -> str:
    """Every command with its arguments and options."""
    from ponn.cli.program import ponn

    context = click.Context(ponn, info_name="ponn")
    parts = ["# The command line", told(ponn.help), "What each command takes is also told by `ponn COMMAND --help`."]
    for name in sorted(ponn.commands):
        parts += command_section(ponn.commands[name], click.Context(ponn.commands[name], context, name))
    return "\n\n".join(parts) + "\n"


def command_section(command: click.Command, context: click.Context) -> list[str]:
    """One command."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    records = [found for one in command.get_params(context) if (found := one.get_help_record(context))]
    rows = [f"| `{names}` | {cell(escaped(text))} |" for names, text in records]
    head = ["| argument, option | what it is |", "|---|---|"]
    return [f"## {context.command_path}", f"```text\n{usage}\n```", told(command.help), "\n".join([*head, *rows])]


def told(text: str | None) -> str:
    """A command's help as Markdown: what click must not fill (examples, tables) stays as it is written."""
    parts = []
    for part in re.split(r"\n\s*\n", (text or "").strip()):
        lines = part.replace("\b\n", "\b").splitlines()
        if lines[0].lstrip().startswith("\b"):
            lines[0] = lines[0].replace("\b", "")
            parts.append("```text\n" + "\n".join(line.strip() for line in lines) + "\n```")
        else:
            parts.append(escaped(" ".join(line.strip() for line in lines)))
    return "\n\n".join(parts)


def escaped(text: str) -> str:
    """Text whose signs Markdown would take for markup."""
    return re.sub(r"([*_<>\[\]])", r"\\\1", text)


def cell(text: str) -> str:
    """Text in a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


# Settings and methods ------------------------------------------------------------------------------------


def settings_page() -> str:
    """Every setting with its default and what is legal."""
    from ponn.methods import METHODS, used_by
    from ponn.settings import Settings

    lines = [
        "# Settings",
        "",
        "Every setting is a keyword of `ponn.learn` and a `--set NAME=VALUE` of `ponn learn`. A setting that a method",
        "does not use is refused. [Methods](methods.md) may have defaults of their own.",
        "",
        "| setting | default | legal | in the paper | what it does | used by |",
        "|---|---|---|---|---|---|",
    ]
    for one in fields(Settings):
        users = [name for name in METHODS if one.name in used_by(name)]
        by = "all" if len(users) == len(METHODS) else ", ".join(users)
        symbol = f"`{one.metadata['symbol']}`" if one.metadata["symbol"] else ""
        cells = (f"`{one.name}`", f"`{one.default}`", legal(one.metadata), symbol, escaped(one.metadata["help"]), by)
        lines.append("| " + " | ".join(map(cell, cells)) + " |")
    return "\n".join(lines) + "\n"


def legal(rule: Any) -> str:
    """Which values a setting takes."""
    if rule["choices"]:
        return ", ".join(f"`{one}`" for one in rule["choices"])
    low, high = rule["low"], rule["high"]
    if low > float("-inf") and high < float("inf"):
        return f"{low:g} to {high:g}"
    return f"from {low:g} on" if low > float("-inf") else ""


def methods_page() -> str:
    """Every method with its settings and where tuning looks."""
    from ponn.methods import DEFAULT_METHOD, METHODS

    lines = [
        "# Methods",
        "",
        f'The default is `{DEFAULT_METHOD}`. Name another one with `ponn.learn(log, "ponn-b")` or `--method ponn-b`;',
        "`tune=True` or `--tune` tries the values in the last column. [Which one to take](../how-to/methods.md).",
        "",
        "| method | what it is | its own defaults | what tuning tries |",
        "|---|---|---|---|",
    ]
    for name, one in METHODS.items():
        own = ", ".join(f"`{key}={value}`" for key, value in one.settings.items())
        grid = "; ".join(
            f"`{key}`: " + ", ".join(f"{value:.3g}" if isinstance(value, float) else str(value) for value in values)
            for key, values in one.grid.items()
        )
        lines.append("| " + " | ".join(map(cell, (f"`{name}`", escaped(one.about), own, grid))) + " |")
    return "\n".join(lines) + "\n"
