"""Frozen values behave as those of dataclass(frozen=True, slots=True) do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from dataclasses import FrozenInstanceError, asdict, dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path

import pytest

from ckpt_tools.model.frozen import field, frozen, record, replace


@frozen
class Ours:
    """A value."""

    path: str
    size: int = 0
    names: tuple[str, ...] = field(default_factory=tuple)
    key: bytes = field(default=b"", repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Theirs:
    """The same, made by the standard library."""

    path: str
    size: int = 0
    names: tuple[str, ...] = dataclasses.field(default_factory=tuple)
    key: bytes = dataclasses.field(default=b"", repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def test_it_is_equal_hashed_and_shown_by_its_fields():
    ours, theirs = Ours("/a/b", 3, key=b"1"), Theirs("/a/b", 3, key=b"1")
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert ours == Ours("/a/b", 3, key=b"2") != Ours("/a/b", 4)
    assert hash(ours) == hash(Ours("/a/b", 3)) == hash(theirs)
    assert ours != theirs and ours.name == "b"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Ours("/a", names=[]))  # type: ignore[arg-type]


def test_nobody_can_change_it():
    value = Ours("/a")
    for change in (
        lambda: setattr(value, "size", 1),
        lambda: setattr(value, "other", 1),
        lambda: delattr(value, "size"),
    ):
        with pytest.raises(FrozenInstanceError):
            change()
    assert not hasattr(value, "__dict__")


def test_it_is_a_dataclass_to_the_standard_library():
    value = Ours("/a", 1)
    assert is_dataclass(value) and [f.name for f in fields(value)] == [f.name for f in fields(Theirs)]
    for change in (replace, dataclasses.replace):
        assert change(value, size=2) == Ours("/a", 2)
    assert asdict(value) == asdict(Theirs("/a", 1))
    assert Ours.__match_args__ == Theirs.__match_args__ and Ours.__slots__ == Theirs.__slots__


def test_what_it_works_out_once_is_no_field():
    @frozen
    class Path:
        """A value that remembers something."""

        text: str

        @cached_property
        def parts(self) -> list[str]:
            return self.text.split("/")

    value = Path("a/b")
    assert value.parts is value.parts and value == Path("a/b") and repr(value).endswith("Path(text='a/b')")
    with pytest.raises(FrozenInstanceError):
        value.text = "c"  # type: ignore[misc]


def test_it_can_be_copied_and_pickled():
    value = Ours("/a", 1, ("x",), b"k")
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert asdict(other) == asdict(value)


@pytest.mark.parametrize("given", [(), ("/a", 1, (), b"", "too many")])
def test_wrong_arguments_are_told_as_ever(given):
    with pytest.raises(TypeError, match=r"^Ours\.__init__\(\)"):
        Ours(*given)
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        Ours("/a", other=1)  # type: ignore[call-arg]


def test_threads_may_make_the_first_value_at_once():
    @frozen
    class Fresh:
        a: int

    begun = vars(Fresh)["__init__"]  # another thread has come so far, and goes on when this one is done
    assert Fresh(1) == Fresh(1)
    late = object.__new__(Fresh)
    begun(late, 2)
    assert late == Fresh(2)


@record
class Note:
    """A record."""

    text: str
    lines: list[int] = field(default_factory=list)


@dataclass
class TheirNote:
    """The same, made by the standard library."""

    text: str
    lines: list[int] = dataclasses.field(default_factory=list)


def test_a_record_can_change():
    ours, theirs = Note("a"), TheirNote("a")
    for one in (ours, theirs):
        one.lines.append(1)
        one.text = "b"
    assert repr(ours) == repr(theirs).replace("TheirNote", "Note") and asdict(ours) == asdict(theirs)
    assert ours == Note("b", [1]) != Note("b") and Note("a").lines is not Note("a").lines
    assert ours == copy.deepcopy(ours) == pickle.loads(pickle.dumps(ours))
    with pytest.raises(TypeError, match="unhashable"):
        hash(ours)


def test_a_default_that_all_values_would_share_is_refused():
    with pytest.raises(ValueError, match="share"):

        @frozen
        class Wrong:
            names: list[str] = []  # noqa: RUF012


@pytest.mark.parametrize(
    ("values", "named", "right"),
    [
        (("/a",), {}, True),
        ((), {"path": "/a", "key": b"k"}, True),
        (("/a", 2), {"names": ("x",)}, True),
        (("/a",), {"path": "/b"}, False),
        (("/a",), {"other": 1}, False),
        ((), {"size": 1}, False),
        (("/a", 1, (), b"", "too many"), {}, False),
    ],
)
def test_the_first_values_are_made_as_later_ones(values, named, right):
    """A constructor is compiled after a few values, or for the message about wrong arguments."""

    @frozen
    class Fresh:
        path: str
        size: int = 0
        names: tuple[str, ...] = field(default_factory=tuple)
        key: bytes = field(default=b"", repr=False, compare=False)

    outcomes = list[object]()
    for _ in range(12):
        try:
            made = Fresh(*values, **named)
            outcomes.append((made.path, made.size, made.names, made.key))
        except TypeError as e:
            outcomes.append(str(e))
    assert outcomes == outcomes[:1] * 12
    assert isinstance(outcomes[0], tuple) == right


@pytest.mark.slow
def test_the_package_makes_its_values_itself():
    """The standard library's cost half a millisecond each at every start, and seven for its import."""
    package = Path(frozen.__code__.co_filename).parent.parent
    texts = {path: path.read_text() for path in package.rglob("*.py")}
    made = re.compile(r"^@dataclass|^from dataclasses import .*\b(replace|field|dataclass)\b", re.MULTILINE)
    assert not [p for p, text in texts.items() if made.search(text) and p.stem != "frozen"]
