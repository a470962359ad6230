"""HTML from elements: text is escaped because it is text, and only an element is markup."""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = frozenset({"link", "meta"})


class Markup(str):
    """Made by `el` or `join`: goes into a page as it is."""

    __slots__ = ()


Child = str | int | Markup | None | Iterable["Child"]


def el(tag: str, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """An element.

    Args:
        tag: its name.
        children: text, which is escaped, elements, or several of these; None is nothing.
        attributes: `class_` is "class", `data_at` is "data-at"; None and False are left out.
    """
    given = "".join(_attribute(name, value) for name, value in attributes.items() if value is not None and value is not False)
    if tag in _VOID:
        return Markup(f"<{tag}{given}>")
    return Markup(f"<{tag}{given}>{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Markup:
    """Elements and text side by side."""
    return Markup("".join(_written(child) for child in children))


def _written(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, (str, int)):
        return html.escape(str(child))
    return join(child)


def _attribute(name: str, value: str | int | bool) -> str:
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
