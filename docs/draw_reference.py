"""The reference, from the program: `mkdocs build` asks for these pages, nobody writes them.

What belongs here: from docstrings, help texts and defaults to Markdown. Nothing is said that the
program does not say itself, and nothing that only this machine knows.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from controlplane.cli import VERBS, cli
from statemachine import detector_policy, policy, sweep
from statemachine import events as e

OPENING = "From the program of this version, in its own words.\n"

CLI_OPENING = """\
Exit codes: 0 it held; 1 it did not, and one line on stderr says what, whose fault and what next;
2 it was asked for something that cannot be; 130 Ctrl-C. `--json` prints one object, or one a line,
described in [JSON](json.md).

"""

EVENTS_OPENING = """\
What a log may hold. A field with a default may be missing from a line; a name that is not here is
of a newer release: it is kept, reported, and folded into nothing.

"""

POLICY_OPENING = """\
Knobs of the state machine, set by `changeover policy set KEY=VALUE` or by `[policy]` of the
settings file. Units stand last in the name.

"""


def pages() -> dict[str, str]:
    """Every page of the reference that the program writes, by its place in the site."""
    return {
        "reference/cli.md": cli_page(),
        "reference/events.md": events_page(),
        "reference/policy.md": policy_page(),
        "reference/api.md": api_page(),
    }


def heading(title: str) -> str:
    """How a page begins."""
    return f"# {title}\n\n{OPENING}\n"


# --- the command line -------------------------------------------------------------------------


def cli_page() -> str:
    """Every verb with its help."""
    said = [
        heading("Command line"),
        CLI_OPENING,
    ]
    context = click.Context(cli, info_name="changeover")
    for name in sorted(VERBS):
        if name != "agent":
            command = cli.get_command(context, name)
            assert command is not None
            said += list(_command(command, context, name))
    return "".join(said)


def _command(command: click.Command, parent: click.Context, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    context.terminal_width = context.max_content_width = 100
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _command(found, context, inner)
        return
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    yield f"## {context.command_path}\n\n{text}\n\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```\n\n"
    rows = [row for option in command.params if (row := option.get_help_record(context))]
    if rows:
        yield "| option | meaning |\n|---|---|\n"
        for option, meaning in rows:
            yield f"| `{_cell(option)}` | {_cell(meaning)} |\n"
        yield "\n"
    if command.epilog:
        lines = command.epilog.replace("\b\n", "").splitlines()[1:]
        shown = "\n".join(line.strip() for line in lines)
        yield f"```sh\n{shown}\n```\n\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


# --- events and knobs -------------------------------------------------------------------------


def events_page() -> str:
    """Every event with its fields."""
    said = [
        heading("Events"),
        EVENTS_OPENING,
    ]
    for kind in e.AnyEvent.__args__:
        said.append(f"## {kind.__name__}\n\n{inspect.cleandoc(kind.__doc__ or '')}\n\n")
        fields = msgspec.structs.fields(kind)
        if fields:
            said.append("| field | type | default |\n|---|---|---|\n")
            said += [
                f"| `{each.name}` | {_cell(_type(each.type))} | {_default(each)} |\n"
                for each in fields
            ]
            said.append("\n")
    return "".join(said)


def _type(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    for prefix in ("statemachine.events.", "statemachine.ids.", "typing."):
        text = text.replace(prefix, "")
    return text


def _default(each: Any) -> str:
    if each.default is msgspec.NODEFAULT and each.default_factory is msgspec.NODEFAULT:
        return "required"
    value = each.default if each.default is not msgspec.NODEFAULT else each.default_factory()
    shown = msgspec.json.encode(value).decode() if not isinstance(value, bytes) else ""
    return f"`{shown}`" if shown else ""


def policy_page() -> str:
    """Every knob with its default and meaning."""
    said = [
        heading("Policy"),
        POLICY_OPENING,
    ]
    parts = (
        ("", policy.Policy),
        ("detector.", detector_policy.DetectorPolicy),
        ("sweep.", sweep.SweepPolicy),
    )
    for prefix, kind in parts:
        said.append(
            f"## {prefix.rstrip('.') or 'top'}\n\n| knob | default | meaning |\n|---|---|---|\n"
        )
        meanings = _meanings(kind)
        for each in msgspec.structs.fields(kind):
            if f"{each.name}." not in ("detector.", "sweep."):
                meaning = _cell(meanings.get(each.name, ""))
                said.append(f"| `{prefix}{each.name}` | {_default(each)} | {meaning} |\n")
        said.append("\n")
    said.append("## What must hold between timeouts\n\n")
    said += [f"- `{small} < {large}`\n" for small, large in policy.LATTICE]
    said.append("\n## What may follow a loss\n\n")
    said += [f"- `{name}`: {words}\n" for name, words in policy.ON_LOSS.items()]
    return "".join(said)


def _meanings(kind: type) -> dict[str, str]:
    """What the source says below each field."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    found, last = {}, ""
    for node in body.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)):
                last = name
            case ast.Expr(value=ast.Constant(value=str(words))) if last:
                found[last] = words
            case _:
                pass
    return found


# --- the library ------------------------------------------------------------------------------

API = (
    (
        "controlplane.embedding",
        ("control_plane", "memory_log", "ControlPlane", "Subscription", "Decided"),
    ),
    ("controlplane.plugins", ("Plugins",)),
    ("controlplane.testkit", ("FleetHarness", "check_determinism", "with_knobs")),
    ("controlplane.provision.port", ("Provisioner", "Condition", "Standing")),
    ("controlplane.config", ("Settings", "load_settings")),
    ("statemachine.decision", ("Decision",)),
    ("statemachine.history", ("History",)),
    ("statemachine.accounting", ("accounts", "Account")),
)


def api_page() -> str:
    """What an embedder imports, in its own words."""
    said = [heading("Library")]
    for module, names in API:
        loaded = importlib.import_module(module)
        said.append(f"## {module}\n\n{_prose(loaded.__doc__)}\n\n")
        for name in names:
            said += list(_thing(getattr(loaded, name), name))
    return "".join(said)


def _thing(thing: Any, name: str) -> Iterator[str]:
    yield f"### {name}\n\n```python\n{name}{_signature(thing)}\n```\n\n{_prose(thing.__doc__)}\n\n"
    if not inspect.isclass(thing):
        return
    for inner, member in vars(thing).items():
        if inner.startswith("_") or not _has_words(member):
            continue
        target = member.fget if isinstance(member, property) else member
        signature = "" if isinstance(member, property) else _signature(target)
        yield f"- `{inner}{signature}`: {_flat(target.__doc__)}\n"
    yield "\n"


def _has_words(member: Any) -> bool:
    return (inspect.isfunction(member) or isinstance(member, property)) and bool(
        inspect.getdoc(member)
    )


def _signature(thing: Any) -> str:
    """How it is called; a default that is no plain constant is left out."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    plain = []
    for each in found.parameters.values():
        if each.name == "self":
            continue
        if each.default is not inspect.Parameter.empty:
            constant = isinstance(each.default, (str, int, float, bool, type(None)))
            plain.append(each.replace(default=_Shown(each.default if constant else ...)))
        else:
            plain.append(each)
    text = str(found.replace(parameters=plain))
    for module in ("statemachine.ids.", "controlplane.config.", "collections.abc.", "typing."):
        text = text.replace(module, "")
    return text.replace("'", "")


class _Shown:
    """A default as it is written."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "..." if self._value is ... else repr(self._value).replace("'", '"')


def _prose(text: str | None) -> str:
    """A docstring as Markdown: indented parts become blocks, ``x`` becomes `x`."""
    lines, inside = [], False
    for line in inspect.cleandoc(text or "").splitlines():
        indented = line.startswith("    ")
        if indented and not inside:
            lines.append("```text")
        elif inside and line and not indented:
            lines.insert(len(lines) - 1 if lines and not lines[-1] else len(lines), "```")
        if line:
            inside = indented
        lines.append(line[4:] if indented else line.replace("``", "`"))
    if inside:
        lines.append("```")
    return "\n".join(lines)


def _flat(text: str | None) -> str:
    first = inspect.cleandoc(text or "").split("\n\n")[0]
    return " ".join(first.split()).replace("``", "`")
