"""Whose orders count: files and directories that only this user or root could have written, and how they are
opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from counted import calls
from owners import SOMEBODY, Owners, as_root

from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import Trust, Untrusted


@pytest.fixture
def own(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    (tmp_path / "orders").write_bytes(b"go")
    (tmp_path / "orders").chmod(0o644)
    return tmp_path


def refused(path: Path | str, because: str, to: Trust = trust.OURS, **more: bool) -> Untrusted:
    with pytest.raises(Untrusted, match=because) as e:
        trust.read(str(path), 100, to, **more)
    assert e.value.hint
    return e.value


def test_what_is_ours_is_read(own: Path) -> None:
    assert trust.read(str(own / "orders"), 2) == b"go"
    with trust.directory(str(own)) as fd:
        assert os.listdir(fd) == ["orders"]
    with pytest.raises(Untrusted, match="larger than 1 bytes"):
        trust.read(str(own / "orders"), 1)
    with pytest.raises(FileNotFoundError) as e:  # what is not there is an error of the system that names it
        trust.read(str(own / "none"), 1)
    assert e.value.filename == str(own / "none")


@pytest.mark.parametrize("mode", [0o646, 0o666, 0o602])
def test_a_file_that_others_write(own: Path, mode: int) -> None:
    (own / "orders").chmod(mode)
    assert "chmod o-w" in refused(own / "orders", "may be written by everybody").hint


def test_a_directory_that_others_write(own: Path) -> None:
    for mode in (0o777, 0o1777):  # a sticky one keeps our file, but gives no orders itself
        own.chmod(mode)
        with pytest.raises(Untrusted, match="everybody"), trust.directory(str(own)):
            pass
    assert trust.read(str(own / "orders"), 9) == b"go"
    own.chmod(0o777)
    assert f"--trust dir={own}" in refused(own / "orders", "may be written by everybody").hint


def test_a_second_name_in_a_sticky_directory(own: Path) -> None:
    (own / "inner").mkdir()
    os.link(own / "orders", own / "inner" / "planted")
    (own / "inner").chmod(0o1777)
    refused(own / "inner" / "planted", "has 2 hard links")


def test_the_walk_ends_at_the_first_directory_that_others_cannot_write(own: Path) -> None:
    (own / "mine").mkdir(mode=0o755)
    (own / "orders").rename(own / "mine" / "orders")
    own.chmod(0o777)
    assert trust.read(str(own / "mine" / "orders"), 9) == b"go"
    (own / "mine").chmod(0o777)
    refused(own / "mine" / "orders", "mine may be written")


def test_another_owner(own: Path, owners: Owners) -> None:
    owners.give(own / "orders")
    assert f"--trust owner={SOMEBODY}" in refused(own / "orders", f"belongs to uid {SOMEBODY}").hint
    assert trust.read(str(own / "orders"), 9, Trust(owners=frozenset({SOMEBODY}))) == b"go"
    assert trust.read(str(own / "orders"), 9, Trust(directories=(str(own),))) == b"go"


def test_we_are_not_everybody(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way round: files of this user, for a process of another."""
    owners = {os.geteuid()} - {0} or {SOMEBODY}
    if as_root:
        os.chown(own / "orders", SOMEBODY, -1)
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY + 1)
    refused(own / "orders", f"belongs to .*{min(owners)}")
    assert trust.read(str(own / "orders"), 9, Trust(owners=frozenset(owners))) == b"go"


def test_a_link_counts_as_far_as_where_it_lies_and_leads(own: Path) -> None:
    (own / "open").mkdir()
    (own / "open" / "link").symlink_to(own / "orders")
    assert trust.read(str(own / "open" / "link"), 9) == b"go"
    (own / "open").chmod(0o777)
    refused(own / "open" / "link", "open may be written by everybody")
    (own / "safe").symlink_to(own / "open" / "planted")
    (own / "open" / "planted").write_bytes(b"no")
    refused(own / "safe", "open may be written by everybody")
    (own / "round").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        trust.read(str(own / "round"), 9)


def test_a_planted_link_is_its_owners(own: Path, owners: Owners) -> None:
    own.chmod(0o1777)
    (own / "link").symlink_to(own / "orders")
    owners.give(own / "link")
    refused(own / "link", "the link .* belongs to uid 54321")
    owners.give(own)  # the owner of a directory may exchange what lies in it all the same
    for mode in (0o755, 0o1777):
        own.chmod(mode)
        refused(own / "orders", "belongs to uid 54321")


def test_what_is_no_regular_file_is_not_opened(own: Path, owners: Owners) -> None:
    os.mkfifo(own / "fifo")
    assert refused(own / "fifo", "not a regular file").unfit
    own.chmod(0o777)
    assert not refused(own / "fifo", "may be written by everybody").unfit
    own.chmod(0o755)
    owners.give(own / "fifo")
    assert not refused(own / "fifo", "belongs to uid 54321").unfit
    refused("/dev/null", "not a regular file")
    with pytest.raises(IsADirectoryError):
        trust.read(str(own), 9)
    reading, writing = os.pipe()
    refused(f"/proc/self/fd/{reading}", "not a regular file")
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_key_is_read_by_its_owner_alone(own: Path, mode: int) -> None:
    (own / "orders").chmod(0o600)
    assert trust.read(str(own / "orders"), 9, private=True) == b"go"
    (own / "orders").chmod(mode)
    assert "chmod 600" in refused(own / "orders", "used by others", private=True).hint


def test_what_kubernetes_mounts(own: Path) -> None:
    """A ConfigMap or Secret: links to the newest of several directories, all root's, of mode 1777 and 0644."""
    (own / "..2026_01_01").mkdir(mode=0o755)
    (own / "orders").rename(own / "..2026_01_01" / "orders")
    (own / "..data").symlink_to("..2026_01_01")
    (own / "orders").symlink_to("..data/orders")
    own.chmod(0o1777)
    assert trust.read(str(own / "orders"), 9) == b"go"
    if as_root:  # else the links are not root's
        assert trust.read(str(own / "orders"), 9, private=True) == b"go"
    else:
        refused(own / "orders", "used by others", private=True)


def test_a_group_of_many_and_a_group_of_one(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own.chmod(0o2775)
    monkeypatch.setattr(trust, "is_own_group", lambda *_: True)
    assert trust.read(str(own / "orders"), 9) == b"go"
    monkeypatch.setattr(trust, "is_own_group", lambda *_: False)
    assert "--trust group" in refused(own / "orders", "by the group").hint
    assert trust.read(str(own / "orders"), 9, Trust(group=True)) == b"go"
    own.chmod(0o777)
    refused(own / "orders", "everybody", Trust(group=True))


def test_a_trusted_directory_vouches_for_what_lies_in_it_and_not_for_what_its_links_reach(own: Path) -> None:
    (own / "volume").mkdir()
    (own / "volume" / "orders").write_bytes(b"go")
    (own / "volume" / "orders").chmod(0o666)
    (own / "volume").chmod(0o777)
    to = Trust(directories=(str(own / "volume"),))
    assert trust.read(str(own / "volume" / "orders"), 9, to) == b"go"
    (own / "orders").chmod(0o666)
    (own / "volume" / "out").symlink_to("../orders")
    refused(own / "volume" / "out", "may be written by everybody", to)
    refused(own / "volume" / ".." / "orders", "may be written by everybody", to)


def test_nothing_stays_open_and_a_refusal_names_the_setting_once(own: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (own / "orders").chmod(0o666)
    with (
        pytest.raises(Untrusted, match=r"^--fault-file: .*everybody") as e,
        trust.label("--fault-file"),
    ):
        trust.read(str(own / "orders"), 9)
    assert e.value.exit_code == 2 and "--trust dir=" in e.value.hint
    (own / "orders").chmod(0o600)
    trust.read(str(own / "orders"), 9)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_exchanged_between_the_look_and_the_opening_is_judged_as_it_is_opened(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, path = os.open, own / "orders"

    def exchanging(exchange: Callable[[], object]) -> None:
        def opened(name: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if str(name).endswith("/orders"):
                path.unlink()
                exchange()
            return real(name, flags, mode, dir_fd=dir_fd)

        monkeypatch.setattr(os, "open", opened)

    exchanging(lambda: (path.write_bytes(b"no"), path.chmod(0o666)))
    refused(path, "everybody")
    exchanging(lambda: path.symlink_to("/etc/passwd"))
    with pytest.raises(OSError, match="symbolic links"):
        trust.read(str(own / "orders"), 100_000)
    assert stat.S_ISLNK((own / "orders").lstat().st_mode)


def test_no_planted_link_or_pipe_is_written_to(own: Path) -> None:
    (own / "link").symlink_to(own / "victim")
    os.mkfifo(own / "fifo")
    with trust.directory(str(own)) as at:
        with pytest.raises(OSError, match="symbolic links"):
            trust.create("link", os.O_WRONLY, at)
        with pytest.raises(Untrusted, match=f"{own}/fifo is not a regular file"):
            trust.create("fifo", os.O_RDWR, at)
    assert not (own / "victim").exists()


def test_an_absence_is_believed_where_others_cannot_take_away(own: Path) -> None:
    trust.check_absent(str(own / "plans" / "last.json"))
    (own / "plans").mkdir()
    (own / "plans").chmod(0o1777)
    trust.check_absent(str(own / "plans" / "last.json"))
    (own / "plans").chmod(0o777)
    with pytest.raises(Untrusted, match="everybody"):
        trust.check_absent(str(own / "plans" / "last.json"))
    trust.check_absent(str(own / "plans" / "last.json"), Trust(directories=(str(own / "plans"),)))


def test_an_absolute_path_needs_no_current_directory(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "gone").mkdir()
    monkeypatch.chdir(own / "gone")
    (own / "gone").rmdir()
    assert trust.read(str(own / "orders"), 9) == b"go"


def test_a_directory_that_another_process_makes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes start together: between the look and the making, another one makes the directory above."""
    real, path = os.mkdir, tmp_path / "shared/j.meeting"

    def late(name: str, mode: int = 0o777, **more: int) -> None:
        try:
            real(name, mode, **more)
        except FileNotFoundError:
            real(os.path.dirname(name), 0o755)  # what the other process does now
            raise

    monkeypatch.setattr(os, "mkdir", late)
    trust.make(str(path))
    assert path.is_dir()


@pytest.mark.parametrize(("mode", "most"), [(0o755, 0), (0o777, 1)])
def test_each_trusted_directory_is_looked_at_where_something_is_wrong_and_once(
    mode: int, most: int, own: Path
) -> None:
    """There may be as many as the lines of a variable: 65,000."""
    own.chmod(mode)
    many = 500
    few, lots = (Trust(directories=(*(f"{own}/{i}" for i in range(n)), str(own))) for n in (0, many))
    trust.read(str(own / "orders"), 9, few)  # imports
    counted = [calls(partial(trust.read, str(own / "orders"), 9, to)) for to in (few, lots)]
    assert counted[1] - counted[0] <= most * 6 * many
