"""Python expressions in plain words, as somebody who has never seen the program would say them: no operators or calls.

`English.value` says what an expression is ("the price times the quantity"), `English.condition` when it holds ("the
price is at least 10"). Unsayable is raised for an expression that has no words here, and it is left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

from sweetrl.backend.vocabulary import (
    CALLS,
    COMPARISONS,
    CONSTANTS,
    EXTREMES,
    METHODS,
    MODULES,
    NEGATED,
    OPERATORS,
    PLACES,
    PREDICATES,
    TURNED,
    TYPES,
    Unsayable,
    be,
    called,
    listing,
    plural,
    the,
    words_of,
)

LONGEST_TEXT = 160  # characters of a fixed text that is quoted


class English:
    """Words for expressions of one program.

    `optional` are its parameters that may be left out, `variables` the names that are no module's whatever they are.
    """

    def __init__(self, optional: Sequence[str] = (), variables: Sequence[str] = ()) -> None:
        self.optional, self.modules = set(optional), set(MODULES).difference(variables)
        self.names: dict[str, str] = {}

    @contextmanager
    def named(self, names: dict[str, str]) -> Any:
        """Within this context, `names` are written as the phrases they map to."""
        before, self.names = self.names, {**self.names, **names}
        try:
            yield
        finally:
            self.names = before

    # What something is

    def value(self, node: ast.expr) -> str:
        """Return what the expression is, as a noun phrase."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise Unsayable(type(node).__name__)
        return str(method(node))

    def part(self, node: ast.expr) -> str:
        """`value` as a part of something longer: in brackets where it would be read wrongly."""
        phrase = self.value(node)
        unclear = isinstance(node, ast.BinOp | ast.IfExp) or " for each " in phrase
        return f"({phrase})" if unclear and not phrase.startswith('"') else phrase

    def _constant(self, node: ast.Constant) -> str:
        value = node.value
        if isinstance(value, str):
            text = " ".join(value.replace('"', "'").split())
            if len(text) > LONGEST_TEXT:
                raise Unsayable("a long text")
            return f'"{text}"' if text else "a blank" if value else "an empty text"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float | None):
            return str(value)
        raise Unsayable("a constant")

    def _name(self, node: ast.Name) -> str:
        return self.names.get(node.id) or the(node.id)

    def _attribute(self, node: ast.Attribute) -> str:
        if node.attr in CONSTANTS:
            return CONSTANTS[node.attr]
        return self._of(words_of(node.attr), node.value)

    def _of(self, what: str, owner: ast.expr) -> str:
        whose = self.value(owner)
        return f"its {what}" if whose in ("it", "the self") else f"the {what} of {whose}"

    def _subscript(self, node: ast.Subscript) -> str:
        place: Any = node.slice
        if isinstance(place, ast.Slice):
            return self._stretch(node.value, place)
        number = place.value if isinstance(place, ast.Constant) else None
        if isinstance(place, ast.UnaryOp) and ast.unparse(place) == "-1":
            return self._of("last item", node.value)
        if type(number) is int and 0 <= number < len(PLACES):
            return self._of(f"{PLACES[number]} item", node.value)
        if isinstance(number, str):
            return self._of(self.value(place), node.value)
        return f"the entry of {self.value(node.value)} for {self.value(place)}"

    def _stretch(self, owner: ast.expr, cut: ast.Slice) -> str:
        whose = self.value(owner)
        if cut.step is not None:
            if cut.lower is None and cut.upper is None and ast.unparse(cut.step) == "-1":
                return f"{whose} in reverse order"
            raise Unsayable("a step")
        low, high = (self.part(end) if end else "" for end in (cut.lower, cut.upper))
        if low.startswith("minus ") and not high:
            return f"the last {low.removeprefix('minus ')} of {whose}"
        if high.startswith("minus ") and not low:
            return f"{whose} without the last {high.removeprefix('minus ')}"
        if low and high:
            return f"the stretch of {whose} from place {low} up to but not including {high}"
        if high:
            return f"the first {high} of {whose}"
        return f"{whose} without the first {low}" if low else f"a copy of {whose}"

    def _binop(self, node: ast.BinOp) -> str:
        left, right = node.left, node.right
        if isinstance(node.op, ast.Mod) and _is_text(left):
            return f"{self.value(left)} filled in with {self.value(right)}"
        if isinstance(node.op, ast.Mult) and isinstance(left, ast.List):
            return f"{self.value(left)}, repeated as many times as {self.part(right)}"
        if isinstance(node.op, ast.Add) and (_is_text(left) or _is_text(right)):
            return f"{self.value(left)} followed by {self.value(right)}"
        if isinstance(node.op, ast.Pow):
            root = "the square root of {}"
            form = {"2": "{} squared", "3": "{} cubed", "0.5": root, "1 / 2": root}.get(ast.unparse(right))
            if form:
                phrase = self.part(left)
                unclear = isinstance(left, ast.UnaryOp) or (isinstance(left, ast.Call) and phrase[-1] != ")")
                return form.format(f"({phrase})" if unclear else phrase)
        if isinstance(node.op, ast.Mod):
            return f"the remainder of {self.part(left)} divided by {self.part(right)}"
        verb = OPERATORS.get(type(node.op))
        if verb is None:
            raise Unsayable("an operator")
        same = isinstance(left, ast.BinOp) and any(
            isinstance(left.op, level) and isinstance(node.op, level) for level in (ast.Add | ast.Sub, ast.Mult)
        )
        return f"{self.value(left) if same else self._operand(left)} {verb} {self._operand(right)}"

    def _operand(self, node: ast.expr) -> str:
        phrase = self.part(node)
        return f"({phrase})" if isinstance(node, ast.Call) and " of " in phrase and phrase[0] != "(" else phrase

    def _unaryop(self, node: ast.UnaryOp) -> str:
        if isinstance(node.op, ast.USub):
            return f"minus {self.part(node.operand)}"
        return self._compare(node) if isinstance(node.op, ast.Not) else self.value(node.operand)

    def _compare(self, node: ast.expr) -> str:
        return f"whether {self.condition(node)}"

    def _boolop(self, node: ast.BoolOp) -> str:
        if isinstance(node.op, ast.Or) and not any(isinstance(part, ast.Compare | ast.BoolOp) for part in node.values):
            first, *others = map(self.value, node.values)
            return f"{first} (or, without one, {listing(others, 'or')})"
        return self._compare(node)

    def _ifexp(self, node: ast.IfExp) -> str:
        return f"{self.value(node.body)} if {self.condition(node.test)}, otherwise {self.value(node.orelse)}"

    def _joinedstr(self, node: ast.JoinedStr) -> str:
        pieces = []
        for piece in node.values:
            if isinstance(piece, ast.Constant):
                pieces.append(str(piece.value).replace('"', "'"))
            elif isinstance(piece, ast.FormattedValue):
                form = ast.unparse(piece.format_spec)[2:-1] if piece.format_spec else ""
                digits = re.fullmatch(r",?\.(\d)([f%])", form)
                style = f" with {digits[1]} decimals{' and %' if digits[2] == '%' else ''}" if digits else ""
                pieces.append(f"[{self.value(piece.value).replace(chr(34), '')}{style}]")
        text = " ".join("".join(pieces).split())
        if len(text) > 2 * LONGEST_TEXT:
            raise Unsayable("a long text")
        return f'"{text}"'

    def _list(self, node: ast.List | ast.Tuple | ast.Set) -> str:
        kind = type(node).__name__.lower()
        return f"a {kind} of {listing([self.value(item) for item in node.elts])}" if node.elts else f"an empty {kind}"

    _tuple = _set = _list

    def _dict(self, node: ast.Dict) -> str:
        return f"a dictionary with {listing(self.entries(node))}" if node.keys else "an empty dictionary"

    def entries(self, node: ast.Dict) -> list[str]:
        """Return each entry of a written dictionary in words."""
        pairs = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
        return [f"{self.value(key)} as {self.value(value)}" for key, value in pairs]

    def _lambda(self, node: ast.Lambda) -> str:
        arguments = [argument.arg for argument in node.args.args]
        with self.named(dict.fromkeys(arguments, "it") if len(arguments) == 1 else {}):
            return self.value(node.body)

    # Many things

    def _listcomp(self, node: ast.ListComp) -> str:
        return f"a list of {self.each(node.elt, node.generators)}"

    def _generatorexp(self, node: ast.GeneratorExp) -> str:
        return self.each(node.elt, node.generators)

    def _setcomp(self, node: ast.SetComp) -> str:
        return f"the different values of {self.each(node.elt, node.generators)}"

    def _dictcomp(self, node: ast.DictComp) -> str:
        with_value = f"{self.value(node.key)} with {self.part(node.value)}"
        return f"a dictionary of {with_value} {self.loops(node.generators)}"

    def each(self, element: ast.expr, generators: Sequence[ast.comprehension]) -> str:
        """Return what a comprehension yields; `1 for` and `x for x in` have words of their own."""
        loops = self.loops(generators)
        first = generators[0]
        if len(generators) == 1 and ast.unparse(element) == ast.unparse(first.target):
            return loops.removeprefix("for ")
        return f"{self.part(element)} {loops}"

    def loops(self, generators: Sequence[ast.comprehension]) -> str:
        """Return "for each car in the cars where its price is at most 10"."""
        loops = []
        for generator in generators:
            where = [self.condition(test) for test in generator.ifs]
            loop = self.loop(generator.target, generator.iter)
            loops.append(loop + (f" where {' and '.join(where)}" if where else ""))
        return ", ".join(loops)

    def loop(self, target: ast.expr, over: ast.expr) -> str:
        """Return what a loop goes over: "for each name and its price in the prices"."""
        names = list(target.elts) if isinstance(target, ast.Tuple) else [target]
        shown = [words_of(name.id) if isinstance(name, ast.Name) else self.value(name) for name in names]
        call = over if isinstance(over, ast.Call) else None
        function = call.func if call else None
        if call and isinstance(function, ast.Attribute) and function.attr in ("items", "keys", "values"):
            owner = self.value(function.value)
            if function.attr == "items" and len(shown) == 2:
                return f"for each {shown[0]} and its {shown[1]} in {owner}"
            return f"for each {listing(shown)} in {owner}"
        if call and isinstance(function, ast.Name) and call.args:
            if function.id == "range":
                return self._range(shown[0], call.args)
            if function.id == "enumerate" and len(names) == 2:
                first = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords), None)
                counted = f"counted from {self.value(first) if first else 0}"
                return f"{self.loop(names[1], call.args[0])} ({shown[0]} is its place, {counted})"
            if function.id == "zip" and len(shown) == len(call.args):
                return f"for each {listing(shown)} taken together from {listing([self.value(a) for a in call.args])}"
        return f"for each {listing(shown)} in {self.value(over)}"

    def _range(self, name: str, limits: Sequence[ast.expr]) -> str:
        first = "0" if len(limits) == 1 else self.value(limits[0])
        end = limits[0] if len(limits) == 1 else limits[1]
        step = f" in steps of {self.value(limits[2])}" if len(limits) == 3 else ""
        down = isinstance(limits[-1], ast.UnaryOp)  # steps of minus 1: there the last number is end + 1
        if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add) and ast.unparse(end.right) == "1" and not down:
            return f"for each {name} from {first} to {self.value(end.left)}{step}"
        if isinstance(end, ast.Constant) and isinstance(end.value, int) and not step:
            return f"for each {name} from {first} to {end.value - 1}"
        return f"for each {name} from {first} up to but not including {self.value(end)}{step}"

    # Calls

    def _call(self, node: ast.Call) -> str:
        name = called(node)
        options = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        plain = isinstance(node.func, ast.Name) or self._in_module(node.func)
        if plain and name in EXTREMES and node.args:
            return self._extreme(name, node.args, options)
        if name in ("sorted", "sort") and (node.args or isinstance(node.func, ast.Attribute)):
            owner = node.args[0] if node.args else node.func.value  # type: ignore[attr-defined]
            return f"{self.value(owner)}, {self.order(node.keywords)}"
        if name == "sum" and plain and node.args and isinstance(node.args[0], ast.GeneratorExp | ast.ListComp):
            series = node.args[0]
            if isinstance(series.elt, ast.Constant) and series.elt.value == 1:
                return f"the count, one {self.loops(series.generators)}"
        if name == "round" and node.args:
            digits = "".join(map(self.value, (*node.args[1:], *options.values()))) or "0"
            return f"{self.part(node.args[0])} rounded to {f'{digits} decimals' if digits != '0' else 'a whole number'}"
        if name in PREDICATES or name in ("isinstance", "any", "all"):
            return self._compare(node)
        forms = CALLS if plain else METHODS
        form = forms.get((name, len(node.args))) or forms.get((name, -1))
        if form is None or node.keywords:
            return self._helper(node, name, plain)
        given = [self._many(argument) for argument in node.args]
        owner = "" if plain else self.part(node.func.value)  # type: ignore[attr-defined]
        return form.format(*given, all=listing(given), own=owner)

    def _in_module(self, function: ast.expr) -> bool:
        """Whether a function is written with its module in front: not so `np.array(x).sum`, a method of a value."""
        while isinstance(function, ast.Attribute):
            function = function.value
        return isinstance(function, ast.Name) and function.id in self.modules

    def _helper(self, node: ast.Call, name: str, plain: bool) -> str:
        if not name or name.startswith("__"):
            raise Unsayable("a call")
        given = [self.value(argument) for argument in node.args]
        given += [f"{words_of(keyword.arg)} {self.value(keyword.value)}" for keyword in node.keywords if keyword.arg]
        if not plain and self.value(node.func.value) != "the self":  # type: ignore[attr-defined]
            given.insert(0, self.value(node.func.value))  # type: ignore[attr-defined]
        return f"what {words_of(name)} gives" + (f" for {listing(given)}" if given else "")

    def _extreme(self, name: str, args: Sequence[ast.expr], options: dict[str, ast.expr]) -> str:
        most = EXTREMES[name]
        without = f" ({self.value(options['default'])} if there is none)" if "default" in options else ""
        if len(args) > 1 and "key" not in options:
            return f"the {most[1]} of {listing([self.part(argument) for argument in args])}"
        if "key" in options:
            what = self.value(args[0]) if len(args) == 1 else listing([self.value(argument) for argument in args])
            return f"that one of {what} for which {self.key(options['key'])} is {most[0]}{without}"
        return f"the {most[0]} of {self._many(args[0])}{without}"

    def _many(self, node: ast.expr) -> str:
        return self.each(node.elt, node.generators) if isinstance(node, ast.ListComp) else self.part(node)

    def order(self, keywords: Sequence[ast.keyword]) -> str:
        """Return how something is sorted: "sorted by its price, largest first"."""
        options = {keyword.arg: keyword.value for keyword in keywords}
        key = options.get("key")
        back = options.get("reverse")
        by = f" by {self.key(key)}" if key is not None and ast.unparse(key) != "None" else ""
        if back is not None and not isinstance(back, ast.Constant):
            return f"sorted{by}, largest first if {self.condition(back)}"
        return f"sorted{by}, {'largest' if isinstance(back, ast.Constant) and back.value else 'smallest'} first"

    def key(self, key: ast.expr) -> str:
        """Return what things are compared by."""
        if isinstance(key, ast.Lambda):
            body = key.body
            if isinstance(body, ast.Tuple):
                with self.named({argument.arg: "it" for argument in key.args.args}):
                    return " and then ".join(self.value(part) for part in body.elts)
            return self.value(key)
        if isinstance(key, ast.Call) and ast.unparse(key.func).endswith("itemgetter"):
            return " and then ".join(f"its {self.value(argument)}" for argument in key.args)
        if isinstance(key, ast.Attribute):
            return f"its {'value' if key.attr == 'get' else words_of(key.attr)}"
        return "its length" if ast.unparse(key) == "len" else f"its {words_of(ast.unparse(key))}"

    # When something holds

    def condition(self, node: ast.expr, negate: bool = False) -> str:
        """Return a clause that says when the expression holds (with `negate`, when it does not)."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.condition(node.operand, not negate)
        if isinstance(node, ast.BoolOp):
            joint = "and" if isinstance(node.op, ast.And) is not negate else "or"
            parts = [self.condition(part, negate) for part in node.values]
            mixed = [isinstance(part, ast.BoolOp) for part in node.values]
            return f" {joint} ".join(f"({p})" if mix else p for p, mix in zip(parts, mixed, strict=True))
        if isinstance(node, ast.Compare):
            return self._comparison(node, negate)
        if isinstance(node, ast.Call):
            return self._predicate(node, negate)
        phrase = self.value(node)
        if isinstance(node, ast.Name) and node.id in self.optional:
            return f"{phrase} {be(phrase)} {'not ' if negate else ''}given"
        if phrase.startswith('"'):
            return f"{phrase} is {'false' if negate else 'true'}"
        if plural(phrase):
            return f"{phrase} are {'' if negate else 'not '}empty"
        return f"{phrase} is {'false (or zero, or empty)' if negate else 'true (or not zero, not empty)'}"

    def _comparison(self, node: ast.Compare, negate: bool) -> str:
        if negate and len(node.ops) > 1:
            return f"it is not so that {self._comparison(node, negate=False)}"
        parts, left = [], node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            parts.append(self._pair(left, NEGATED[type(operator)] if negate else type(operator), right))
            left = right
        return " and ".join(parts)

    def _pair(self, left: ast.expr, operator: type[ast.cmpop], right: ast.expr) -> str:
        if isinstance(left, ast.Constant) and not isinstance(right, ast.Constant) and operator in TURNED:
            left, operator, right = right, TURNED[operator], left
        subject = self.value(left)
        no = operator in (ast.NotEq, ast.IsNot, ast.NotIn)
        is_it = f"{subject} {be(subject)}"
        if operator in (ast.Eq, ast.NotEq, ast.Is, ast.IsNot):
            if isinstance(right, ast.Constant) and right.value is None:
                return f"{is_it} {'' if no else 'not '}given"
            if isinstance(left, ast.Call) and ast.unparse(left.func) == "len" and ast.unparse(right) == "0":
                whose = self.value(left.args[0])
                return f"{whose} {be(whose)}{' not' if no else ''} empty"
            if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and ast.unparse(right) == "0":
                if ast.unparse(left.right) == "2":
                    return f"{self.value(left.left)} is {'odd' if no else 'even'}"
                return f"{self.value(left.left)} is {'not ' if no else ''}divisible by {self.value(left.right)}"
            return f"{is_it}{' not' if no else ''} {self.part(right)}"
        if operator in (ast.In, ast.NotIn):
            if isinstance(right, ast.List | ast.Tuple | ast.Set) and right.elts:
                each = listing([self.value(item) for item in right.elts], "or")
                return f"{is_it} {'none' if no else 'one'} of {each}"
            return f"{is_it} {'not ' if no else ''}in {self.value(right)}"
        return f"{is_it} {COMPARISONS[operator]} {self.part(right)}"

    def _predicate(self, node: ast.Call, negate: bool) -> str:
        name = called(node)
        if name == "isinstance" and len(node.args) == 2:
            kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            named = [TYPES.get(ast.unparse(kind), f"a {words_of(ast.unparse(kind))}") for kind in kinds]
            return f"{self.value(node.args[0])} is {'not ' if negate else ''}{listing(named, 'or')}"
        if name in ("any", "all") and len(node.args) == 1:
            series = node.args[0]
            if not isinstance(series, ast.GeneratorExp | ast.ListComp):
                return f"{'not ' if negate else ''}{name} of {self.value(series)} are true"
            what, loops = self.condition(series.elt, negate), self.loops(series.generators)
            every = (name == "any") is negate
            return f"{what} {loops if every else loops.replace('for each', 'for at least one', 1)}"
        if name in PREDICATES and isinstance(node.func, ast.Attribute):
            does, does_not = PREDICATES[name]
            given = [self.value(argument) for argument in node.args]
            return f"{self.value(node.func.value)} {does_not if negate else does} {listing(given, 'or')}".rstrip()
        return f"{self.value(node)} is {'not true' if negate else 'true'}"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
