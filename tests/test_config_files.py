"""Where the files lie, and on which line of them a key stands."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from platformdirs import user_config_dir

from looseleaf.config_files import SECTIONS, ConfigError, config_files, line_of, read_values, user_config_file


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "LOOSELEAF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(project)
    return tmp_path


@pytest.mark.parametrize("config_home", [None, "", "/x/config"])
def test_user_file_lies_where_platformdirs_puts_it(monkeypatch: pytest.MonkeyPatch, config_home: str | None) -> None:
    if config_home is not None:
        monkeypatch.setenv("XDG_CONFIG_HOME", config_home)
    assert user_config_file() == Path(user_config_dir("looseleaf")) / "looseleaf.toml"


def test_users_file_comes_first_and_a_file_that_is_both_comes_once(place: Path) -> None:
    user = user_config_file()
    user.parent.mkdir(parents=True)
    for path in (user, Path("looseleaf.toml")):
        path.write_text("")
    assert config_files() == [user, place / "project" / "looseleaf.toml"]
    Path("looseleaf.toml").unlink()
    Path("looseleaf.toml").symlink_to(user)
    assert config_files() == [user]


def test_line_of_every_key_of_random_files_is_the_one_it_was_written_on() -> None:
    chance = random.Random(7)
    for _ in range(50):
        lines: list[str] = []
        wanted: dict[tuple[str, str], int] = {}
        for section in chance.sample(SECTIONS, k=chance.randint(1, len(SECTIONS))):
            lines += ["# a comment = 1"] * chance.randint(0, 2)
            lines.append(chance.choice(["[{}]", " [ {} ] # why"]).format(section))
            wanted[section, ""] = len(lines)
            for key in chance.sample(["gpus", "listen", "python", "x-y"], k=chance.randint(0, 4)):
                lines += [""] * chance.randint(0, 2) + [chance.choice(["{} = 1", "  {}=2 # c", '"{}" = 3']).format(key)]
                wanted[section, key] = len(lines)
        assert {place: line_of("\n".join(lines), *place) for place in wanted} == wanted


def test_line_of_dotted_keys_and_of_what_has_no_line() -> None:
    text = "# first\ncluster.gpus = 2\nstore = { listen = 'x' }\n"
    lines = [line_of(text, *place) for place in (("cluster", "gpus"), ("store", "listen"), ("daemon", "gpus"))]
    assert lines == [2, 3, 0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[cluster]\n[schedular]\n", "2): there is no such setting; did you mean scheduler?"),
        ("gpus = 2\n", "1): there is no such setting; there are cluster, daemon"),
        ("\nstore = 1\n", "2): must be a table: [store]"),
        ("[store\n", "is not valid TOML: "),
        ("x = '\udcff'", "cannot be read: "),
        ("#" * (1 << 20) + "\n", "is larger than"),
    ],
)  # fmt: skip
def test_file_that_is_none_of_ours_is_refused_with_its_line(text: str, said: str) -> None:
    Path("looseleaf.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as refused:
        read_values("cluster")
    assert said in str(refused.value) and "looseleaf.toml" in str(refused.value)
    assert refused.value.reason == "CONFIG_INVALID" and json.dumps(refused.value.fields)
