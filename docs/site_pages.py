"""What the site has beside its Markdown: pages made from the program itself, and files outside docs/ that pages name.

MkDocs calls the functions `on_...` (hooks). The command line's page is made from click, those of settings and methods
from the tables that the program uses, so none of them can say anything else than the program does.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
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

    def link_in_site(match: re.Match[str]) -> str:
        target = real_path(place.parent / match[1])
        if target.is_relative_to(DOCS) and not copied:
            return match[1]
        inside = target.relative_to(DOCS).as_posix() if target.is_relative_to(DOCS) else site_place(target)
        return os.path.relpath(inside, Path(source).parent)

    return LINK.sub(link_in_site, markdown)


# Files outside docs/ -------------------------------------------------------------------------------------


def linked_outside() -> list[Path]:
    """The files outside docs/ that its pages link to, and those that these link to."""
    outside: dict[Path, None] = {}
    waiting = sorted(DOCS.rglob("*.md"))
    while waiting:
        page = waiting.pop()
        for target in links_of(page):
            if not target.is_relative_to(DOCS) and target not in outside:
                outside[target] = None
                waiting += [target] if target.suffix == ".md" else []
    return [*outside]


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
    parts = ["# The command line", help_text(ponn.help), "`ponn COMMAND --help` says the same in a terminal."]
    for name in sorted(ponn.commands):
        parts += command_section(ponn.commands[name], click.Context(ponn.commands[name], context, name))
    return "\n\n".join(parts) + "\n"


def command_section(command: click.Command, context: click.Context) -> list[str]:
    """One command."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    records = [record for one in command.get_params(context) if (record := one.get_help_record(context))]
    rows = [f"| `{names}` | {cell(escaped(text))} |" for names, text in records]
    head = ["| argument, option | what it is |", "|---|---|"]
    return [f"## {context.command_path}", f"```text\n{usage}\n```", help_text(command.help), "\n".join([*head, *rows])]


def help_text(text: str | None) -> str:
    """A command's help as Markdown: what click must not fill is code where it holds commands or columns."""
    return "\n\n".join(help_part(one) for one in re.split(r"\n\s*\n", (text or "").strip()))


def help_part(part: str) -> str:
    """One paragraph of a command's help."""
    lines = [line.strip() for line in part.replace("\b", "").splitlines() if line.strip()]
    if any(line.startswith("ponn ") for line in lines) and "\b" in part:
        return "```text\n" + "\n".join(lines) + "\n```"
    return escaped(" ".join(lines))


def escaped(text: str) -> str:
    """Text whose signs Markdown would take for markup."""
    return re.sub(r"([*_<>\[\]])", r"\\\1", text)


def cell(text: str) -> str:
    """Text in a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


# Settings and methods ------------------------------------------------------------------------------------


def settings_page() -> str:
    """Every setting with its default and what is legal."""
    from ponn.settings import Settings

    parts = [
        "# Settings",
        "Every setting is a keyword of `ponn.learn` and a `--set NAME=VALUE` of `ponn learn`. A setting that a method "
        "does not use is refused. [Methods](methods.md) may have defaults of their own.",
    ]
    for one in fields(Settings):
        parts += [f"## {one.name}", sentence(one.metadata["help"]), facts(one.name, one.default, one.metadata)]
    return "\n\n".join(parts) + "\n"


def facts(name: str, default: Any, rule: Any) -> str:
    """What is known of a setting beside what it does, as a list."""
    from ponn.methods import METHODS, used_by

    users = [method for method in METHODS if name in used_by(method)]
    lines = [f"- Default: `{default}`", f"- Legal: {legal(rule)}"]
    lines += [f"- In the paper: `{rule['symbol']}`"] if rule["symbol"] else []
    lines += [f"- Used by: {'all methods' if len(users) == len(METHODS) else ', '.join(users)}"]
    return "\n".join(lines)


def legal(rule: Any) -> str:
    """Which values a setting takes."""
    if rule["choices"]:
        return ", ".join(f"`{one}`" for one in rule["choices"])
    low, high = rule["low"], rule["high"]
    if low > -math.inf and high < math.inf:
        return f"{low:g} to {high:g}"
    return f"from {low:g} on" if low > -math.inf else "true, false"


def sentence(text: str) -> str:
    """A help text as a sentence of Markdown."""
    return escaped(text[0].upper() + text[1:].rstrip(".")) + "."


def methods_page() -> str:
    """Every method with its settings and where tuning looks."""
    from ponn.methods import DEFAULT_METHOD, METHODS

    parts = [
        "# Methods",
        f'The default is `{DEFAULT_METHOD}`. Name another one with `ponn.learn(log, "ponn-b")` or `--method ponn-b`. '
        "[Which one to take](../how-to/methods.md).",
    ]
    for name, one in METHODS.items():
        lines = [f"- Its own defaults of [settings](settings.md): {each_as_code(one.settings)}"] if one.settings else []
        lines += [f"- Tuning tries `{key}`: {numbers(values)}" for key, values in one.grid.items()]
        parts += [f"## {name}", sentence(one.about), "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def each_as_code(settings: Mapping[str, Any]) -> str:
    """Settings as they are given on the command line."""
    return ", ".join(f"`{key}={value}`" for key, value in settings.items())


def numbers(values: Sequence[Any]) -> str:
    """Values that are tried."""
    return ", ".join(f"{value:.3g}" if isinstance(value, float) else str(value) for value in values)
