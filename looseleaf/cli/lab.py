"""`looseleaf lab`: a cluster of this machine and JupyterLab, one for the other."""

from __future__ import annotations

from typing import Annotated

import typer

from looseleaf.cli import exits
from looseleaf.cli.cluster_options import ClusterCommand, given_settings, refuse_other_cluster
from looseleaf.cli.options import complete_notebooks, example


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(cls=ClusterCommand, epilog=example("lab notebooks --gpus 2 --device emulated -- --port=8899"))(lab)


def lab(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(
        metavar="[PATH] [-- OPTIONS]", autocompletion=complete_notebooks,
        help="The notebook or folder to open, by default this folder; after -- options of `jupyter lab`.",
    )] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    """Start JupyterLab with a cluster of this machine; both end with Ctrl-C, or when Lab is shut down.

    Notebooks get the kernel "Python 3 (LooseLeaf)", installed or not. A cluster that runs already is used and left
    running. Sessions stay in the data folder, as with `looseleaf up`.
    """
    from contextlib import ExitStack

    from rich.console import Console

    from looseleaf.local.cluster import LocalCluster, cluster_config
    from looseleaf.local.lab import LabServer, find_lab, split_words
    from looseleaf.local.record import read_record

    given = given_settings(context)
    config = cluster_config(given)
    command, arguments = find_lab(), split_words(words or [])
    with ExitStack() as stack:
        running = read_record(config.run_dir)
        if running is not None and running.alive:
            refuse_other_cluster(running, config, given)
            record, owned = running, False
        else:
            with Console(stderr=True).status("starting store, scheduler, frontend and daemons ..."):
                record, owned = stack.enter_context(LocalCluster.start(config)).record, True
        how = "ends with JupyterLab" if owned else "ran already and goes on"
        print(f"LooseLeaf: {record.gpus_per_host} GPU(s), device {record.device}; the cluster {how}", flush=True)
        server = LabServer([*command, *["--no-browser"] * no_browser, *arguments], record, owned=owned)
        code = server.run()
    if code != 0:
        typer.echo(f"looseleaf: JupyterLab ended with exit code {code}", err=True)
        raise typer.Exit(exits.FAILED)
