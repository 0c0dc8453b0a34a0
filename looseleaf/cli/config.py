"""`looseleaf config show|path|set`: the settings, where each comes from, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from looseleaf.cli.options import JsonOption, example, print_json, print_table


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    config = typer.Typer(help="Settings: show them, where they come from, change them.", no_args_is_help=True)
    config.command("show", epilog=example("config show cluster --origin"))(show)
    config.command("path", epilog=example("config path"))(show_files)
    config.command("set", epilog=example("config set cluster.gpus 2"))(change)
    app.add_typer(config, name="config")


def complete_sections(incomplete: str) -> list[str]:
    """Sections that begin so."""
    from looseleaf.config_files import SECTIONS

    return [section for section in SECTIONS if section.startswith(incomplete)]


def complete_keys(incomplete: str) -> list[tuple[str, str]]:
    """Settings that begin so, with what they mean."""
    from looseleaf.config_files import SECTIONS, ConfigError
    from looseleaf.config_load import settings

    try:
        found = [entry for section in SECTIONS for entry in settings(section)]
    except ConfigError:
        return []
    return [(entry.key, entry.description) for entry in found if entry.key.startswith(incomplete)]


def show(
    section: Annotated[str, typer.Argument(help="Only this section.", autocompletion=complete_sections)] = "",
    origin: Annotated[bool, typer.Option("--origin", help="Show where each value comes from.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show every setting as it is here and now."""
    from looseleaf.config_files import SECTIONS, config_files, no_such_setting
    from looseleaf.config_load import settings

    if section and section not in SECTIONS:
        raise no_such_setting(section, "SECTION", SECTIONS)
    found = [entry for name in ([section] if section else SECTIONS) for entry in settings(name)]
    if as_json:
        print_json({
            "files": [str(path) for path in config_files()],
            "settings": [
                {"key": entry.key, "value": entry.value, "origin": entry.origin, "variable": entry.variable,
                 "description": entry.description}
                for entry in found
            ],
        })  # fmt: skip
        return
    rows: list[list[Any]] = [[entry.key, _shown(entry.value), *[entry.origin] * origin] for entry in found]
    print_table("", ["setting", "value", *["from"] * origin], rows, "")


def show_files(as_json: JsonOption = False) -> None:
    """Show the files that settings are read from; later ones win."""
    found = [{"path": str(path), "kind": kind, "exists": path.is_file()} for kind, path in _files()]
    if as_json:
        print_json(found)
        return
    rows = [[entry["kind"], entry["path"], "read" if entry["exists"] else "does not exist"] for entry in found]
    print_table("", ["whose", "file", "state"], rows, "")


def change(
    key: Annotated[str, typer.Argument(help="SECTION.NAME, as `config show` has it.", autocompletion=complete_keys)],
    value: Annotated[str, typer.Argument(help="TOML such as 2, true or a list; or a text.")],
    project: Annotated[bool, typer.Option("--project", help="In the project's file, not in the user's.")] = False,
) -> None:
    """Write a setting into the user's file, or the project's; comments stay.

    Running services keep what they were started with.
    """
    from looseleaf.config_edit import parse_setting, write_setting
    from looseleaf.config_load import settings

    section, name, new = parse_setting(key, value)
    files = dict(_files())
    path = files.get("LOOSELEAF_CONFIG") or files["project" if project else "user"]
    write_setting(path, section, name, new)
    print(f"{key} = {_shown(new)} in {path}")
    now = next(entry for entry in settings(section) if entry.name == name)
    if now.origin.rpartition(":")[0] not in (str(path), str(path.absolute())):
        print(f"here {now.origin} wins, with {_shown(now.value)}")


def _files() -> list[tuple[str, Path]]:
    """Whose file and where, in the order in which they are read."""
    import os

    from looseleaf.config_files import CONFIG_NAME, project_config_file, user_config_file

    if chosen := os.environ.get("LOOSELEAF_CONFIG"):
        return [("LOOSELEAF_CONFIG", Path(chosen))]
    return [("user", user_config_file()), ("project", project_config_file() or Path.cwd() / CONFIG_NAME)]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None or value == "" else str(value)
