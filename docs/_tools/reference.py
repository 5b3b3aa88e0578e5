"""Writes docs/cli.md from the program, docs/api.md from docstrings, figures from benchmarks: `make reference`.

The pages are kept in the repository, where they can be read without building anything; a test holds that they are
what this file writes.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import architecture
import click
import figures

DOCS = Path(__file__).parents[1]
WRITTEN = "<!-- written by: make reference; do not edit -->\n"
WIDTH = 110

# Modules of the API page: how people write the prefix, the module, and what to list if it is not all of `__all__`.
SECTIONS = (
    ("cs", "cleverscore", None, "Everything below `cs.` is loaded when it is first used."),
    ("cs.tails", "cleverscore.tails", None, "The statistics, without torch. See [the statistics](statistics.md)."),
    ("cs.plots", "cleverscore.reporting.plots", None, "See [plots](plots.md)."),
    ("cs.transforms", "cleverscore.models.transforms", ("bit_depth", "jpeg"), "See [the bracket](bracket.md)."),
    ("cs.interop", "cleverscore.reporting.interop", None, "See [other people's tools](interop.md)."),
    ("cleverscore.exact", "cleverscore.exact", None, "See [the truth](truth.md)."),
    ("cleverscore.errors", "cleverscore.errors", "own", "Every error that a user can cause, and the warning."),
    (
        "cleverscore.inputs.balls",
        "cleverscore.inputs.balls",
        ("Draw", "ReleasedCodeBall"),
        "For [laws of your own](extend.md).",
    ),
    ("cleverscore.attacks.attack", "cleverscore.attacks.attack", ("AttackFunction",), ""),
    ("cleverscore.attacks.best_attack", "cleverscore.attacks.best_attack", ("BestAttack",), ""),
    (
        "cleverscore.tails.paired_tests",
        "cleverscore.tails.paired_tests",
        ("Difference", "difference"),
        "See [compare](compare.md).",
    ),
)


def cli_page() -> str:
    """The command line: every command, argument and option, in the words of the program."""
    from cleverscore.cli.main import program

    lines = [
        WRITTEN,
        "# Command line\n",
        f"{_prose(inspect.cleandoc(program.help or ''))}\n",
        "Results go to stdout, everything else to stderr. The exit code is 0 if all is done, 1 if a gate failed, 2 for",
        "bad input (one sentence says the value, the reason and the way out), 130 if interrupted, with everything so",
        "far kept. `-h` or `--help` after a command explains it; `python -m cleverscore` is the same program.\n",
    ]
    for name, command in sorted(program.commands.items()):
        lines += _command(name, command)
    return "\n".join(lines) + "\n"


def _command(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=f"cleverscore {name}")
    usage = " ".join([f"cleverscore {name}", *command.collect_usage_pieces(context)])
    yield f"## cleverscore {name}\n"
    yield f"```text\n{usage}\n```\n"
    yield f"{_prose(inspect.cleandoc(command.help or ''))}\n"
    yield "| option | meaning |"
    yield "|---|---|"
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and record[1]:  # arguments are in the line above and in the text
            option, meaning = record
            yield f"| {_code(option)} | {_cell(meaning)} |"
    yield ""


def api_page() -> str:
    """Every public name with its signature and its docstring."""
    lines = [
        WRITTEN,
        "# Python API\n",
        "`import cleverscore as cs`. Results are frozen dataclasses; a return type never depends on the type of an",
        "input; everything after the first arguments is given by keyword.\n",
    ]
    for prefix, module_name, names, text in SECTIONS:
        module = import_module(module_name)
        lines.append(f"## {prefix}\n")
        if text:
            lines.append(f"{text}\n")
        for name in _listed(module, names):
            lines += _entry(f"{prefix}.{name}", getattr(module, name))
    return "\n".join(lines).rstrip() + "\n"


def _listed(module: Any, names: tuple[str, ...] | str | None) -> list[str]:
    if names == "own":
        return [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    if isinstance(names, tuple):
        return list(names)
    public = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    # Modules have sections of their own.
    kept = (n for n in public if not n.startswith("__") and not inspect.ismodule(getattr(module, n)))
    return sorted(kept, key=lambda n: (n.lower(), n))


def _entry(title: str, value: Any) -> Iterator[str]:
    yield f"### {title}\n"
    if isinstance(value, float):
        yield f"The number {value:g}.\n"
        return
    doc = value.__dict__.get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)
    if not doc:
        raise ValueError(f"{title} has no docstring")
    plain = inspect.isclass(value) and issubclass(value, (enum.Enum, Exception))
    if plain:
        base = value.__mro__[1].__name__
        yield f"A kind of `{base}`.\n" if issubclass(value, Exception) else ""
    else:
        yield f"```py\n{_signature(title, value)}\n```\n"
    yield from _markdown(inspect.cleandoc(doc))
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        said = "advice" if hasattr(value, "advice") else "sentence"
        yield f"| value | {said} |\n|---|---|"
        yield from (f"| `{member.value}` | {_cell(getattr(member, said, ''))} |" for member in value)
        yield ""
    if inspect.isclass(value):
        members = list(_members(value))
        if members:
            yield "| member | meaning |\n|---|---|"
            yield from members
            yield ""


def _members(value: type) -> Iterator[str]:
    fields = {f.name for f in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
    for name, member in vars(value).items():
        if name.startswith("_") or name in fields:
            continue
        if isinstance(member, property):
            yield f"| `{name}` | {_cell(_first(member.fget))} |"
        elif inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod)):
            function = member if inspect.isfunction(member) else member.__func__
            yield f"| {_code(_short(name, function))} | {_cell(_first(function))} |"


def _short(name: str, function: Any) -> str:
    names = [p.name for p in inspect.signature(function).parameters.values()]
    return f"{name}({', '.join(names[1:])})"


def _signature(title: str, value: Any) -> str:
    protocol = getattr(value, "_is_protocol", False)  # what counts is how it is called
    signature = inspect.signature(value.__call__ if protocol else value)
    parts = []
    star = False
    for parameter in signature.parameters.values():
        if protocol and parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        parts.append(_parameter(parameter))
        star = star or parameter.kind is parameter.VAR_POSITIONAL
    result = "" if inspect.isclass(value) and not protocol else f" -> {_annotation(signature.return_annotation)}"
    line = f"{title}({', '.join(parts)}){result}"
    if len(line) <= WIDTH:
        return line
    inner = "".join(f"    {part},\n" for part in parts)
    return f"{title}(\n{inner}){result}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        default = parameter.default
        if type(default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS":
            shown = "..."
        else:
            shown = getattr(default, "__name__", None) or repr(default)
        text += f" = {shown}"
    return text


def _annotation(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return text.strip("'")


def _first(value: Any) -> str:
    doc = inspect.getdoc(value)
    if not doc:
        raise ValueError(f"{value} has no docstring")
    return " ".join(doc.split("\n\n")[0].split())


def _markdown(doc: str) -> Iterator[str]:
    """A docstring of ours as Markdown: paragraphs, aligned lists of arguments, formulas, examples."""
    for block in re.split(r"\n{2,}", doc):
        lines = block.splitlines()
        if lines[0].startswith(">>>"):
            yield "```pycon\n" + block + "\n```\n"
        elif all(line.startswith("    ") for line in lines):
            yield "```text\n" + inspect.cleandoc(block) + "\n```\n"
        else:
            yield from _paragraphs(lines)


ARGUMENT = re.compile(r"^(\S+(?:, \S+)*)\s{2,}(\S.*)$")


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Lines `name    meaning` become a table, others a paragraph."""
    rows: list[list[str]] = []
    prose: list[str] = []
    for line in lines:
        found = ARGUMENT.match(line)
        if found:
            rows.append([found[1], found[2]])
        elif rows and line.startswith("    "):
            rows[-1][1] += " " + line.strip()
        elif rows:
            yield from _table(rows)
            rows, prose = [], [line]
        else:
            prose.append(line)
        if found and prose:
            yield f"{_prose(chr(10).join(prose))}\n"
            prose = []
    if rows:
        yield from _table(rows)
    if prose:
        yield f"{_prose(chr(10).join(prose))}\n"


def _table(rows: list[list[str]]) -> Iterator[str]:
    yield "| name | meaning |"
    yield "|---|---|"
    for names, meaning in rows:
        yield f"| {', '.join(_code(name) for name in names.split(', '))} | {_cell(meaning)} |"
    yield ""


def _escaped(text: str) -> str:
    """Text with characters that Markdown would read as something else; code between backticks is left alone."""
    parts = text.split("`")
    outside = [re.sub(r"([*_<\[\]$])", r"\\\1", part) for part in parts[::2]]
    parts[::2] = outside
    return "`".join(parts)


def _prose(text: str) -> str:
    return _escaped(text).replace("\b\n", "")


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


PAGES = {
    "cli.md": cli_page,
    "api.md": api_page,
    "peers.md": figures.peers_page,
    "statistics.md": figures.statistics_page,
    "architecture.md": architecture.page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
        print(f"written: docs/{name}")
