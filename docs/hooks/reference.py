"""A line ``::: all sparsejax.losses`` of a page is the module and every name of its ``__all__``."""

import importlib
import inspect
import re

import sparsejax

OWN_PAGES = sparsejax.losses, sparsejax.penalties, sparsejax.solvers
LINE = re.compile(r"^::: all (\S+)$", re.M)


def names_of(module) -> list[str]:
    """Its public classes and functions: those of ``__all__``, or all that it defines."""
    own = getattr(module, "__all__", None)
    if own is None:
        own = [n for n, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__]
        own = [n for n in own if not n.startswith("_")]
    if module is sparsejax:  # these have pages of their own
        own = [n for n in own if not any(n in part.__all__ for part in OWN_PAGES)]
    return [name for name in own if inspect.isclass(x := getattr(module, name)) or inspect.isroutine(x)]


def options_of(thing) -> str:
    """The methods of a loss or penalty are those of its protocol, and shown there alone."""
    bases = sparsejax.Loss, sparsejax.Penalty, sparsejax.losses.LinearModelLoss
    known = inspect.isclass(thing) and issubclass(thing, bases) and thing not in bases
    return "    options: {members: false}\n" if known else ""


def on_page_markdown(markdown, page, config, files):
    """Write the lines out."""

    def listed(match):
        path = match.group(1)
        module = importlib.import_module(path)
        return "\n".join(
            f"::: {path}.{name}\n" + options_of(getattr(module, name)) for name in names_of(module)
        )

    return LINE.sub(listed, markdown)
