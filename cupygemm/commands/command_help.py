"""What a command takes, as Markdown: the same usage, text and options that `--help` prints."""

from __future__ import annotations

import inspect

import click

NOTHING = "This version has no such command."


def render(root: click.Command, path: str) -> str:
    """Usage, text and options of one command.

    Args:
        root: the program.
        path: names of groups and of the command, with spaces between: "bundle show".
    """
    context = _context(root, path.split())
    if context is None:
        return NOTHING
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    text = " ".join(inspect.cleandoc(command.help or "").split())
    options = [_option(parameter, context) for parameter in command.params if isinstance(parameter, click.Option)]
    return "\n\n".join(part for part in (f"```text\n{usage}\n```", text, "\n".join(filter(None, options))) if part)


def paths(root: click.Group, prefix: str = "") -> list[str]:
    """Every command that does something itself (groups only lead to theirs), as `render` takes them."""
    found: list[str] = []
    for name, command in root.commands.items():
        found += paths(command, f"{prefix}{name} ") if isinstance(command, click.Group) else [prefix + name]
    return found


def _context(root: click.Command, names: list[str]) -> click.Context | None:
    context = click.Context(root, info_name="cupygemm")
    for name in names:
        command = context.command.get_command(context, name) if isinstance(context.command, click.Group) else None
        if command is None:
            return None
        context = click.Context(command, info_name=name, parent=context)
    return context


def _option(option: click.Option, context: click.Context) -> str | None:
    record = option.get_help_record(context)
    if record is None:
        return None
    declared, said = record
    return f"- `{declared}`: {said}" if said else f"- `{declared}`"
