"""`looseleaf kernel install|uninstall|list`: the kernelspec that notebooks choose."""

from __future__ import annotations

from typing import Annotated

import typer

from looseleaf.cli.options import JsonOption, example, print_json, print_table

NameOption = Annotated[str, typer.Option("--name", help="Name of the kernelspec.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    kernel = typer.Typer(help="The Jupyter kernel of this environment.", no_args_is_help=True)
    kernel.command(epilog=example("kernel install --sys-prefix"))(install)
    kernel.command(epilog=example("kernel uninstall"))(uninstall)
    kernel.command("list", epilog=example("kernel list"))(list_kernels)
    app.add_typer(kernel, name="kernel")


def install(
    user: Annotated[bool, typer.Option("--user", help="For this user only.")] = False,
    sys_prefix: Annotated[bool, typer.Option("--sys-prefix", help="Into this Python environment.")] = False,
    name: NameOption = "looseleaf",
    endpoint: Annotated[str, typer.Option(help="A daemon's kernel socket; default: found at start.")] = "",
) -> None:
    """Install the kernelspec "Python 3 (LooseLeaf)"; without --user or --sys-prefix for all users."""
    import sys

    from looseleaf.errors import Forbidden, InvalidArgument
    from looseleaf.kernel.install import install as install_spec

    if user and sys_prefix:
        raise InvalidArgument("OPTIONS_CONTRADICT", "give --user or --sys-prefix, not both")
    try:
        folder = install_spec(user=user, prefix=sys.prefix if sys_prefix else None, name=name, endpoint=endpoint)
    except ValueError as error:
        raise InvalidArgument("KERNELSPEC_NAME_REFUSED", str(error)) from error
    except PermissionError as error:
        text = f"{error.filename} cannot be written: use --user or --sys-prefix"
        raise Forbidden("KERNELSPEC_REFUSED", text) from error
    print(f"installed {name} in {folder}")


def uninstall(name: NameOption = "looseleaf") -> None:
    """Remove the kernelspec."""
    from looseleaf.errors import NotFound
    from looseleaf.kernel.install import uninstall as uninstall_spec

    if not uninstall_spec(name):
        text = f"there is no kernelspec {name!r}: `looseleaf kernel list` shows those there are"
        raise NotFound("KERNELSPEC_UNKNOWN", text)
    print(f"removed {name}")


def list_kernels(as_json: JsonOption = False) -> None:
    """List the installed kernelspecs that start LooseLeaf."""
    from looseleaf.kernel.install import installed

    found = installed()
    if as_json:
        print_json(found)
        return
    rows = [[item["name"], item["display_name"], item["python"], item["folder"]] for item in found]
    empty = "no LooseLeaf kernelspec is installed: `looseleaf kernel install --sys-prefix`"
    print_table("LooseLeaf kernels", ["name", "shown as", "python", "folder"], rows, empty)
