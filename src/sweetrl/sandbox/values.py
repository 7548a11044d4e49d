"""Write Python values as tagged JSON. Runs beside untrusted code, so it trusts no method of the value's own class.

Plain JSON stands for None, bool, small int, finite float and str; everything else is an array that starts with a tag:
["l", ...] list, ["t", ...] tuple, ["d", k, v, ...] dict, ["s", ...] set, ["i", hex] large int and so on. A value of a
class that is not known becomes ["o", name], which equals nothing. This file is loaded by the zygote on its own: it
imports only the standard library and nothing of this package.
"""

from __future__ import annotations

import collections
import math
import sys
import types

TYPE_CHECKING = False  # what typing says of it, without importing that
if TYPE_CHECKING:
    from typing import Any

DEPTH = 150
_SMALL = 1 << 62
_KEYS: Any = type({}.keys())
_ITEMS: Any = type({}.items())
_OKEYS: Any = type(collections.OrderedDict().keys())
_OITEMS: Any = type(collections.OrderedDict().items())
_INFINITY = float("inf")
# Tags by class: the classes of one line share no subclass, a more special mapping comes first.
_SEQUENCES: Any = ((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "s"), (collections.deque, "dq"))
_MAPPINGS: Any = ((collections.OrderedDict, "od"), (collections.Counter, "ct"), (dict, "d"))


def _of(module: str, name: str) -> Any:
    """The object `name` of an imported module; None if it is not imported, for then there is no such value."""
    return getattr(sys.modules.get(module), name, None)


class Refused(Exception):
    """The value is too deep, too wide or refers to itself."""


class Encoder:
    """Writes values down, at most `nodes` of them in one tree.

    Every builtin that it needs is bound when it is made, before untrusted code can replace it.
    """

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.left = nodes
        self._subclass = issubclass
        self._type = type

    def encode(self, value: Any) -> Any:
        """Return `value` as a JSON-serialisable tree; raises Refused where it is too large or too deep."""
        self.left = self.nodes
        return self._node(value, 0)

    def _node(self, value: Any, depth: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise Refused(f"the value holds more than {self.nodes} parts")
        kind = self._type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -_SMALL < value < _SMALL else ["i", hex(value)]
        if kind is float:
            if value - value == 0.0:
                return value
            return self._odd_float(value)
        if depth > DEPTH:
            raise Refused(f"the value is nested deeper than {DEPTH} levels or contains itself")
        if kind is list:
            return self._sequence("l", list.__iter__(value), depth)
        if kind is tuple:
            return self._sequence("t", tuple.__iter__(value), depth)
        if kind is dict:
            return self._pairs("d", dict.items(value), depth)
        return self._rare(value, kind, depth)

    def _sequence(self, tag: str, values: Any, depth: int) -> list[Any]:
        tree: list[Any] = [tag]
        for value in values:
            tree.append(self._node(value, depth + 1))
        return tree

    def _pairs(self, tag: str, items: Any, depth: int) -> list[Any]:
        tree: list[Any] = [tag]
        for key, value in items:
            tree.append(self._node(key, depth + 1))
            tree.append(self._node(value, depth + 1))
        return tree

    def _odd_float(self, value: float) -> list[Any]:
        if value in (_INFINITY, -_INFINITY):
            return ["inf", 1 if value > 0 else -1]
        # Python's containers take an object to be equal to itself, and math.nan is one object: keep which NaN it was.
        if value is math.nan:
            return ["nan", "math"]
        numpy = sys.modules.get("numpy")
        return ["nan", "numpy" if numpy is not None and value is getattr(numpy, "nan", None) else ""]

    def _rare(self, value: Any, kind: type, depth: int) -> Any:
        subclass = self._subclass
        # Subclasses count by the value that the base class holds, whatever their own methods claim.
        if subclass(kind, int):
            return self._node(int.__add__(value, 0), depth)
        if subclass(kind, float):
            return self._node(float.fromhex(float.hex(value)), depth)
        if subclass(kind, str):
            return self._node(str.__add__(value, ""), depth)
        for base, tag in _SEQUENCES:
            if subclass(kind, base):
                return self._sequence(tag, base.__iter__(value), depth)
        for base, tag in _MAPPINGS:
            if subclass(kind, base):
                return self._pairs(tag, base.items(value), depth)  # an OrderedDict has an order of its own
        if kind in (_KEYS, _ITEMS, _OKEYS, _OITEMS):
            return self._sequence("s", value, depth)
        if subclass(kind, (bytes, bytearray)):
            return ["b", (bytes if subclass(kind, bytes) else bytearray).hex(value)]
        if subclass(kind, complex):
            return ["c", self._node(complex.real.__get__(value), depth), self._node(complex.imag.__get__(value), depth)]
        if kind is _of("decimal", "Decimal"):
            return ["dec", str(value)]
        if kind is _of("fractions", "Fraction"):
            return ["fr", hex(value.numerator), hex(value.denominator)]
        if kind is range:
            return ["r", *(self._node(part, depth) for part in (len(value), value.start, value.step))]
        if kind is _of("array", "array"):
            return self._sequence("arr", value, depth)
        if kind is _of("re", "Pattern"):
            return ["re", self._node(value.pattern, depth), value.flags]
        if value is ... or value is NotImplemented:
            return ["const", repr(value)]
        for tree in (self._dates(value, kind), self._named(value, kind), self._numpy(value, kind, depth)):
            if tree is not None:
                return tree
        return ["o", str(getattr(kind, "__name__", "object"))[:80]]

    def _dates(self, value: Any, kind: type) -> Any:
        if kind is _of("datetime", "datetime"):
            tag = "dt"
            if value.utcoffset() is not None:
                tag, value = "dtz", value.astimezone(_of("datetime", "UTC"))
            return [tag, value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond]
        if kind is _of("datetime", "date"):
            return ["date", value.year, value.month, value.day]
        if kind is _of("datetime", "timedelta"):
            return ["td", value.days, value.seconds, value.microseconds]
        if kind is _of("datetime", "time"):
            offset = value.utcoffset()
            zone = None if offset is None else offset.total_seconds()
            return ["time", value.hour, value.minute, value.second, value.microsecond, zone]
        return None

    def _named(self, value: Any, kind: type) -> Any:
        # Types, builtin functions and modules are single objects that two programs share if they come from a module.
        if kind is type:
            module = type.__getattribute__(value, "__module__")
            owner = sys.modules.get(module) if self._type(module) is str else None
            name = type.__getattribute__(value, "__qualname__")
            return ["type", f"{module}.{name}"] if getattr(owner, "__spec__", None) is not None else None
        if kind is types.BuiltinFunctionType and self._type(value.__self__) is types.ModuleType:
            return ["fn", f"{value.__module__}.{value.__qualname__}"]
        if kind is types.ModuleType and value.__spec__ is not None:
            return ["mod", str(value.__name__)]
        return None

    def _numpy(self, value: Any, kind: type, depth: int) -> Any:
        numpy = sys.modules.get("numpy")
        generic: Any = getattr(numpy, "generic", None)
        nd: Any = getattr(numpy, "ndarray", None)
        if self._type(generic) is not type or self._type(nd) is not type:
            return None
        if self._subclass(kind, generic):
            item = generic.item(value)
            return self._node(item, depth + 1) if not self._subclass(self._type(item), generic) else None
        if self._subclass(kind, nd):
            shape = [int(n) for n in nd.shape.__get__(value)]
            if math.prod(shape) > self.left:
                raise Refused(f"the array holds more than {self.nodes} numbers")
            flat = nd.tolist(nd.reshape(nd.view(value, nd), (-1,)))  # a matrix would stay one
            return ["nd", shape, *(self._node(item, depth + 1) for item in flat)]
        return None
