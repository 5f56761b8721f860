"""Options of stores, by flag, variable and table: what is secret is refused and never quoted, which of them counts,
and whose file is believed.
"""

from __future__ import annotations

import pickle
import re
from datetime import timedelta
from pathlib import Path

import pytest

from ckpt_tools.errors import UsageError
from ckpt_tools.model.selection import StoreOptions
from ckpt_tools.settings import resolve as config
from ckpt_tools.storage.stores import mounts, options
from ckpt_tools.storage.stores.options import check_option, open_options

SECRETS = (
    "access_key_id secret_access_key session_token token aws_secret_access_key AWS-Session-Token "
    "sse_customer_key_base64 account_key azure_storage_account_key access_key master_key sas_key sas_token "
    "client_secret bearer_token fabric_session_token encryption_key service_account_key "
    "google_service_account_key default_headers password passwd pass passphrase secret key pkey auth "
    "connection_string client_kwargs.password storage_options.token cookies http_auth credentials"
)
OPEN = (
    "endpoint region profile skip_signature sse_kms_key_id sse_bucket_key_enabled web_identity_token_file "
    "federated_token_file application_credentials service_account service_account_path account_name client_id "
    "authority_host tenant_id use_azure_cli timeout allow_http host port username key_filename"
)
VALUE = "hunter2hunter2"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": VALUE}


@pytest.mark.parametrize("key", SECRETS.split())
def test_a_secret_is_refused_with_what_to_do_and_is_not_quoted(key: str) -> None:
    with pytest.raises(ValueError, match="AWS_PROFILE") as e:
        check_option(key, VALUE)
    assert VALUE not in str(e.value)


@pytest.mark.parametrize("key", OPEN.split())
def test_what_is_no_secret_is_taken(key: str) -> None:
    assert check_option(key, "x") == (key, "x")


def test_every_option_of_the_client_is_either_taken_or_a_secret() -> None:
    """obstore's own list, so that a new option of a later version is decided about."""
    import obstore

    text = (Path(obstore.__file__).parent / "_store/_client.pyi").read_text().partition("Config(TypedDict")[2]
    named = set(re.findall(r"^    (\w+): ", text, re.MULTILINE))
    assert {key for key in named - options.CLIENT if not options.is_secret(key)} == {"default_content_type"}


@pytest.mark.slow
def test_the_client_takes_each_of_its_options() -> None:
    store = pytest.importorskip("obstore.store")
    for key in options.CLIENT - {"root_certificate", "proxy_ca_certificate"}:
        value = "3s" if "timeout" in key or "interval" in key else "true"
        value = "65536" if key.endswith(("size", "host")) else value
        value = "http://127.0.0.1:1" if key == "proxy_url" else value
        made = open_options("s3://bucket", StoreOptions(((key, value),)), KEYS)
        assert key in made["client_options"]
        store.from_url("s3://bucket", **made)


@pytest.mark.parametrize(
    "value", ["http://me:hunter2@proxy:8080", "https://hunter2@host", "https://h/?sig=hunter2"]
)
def test_a_url_with_a_password_is_no_value(value: str) -> None:
    with pytest.raises(ValueError, match="others can see") as e:
        check_option("proxy_url", value)
    assert "hunter2" not in str(e.value)


def test_the_longest_prefix_counts_for_each_key_and_flags_before_it() -> None:
    bucket = (("region", "a"), ("timeout", "1s"), ("endpoint", "https://here"))
    tables = {
        "s3://bucket/run": (("region", "b"),),
        "s3://bucket": bucket,
        "s3://bucket2": (("region", "c"),),
    }
    given = StoreOptions((("timeout", "9s"),), (*tables.items(), ("s3://", (("skip_signature", "true"),))))
    here = {"endpoint": "https://here", "skip_signature": "true", "timeout": "9s"}
    for url, region in (("/run/x", "b"), ("/runs", "a"), ("", "a")):
        assert given.of(f"s3://bucket{url}") == {**here, "region": region}
    assert given.of("gs://bucket") == {"timeout": "9s"}


def test_a_value_is_hashed_copied_and_shown_without_what_it_holds() -> None:
    given = StoreOptions((("endpoint", VALUE),), (("s3://b", (("region", VALUE),)),))
    assert hash(given) == hash(pickle.loads(pickle.dumps(given))) and VALUE not in repr(given)
    assert "endpoint" in repr(given) and "region" in repr(given)


PLAIN = {"allow_http": "true"}
RETRIES = {"max_retries": "3", "retry_timeout": "1m", "init_backoff": "100ms", "backoff_base": "2"}
BACKOFF = {"init_backoff": timedelta(seconds=0.1), "base": 2.0}
OTHERS = {"AWS_ALLOW_HTTP": "true", "AWS_TIMEOUT": "9s", "GOOGLE_PROXY_URL": "x"}


@pytest.mark.parametrize(
    ("url", "flags", "env", "config", "client"),
    [
        ("s3://b", {"region": "r"}, {}, {"region": "r"}, {}),
        ("s3://b", {"timeout": "90"}, {}, {}, {"timeout": "90000ms"}),
        ("s3://b", {"endpoint": "http://h:1"}, {}, {"endpoint": "http://h:1"}, PLAIN),
        ("s3://b", {}, {"AWS_ENDPOINT_URL": "http://h:1"}, {}, PLAIN),
        ("s3://b", {"timeout": "3"}, OTHERS, {}, {"timeout": "3000ms", **PLAIN}),
        ("s3://b", {}, {"AWS_ALLOW_HTTP": "true"}, {}, {}),
        ("s3://b", {"skip_signature": "true"}, {}, {"skip_signature": "true"}, {}),
        ("gs://b", {"base_url": "http://h"}, {}, {"base_url": "http://h"}, PLAIN),
        ("http://h", {}, {}, {}, PLAIN),
        ("https://h", {"connect_timeout": "500ms"}, {}, {}, {"connect_timeout": "500ms"}),
    ],
)
def test_what_a_store_is_opened_with(
    url: str, flags: dict[str, str], env: dict[str, str], config: dict[str, str], client: dict[str, str]
) -> None:
    keys = KEYS if url.startswith("s3:") and "skip_signature" not in flags else {}
    expected = {"config": config, "client_options": client}
    made = open_options(url, StoreOptions(tuple(flags.items())), {**keys, **env})
    assert made == {name: value for name, value in expected.items() if value}


def test_what_other_stores_are_opened_with() -> None:
    made = open_options("az://c", StoreOptions(tuple(RETRIES.items())), {})
    told = {"max_retries": 3, "retry_timeout": timedelta(minutes=1), "backoff": BACKOFF}
    assert made == {"retry_config": told}
    flags = {"port": "22", "look_for": "true", "host": "h"}
    inner = {"client_kwargs.region_name": "r", "client_kwargs.n": "1"}
    made = open_options("sftp://h", StoreOptions((*flags.items(), *inner.items())), {})
    assert made == {"port": 22, "look_for": True, "host": "h", "client_kwargs": {"region_name": "r", "n": 1}}


@pytest.mark.parametrize(
    ("url", "key", "value", "hint"),
    [
        ("s3://b", "regoin", "x", "ckpt.toml"),
        ("gs://b", "endpoint", "https://h", "ckpt.toml"),
        ("https://h", "region", "x", "ckpt.toml"),
        ("s3://b", "max_retries", "many", "max_retries=3"),
        ("s3://b", "timeout", "soon", "timeout=30s"),
        ("s3://b", "root_certificate", "/no/such/file", "PEM"),
    ],
)
def test_an_option_that_the_store_does_not_have_is_a_question(
    url: str, key: str, value: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, said in KEYS.items():
        monkeypatch.setenv(name, said)
    with pytest.raises(UsageError) as e:
        mounts.open_store(url, StoreOptions(((key, value),)))
    assert hint in e.value.hint and key in str(e.value)


# -- by flag, variable and table


UNSET = dict.fromkeys(config.BY_KEY)


def resolve(here: Path, flags: list[str] | None = None, **env: str) -> config.Settings:
    return config.resolve({**UNSET, "root": "s3://bucket/run", "store-option": flags}, env=env, cwd=str(here))


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
    option = given.format(VALUE, VALUE)
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
        assert origin in str(e.value) and VALUE not in f"{e.value} {e.value.hint} {e.value!r}"


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
    assert VALUE not in f"{e.value} {e.value.hint}"


def test_a_file_in_the_tree_that_is_scanned_gives_no_orders(tmp_path: Path) -> None:
    """Whoever says where a store is says what is resumed from."""
    (tmp_path / "ckpt.toml").write_text('[store."s3://bucket"]\nendpoint = "https://elsewhere"\n')
    for root in (str(tmp_path), f"file://{tmp_path}", f"FILE://localhost{tmp_path}"):
        found = config.resolve({**UNSET, "root": root}, env={}, cwd=str(tmp_path))
        assert found.stores is None and found.notes, root


def test_the_root_may_be_a_url_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "ckpt.toml").write_text('root = "https://host/a?X-Amz-Signature=hunter2hunter2"\n')
    found = config.resolve(UNSET, env={}, cwd=str(tmp_path / "below"))
    assert found.root == "https://host/a" and VALUE not in repr(found)
    found = config.resolve(UNSET, env={"CKPT_ROOT": "s3://bucket/run"}, cwd=str(tmp_path))
    assert found.root == "s3://bucket/run" and found.selection().stores is None
    assert StoreOptions().of(found.root) == {}
