"""The note on what starts over, and the lines in it: they are to be pasted."""

from __future__ import annotations

import ast

from tranlogs.training.loop_variables import UnkeptObject, UnkeptVariable, describe_unkept, listed, read_unkept


def test_variables_and_objects_are_told_together_and_read_again() -> None:
    found = [
        UnkeptVariable("best", 'float("inf")'),
        UnkeptVariable("bad", "0"),
        UnkeptObject("stopper", "EarlyStopping", ("best", "counter")),
        UnkeptObject("self.top1", "Meter", ("sum",), has_state=True),
        UnkeptObject("top5", "Meter", ("sum", "count"), has_state=True),
    ]
    note = describe_unkept(found)
    told = (
        "best and bad are variables of the loop that start over at each start, since the run does not keep them; "
        "stopper (EarlyStopping) starts over at each start: its methods change best and counter; "
        "self.top1 (Meter) and top5 (Meter) start over at each start: their methods change sum and count."
    )
    lines = [
        'state = optimizer.remember(best=float("inf"), bad=0) before recover(), and state.best in the loop',
        "give EarlyStopping state_dict() and load_state_dict(state), and optimizer.track(stopper=stopper) before recover()",
        "optimizer.track(top1=self.top1, top5=top5) before recover()",
    ]
    assert note == f"{told} To keep them: {'; '.join(lines)}"
    read = read_unkept(note)
    assert read is not None
    assert (read.subject, read.lines) == (told, lines)
    assert read.names == ["best", "bad", "stopper (EarlyStopping)", "self.top1 (Meter)", "top5 (Meter)"]
    assert read_unkept("the learning rate was set back") is None


def test_one_alone() -> None:
    assert describe_unkept([UnkeptVariable("hidden")]) == (
        "hidden is a variable of the loop that starts over at each start, since the run does not keep it. "
        "To keep it: state = optimizer.remember(hidden=hidden) before recover(), and state.hidden in the loop"
    )
    assert describe_unkept([UnkeptObject("m", "Meter", ("n",))]) == (
        "m (Meter) starts over at each start: its methods change n. "
        "To keep it: give Meter state_dict() and load_state_dict(state), and optimizer.track(m=m) before recover()"
    )


def test_no_keyword_stands_twice_and_none_is_left_out() -> None:
    names = ["ts.best", "best", "other.best", "a.ts_best", *(f"x{number}" for number in range(20))]
    note = describe_unkept([UnkeptVariable(name) for name in names])
    read = read_unkept(note)
    assert read is not None
    assert "x15 and 4 more are variables" in read.subject
    call = ast.parse(read.lines[0].partition(" before ")[0])
    given = next(node for node in ast.walk(call) if isinstance(node, ast.Call)).keywords
    assert [ast.unparse(one.value) for one in given] == names
    assert [one.arg for one in given][:4] == ["ts_best", "best", "other_best", "a_ts_best"]


def test_names_are_listed_as_one_writes_them() -> None:
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
