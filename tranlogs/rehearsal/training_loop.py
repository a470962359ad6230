"""The form of a script's training loop, read off its source: epochs over a loader, batches of a loader, or other steps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Form = Literal["epochs", "batches", "steps"]

_COUNTING = ("range", "count", "trange")
_AROUND_DATA = ("enumerate", "tqdm", "iter", "track")  # calls that hand on what their first argument yields

_Loop = ast.For | ast.While
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """The outermost loop of a script that trains.

    Attributes:
        form: what it runs over.
        replaced: its first line, as the script has it: "for epoch in range(10)".
        count: the number of its turns, in the script's words; "" if the script does not give it.
        loader: the name of the loader; "" if there is none.
        data_loop: with epochs, the first line of the loop over the loader.
        data: the loader in the words of that line, where it may be a parameter of a function.
    """

    form: Form
    replaced: str
    count: str = ""
    loader: str = ""
    data_loop: str = ""
    data: str = ""

    def over_epoch(self) -> str:
        """Return the first line of the loop over the loader as a loop over the epoch, with what it takes the place of."""
        name = "epoch" if self.data == self.loader else self.data
        target, _, source = self.data_loop.partition(" in ")
        source = source.replace(f"enumerate({self.data})", f"{name}.enumerate()")
        data = rf"(?<![\w.]){re.escape(self.data)}(?!\w)"
        line = f"{target} in {re.sub(data, name, source)}"
        said = [f"in place of: {self.data_loop}"] if line != self.data_loop else ["stays"]
        said += [f"give it epoch in place of {self.loader}"] if name != "epoch" else []
        if "enumerate(" in source.replace(".enumerate()", ""):
            said.append("epoch.enumerate() has the true numbers after a crash")
        return f"{line}:  # {'; '.join(said)}"


def find_training_loop(sources: Iterable[str]) -> TrainingLoop | None:
    """Return the training loop of a script; None if its sources do not show one."""
    for text in sources:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        if (found := _Script(tree).find_loop()) is not None:
            return found
    return None


class _Script:
    """A module of a script: its functions by name, its methods by ".name", and which of its code trains."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        methods = {id(node) for kind in ast.walk(tree) if isinstance(kind, ast.ClassDef) for node in kind.body}
        self._functions = {
            f".{node.name}" if id(node) in methods else node.name: node
            for node in ast.walk(tree)
            if isinstance(node, _Function)
        }

    def find_loop(self) -> TrainingLoop | None:
        loops = [node for node in ast.walk(self._tree) if isinstance(node, _Loop) and self._trains(node)]
        inner = {id(one) for loop in loops for one in self._find_inner(loop)}
        outermost = [loop for loop in loops if id(loop) not in inner]
        for loop in outermost:
            if (data := next(filter(_is_over_data, self._find_inner(loop)), None)) is not None:
                loader, line = self._name_loader(data), _first_line(data)
                return TrainingLoop("epochs", _first_line(loop), _count_turns(loop), loader, line, _name_data(data))
        for loop in outermost:
            if _is_over_data(loop):
                return TrainingLoop("batches", _first_line(loop), loader=self._name_loader(loop))
        for loop in outermost:
            form: Form = "batches" if "next" in map(_called_name, _calls(loop.body)) and self._has_loader() else "steps"
            return TrainingLoop(form, _first_line(loop), _count_turns(loop))
        return None

    def _trains(self, node: ast.AST) -> bool:
        return any(_is_update(call) for call in self._reach_calls(node))

    def _reach_calls(self, node: ast.AST) -> Iterator[ast.Call]:
        """Yield the calls in a loop's body or a function, and those of the script's functions that are called there."""
        seen: set[str] = set()
        waiting = _calls(getattr(node, "body", []))
        while waiting:
            call = waiting.pop()
            yield call
            name = _called_function(call)
            if name in self._functions and name not in seen:
                seen.add(name)
                waiting += _calls(self._functions[name].body)

    def _find_inner(self, loop: _Loop) -> list[_Loop]:
        """Return the training loops inside of a loop, also those in functions that it calls."""
        names = {_called_function(call) for call in self._reach_calls(loop)}
        bodies = [loop.body, *(function.body for name, function in self._functions.items() if name in names)]
        found = [node for body in bodies for node in _walk(body) if isinstance(node, _Loop) and node is not loop]
        return [node for node in found if self._trains(node)]

    def _name_loader(self, loop: _Loop) -> str:
        """Return the loader that a loop runs over, by its name where the function of the loop is called."""
        assert isinstance(loop, ast.For)
        data = _unwrap_data(loop.iter)
        for name, function in self._functions.items():
            parameters = [argument.arg for argument in function.args.args]
            if isinstance(data, ast.Name) and data.id in parameters and any(node is loop for node in _walk(function.body)):
                return self._find_argument(name, parameters.index(data.id) - name.startswith(".")) or data.id
        return ast.unparse(data) if isinstance(data, (ast.Name, ast.Attribute)) else ""

    def _find_argument(self, function: str, index: int) -> str:
        for call in _calls(self._tree.body):
            if _called_function(call) == function and index < len(call.args) and isinstance(call.args[index], ast.Name):
                return ast.unparse(call.args[index])
        return ""

    def _has_loader(self) -> bool:
        return "DataLoader" in map(_called_name, _calls(self._tree.body))


def _walk(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for statement in body:
        yield from ast.walk(statement)


def _calls(body: Iterable[ast.AST]) -> list[ast.Call]:
    return [node for node in _walk(body) if isinstance(node, ast.Call)]


def _called_name(call: ast.expr) -> str:
    """Return the last name of what is called: "step" for `optimizer.step()`."""
    if not isinstance(call, ast.Call):
        return ""
    return call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _called_function(call: ast.Call) -> str:
    """Return the name of a function that is called; with a dot in front of it, that of a method."""
    return f".{call.func.attr}" if isinstance(call.func, ast.Attribute) else _called_name(call)


def _is_update(call: ast.Call) -> bool:
    """Return True for `loss.backward()` and `optimizer.step()`, and False for the step of a scheduler or an environment."""
    name = _called_name(call)
    return name == "backward" or (
        name == "step" and isinstance(call.func, ast.Attribute) and "opt" in ast.unparse(call.func.value).lower()
    )


def _is_over_data(loop: ast.AST) -> bool:
    if not isinstance(loop, ast.For):
        return False
    data = _unwrap_data(loop.iter)
    return not isinstance(data, (ast.List, ast.Tuple, ast.Constant)) and _called_name(data) not in _COUNTING


def _unwrap_data(data: ast.expr) -> ast.expr:
    while isinstance(data, ast.Call) and data.args and _called_name(data) in _AROUND_DATA:
        data = data.args[0]
    return data


def _name_data(loop: _Loop) -> str:
    """Return the name of what a loop runs over, as the loop has it; "" if it has none."""
    data = _unwrap_data(loop.iter) if isinstance(loop, ast.For) else None
    return ast.unparse(data) if isinstance(data, (ast.Name, ast.Attribute)) else ""


def _count_turns(loop: _Loop) -> str:
    """Return `N` of a loop over `range(N)` or `range(1, N + 1)`."""
    data = _unwrap_data(loop.iter) if isinstance(loop, ast.For) else None
    if not isinstance(data, ast.Call) or _called_name(data) not in ("range", "trange"):
        return ""
    match data.args:
        case [end]:
            return ast.unparse(end)
        case [ast.Constant(value=0), end]:
            return ast.unparse(end)
        case [ast.Constant(value=1), ast.BinOp(left=end, op=ast.Add(), right=ast.Constant(value=1))]:
            return ast.unparse(end)
    return ""


def _first_line(loop: _Loop) -> str:
    """Return the first line of a loop, as it is written but for its spaces, without its colon."""
    empty: list[ast.stmt] = [ast.Pass()]
    bare = (
        ast.For(loop.target, loop.iter, empty, [], lineno=0) if isinstance(loop, ast.For) else ast.While(loop.test, empty, [])
    )
    return ast.unparse(ast.fix_missing_locations(bare)).split(":\n")[0]
