"""docs/operate.md shows commands, settings, reasons, links and answers that there are."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import grpc_answers
import pytest
import typer
from compose_model import BASE_FILE, CONFIGS, DIRECT_VARIABLES, GPU_FILE, ROOT, variables_of
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_answers import DOCUMENT, Session, calls_of, masked, shown
from shell_lines import COMPOSE_OPTIONS, check, check_grpcurl, commands_of

from looseleaf.cli.main import build_app
from looseleaf.kernel.history_magics import HELP
from looseleaf.recipe.history_line import HISTORY_MAGIC, parse_history_line

TEXT = DOCUMENT.read_text(encoding="utf-8")
SPANS = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", TEXT)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Options of other programs that the text mentions.
OTHER_OPTIONS = {"--help", "--wait", "--volumes", "--build"}
# Why a new daemon did not take a worker over: words of its log.
NOT_ADOPTED = {"ENDED", "SILENT", "SOCKET_MOVED", "VERSION_MOVED"}
# What a kernel reads as it starts, beside its settings.
KERNEL_VARIABLES = {"LOOSELEAF_SESSION"}


def flags_of_cli(command: object) -> set[str]:
    found = {name for parameter in getattr(command, "params", []) for name in parameter.opts if name.startswith("--")}
    return found.union(*map(flags_of_cli, getattr(command, "commands", {}).values()))


def shown_commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("command", shown_commands())
def test_every_shown_command_is_one_that_there_is(command: str) -> None:
    for words in commands_of(command):
        assert check(words)


def test_commands_within_sentences_are_ones_that_there_are() -> None:
    checked = 0
    for span in SPANS:
        if span.startswith(("looseleaf ", "docker compose ")) and "|" not in span and "NAME" not in span:
            for words in commands_of(span.replace("VERSION", "1")):
                check(words)
            checked += 1
    assert checked >= 10


def test_every_line_of_the_magic_is_one_that_there_is() -> None:
    lines = [span.removeprefix(f"%{HISTORY_MAGIC} ") for span in SPANS if span.startswith(f"%{HISTORY_MAGIC} ")]
    assert len(lines) >= 5
    for line in lines:
        # As somebody would type it who wants every option.
        typed = re.sub(r"[][]|\.\.\.", "", re.sub(r"\b(VERSION|N|A|B)\b", "1", line))
        assert parse_history_line(typed).command == line.split()[0]


def test_every_setting_in_the_text_exists() -> None:
    flags = {"--" + name.replace("_", "-") for model in CONFIGS.values() for name in model.model_fields}
    flags |= flags_of_cli(typer.main.get_command(build_app())) | COMPOSE_OPTIONS.keys() | OTHER_OPTIONS
    flags |= set(re.findall(r"--[a-z]+", HELP))
    named = {flag for span in SPANS for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", span)}
    assert len(named) >= 15 and named <= flags, named - flags
    prefixes = {str(model.model_config["env_prefix"]) for model in CONFIGS.values()}
    fields = {
        f"{model.model_config['env_prefix']}{name}".upper() for model in CONFIGS.values() for name in model.model_fields
    }
    variables = {name for span in SPANS for name in re.findall(r"LOOSELEAF_[A-Z_]+", span)}
    known = prefixes | fields | DIRECT_VARIABLES | KERNEL_VARIABLES
    assert variables <= known, variables - known


def test_every_reason_in_the_text_is_in_the_catalogue() -> None:
    catalogue = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    # Linux's and Python's own names are no reasons of ours.
    others = {"CAP_SYS_ADMIN", "PYTHONPATH", "DATA", "SERVING", *variables_of(BASE_FILE), *variables_of(GPU_FILE)}
    others |= NOT_ADOPTED
    words = {word for span in SPANS for word in re.findall(r"^[A-Z]+_?[A-Z_]+$", span)} - others
    words = {word for word in words if not word.startswith("LOOSELEAF_")}
    assert len(words) >= 10
    assert all(f"`{word}`" in catalogue for word in words), [word for word in words if f"`{word}`" not in catalogue]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), f"{path.name}: {target}"
        if heading and file.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}
            assert heading in slugs, f"{path.name}: {target}"


def test_shown_calls_are_the_generators_and_answers_have_the_fields_of_the_protos() -> None:
    commands = [command for command, _answer in shown()]
    wanted = [call.command for call in calls_of(Session("s-0123456789abcdef", "x-0123456789abcdef"))]
    assert list(map(masked, commands)) == list(map(masked, wanted)), f"run {grpc_answers.__file__} --write"
    for command, answer in shown():
        (words,) = commands_of(command)
        _address, method, _request = check_grpcurl(words[1:])
        if method == "list":
            assert answer.splitlines() == sorted(answer.splitlines())
            continue
        service, _, name = method.partition("/")
        output = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name].output_type
        # Unknown fields and values raise.
        json_format.Parse(answer, message_factory.GetMessageClass(output)())


def test_ids_and_figures_are_masked_and_words_are_not() -> None:
    one = '{\n  "sessionId": "s-0123456789abcdef",\n  "version": "3",\n  "gpuHeldS": 0.5,\n  "liveness": "alive"\n}'
    other = one.replace("0123456789abcdef", "fedcba9876543210").replace('"3"', '"12"').replace("0.5", "1e-05")
    assert masked(one) == masked(other)
    assert masked(one) != masked(one.replace("alive", "dead")) and masked(one) != masked(one.replace("gpuHeldS", "gpu"))


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_shown_answers_are_those_of_the_services_now() -> None:
    """If this fails after a change that is meant: `python tests/docker/grpc_answers.py --write`."""
    with grpc_answers.running_session() as rig:
        now = asyncio.run(grpc_answers.collect(rig))
    for (_call, fresh), (command, answer) in zip(now, shown(), strict=True):
        assert masked(f"{fresh}\n") == masked(answer), command
