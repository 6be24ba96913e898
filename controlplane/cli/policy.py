"""`changeover policy`: the knobs of a fleet: what they are, what they would be, and changing them.

A policy is in the log: from the position of `PolicyChanged` on it is the one. What cannot hold
together is refused here, with the inequality that fails, before anybody hears of it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec

from controlplane.cli.acts import act_options, nothing_done, perform
from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.cli.tables import table
from controlplane.config import Settings
from statemachine import events as e
from statemachine.errors import UsageError
from statemachine.policy import Policy, knobs_of, policy_of


@click.group(context_settings=CONTEXT)
def policy() -> None:
    """Show, compare and change the knobs of the fleet."""


async def _current(settings: Settings) -> tuple[Policy, int]:
    from controlplane.picture import look
    from controlplane.server import opened

    async with opened(settings) as log:
        state = (await look(log)).state
    return state.policy, state.policy_version


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """``detector.watch_ratio`` -> value, for every knob."""
    found: dict[str, Any] = {}
    for name in value.__struct_fields__:
        inner = getattr(value, name)
        if isinstance(inner, msgspec.Struct):
            found |= flat(inner, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = inner
    return found


def nested(pairs: dict[str, Any]) -> dict[str, Any]:
    """The inverse: a table of tables."""
    found: dict[str, Any] = {}
    for path, value in pairs.items():
        *sections, name = path.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise UsageError(f"{path}: {section} is a knob, not a table of them")
        place[name] = value
    return found


def wished(given: tuple[str, ...], base: Policy) -> Policy:
    """The policy that ``KEY=VALUE ...`` or a TOML file asks for, on top of `base`.

    Raises:
        UsageError, BadPolicy: names the knob, its value, and what is allowed.
    """
    if len(given) == 1 and "=" not in given[0]:
        return _of_file(Path(given[0]))
    known = flat(base)
    pairs: dict[str, Any] = {k: v for k, v in known.items() if v != flat(Policy())[k]}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{text!r} is not KEY=VALUE, nor the one file to read")
        pairs[name] = _read(value)
    return policy_of(nested(pairs), "policy")


def _of_file(path: Path) -> Policy:
    try:
        table_ = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is not TOML: {error}") from error
    return policy_of(table_.get("policy", table_), str(path))


def _read(text: str) -> Any:
    """A value as TOML has it; a bare word is a text."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def differences(one: Policy, other: Policy) -> list[tuple[str, Any, Any]]:
    """Knobs that differ: name, before, after."""
    before, after = flat(one), flat(other)
    return [(name, before[name], after[name]) for name in before if before[name] != after[name]]


def _lines(rows: list[tuple[str, Any, Any]]) -> list[str]:
    return table(("knob", "now", "then"), rows) if rows else ["nothing would differ"]


@policy.command(
    "show",
    context_settings=CONTEXT,
    epilog=examples("changeover policy show", "changeover policy show --all --json"),
)
@fleet_options()
@json_option
@click.option("--all", "everything", is_flag=True, help="every knob, not only those that differ")
def show(settings: Settings, *, as_json: bool, everything: bool) -> None:
    """Show the policy in force: the knobs that differ from their defaults, or all."""
    found, version = anyio.run(_current, settings)
    usual = flat(Policy())
    knobs = {k: v for k, v in flat(found).items() if everything or v != usual[k]}
    if as_json:
        print(msgspec.json.encode({"version": version, "knobs": knobs}).decode())
        return
    print(f"policy version {version}" + ("" if knobs else ": every knob has its default"))
    if knobs:
        rows = [(name, value, usual[name]) for name, value in knobs.items()]
        print("\n".join(table(("knob", "value", "default"), rows)))


@policy.command(
    "diff",
    context_settings=CONTEXT,
    epilog=examples(
        "changeover policy diff loss_grace_s=2", "changeover policy diff new-policy.toml"
    ),
)
@fleet_options()
@json_option
@click.argument("given", nargs=-1, required=True, metavar="FILE|KEY=VALUE...")
def diff(settings: Settings, *, as_json: bool, given: tuple[str, ...]) -> None:
    """Say what would change; exits with 1 if anything would."""
    found, version = anyio.run(_current, settings)
    rows = differences(found, wished(given, found))
    if as_json:
        told = [{"knob": name, "now": now, "then": then} for name, now, then in rows]
        print(msgspec.json.encode({"version": version, "differs": told}).decode())
    else:
        print("\n".join(_lines(rows)))
    if rows:
        raise SystemExit(1)


@policy.command(
    "set",
    context_settings=CONTEXT,
    epilog=examples(
        "changeover policy set loss_grace_s=2 --comment 'flaky switch'",
        "changeover policy set new-policy.toml --dry-run",
    ),
)
@act_options
@click.argument("given", nargs=-1, required=True, metavar="FILE|KEY=VALUE...")
def set_(settings: Settings, *, given: tuple[str, ...], by: str, comment: str, **act: Any) -> None:
    """Change knobs from the next event on; a file replaces them all.

    An unsafe set is refused with the inequality that fails.
    """
    found, version = anyio.run(_current, settings)
    then = wished(given, found)
    rows = differences(found, then)
    if not act["as_json"]:
        print("\n".join(_lines(rows)))
    if not rows:
        nothing_done("", as_json=act["as_json"])
        return
    event = e.PolicyChanged(version=version + 1, knobs=knobs_of(then), by=by, comment=comment)
    perform(settings, by, event, "policy", question="Change the policy?", **act)


@policy.command(
    "shadow",
    context_settings=CONTEXT,
    epilog=examples("changeover policy shadow on", "changeover policy shadow off"),
)
@act_options
@click.argument("state", type=click.Choice(["on", "off"]))
def shadow(settings: Settings, *, state: str, by: str, comment: str, **act: Any) -> None:
    """Record what would be done about verdicts and do nothing (on), or do it again (off)."""
    found, version = anyio.run(_current, settings)
    if found.shadow == (state == "on"):
        nothing_done(f"shadow mode is {state} already", as_json=act["as_json"])
        return
    then = msgspec.structs.replace(found, shadow=state == "on")
    event = e.PolicyChanged(version=version + 1, knobs=knobs_of(then), by=by, comment=comment)
    question = "Act on verdicts again?" if state == "off" else ""
    perform(settings, by, event, f"shadow mode {state}", question=question, **act)
