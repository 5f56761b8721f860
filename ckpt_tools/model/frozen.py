"""Frozen values: the classes that ``dataclass(frozen=True, slots=True)`` makes, made in a fifth of the time.

``ckpt latest`` needs some sixty of them before it can look at anything, and for each the standard library
compiles six functions: a quarter of the time of a start. Here only the constructor is compiled, when
the first value is made; the other methods are the same for all.
To ``dataclasses.fields``, ``replace`` and ``asdict`` such a class is a dataclass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # Python 3.10 has none, and nothing but a type checker asks for it

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        return lambda decorator: decorator


T = TypeVar("T")

_assign = object.__setattr__


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Class decorator: values of the class are equal, hashed and shown by their fields, unless it says
    otherwise itself, and nobody can assign to one.
    """
    dataclass(init=False, repr=False, eq=False)(cls)
    kind: Any = type(cls)
    made_of = fields(cls)  # type: ignore[arg-type]
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
        _compared=attrgetter(*(f.name for f in made_of if f.compare)),
    )
    for name, method in (("__repr__", _shown), ("__eq__", _equal), ("__hash__", _hash)):
        attributes.setdefault(name, method)
    made: type[T] = kind(cls.__name__, cls.__bases__, attributes)
    made.__qualname__ = cls.__qualname__
    type.__setattr__(made, "__init__", _later(made, made_of))
    return made


def _later(cls: type[object], made_of: tuple[Field[Any], ...]) -> Callable[..., None]:
    """``__init__`` until the first value is made: half of the classes that a start imports make none. Several
    threads may make their first value at the same time.
    """

    def first(self: Any, *values: Any, **named: Any) -> None:
        made = _constructor(cls, made_of)
        type.__setattr__(cls, "__init__", made)
        made(self, *values, **named)

    return first


def _constructor(cls: type[object], made_of: tuple[Field[Any], ...]) -> Callable[..., None]:
    """``__init__`` with a parameter for each field;
    those with a default come last, as everywhere in Python.
    """
    given: dict[str, Any] = {"_assign": _assign, "_MISSING": MISSING}
    parameters, body = ["self"], list[str]()
    for f in made_of:
        default, value = f"_default_{f.name}", f.name
        if f.default_factory is not MISSING:
            given[default] = f.default_factory
            parameters.append(f"{f.name}=_MISSING")
            value = f"{default}() if {f.name} is _MISSING else {f.name}"
        elif f.default is not MISSING:
            given[default] = f.default
            parameters.append(f"{f.name}={default}")
        else:
            parameters.append(f.name)
        body.append(f"    _assign(self, {f.name!r}, {value})")
    source = f"def __init__({', '.join(parameters)}):\n" + "\n".join(body)
    exec(source, given)  # noqa: S102 - the names of fields, as the source of a class has them
    made: Callable[..., None] = given["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {f.name: f.type for f in made_of} | {"return": None}
    return made


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _shown(self: Any) -> str:
    values = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(values)})"


def _no_assignment(_self: object, name: str, _: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _no_deletion(_self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, name) for name in self.__match_args__]


def _restore(self: Any, state: list[object]) -> None:
    for name, value in zip(self.__match_args__, state, strict=True):
        _assign(self, name, value)
