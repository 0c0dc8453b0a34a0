"""`looseleaf rpc list|describe|call`: any server by reflection, JSON in and out."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from looseleaf.cli.options import DataOption, JsonOption, TimeoutOption, example, print_json, resolve_address, wait

AddressArgument = Annotated[str, typer.Argument(help="unix:/path, host:port, or a service's name such as scheduler.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    rpc = typer.Typer(help="Talk to any LooseLeaf server: list, describe, call.", no_args_is_help=True)
    rpc.command("list", epilog=example("rpc list scheduler"))(list_services)
    rpc.command("describe", epilog=example("rpc describe scheduler looseleaf.v1.SchedulerService"))(describe)
    rpc.command("call", epilog=example("rpc call scheduler looseleaf.v1.SchedulerService/GetPool '{}'"))(call)
    app.add_typer(rpc, name="rpc")


def list_services(
    address: AddressArgument,
    service: Annotated[str, typer.Argument(help="Show this service's methods instead.")] = "",
    data: DataOption = None,
    as_json: JsonOption = False,
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

    found = wait(ask(resolve_address(address, data)))
    if as_json:
        print_json(found)
    else:
        print("\n".join(found))


def describe(
    address: AddressArgument,
    symbol: Annotated[str, typer.Argument(help="Full name of a service, method, message or enum.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a service, method, message or enum as .proto text."""
    from looseleaf.rpc.client import open_channel
    from looseleaf.rpc.reflect import Reflection

    async def ask(target: str) -> str:
        async with open_channel(target, peer="server") as channel:
            return await Reflection(channel).describe(symbol.replace("/", "."))

    text = wait(ask(resolve_address(address, data)))
    if as_json:
        print_json({"symbol": symbol, "proto": text})
    else:
        print(text)


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
