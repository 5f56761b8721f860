"""Options of stores by flag, variable and table: which counts, whose file is believed, and no secret in any."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_tools.errors import UsageError
from ckpt_tools.model.selection import StoreOptions
from ckpt_tools.settings import resolve as config

KEYS = dict.fromkeys(config.BY_KEY)
SECRET = "hunter2hunter2"


def resolve(here: Path, flags: list[str] | None = None, **env: str) -> config.Settings:
    return config.resolve({**KEYS, "root": "s3://bucket/run", "store-option": flags}, env=env, cwd=str(here))


@pytest.mark.parametrize("file", ["ckpt.toml", "pyproject.toml"])
def test_flags_go_before_the_variable_and_both_before_tables(tmp_path: Path, file: str) -> None:
    above = "" if file == "ckpt.toml" else "tool.ckpt."
    (tmp_path / file).write_text(
        f'[{above}store."s3://bucket"]\nregion = "a"\nallow_http = true\ntimeout = 3\n'
        f'[{above}store."s3://bucket/run/"]\nregion = "b"\n'
        f'[{above}store."sftp://host"]\nport = 22\nclient_kwargs.region_name = "r"\n'
    )
    found = resolve(tmp_path)
    assert found.stores is not None and found.selection().stores == found.stores
    assert found.stores.of("s3://bucket/run/x") == {"region": "b", "allow_http": "true", "timeout": "3"}
    assert found.stores.of("sftp://host/x") == {"port": "22", "client_kwargs.region_name": "r"}
    told = resolve(tmp_path, CKPT_STORE_OPTION="region=c\ntimeout=4").stores
    wanted = {"region": "c", "allow_http": "true", "timeout": "4"}
    assert told is not None and told.of("s3://bucket/run") == wanted
    told = resolve(tmp_path, ["aws-region=d"], CKPT_STORE_OPTION="region=c\ntimeout=4").stores
    assert told is not None and told.flags == (("region", "d"),)


def test_nothing_given_is_nothing(tmp_path: Path) -> None:
    assert resolve(tmp_path).stores is None


@pytest.mark.parametrize(
    "given",
    [
        "secret_access_key={}", "sas-token={}", "proxy_url=http://me:{}@proxy", "endpoint=https://h/?sig={}", "{}", "{} {}=3",
        "region=eu\nregion=us\nsession_token={}",
    ],
)  # fmt: skip
def test_no_secret_is_taken_or_said(tmp_path: Path, given: str) -> None:
    option = given.format(SECRET, SECRET)
    key, _, value = option.rpartition("\n")[2].partition("=")
    (tmp_path / "ckpt.toml").write_text(f'[store."s3://bucket"]\n"{key}" = "{value}"\n')
    calls = {
        "--store-option": lambda: resolve(tmp_path.parent, option.split("\n")),
        "CKPT_STORE_OPTION": lambda: resolve(tmp_path.parent, CKPT_STORE_OPTION=option),
        'ckpt.toml: [store."s3://bucket"]': lambda: resolve(tmp_path),
    }
    for origin, call in calls.items():
        if "toml" in origin and "=" not in option:
            continue  # a key without a value is not TOML
        with pytest.raises(UsageError) as e:
            call()
        assert origin in str(e.value) and SECRET not in f"{e.value} {e.value.hint} {e.value!r}"


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('store = "s3://bucket"', "store"),
        ('[store]\nregion = "x"', "not a table for a URL"),
        ('[store."bucket"]\nregion = "x"', "not a table for a URL"),
        ('[store."s3://b"]\nregion = ["x"]', "a text, a number"),
        ('[store."https://me:hunter2hunter2@h"]\ntimeout = 3', "password"),
        ('[store."https://h/x?sig=hunter2hunter2"]\ntimeout = [3]', r'https://h/x"\]: an option'),
        ('[store."s3://b"]\nregion = "x"\n[store."s3://b/"]\nregion = "y"', "twice"),
    ],
)
def test_a_table_that_is_none_is_a_question(tmp_path: Path, table: str, why: str) -> None:
    (tmp_path / "ckpt.toml").write_text(table + "\n")
    with pytest.raises(UsageError, match=why) as e:
        resolve(tmp_path)
    assert SECRET not in f"{e.value} {e.value.hint}"


def test_a_file_in_the_tree_that_is_scanned_gives_no_orders(tmp_path: Path) -> None:
    """Whoever says where a store is says what is resumed from."""
    (tmp_path / "ckpt.toml").write_text('[store."s3://bucket"]\nendpoint = "https://elsewhere"\n')
    for root in (str(tmp_path), f"file://{tmp_path}", f"FILE://localhost{tmp_path}"):
        found = config.resolve({**KEYS, "root": root}, env={}, cwd=str(tmp_path))
        assert found.stores is None and found.notes, root


def test_the_root_may_be_a_url_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "ckpt.toml").write_text('root = "https://host/a?X-Amz-Signature=hunter2hunter2"\n')
    found = config.resolve(KEYS, env={}, cwd=str(tmp_path / "below"))
    assert found.root == "https://host/a" and SECRET not in repr(found)
    found = config.resolve(KEYS, env={"CKPT_ROOT": "s3://bucket/run"}, cwd=str(tmp_path))
    assert found.root == "s3://bucket/run" and found.selection().stores is None
    assert StoreOptions().of(found.root) == {}
