"""What a reference program does, in plain sentences made from its syntax tree: for the user of kind `described`.

Each statement becomes a sentence: constants and tables, conditions with what follows, computations, loops, what is
returned, errors; so do defaults and the fields that are read. A sentence that counts as a leak is left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache

from sweetrl.backend.english import English
from sweetrl.backend.leaks import find_leak, parsed
from sweetrl.backend.suite.details import BY_NAME
from sweetrl.backend.suite.tasks import read_facts
from sweetrl.backend.vocabulary import Unsayable, be, called, listing, plural, the, words_of
from sweetrl.colbench.described import Fact
from sweetrl.types import Task

LONGEST = 340  # characters of a sentence: with a few words before it, it fits into a reply
SEVERAL = 220  # characters of a clause that joins several statements

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_EMPTY = re.compile(r"\b(empty|not given)\b|\b(is|are) (less than 1|0|at most 0)\b")


def facts_of(task: Task) -> tuple[Fact, ...]:
    """Return what the user of `task` knows: the details of a task of the suite, else what its reference does."""
    details = read_facts(task.hidden_information)
    if details:
        return tuple(
            Fact(name, BY_NAME[name].answers[0].format(*values), BY_NAME[name].questions[0], (name,))
            for name, values in details.items()
        )
    return tuple(fact for fact in described(task.ground_truth) if find_leak(task, fact.text) is None)


@lru_cache(maxsize=1024)
def described(program: str) -> tuple[Fact, ...]:
    """Return what `program` does, sentence by sentence, in its order; nothing for a text that is no program."""
    tree = parsed(program)
    if tree is None:
        return ()
    describer = Describer(tree)
    describer.body(tree.body, ())
    return tuple(dict.fromkeys(describer.facts))


class Describer:
    """Walks over a program; `facts` are its statements in words, `unsaid` those that have no plain words."""

    def __init__(self, tree: ast.Module) -> None:
        functions = [node for node in ast.walk(tree) if isinstance(node, _Function)]
        optional = [pair for function in functions for pair in _defaults(function)]
        names = [name for name, default in optional if not isinstance(getattr(default, "value", None), bool)]
        targets = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        arguments = [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]
        self.english = English(names, [*targets, *arguments])
        self.changing = {name for name in targets if targets.count(name) > 1}
        self.functions = len([node for node in tree.body if isinstance(node, _Function)])
        self.before: Sequence[ast.stmt] = ()
        self.facts: list[Fact] = []
        self.unsaid: list[ast.AST] = []

    def add(self, kind: str, text: str, question: str, *about: ast.AST, context: Sequence[str] = ()) -> None:
        """Keep a fact; Unsayable if it is too long for one reply."""
        text = f"{', '.join((*context, text))}."
        if len(text) > LONGEST:
            raise Unsayable("too long")
        names = {name for node in about for name in _names(node)}
        kind = "empty" if kind == "condition" and _EMPTY.search(" ".join(context[-1:]) or text.split(",")[0]) else kind
        sentence = text[0].upper() + text[1:]
        self.facts.append(Fact(kind, sentence, question, tuple(sorted(names))))

    def body(self, statements: Sequence[ast.stmt], context: tuple[str, ...]) -> None:
        """Describe what statements do, in the loops and conditions of `context`."""
        for number, statement in enumerate(statements):
            self.before = statements[:number]
            try:
                method = getattr(self, f"_{type(statement).__name__.lower()}", None)
                if method is not None:
                    method(statement, context)
                elif not isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass | ast.Global | ast.Nonlocal):
                    raise Unsayable(type(statement).__name__)
            except (Unsayable, RecursionError):  # nobody says an expression of hundreds of terms
                self.unsaid.append(statement)

    # Functions

    def _functiondef(self, node: _Function, context: tuple[str, ...]) -> None:
        for name, default in _defaults(node):
            given = f"if {the(name)} {be(the(name))} not given"
            if not (isinstance(default, ast.Constant) and default.value is None):
                question = f"Which {words_of(name)} should be used if none is given?"
                with suppress(Unsayable, RecursionError):
                    self.add("default", f"{given}, {self.english.value(default)} is used", question, ast.Name(name))
        main = node.name != "__init__" and (self.functions < 2 or not self.facts) and not context
        inner = context if main else (*context, f"in the helper {words_of(node.name)}")
        with suppress(Unsayable):
            self._fields(node)
        self.body(node.body, inner if node.name != "__init__" else context)

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef, context: tuple[str, ...]) -> None:
        self.body(node.body, (*context, f"in a class for the {words_of(node.name)}"))

    def _fields(self, function: _Function) -> None:
        """Describe which fields are read of each variable."""
        read: dict[str, dict[str, None]] = {}
        for node in ast.walk(function):
            owner, key = None, None
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                owner, key = node.value, node.slice
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                owner, key = node.func.value, node.args[0] if node.args else None
            if isinstance(owner, ast.Name) and isinstance(key, ast.Constant) and isinstance(key.value, str):
                read.setdefault(owner.id, {})[f'"{key.value}"'] = None
        local = {target.id for node in ast.walk(function) if isinstance(node, ast.Assign)
                 for target in node.targets if isinstance(target, ast.Name)}  # fmt: skip
        of_many = _sources(function)
        for name, keys in read.items():
            if name not in local:
                whose = of_many.get(name) or (the(name) if len(name) > 2 else "each item")
                question = f"Which fields of {whose} are used?"
                fields = "only field" if len(keys) == 1 else "fields"
                text = f"the {fields} used of {whose} {'is' if len(keys) == 1 else 'are'} {listing(list(keys))}"
                self.add("fields", text, question, ast.Name(name))

    # Single statements

    def _assign(self, node: ast.Assign, context: tuple[str, ...]) -> None:
        target = node.targets[0]
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Dict | ast.List | ast.Tuple | ast.Set):
            self._table(target, node.value, context)
            return
        text, what = self._assigned(node)
        literal = isinstance(node.value, ast.Constant)
        if literal and isinstance(target, ast.Name) and target.id in self.changing and not context:
            text = f"{what} {'start' if plural(what) else 'starts'} at {self.english.value(node.value)}"
            self.add("start", text, f"What does {what} start at?", target)
            return
        question = f"What is {what}?" if literal else f"How is {what} worked out?"
        self.add("constant" if literal else "computation", text, question, *node.targets, node.value, context=context)

    def _assigned(self, node: ast.Assign) -> tuple[str, str]:
        what = listing([self._target(target) for target in node.targets])
        value = self.english.value(node.value)
        again = isinstance(node.targets[0], ast.Name) and node.targets[0].id in _names(node.value)
        if again or isinstance(node.targets[0], ast.Subscript):
            return f"{what} becomes {value}", what
        return f"{what} {'are' if ' and ' in what else be(what)} {value}", what

    def _target(self, target: ast.expr) -> str:
        if isinstance(target, ast.Tuple):
            return listing([self._target(part) for part in target.elts])
        return self.english.value(target)

    def _table(self, target: ast.Name, made: ast.expr, context: tuple[str, ...]) -> None:
        """Describe what a written list or dictionary holds, in as many sentences as it takes."""
        what = the(target.id)
        question = f"What are {what}?"
        if isinstance(made, ast.Dict):
            items, verb = self.english.entries(made), "have"
        else:
            items, verb = [self.english.value(item) for item in made.elts], "are"  # type: ignore[attr-defined]
        if not items:
            question = f"What is in {what} to begin with?"
            self.add("start", f"there is nothing in {what} to begin with", question, target, context=context)
            return
        room = LONGEST - len(", ".join((*context, what))) - 20
        part: list[str] = []
        for item in [*items, None]:
            if part and (item is None or len("; ".join([*part, item])) > room):
                also = "also " if item is None and part != items else ""
                self.add("table", f"{what} {also}{verb} {listing(part)}", question, target, made, context=context)
                part = []
            if item is not None:
                part.append(item)

    def _annassign(self, node: ast.AnnAssign, context: tuple[str, ...]) -> None:
        if node.value is not None:
            self._assign(ast.Assign([node.target], node.value), context)

    def _simple(self, node: ast.stmt, context: tuple[str, ...]) -> None:
        text = self.clause(node)
        if text:
            subject = next((the(name.id) for name in ast.walk(node) if isinstance(name, ast.Name)), "the result")
            self.add("computation", text, f"What happens to {subject}?", node, context=context)

    _augassign = _simple
    _delete = _simple
    _break = _simple
    _continue = _simple

    def _expr(self, node: ast.Expr, context: tuple[str, ...]) -> None:
        if not isinstance(node.value, ast.Constant):
            self._simple(node, context)

    def _return(self, node: ast.Return, context: tuple[str, ...]) -> None:
        if not context and isinstance(node.value, ast.Dict) and len(node.value.keys) > 1:
            try:
                keys = listing([self.english.value(key) for key in node.value.keys if key is not None])
                what = f"it should return a dictionary with {keys}"
                self.add("return", what, "What should be in the dictionary that is returned?", node)
            except Unsayable:
                self.unsaid.append(node)
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(key, ast.Constant) and not isinstance(value, ast.Name):
                    name = self.english.value(key)
                    question = f"What is {name} in the result?"
                    self.add("return", f"{name} in the result is {self.english.value(value)}", question, key, value)
            return
        question = f"What should be returned {context[-1]}?" if context else "What should be returned in the end?"
        if any(isinstance(part, ast.Return) for before in self.before for part in ast.walk(before)):
            context = (*context, "in all other cases")
        self.add("return", self.clause(node), _without_case(question), node, context=context)

    def _raise(self, node: ast.Raise, context: tuple[str, ...]) -> None:
        question = "When should there be an error?"
        self.add("error", self._error(node), question, node, context=context)

    def clause(self, node: ast.stmt) -> str:
        """Return a simple statement as a clause, "" for a statement that does nothing."""
        value = self.english.value
        if isinstance(node, ast.Assign):
            return self._assigned(node)[0]
        if isinstance(node, ast.AugAssign):
            target, change = value(node.target), value(node.value)
            forms = {ast.Add: f"{change} is added to {target}", ast.Sub: f"{change} is taken from {target}",
                     ast.Mult: f"{target} is multiplied by {change}",
                     ast.Div: f"{target} is divided by {change}"}  # fmt: skip
            return forms.get(type(node.op)) or f"{target} becomes {value(ast.BinOp(node.target, node.op, node.value))}"
        if isinstance(node, ast.Return):
            return f"it should return {'None' if node.value is None else value(node.value)}"
        if isinstance(node, ast.Raise):
            return self._error(node)
        if isinstance(node, ast.Break):
            return "it stops there"
        if isinstance(node, ast.Continue):
            return "that one is skipped"
        if isinstance(node, ast.Delete):
            return f"{listing([value(target) for target in node.targets])} is removed"
        if isinstance(node, ast.Pass):
            return "nothing happens"
        if isinstance(node, ast.Expr):
            return self._done(node.value)
        raise Unsayable(type(node).__name__)

    def _error(self, node: ast.Raise) -> str:
        if isinstance(node.exc, ast.Call):
            says = f" that says {self.english.value(node.exc.args[0])}" if node.exc.args else ""
            return f"it is an error ({words(ast.unparse(node.exc.func))}){says}"
        return f"it is an error ({words(ast.unparse(node.exc))})" if node.exc else "the error is passed on"

    def _done(self, call: ast.expr) -> str:
        """Return what a call does whose value is not used."""
        if isinstance(call, ast.Constant):
            return ""
        if not isinstance(call, ast.Call):
            raise Unsayable("an expression")
        value = self.english.value
        name = called(call)
        if name == "print":
            return f"it prints {listing([value(arg) for arg in call.args])}" if call.args else "it prints a line"
        if isinstance(call.func, ast.Attribute):
            owner = value(call.func.value)
            given = listing([value(arg) for arg in call.args])
            forms = {"append": f"{given} is added to {owner}", "add": f"{given} is added to {owner}",
                     "extend": f"all of {given} is added to {owner}", "update": f"{owner} takes over {given}",
                     "remove": f"{given} is removed from {owner}", "discard": f"{given} is removed from {owner}",
                     "clear": f"{owner} is emptied", "reverse": f"{owner} is turned round",
                     "shuffle": f"{given} is put into random order"}  # fmt: skip
            if name == "sort":
                return f"{owner} {be(owner)} {self.english.order(call.keywords)}"
            if name == "pop":
                return f"the {'last item' if not call.args else f'item {given}'} is taken out of {owner}"
            if name in forms:
                return forms[name]
        return f"then comes {value(call)}"

    # Conditions and loops

    def _if(self, node: ast.If, context: tuple[str, ...]) -> None:
        if ast.unparse(node.test) == "__name__ == '__main__'":
            return
        cases, last = _cases(node)
        tests = [self.english.condition(test) for test, _ in cases]
        bodies = [self._joined(body) for body in (*(body for _, body in cases), *([last] if last else []))]
        names = listing(_subjects([test for test, _ in cases])[:3], "or") or "this"
        question = f"What depends on {names}?"
        clauses = [f"if {test}, {body}" for test, body in zip(tests, bodies, strict=False)]
        sentence = "; otherwise, ".join(clauses) + (f"; otherwise {bodies[-1]}" if last else "")
        if None not in bodies and len(", ".join((*context, sentence))) < LONGEST:
            self._condition(sentence, [body for _, body in cases], question, [node], context)
            return
        for number, (test, (_, body)) in enumerate(zip(tests, cases, strict=True)):
            self._case((*context, f"{'if' if number == 0 else 'otherwise, if'} {test}"), body, question)
        if last:
            other = f"if {self.english.condition(node.test, negate=True)}" if len(cases) == 1 else "in all other cases"
            self._case((*context, other), last, question)

    def _condition(
        self,
        text: str,
        bodies: Sequence[Sequence[ast.stmt]],
        question: str,
        about: Sequence[ast.AST],
        context: Sequence[str],
    ) -> None:
        error = all(isinstance(body[-1], ast.Raise) for body in bodies)
        ask = "When should there be an error?" if error else question
        self.add("error" if error else "condition", text, ask, *about, context=context)

    def _case(self, context: tuple[str, ...], body: Sequence[ast.stmt], question: str) -> None:
        joined = self._joined(body)
        if joined is not None and len(", ".join((*context, joined))) < LONGEST:
            self._condition(joined, [body], question, body, context)
        else:
            self.body(body, context)

    def _joined(self, body: Sequence[ast.stmt]) -> str | None:
        """Return simple statements as one clause; None where they are too much for one sentence."""
        try:
            joined = " and ".join(filter(None, map(self.clause, body)))
        except Unsayable:
            return None
        return joined if 0 < len(joined) <= SEVERAL else None

    def _for(self, node: ast.For, context: tuple[str, ...]) -> None:
        loop = self.english.loop(node.target, node.iter)
        self._looped(node.body, (*context, loop), f"What happens {loop}?")
        self.body(node.orelse, (*context, "if it never stopped early"))

    def _while(self, node: ast.While, context: tuple[str, ...]) -> None:
        endless = isinstance(node.test, ast.Constant)
        loop = "again and again" if endless else f"as long as {self.english.condition(node.test)}"
        self._looped(node.body, (*context, loop), f"What happens {loop}?")

    def _looped(self, body: Sequence[ast.stmt], context: tuple[str, ...], question: str) -> None:
        joined = self._joined(body)
        if joined is not None and len(body) < 4 and len(", ".join((*context, joined))) < LONGEST:
            self.add("loop", joined, question, *body, context=context)
        else:
            self.body(body, context)

    def _try(self, node: ast.Try, context: tuple[str, ...]) -> None:
        self.body(node.body, context)
        for handler in node.handlers:
            error = f" ({words(ast.unparse(handler.type))})" if handler.type else ""
            self._case(
                (*context, f"if that goes wrong{error}"), handler.body, "What should happen if something goes wrong?"
            )
        self.body([*node.orelse, *node.finalbody], context)


def words(name: str) -> str:
    """Return the name of an error as it is written; several names without brackets."""
    return name.strip("()").replace(", ", " or ").rpartition(".")[2]


def _without_case(question: str) -> str:
    """The question without the condition of its case, which may hold a number of the program."""
    return re.sub(r" (if|otherwise, if) .*\?", " in the special cases?", question)


def _defaults(function: _Function) -> Iterator[tuple[str, ast.expr]]:
    arguments = [*function.args.posonlyargs, *function.args.args]
    with_default = arguments[len(arguments) - len(function.args.defaults) :]
    yield from ((argument.arg, default) for argument, default in zip(with_default, function.args.defaults, strict=True))
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if default is not None:
            yield argument.arg, default


def _names(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


def _cases(node: ast.If) -> tuple[list[tuple[ast.expr, list[ast.stmt]]], list[ast.stmt]]:
    """The branches of if, elif, ... and of else."""
    cases = [(node.test, node.body)]
    while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node = node.orelse[0]
        cases.append((node.test, node.body))
    return cases, node.orelse


def _subjects(tests: Sequence[ast.expr]) -> list[str]:
    """The names that conditions are about, without those of functions and of what a comprehension goes over."""
    nodes = [node for test in tests for node in ast.walk(test)]
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    bound = {name for node in nodes if isinstance(node, ast.comprehension) for name in _names(node.target)}
    names = [node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called]
    return list(dict.fromkeys(the(name) for name in names if name not in bound))


def _sources(function: _Function) -> dict[str, str]:
    """Names of loops and lambdas -> "each of the cars"."""
    sources: dict[str, dict[str, None]] = {}
    for node in ast.walk(function):
        pairs: list[tuple[ast.expr | ast.arg, ast.expr]] = []
        if isinstance(node, ast.For | ast.comprehension):
            pairs.append((node.target, node.iter))
        elif isinstance(node, ast.Call) and node.args:
            lambdas = [each for each in (*node.args, *(k.value for k in node.keywords)) if isinstance(each, ast.Lambda)]
            over = next((each for each in node.args if not isinstance(each, ast.Lambda)), None)
            pairs += [(each.args.args[0], over) for each in lambdas if over is not None and each.args.args]
        for target, over in pairs:
            name = target.id if isinstance(target, ast.Name) else getattr(target, "arg", "")
            if name and isinstance(over, ast.Name):
                sources.setdefault(name, {})[f"each of {the(over.id)}"] = None
    return {name: listing(list(each)) for name, each in sources.items()}
