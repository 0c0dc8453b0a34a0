"""`looseleaf rpc list|describe|call`: any server by reflection, JSON in and out."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from looseleaf.cli.options import DataOption, TimeoutOption, resolve_address, wait

AddressArgument = Annotated[str, typer.Argument(help="unix:/path, host:port, or a service's name such as scheduler.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    rpc = typer.Typer(help="Talk to any LooseLeaf server: list, describe, call.", no_args_is_help=True)
    rpc.command("list")(list_services)
    rpc.command("describe")(describe)
    rpc.command("call")(call)
    app.add_typer(rpc, name="rpc")


def list_services(
    address: AddressArgument,
    service: Annotated[str, typer.Argument(help="Show this service's methods instead.")] = "",
    data: DataOption = None,
) -> None:
    """List the server's services, or one service's methods."""
    from looseleaf.rpc.client import open_channel
    from looseleaf.rpc.reflect import Reflection

    async def ask(target: str) -> list[str]:
        async with open_channel(target, peer="server") as channel:
            reflection = Reflection(channel)
            if not service:
                return await reflection.services()
            text = await reflection.describe(service)
        return [line.strip().removeprefix("rpc ").rstrip(";") for line in text.splitlines()[1:-1]]

    print("\n".join(wait(ask(resolve_address(address, data)))))


def describe(
    address: AddressArgument,
    symbol: Annotated[str, typer.Argument(help="Full name of a service, method, message or enum.")],
    data: DataOption = None,
) -> None:
    """Show a service, method, message or enum as .proto text."""
    from looseleaf.rpc.client import open_channel
    from looseleaf.rpc.reflect import Reflection

    async def ask(target: str) -> str:
        async with open_channel(target, peer="server") as channel:
            return await Reflection(channel).describe(symbol.replace("/", "."))

    print(wait(ask(resolve_address(address, data))))


def call(
    address: AddressArgument,
    method: Annotated[str, typer.Argument(help="Such as looseleaf.v1.SchedulerService/GetPool.")],
    request: Annotated[str, typer.Argument(help="JSON; '-' reads stdin; for a stream an array or one a line.")] = "",
    data: DataOption = None,
    timeout_s: TimeoutOption = 10.0,
) -> None:
    """Call a method; each answer is one JSON value on stdout."""
    from looseleaf.rpc.client import open_channel
    from looseleaf.rpc.reflect import Reflection, parse_requests

    text = sys.stdin.read() if request == "-" else request

    async def ask(target: str) -> None:
        async with open_channel(target, peer="server") as channel:
            reflection = Reflection(channel)
            found = await reflection.method(method)
            values: list[Any] = parse_requests(text, found.client_streaming)
            async for answer in reflection.call(found, values, timeout_s):
                print(json.dumps(answer, indent=2), flush=True)

    wait(ask(resolve_address(address, data)))
