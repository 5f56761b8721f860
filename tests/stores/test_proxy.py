"""Each fault that the proxy makes is the one that it says, and without a rule there is none."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from stores import faults
from stores.bucket import Bucket
from stores.faults import Corrupt, Cut, Hook, Short, ShortLength, StaleList, Stall
from stores.proxy import Proxy, Rule

DATA = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture
def proxy(http_server: Bucket, proxy_of: Callable[[Bucket], Proxy]) -> Proxy:
    http_server.put("k", DATA)
    return proxy_of(http_server)


@pytest.fixture
def ask(http_server: Bucket, proxy: Proxy):
    """Asks for the object through the proxy, on a connection that is kept as long as it can be."""
    connection = http.client.HTTPConnection(proxy.endpoint.removeprefix("http://"))
    path = http_server.url.removeprefix(http_server.endpoint)

    def get(byte_range: str = "", *, key: str = "k", method: str = "GET") -> tuple[int, bytes]:
        connection.request(method, f"{path}/{key}", headers={"Range": byte_range} if byte_range else {})
        answer = connection.getresponse()
        get.headers = answer.headers  # type: ignore[attr-defined]
        return answer.status, answer.read()

    yield get
    connection.close()


def test_without_a_rule_it_passes_everything_on_and_records_it(ask, proxy: Proxy) -> None:
    assert ask() == (200, DATA)
    assert ask("bytes=10-19") == (206, DATA[10:20])
    assert ask(method="HEAD") == (200, b"")
    assert ask(key="no") == (404, b"")
    seen = [
        (one.method, one.path.rpartition("/")[2], one.byte_range, one.status, one.sent) for one in proxy.seen
    ]
    assert seen == [
        ("GET", "k", "", 200, len(DATA)),
        ("GET", "k", "bytes=10-19", 206, 10),
        ("HEAD", "k", "", 200, 0),
        ("GET", "no", "", 404, 0),
    ]
    assert (proxy.count("GET"), proxy.count("HEAD", "/k$")) == (3, 1)


def test_rules_choose_by_method_path_range_and_number(ask, proxy: Proxy) -> None:
    proxy.add(Rule(faults.unavailable(), method="GET", path="/k$", byte_range="=0-", first=2, times=1))
    asked = [ask("bytes=0-9"), ask(method="HEAD"), ask("bytes=5-9"), ask("bytes=0-9"), ask("bytes=0-9")]
    assert [status for status, _ in asked] == [206, 200, 206, 503, 206]


@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        (faults.unavailable("7"), 503, b"SlowDown"),
        (faults.too_many(), 429, b"TooManyRequests"),
        (faults.expired_token(), 403, b"ExpiredToken"),
        (faults.denied(), 403, b"AccessDenied"),
    ],
)
def test_it_refuses_by_itself(ask, proxy: Proxy, fault: faults.Status, status: int, says: bytes) -> None:
    proxy.add(Rule(fault, times=1))
    got, body = ask()
    assert got == status
    assert says in body
    assert ask.headers.get("Retry-After") == ("7" if status == 503 else None)
    assert ask() == (200, DATA)  # on the same connection


@pytest.mark.parametrize("after", [0, 1, 300_000])
def test_it_cuts_the_connection(ask, proxy: Proxy, after: int) -> None:
    proxy.add(Rule(Cut(after), times=1))
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead, http.client.RemoteDisconnected)):
        ask()
    assert proxy.seen[0].sent == after


@pytest.mark.parametrize("after", [0, 10, 300_000])
def test_it_sends_less_than_it_says(ask, proxy: Proxy, after: int) -> None:
    proxy.add(Rule(Short(after), times=1))
    with pytest.raises(http.client.IncompleteRead) as e:
        ask()
    assert e.value.partial == DATA[:after]
    assert e.value.expected == len(DATA) - after


def test_it_says_less_than_there_is(ask, proxy: Proxy) -> None:
    proxy.add(Rule(ShortLength(10)))
    assert ask() == (200, DATA[:10])
    assert ask("bytes=100-199") == (206, DATA[100:110])
    assert ask.headers["Content-Range"] == f"bytes 100-199/{len(DATA)}"
    assert ask.headers["Content-Length"] == "10"


@pytest.mark.parametrize("after", [0, 300_000])
def test_it_stalls_until_it_is_released(ask, proxy: Proxy, after: int) -> None:
    stall = Stall(after)
    proxy.add(Rule(stall, times=1))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        stall.reached.wait()
        assert proxy.seen[0].sent == after
        assert not asked.done()
        stall.release.set()
        assert asked.result() == (200, DATA)


def test_the_end_of_the_proxy_releases_who_waits(http_server: Bucket) -> None:
    from stores.proxy import proxied

    http_server.put("k", DATA)
    stall, failed = Stall(), threading.Event()

    def ask(endpoint: str) -> None:
        try:
            connection = http.client.HTTPConnection(endpoint.removeprefix("http://"))
            connection.request("GET", http_server.url.removeprefix(http_server.endpoint) + "/k")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
            failed.set()

    with proxied(http_server.endpoint) as proxy:
        proxy.add(Rule(stall))
        waits = threading.Thread(target=ask, args=(proxy.endpoint,))
        waits.start()
        stall.reached.wait()
    waits.join()
    assert failed.is_set()


@pytest.mark.parametrize("at", [0, 300_000, len(DATA) - 1])
def test_it_changes_one_byte_in_whichever_range_it_is_read(ask, proxy: Proxy, at: int) -> None:
    proxy.add(Rule(Corrupt(at)))
    wrong = DATA[:at] + bytes([DATA[at] ^ 1]) + DATA[at + 1 :]
    assert ask() == (200, wrong)
    first = max(0, at - 5)
    assert ask(f"bytes={first}-{at}") == (206, wrong[first : at + 1])
    assert ask(f"bytes={at + 1}-") == ((206, DATA[at + 1 :]) if at + 1 < len(DATA) else (416, b""))


def test_it_calls_in_the_middle_of_a_body(ask, proxy: Proxy, http_server: Bucket) -> None:
    """The object is replaced while it is read: this answer is of one object, the next of the other."""
    proxy.add(Rule(Hook(lambda: http_server.put("k", b"new"), after=300_000), times=1))
    assert ask() == (200, DATA)
    assert ask() == (200, b"new")


def test_what_a_hook_raises_fails_the_test(http_server: Bucket) -> None:
    from stores.proxy import proxied

    http_server.put("k", DATA)
    path = http_server.url.removeprefix(http_server.endpoint) + "/k"
    with ExitStack() as stack:
        proxy = stack.enter_context(proxied(http_server.endpoint))
        ended = stack.pop_all()
    proxy.add(Rule(Hook(lambda: 1 // 0)))
    connection = http.client.HTTPConnection(proxy.endpoint.removeprefix("http://"))
    connection.request("GET", path)
    with pytest.raises(http.client.IncompleteRead):
        connection.getresponse().read()
    connection.close()
    with pytest.raises(RuntimeError, match="a handler failed"):
        ended.close()


def test_it_gives_an_old_list(s3: Bucket, proxy_of: Callable[[Bucket], Proxy]) -> None:
    import obstore

    s3.put("run/a", b"")
    proxy, stale = proxy_of(s3), StaleList()
    proxy.add(Rule(stale, method="GET", path=r"list-type=2"))
    store = s3.through(proxy.endpoint).store()

    def rows() -> list[str]:
        return [row["path"] for page in obstore.list(store, "run") for row in page]

    assert rows() == ["run/a"]
    s3.put("run/b", b"")
    assert rows() == ["run/a", "run/b"]
    stale.freeze()
    s3.put("run/c", b"")
    s3.delete("run/a")
    assert rows() == ["run/a", "run/b"]
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "run/a")


@pytest.mark.parametrize("bucket", ["s3", "rclone_s3", "azurite", "gcs"], indirect=True)
def test_real_clients_go_through_it(bucket: Bucket, proxy_of: Callable[[Bucket], Proxy]) -> None:
    """Signatures hold, and it counts what is asked."""
    import obstore

    proxy = proxy_of(bucket)
    store = bucket.through(proxy.endpoint).store()
    obstore.put(store, "a/k", DATA, use_multipart=False)
    assert obstore.get_range(store, "a/k", start=1000, length=10).to_bytes() == DATA[1000:1010]
    assert [len(page) for page in obstore.list(store)] == [1]
    assert [one.method for one in proxy.seen] == ["PUT", "GET", "GET"]
    assert bucket.keys() == ["a/k"]


def test_a_client_of_obstore_tries_again_after_503(s3: Bucket, proxy_of: Callable[[Bucket], Proxy]) -> None:
    import obstore

    s3.put("k", b"data")
    proxy = proxy_of(s3)
    proxy.add(Rule(faults.unavailable("0"), times=2))
    store = s3.through(proxy.endpoint).store(max_retries=2)
    assert bytes(obstore.get(store, "k").bytes()) == b"data"
    assert [one.status for one in proxy.seen] == [503, 503, 200]
