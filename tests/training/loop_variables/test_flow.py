"""Variables that a loop carries from turn to turn, by the flow of values through its source."""

from __future__ import annotations

import ast
import textwrap

import pytest

from tranlogs.training.loop_variables.assignments import Assignments, find_clocks
from tranlogs.training.loop_variables.flow import Flow, enclosing_loops

CASES = {
    "a best value and a counter of bad epochs": (
        """
        best, bad = float("inf"), 0
        for epoch in epochs:
            for x, y in epoch:
                loss = train(x, y)  # here
            value = validate()
            if value < best:
                best, bad = value, 0
            else:
                bad += 1
            if bad > 3:
                break
        """,
        ["best", "bad"],
    ),
    "what each turn writes before it reads it": (
        """
        for x, y in batches:
            output = model(x)
            loss = criterion(output, y)  # here
            if loss > 3:
                scale = 0.5
            else:
                scale = 1.0
            total = [loss * scale]
            total.append(output)
            print(total)
        """,
        [],
    ),
    "the last loss of an epoch, printed behind its loop": (
        """
        for epoch in epochs:
            for x in epoch:
                loss = train(x)  # here
            print(epoch, loss)
        """,
        [],
    ),
    "a running sum of an epoch": (
        """
        for epoch in epochs:
            total = 0.0
            for i, x in enumerate(epoch):
                total += train(x)  # here
                if i % 10 == 9:
                    print(total)
                    total = 0.0
        """,
        ["total"],
    ),
    "lists and dicts that grow": (
        """
        losses, seen, curves = [], {}, {"a": []}
        for x in batches:
            loss = train(x)  # here
            losses.append(loss)
            seen[x.name] = loss
            curves["a"].append(loss)
        plot(losses)
        """,
        ["losses", "seen", "curves"],
    ),
    "a batch fetched ahead, in an endless loop": (
        """
        x, y = fetch()
        number = 0
        while True:
            rate = schedule(number)
            if number % 10 == 0:
                print(rate)
            loss = model(x, y)
            x, y = fetch()
            step(loss)  # here
            number += 1
            if number > last:
                break
        """,
        ["x", "y", "number"],
    ),
    "the condition of a while": (
        """
        step = 0
        while step < 100:
            train(step)  # here
            step = step + 1
        """,
        ["step"],
    ),
    "what is set under a condition and read behind the loop": (
        """
        found = None
        for x in batches:
            if train(x):  # here
                found = x
        print(found)
        """,
        ["found"],
    ),
    "what is always set and read behind the loop alone": (
        """
        for x in batches:
            last = train(x)  # here
        print(last)
        """,
        [],
    ),
    "an iterator that begins anew": (
        """
        rounds, data = 0, iter(loader)
        for step in steps:
            try:
                batch = next(data)
            except StopIteration:
                rounds += 1
                data = iter(loader)
                batch = next(data)
            train(batch)  # here
        """,
        ["rounds", "data"],
    ),
    "attributes of an object": (
        """
        for epoch in epochs:
            self.loss = self.train(epoch)  # here
            self.best = min(self.best, self.loss)
            self.count += 1
        """,
        ["self.best", "self.count"],
    ),
    "a hidden state, changed in place": (
        """
        hidden = model.begin()
        for x in batches:
            hidden = hidden.detach()
            output, hidden = model(x, hidden)
            average.mul_(0.9).add_(output)  # here
        """,
        ["hidden", "average"],
    ),
    "a counter that a function of the loop counts": (
        """
        calls = 0
        for x in batches:
            def closure():
                nonlocal calls
                calls += 1
                return model(x)
            optimizer.step(closure)  # here
        """,
        ["calls"],
    ),
    "comprehensions, with, match and walrus": (
        """
        for x in batches:
            with open(x) as file, autocast():
                rows = [row for row in file]
            if (count := len(rows)) > 3:
                train(rows, count)  # here
            match x:
                case [first, *rest]:
                    print(first, rest)
        """,
        [],
    ),
    "what is written and read under the same condition": (
        """
        for number in batches:
            is_due = number % 10 == 0
            if is_due:
                value = validate()
            train(number)  # here
            if is_due:
                print(value)
            if number > 3 and not quiet:
                text = str(number)
            else:
                pass
            if number > 3 and not quiet:
                print(text)
        """,
        [],
    ),
    "what is written under a condition that has changed where it is read, or under another one": (
        """
        for number in batches:
            if is_due:
                value = validate()
            is_due = train(number)  # here
            if is_due:
                print(value)
            if number > 3:
                text = str(number)
            if number > 4:
                print(text)
            if is_new():
                other = number
            if is_new():
                print(other)
            if number > 5:
                last = number
            if number > 5:
                print(last)
            print(last)
        """,
        ["is_due", "value", "text", "other", "last"],
    ),
    "cases of which one always fits": (
        """
        for x in batches:
            match x:
                case 0:
                    rate = 1
                case _:
                    rate = 2
            match x:
                case 0:
                    scale = 1
                case 1:
                    scale = 2
            train(x, rate, scale)  # here
        """,
        ["scale"],
    ),
    "the else of a loop and continue": (
        """
        skipped = 0
        for x in batches:
            for part in x:
                if part is None:
                    break
            else:
                skipped += 1
                continue
            train(x)  # here
        """,
        ["skipped"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_carried_variables(name: str) -> None:
    text, expected = CASES[name]
    source = textwrap.dedent(text)
    scope = ast.parse(source)
    line = 1 + next(i for i, one in enumerate(source.splitlines()) if "# here" in one)
    assert Flow(scope).find_carried(enclosing_loops(scope, line)) == expected


def test_a_line_behind_the_loops_is_in_none() -> None:
    scope = ast.parse("for x in a:\n    f(x)\nelse:\n    g()\nh()\n")
    assert [len(enclosing_loops(scope, line)) for line in range(1, 6)] == [1, 1, 0, 0, 0]


def test_measured_times_are_told_apart() -> None:
    module = ast.parse(
        textwrap.dedent(
            """
                from time import time as clock
                t0, spent, best, rates, t2, mean = time.perf_counter(), 0.0, 0, [], clock(), 0.0
                for x in batches:
                    mean = mean * 0.9 + (clock() - t2) * 0.1
                    t2 = clock()
                    t1 = time.perf_counter()
                    dt = t1 - t0
                    t0 = t1
                    spent += dt
                    best = max(best, f(x))
                    rates.append(len(x) / dt)
                """
        )
    )
    assignments = Assignments(module, clocks=find_clocks(module))
    names = ("t0", "t1", "dt", "spent", "rates", "t2", "mean", "best", "x")
    assert [name for name in names if assignments.is_time(name)] == list(names[:7])
    assert find_clocks(ast.parse("from timeit import default_timer as timer, repeat\nfrom lab import time")) == {"timer"}


def test_what_a_variable_begins_with() -> None:
    scope = ast.parse("a = float('inf')\nb, c = 0, []\nd = len(c)\ne = state.e\nfor x in y:\n    f = 0.0\n    state.g = g\n")
    assignments = Assignments(scope)
    begins = {name: assignments.begins_with(name, 5) for name in "abcdef"}
    assert begins == {"a": "float('inf')", "b": "0", "c": "[]", "d": None, "e": None, "f": None}
    assert assignments.begins_with("f", 7) == "0.0"
    assert assignments.relatives("e", 5) == assignments.relatives("g", 5) == {"state"}


def test_a_value_is_given_as_it_is_written_and_only_if_it_is_certain() -> None:
    text = (
        "a, b, i = 1e9, {'ä': 1e-3}, 0\ndef z():\n    i = 1\nc = 0\nif x:\n    c = 1\nd = 0\nd += 1\ne = 0\ne, f = g()\n"
        "for _ in y:\n    a = 2\n    s.n += 1\n    h = 0\n"
    )
    assignments = Assignments(ast.parse(text), text.splitlines(keepends=True))
    begins = {name: assignments.begins_with(name, 11) for name in [*"abcdefhi", "s.n"]}
    assert begins == {"a": "1e9", "b": "{'ä': 1e-3}", **dict.fromkeys([*"cdefhi", "s.n"])}
