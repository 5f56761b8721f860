"""Values and records: the classes that ``dataclass(frozen=True, slots=True)`` and ``dataclass`` make, without
the time that these take.

``ckpt latest`` needs some sixty of them before it can look at anything, and for each the standard library
compiles six functions: a quarter of the time of a start, and its import is another tenth. Here a constructor
is compiled for a class of which many values are made; the other methods are the same for all.
To ``dataclasses.fields``, ``replace`` and ``asdict`` such a class is a dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

_assign = object.__setattr__
_MISSING: Any = object()
_FEW = 8
"""Values of a class that are made before its constructor is compiled, which takes the time of twenty."""


class _Field:
    """A field of a class: what ``field()`` says of it, its name and its annotation."""

    __slots__ = ("compare", "default", "default_factory", "kind", "name", "repr")

    def __init__(self, default: Any, default_factory: Any, *, compare: bool, repr: bool) -> None:
        self.default, self.default_factory, self.compare, self.repr = default, default_factory, compare, repr
        self.name = self.kind = ""


if TYPE_CHECKING:
    from dataclasses import field as field  # noqa: PLC0414 - exported
    from dataclasses import replace as replace  # noqa: PLC0414

    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:  # Python 3.10 has none
        return lambda decorator: decorator

    def field(
        *, default: Any = _MISSING, default_factory: Any = _MISSING, compare: bool = True, repr: bool = True
    ) -> Any:
        """As ``dataclasses.field``."""
        return _Field(default, default_factory, compare=compare, repr=repr)

    def replace(value: T, /, **changes: Any) -> T:
        """As ``dataclasses.replace``, of values and records."""
        return value.__class__(**{**{n: getattr(value, n) for n in value.__match_args__}, **changes})


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Class decorator: values of the class are equal, hashed and shown by their fields, unless it says
    otherwise itself, and nobody can assign to one.
    """
    kind: Any = type(cls)
    made_of = _fields(cls)
    names = tuple(f.name for f in made_of)
    attributes = {
        name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__", *names)
    }
    remembers = any(isinstance(value, cached_property) for value in attributes.values())
    attributes.update(
        __slots__=(*names, "__dict__") if remembers else names,
        __setattr__=_no_assignment,
        __delattr__=_no_deletion,
        __getstate__=_state,
        __setstate__=_restore,
        **_common(made_of),
    )
    for name, method in (("__repr__", _shown), ("__eq__", _equal), ("__hash__", _hash)):
        attributes.setdefault(name, method)
    made: type[T] = kind(cls.__name__, cls.__bases__, attributes)
    made.__qualname__ = cls.__qualname__
    type.__setattr__(made, "__init__", _later(made, made_of))
    return made


@dataclass_transform(field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Class decorator: the class has a constructor, and its instances are equal and shown by their fields;
    they can be changed, and so have no hash.
    """
    made_of = _fields(cls)
    for f in made_of:
        if f.default is not _MISSING:
            setattr(cls, f.name, f.default)
        elif f.name in vars(cls):
            delattr(cls, f.name)
    common = {**_common(made_of), "__repr__": _shown, "__eq__": _equal, "__hash__": None}
    for name, value in common.items():
        if name in ("__hash__", "__match_args__") or name not in vars(cls):
            setattr(cls, name, value)
    cls.__init__ = _later(cls, made_of)  # type: ignore[method-assign]
    return cls


def _fields(cls: type[object]) -> tuple[_Field, ...]:
    """What a class is made of: the fields of its bases, and those that it annotates. Raises ValueError for a
    default that all values would share.
    """
    found: dict[str, _Field] = {}
    for base in reversed(cls.__mro__[1:]):
        found.update({f.name: f for f in vars(base).get("_made_of", ())})
    for name, kind in vars(cls).get("__annotations__", {}).items():
        if str(kind).startswith(("ClassVar", "typing.ClassVar")):
            continue
        said = vars(cls).get(name, _MISSING)
        f = said if isinstance(said, _Field) else _Field(said, _MISSING, compare=True, repr=True)
        if f.default.__class__.__hash__ is None:
            raise ValueError(f"{cls.__name__}.{name}: all values would share this default")
        f.name, f.kind = name, kind
        found[name] = f
    return tuple(found.values())


def _common(made_of: tuple[_Field, ...]) -> dict[str, Any]:
    """The attributes of values and records alike."""
    return {
        "__match_args__": tuple(f.name for f in made_of),
        "__replace__": replace,
        "__dataclass_fields__": _DataclassFields(),
        "_made_of": made_of,
        "_compared": attrgetter(*(f.name for f in made_of if f.compare)),
    }


class _DataclassFields:
    """The fields as the standard library's functions ask for them."""

    def __get__(self, _: object, cls: type[Any]) -> Mapping[str, Any]:
        import dataclasses

        def standard(f: _Field) -> Any:
            if f.default_factory is not _MISSING:
                return dataclasses.field(default_factory=f.default_factory, compare=f.compare, repr=f.repr)
            default = dataclasses.MISSING if f.default is _MISSING else f.default
            return dataclasses.field(default=default, compare=f.compare, repr=f.repr)

        rows = [(f.name, f.kind, standard(f)) for f in cls._made_of]
        twin: Any = dataclasses.make_dataclass(cls.__name__, rows, init=False, repr=False, eq=False)
        found: Mapping[str, Any] = twin.__dataclass_fields__
        type.__setattr__(cls, "__dataclass_fields__", found)
        return found


def _later(cls: type[object], made_of: tuple[_Field, ...]) -> Callable[..., None]:
    """``__init__`` for the first values: half of the classes that a start imports make none, and most others
    a few. Several threads may make values at the same time.
    """
    left = _FEW

    def first(self: Any, *values: Any, **named: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0 or (given := _given(made_of, values, named)) is None:
            made = _constructor(cls, made_of)
            type.__setattr__(cls, "__init__", made)
            return made(self, *values, **named)
        for name, value in given:
            _assign(self, name, value)
        return None

    return first


def _given(
    made_of: Sequence[_Field], values: Sequence[Any], named: Mapping[str, Any]
) -> list[tuple[str, Any]] | None:
    """Each field with its value; None where an argument lacks or is one too many: a compiled constructor says
    which.
    """
    taken = len(values)
    given = [(f.name, value) for f, value in zip(made_of, values, strict=False)]
    for f in made_of[taken:]:
        if f.name in named:
            given.append((f.name, named[f.name]))
            taken += 1
        elif f.default_factory is not _MISSING:
            given.append((f.name, f.default_factory()))
        elif f.default is not _MISSING:
            given.append((f.name, f.default))
        else:
            return None
    return given if taken == len(values) + len(named) and len(values) <= len(made_of) else None


def _constructor(cls: type[object], made_of: tuple[_Field, ...]) -> Callable[..., None]:
    """``__init__`` with a parameter for each field; those with a default come last, as everywhere in
    Python.
    """
    given: dict[str, Any] = {"_assign": _assign, "_MISSING": _MISSING}
    parameters, body = ["self"], list[str]()
    for f in made_of:
        default, value = f"_default_{f.name}", f.name
        if f.default_factory is not _MISSING:
            given[default] = f.default_factory
            parameters.append(f"{f.name}=_MISSING")
            value = f"{default}() if {f.name} is _MISSING else {f.name}"
        elif f.default is not _MISSING:
            given[default] = f.default
            parameters.append(f"{f.name}={default}")
        else:
            parameters.append(f.name)
        body.append(f"    _assign(self, {f.name!r}, {value})")
    source = f"def __init__({', '.join(parameters)}):\n" + "\n".join(body)
    exec(source, given)  # noqa: S102 - the names of fields, as the source of a class has them
    made: Callable[..., None] = given["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {f.name: f.kind for f in made_of} | {"return": None}
    return made


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _shown(self: Any) -> str:
    values = (f"{f.name}={getattr(self, f.name)!r}" for f in self._made_of if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(values)})"


def _no_assignment(_self: object, name: str, _: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _no_deletion(_self: object, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, name) for name in self.__match_args__]


def _restore(self: Any, state: list[object]) -> None:
    for name, value in zip(self.__match_args__, state, strict=True):
        _assign(self, name, value)
