"""`looseleaf state ls|du|diff` and `looseleaf session diff`: what versions hold, read from their manifests alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from looseleaf.cli.options import (
    DataOption,
    JsonOption,
    SessionArgument,
    TimeoutOption,
    example,
    print_json,
    print_table,
)
from looseleaf.cli.session import EXAMPLE_SESSION, ask_store

if TYPE_CHECKING:
    from looseleaf.checkpoint.manifest import Manifest, UnitHeader

# A value in a table; `--json` has all that the manifest keeps of it.
VALUE_CHARS_MAX: Final = 60

VersionOption = Annotated[int, typer.Option("--version", min=0, help="Which version; 0: the newest.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    state = typer.Typer(help="Saved variables of a session.", no_args_is_help=True)
    state.command("ls", epilog=example(f"state ls {EXAMPLE_SESSION}"))(list_variables)
    state.command("du", epilog=example(f"state du {EXAMPLE_SESSION} --version 3"))(show_usage)
    state.command("diff", epilog=example(f"state diff {EXAMPLE_SESSION} 3 5"))(show_changes)
    app.add_typer(state, name="state")


def list_variables(
    session_id: SessionArgument, version: VersionOption = 0, data: DataOption = None, as_json: JsonOption = False,
    timeout_s: TimeoutOption = 10.0,
) -> None:
    """Show the variables of a version, with those that were not saved and why."""
    from looseleaf.checkpoint.lazy import lazy_names

    manifest = read_manifest(session_id, version, data, timeout_s)
    lazy = set(lazy_names(manifest))
    saved = [
        {"name": name, **_described(manifest.units[unit_id].header), "notes": manifest.units[unit_id].header.notes,
         "lazy": name in lazy}
        for name, unit_id in manifest.roots.items()
    ]  # fmt: skip
    unsaved = [
        {"name": entry.name, "reason": entry.reason, "path": entry.path, "detail": entry.detail}
        for entry in manifest.unsaved
    ]
    if as_json:
        print_json({"session_id": session_id, "version": manifest.version, "saved": saved, "unsaved": unsaved})
        return
    rows = [
        [entry["name"], entry["type"], entry["shape"], entry["device"],
         shortened(("lazy: " if entry["lazy"] else "") + entry["preview"])]
        for entry in saved
    ]  # fmt: skip
    rows += [[entry["name"], "not saved", "-", "-", f"{entry['reason']} at {entry['path']}"] for entry in unsaved]
    title = f"variables of {session_id} at version {manifest.version}"
    print_table(title, ["name", "type", "shape", "device", "value"], rows, "the session has no saved variables")


def show_usage(
    session_id: SessionArgument, version: VersionOption = 0, data: DataOption = None, as_json: JsonOption = False,
    timeout_s: TimeoutOption = 10.0,
) -> None:
    """Show how many bytes each variable reaches, and how many of them no other variable does."""
    from looseleaf.checkpoint.history import usage
    from looseleaf.units import format_bytes

    manifest = read_manifest(session_id, version, data, timeout_s)
    found = usage(manifest)
    if as_json:
        rows: list[Any] = [
            {"name": entry.name, "type": entry.header.type_name, "reached_bytes": entry.reached_bytes,
             "own_bytes": entry.own_bytes}
            for entry in found
        ]  # fmt: skip
        print_json({"session_id": session_id, "version": manifest.version, "total_bytes": manifest.logical_bytes(),
                    "variables": rows})  # fmt: skip
        return
    rows = [
        [entry.name, entry.header.type_name, format_bytes(entry.reached_bytes), format_bytes(entry.own_bytes)]
        for entry in found
    ]
    title = f"{session_id} at version {manifest.version}: {format_bytes(manifest.logical_bytes())} in all"
    print_table(title, ["name", "type", "reached", "of its own"], rows, "the session has no saved variables")


def show_changes(
    session_id: SessionArgument,
    old: Annotated[int, typer.Argument(min=1, help="The earlier version.")],
    new: Annotated[int, typer.Argument(min=0, help="The later version; 0: the newest.")] = 0,
    data: DataOption = None, as_json: JsonOption = False, timeout_s: TimeoutOption = 10.0,
) -> None:
    """Show which variables two versions tell differently, and how many bytes of them are new."""
    from looseleaf.checkpoint.history import changes
    from looseleaf.units import format_bytes

    before, after = (read_manifest(session_id, version, data, timeout_s) for version in (old, new))
    found = changes(before, after)
    if as_json:
        print_json([
            {"name": entry.name, "change": entry.kind, "before": entry.before and _described(entry.before),
             "after": entry.after and _described(entry.after), "new_bytes": entry.moved_bytes}
            for entry in found
        ])  # fmt: skip
        return
    rows = []
    for entry in found:
        texts = ["-" if header is None else shortened(header.preview) for header in (entry.before, entry.after)]
        if entry.why_unsaved is not None:
            texts[1] = f"{entry.why_unsaved.reason} at {entry.why_unsaved.path}"
        rows.append([entry.name, entry.kind, *texts, format_bytes(entry.moved_bytes) if entry.moved_bytes else "-"])
    title = f"{session_id}: version {before.version} to {after.version}"
    print_table(title, ["name", "change", "before", "after", "new bytes"], rows, "nothing differs")


def read_manifest(session_id: str, version: int, data: Path | None, timeout_s: float) -> Manifest:
    """The manifest of a kept version; raises NotFound `SESSION_UNKNOWN` or `VERSION_UNKNOWN`."""
    from looseleaf.checkpoint.manifest import Manifest, decode_manifest
    from looseleaf.ids import SessionId
    from looseleaf.v1 import checkpoint_store_pb2 as pb

    request = pb.GetManifestRequest(session_id=session_id, version=version)
    answer = ask_store(data, lambda store: store.GetManifest(request, timeout_s=timeout_s))
    return decode_manifest(answer.manifest) if answer.manifest else Manifest(SessionId(session_id))


def shortened(text: str) -> str:
    """The text, or its beginning and an ellipsis: at most VALUE_CHARS_MAX characters."""
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"


def _described(header: UnitHeader) -> dict[str, Any]:
    shape = "x".join(map(str, header.shape)) if header.shape is not None else ""
    return {
        "type": header.type_name, "shape": shape or (str(header.length) if header.length is not None else "-"),
        "device": header.device or "-", "preview": header.preview,
    }  # fmt: skip
