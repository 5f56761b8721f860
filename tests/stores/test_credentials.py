"""Who asks a store: each way in which its library finds credentials, against servers that verify them, and
what is said where it finds none, or the wrong ones.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha1
from pathlib import Path
from typing import NamedTuple

import pytest
from fsspec.registry import _registry
from stores.asking import TREE
from stores.azurite import ACCOUNT
from stores.azurite import KEY as AZURE_KEY
from stores.bucket import Bucket
from stores.faults import Status
from stores.proxy import Proxy, Rule
from stores.s3 import ACCESS, SECRET
from stores.serving import Handler, Server, serving

from ckpt_tools import cli, verify
from ckpt_tools.errors import UsageError
from ckpt_tools.model.selection import StoreOptions
from ckpt_tools.reading.engines import Engine
from ckpt_tools.storage import stalls

LATER = "2099-01-01T00:00:00Z"
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
WRONG = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": "wrong-secret"}
GOOD = f"aws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n"
BAD = f"aws_access_key_id = {ACCESS}\naws_secret_access_key = wrong-secret\n"


class Authority(Handler):
    """What hands out credentials in a cloud: STS, a container's agent, the login portal, a machine's own."""

    def answer(self) -> None:
        asked = f"{self.path} {self.body().decode()}"
        self.server.state.append(asked)
        of_all = {"AccessKeyId": ACCESS, "SecretAccessKey": SECRET, "Expiration": LATER}
        if "AssumeRole" in asked:
            kind = "AssumeRoleWithWebIdentity" if "WithWebIdentity" in asked else "AssumeRole"
            told = {**of_all, "SessionToken": "session"}
            keys = "".join(f"<{name}>{value}</{name}>" for name, value in told.items())
            inner = f"<{kind}Result><Credentials>{keys}</Credentials></{kind}Result>"
            text = f"<{kind}Response>{inner}</{kind}Response>"
            self.reply(200, {"Content-Type": "text/xml"}, text.encode())
        elif "api/token" in asked:
            self.reply(200, {"X-aws-ec2-metadata-token-ttl-seconds": "600"}, b"token")
        elif asked.startswith("/latest/meta-data/iam/security-credentials/ "):
            self.reply(200, {}, b"role")
        elif "federation/credentials" in asked:
            found = {"accessKeyId": ACCESS, "secretAccessKey": SECRET, "sessionToken": "s"}
            self.json({"roleCredentials": {**found, "expiration": 4070908800000}})
        else:
            told = {**of_all, "Token": "session", "LastUpdated": "2026-01-01T00:00:00Z"}
            self.json({"Code": "Success", **told})

    def json(self, value: object) -> None:
        self.reply(200, {"Content-Type": "application/json"}, json.dumps(value).encode())


class Desk(NamedTuple):
    """Somebody's account on a machine: a home directory, and an environment without anything of a cloud."""

    home: Path
    patch: pytest.MonkeyPatch
    capfd: pytest.CaptureFixture[str]
    authority: Server

    def aws(self, credentials: str = "", config: str = "") -> None:
        """What their files in ~/.aws hold."""
        (self.home / ".aws/credentials").write_text(credentials)
        (self.home / ".aws/config").write_text(config)

    def env(self, **variables: str) -> None:
        for name, value in variables.items():
            self.patch.setenv(name, value)

    def ls(self, url: str, **options: str) -> tuple[int, str]:
        """(exit code, what is said) of listing a tree."""
        words = [word for pair in options.items() for word in ("--store-option", "=".join(pair))]
        code = cli.execute(["ls", f"{url}/run", "--store-option", "max_retries=0", *words])
        out, err = self.capfd.readouterr()
        return code, out + err


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    for name in [n for n in os.environ if n.startswith(("AWS_", "GOOGLE_", "AZURE_", "CKPT_STORE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stalls, "pause", lambda _: None)
    (tmp_path / ".aws").mkdir()
    with serving(Authority, []) as authority:
        yield Desk(tmp_path, monkeypatch, capfd, authority)


# -- S3: rclone verifies signatures --------------------------------------------------------------------------


def by_profile(desk: Desk) -> None:
    desk.aws(f"[default]\n{BAD}[work]\n{GOOD}")
    desk.env(AWS_PROFILE="work")


def by_program(desk: Desk) -> None:
    script, keys = desk.home / "keys.py", {"Version": 1, "AccessKeyId": ACCESS, "SecretAccessKey": SECRET}
    script.write_text(f"print({json.dumps(keys)!r})")
    desk.aws(config=f"[profile work]\ncredential_process = {sys.executable} {script}\n")
    desk.env(AWS_PROFILE="work")


def by_role(desk: Desk) -> None:
    role = "role_arn = arn:aws:iam::123456789012:role/r\nsource_profile = base\nregion = us-east-1\n"
    services = f"[services local]\nsts =\n  endpoint_url = {desk.authority.endpoint}\n"
    desk.aws(f"[base]\n{BAD}", f"[profile work]\n{role}services = local\n{services}")
    desk.env(AWS_PROFILE="work")


def by_login(desk: Desk, until: str = LATER) -> None:
    start = "https://example.awsapps.com/start"
    account = "sso_region = us-east-1\nsso_account_id = 123456789012\nsso_role_name = r\nregion = us-east-1\n"
    desk.aws(config=f"[profile work]\nsso_start_url = {start}\n{account}")
    kept = desk.home / ".aws/sso/cache" / f"{sha1(start.encode()).hexdigest()}.json"
    kept.parent.mkdir(parents=True)
    # botocore looked for the home directory when it was imported
    desk.patch.setattr("botocore.credentials.SSOProvider._SSO_TOKEN_CACHE_DIR", str(kept.parent))
    kept.write_text(json.dumps({"accessToken": "login", "expiresAt": until, "startUrl": start}))
    desk.env(AWS_PROFILE="work", AWS_ENDPOINT_URL_SSO=desk.authority.endpoint)


def by_web_identity(desk: Desk) -> None:
    (desk.home / "token").write_text("a-web-token")
    desk.env(
        AWS_WEB_IDENTITY_TOKEN_FILE=str(desk.home / "token"),
        AWS_ROLE_ARN="arn:aws:iam::123456789012:role/r",
        AWS_ROLE_SESSION_NAME="ckpt",
        AWS_ENDPOINT_URL_STS=desk.authority.endpoint,
    )


def by_container(desk: Desk) -> None:
    (desk.home / "token").write_text("token")
    desk.env(
        AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{desk.authority.endpoint}/v1/credentials",
        AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(desk.home / "token"),
    )


def by_machine(desk: Desk) -> None:
    desk.env(AWS_EC2_METADATA_SERVICE_ENDPOINT=desk.authority.endpoint, AWS_EC2_METADATA_DISABLED="false")


Way = Callable[[Desk], None]
ASKS_NOBODY: dict[str, Way] = {
    "environment": lambda desk: desk.env(**KEYS),
    "profile": by_profile,
    "default profile": lambda desk: desk.aws(f"[default]\n{GOOD}"),
    "program": by_program,
}
ASKS: dict[str, Way] = {
    "role": by_role, "login": by_login, "web identity": by_web_identity, "container": by_container, "machine": by_machine,
}  # fmt: skip


@pytest.mark.share(2)
@pytest.mark.parametrize("way", [*ASKS_NOBODY, *ASKS])
def test_credentials_are_found_where_aws_finds_them(way: str, desk: Desk, rclone_s3: Bucket) -> None:
    rclone_s3.upload(TREE, "run")
    (ASKS_NOBODY | ASKS)[way](desk)
    code, said = desk.ls(rclone_s3.url, endpoint=rclone_s3.endpoint)
    assert (code, "iter_0000030" in said) == (0, True), f"{said} {desk.authority.state}"
    assert bool(desk.authority.state) == (way in ASKS)


def test_a_named_profile_goes_before_the_environment_and_that_of_the_environment_after_it(
    desk: Desk, rclone_s3: Bucket
) -> None:
    rclone_s3.upload(TREE, "run")
    desk.aws(f"[good]\n{GOOD}[bad]\n{BAD}")
    desk.env(**WRONG)
    assert desk.ls(rclone_s3.url, endpoint=rclone_s3.endpoint, profile="good")[0] == 0
    desk.env(**KEYS, AWS_PROFILE="bad")
    assert desk.ls(rclone_s3.url, endpoint=rclone_s3.endpoint)[0] == 0
    code, said = desk.ls(rclone_s3.url, endpoint=rclone_s3.endpoint, profile="bad")
    assert code == 5 and "403" in said


def test_the_endpoint_of_a_profile_counts_where_nothing_else_names_one(desk: Desk, rclone_s3: Bucket) -> None:
    rclone_s3.upload(TREE, "run")
    nowhere = "http://127.0.0.1:1"
    for config in (
        f"endpoint_url = {rclone_s3.endpoint}\n",
        f"endpoint_url = {nowhere}\nservices = own\n[services own]\ns3 =\n  endpoint_url = {rclone_s3.endpoint}\n",
    ):
        desk.aws(f"[work]\n{GOOD}", f"[profile work]\nregion = us-east-1\n{config}")
        assert desk.ls(rclone_s3.url, profile="work")[0] == 0, config
        assert desk.ls(rclone_s3.url, profile="work", endpoint=nowhere)[0] == 5
    desk.env(AWS_ENDPOINT_URL=nowhere)
    assert desk.ls(rclone_s3.url, profile="work")[0] == 5


def test_nobody_asks_a_public_bucket(desk: Desk, s3: Bucket, rclone_s3: Bucket, gcs: Bucket) -> None:
    gcs.upload(TREE, "run")
    assert desk.ls(gcs.url, base_url=gcs.endpoint, skip_signature="true")[0] == 0
    s3.upload(TREE, "run")
    assert desk.ls(s3.url, endpoint=s3.endpoint, skip_signature="true")[0] == 0
    desk.env(AWS_SKIP_SIGNATURE="true")
    assert desk.ls(s3.url, endpoint=s3.endpoint)[0] == 0
    assert desk.ls(rclone_s3.url, endpoint=rclone_s3.endpoint)[0] == 5, "one that wants a signature"


OLD_LOGIN = (
    "credentials of the profile 'work' could not be obtained, or have expired",
    "aws sso login --profile work",
)
MISSING: dict[str, tuple[Way, int, tuple[str, ...]]] = {
    "nothing": (lambda _: None, 5, ("there are no credentials for S3", "aws sso login", "skip_signature=true")),
    "expired login": (lambda desk: by_login(desk, "2020-01-01T00:00:00Z"), 5, OLD_LOGIN),
    "another profile": (lambda desk: desk.env(AWS_PROFILE="absent"), 2, ("no profile 'absent'", "aws configure list-profiles")),
    "no secret": (lambda desk: desk.env(AWS_ACCESS_KEY_ID=ACCESS), 5, ("AWS_SECRET_ACCESS_KEY is not", "AWS_PROFILE")),
    "wrong secret": (lambda desk: desk.env(**WRONG), 5, ("403 SignatureDoesNotMatch", "the credentials are not valid here")),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_said_with_what_to_do(name: str, desk: Desk, rclone_s3: Bucket) -> None:
    way, code, words = MISSING[name]
    way(desk)
    found, said = desk.ls(rclone_s3.url, endpoint=rclone_s3.endpoint)
    assert found == code and all(word in said for word in words), said


class Says(Handler):
    """One answer to everything."""

    def answer(self) -> None:
        status, code = self.server.state
        self.reply(status, {}, (f"<Error><Code>{code}</Code></Error>" if code else "").encode())


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "AccessDenied", "s3:ListBucket"), (404, "NoSuchBucket", "there is no such bucket"),
        (400, "ExpiredToken", "the session token has expired"), (403, "RequestTimeTooSkewed", "the clock of this machine is wrong"),
        (403, "InvalidAccessKeyId", "the credentials are not valid here"), (301, "PermanentRedirect", "region=REGION"),
        (400, "AuthorizationHeaderMalformed", "region=REGION"), (200, "Portal", "is not a store of this kind: check the endpoint"),
        (200, "", "check the endpoint"), (503, "SlowDown", "503 SlowDown"),
    ],
)  # fmt: skip
def test_what_a_store_refuses_is_said_with_what_to_do(status: int, code: str, words: str, desk: Desk) -> None:
    desk.env(**KEYS)
    with serving(Says, (status, code)) as server:
        found, said = desk.ls("s3://bucket", endpoint=server.endpoint)
        assert found == 5 and words in said, said
        started = ["latest", "s3://bucket/run", "--allow=none", "--allow=missing", "--allow=fresh"]
        no_retry = ["--store-option", "max_retries=0", "--store-option", f"endpoint={server.endpoint}"]
        assert cli.execute([*started, *no_retry]) == 5, "nothing is no answer here"


# -- Azure and Google ----------------------------------------------------------------------------------------


def test_azure_finds_its_account_and_key_in_the_environment(desk: Desk, azurite: Bucket) -> None:
    azurite.upload(TREE, "run")
    endpoint = azurite.options["endpoint"]
    code, said = desk.ls(azurite.url, endpoint=endpoint)
    assert code == 5 and "account_name=NAME" in said
    desk.env(AZURE_STORAGE_ACCOUNT_NAME=ACCOUNT, AZURE_STORAGE_ACCOUNT_KEY=AZURE_KEY)
    code, said = desk.ls(azurite.url, endpoint=endpoint)
    assert code == 0, said
    desk.env(AZURE_STORAGE_ACCOUNT_KEY="d3Jvbmc=")
    code, said = desk.ls(azurite.url, endpoint=endpoint)
    assert code == 5 and "403" in said and "credentials" in said and "d3Jvbmc" not in said
    desk.env(AZURE_STORAGE_ACCOUNT_KEY="no key")
    code, said = desk.ls(azurite.url, endpoint=endpoint)
    assert code == 5 and "AZURE_STORAGE_ACCOUNT_KEY" in said
    code, said = desk.ls("az://absent", endpoint=endpoint, skip_signature="true")
    assert code == 5


def test_google_finds_its_account_in_a_file(desk: Desk, gcs: Bucket) -> None:
    gcs.upload(TREE, "run")
    account = {"gcs_base_url": gcs.endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
    (desk.home / "account.json").write_text(json.dumps({**account, "private_key_id": ""}))
    desk.env(GOOGLE_SERVICE_ACCOUNT=str(desk.home / "account.json"))
    code, said = desk.ls(gcs.url, base_url=gcs.endpoint)
    assert code == 0, said
    desk.env(GOOGLE_SERVICE_ACCOUNT=str(desk.home / "absent.json"))
    code, said = desk.ls(gcs.url, base_url=gcs.endpoint)
    assert code == 5 and "GOOGLE_SERVICE_ACCOUNT" in said


# -- what is not installed -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "module", "says"),
    [
        ("s3://bucket", "obstore", "pip install 'ckpt-tools[cloud]'"), ("s3://bucket", "botocore", "pip install 'ckpt-tools[cloud]'"),
        ("sftp://host", "fsspec", "pip install 'ckpt-tools[fsspec]'"), ("hf://org/model", "huggingface_hub", "huggingface_hub"),
    ],
)  # fmt: skip
def test_what_is_not_installed_is_named(url: str, module: str, says: str, desk: Desk) -> None:
    desk.env(**({"AWS_PROFILE": "work"} if module == "botocore" else KEYS))
    desk.patch.delitem(_registry, "hf", raising=False)
    for name in [n for n in sys.modules if n == module or n.startswith(f"{module}.")]:
        desk.patch.delitem(sys.modules, name)
    desk.patch.setitem(sys.modules, module, None)  # an import of it fails
    code, said = desk.ls(url, endpoint="http://127.0.0.1:1") if url[:2] == "s3" else desk.ls(url)
    assert code == 5 and says in said, said


# -- who else reads ------------------------------------------------------------------------------------------


def test_an_engine_is_told_no_secrets_and_no_options(desk: Desk) -> None:
    """Its workers open stores as their own environment says, and might read another file of that name."""
    engine = Engine(ThreadPoolExecutor(1), "threads of the test")
    elsewhere = StoreOptions((("endpoint", "http://127.0.0.1:1"),))
    for url, stores in (("s3://bucket/run", elsewhere), ("http://127.0.0.1:1/a?sig=x", None)):
        with pytest.raises(UsageError, match="workers"):
            verify(url, engine=engine, stores=stores)


def test_a_presigned_url_is_asked_for_by_get_alone(
    desk: Desk, http_server: Bucket, proxy_of: Callable[[Bucket], Proxy]
) -> None:
    """It is signed for GET; S3 refuses every other method."""
    path = next(TREE.rglob("*.pt"))
    http_server.put("a b/%41/model_optim_rng.pt", path.read_bytes())
    http_server.put("a b/%41/empty.pt", b"")
    proxy = proxy_of(http_server)
    proxy.add(Rule(Status(403), path=r"^[^?]*$"))  # as a private bucket answers whoever is nobody
    proxy.add(Rule(Status(403), method="HEAD"))
    for name, expected in (("model_optim_rng.pt", 0), ("empty.pt", 1)):
        url = f"{http_server.through(proxy.endpoint).url}/a%20b/%2541/{name}?X-Amz-Signature=s&x=%2F"
        assert cli.execute(["verify", url]) == expected, desk.capfd.readouterr()
        assert cli.execute(["verify", url.replace("=s&", "=t&")]) == expected, "a renewed signature"
    signed = {seen.query for seen in proxy.seen if seen.status < 400}
    assert signed == {"X-Amz-Signature=s&x=%2F", "X-Amz-Signature=t&x=%2F"}
