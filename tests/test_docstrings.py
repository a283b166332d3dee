"""Every public name is documented: what it is, its arguments, what it raises, and an example that is run.

The examples themselves are run by ``pytest --doctest-modules sparsejax``.
"""

import importlib
import inspect
import re
from types import ModuleType

import pytest

import sparsejax as sj

MODULES = [
    "sparsejax",
    *(f"sparsejax.{name}" for name in sj.__all__ if isinstance(getattr(sj, name), ModuleType)),
    *(f"sparsejax.models.{name}" for name in sj.models.__all__),
    "sparsejax.driver",
    "sparsejax.interop.jaxopt",
    "sparsejax.interop.optax",
    "sparsejax.plots",
    "sparsejax.sklearn",
]
TABLES = {"SOLVERS", "OPTIONS"}  # documented in the docstring of their module
PROTOCOLS = (sj.Loss, sj.Penalty, sj.losses.LinearModelLoss)


def public():
    """(where it is found, the thing), each thing once."""
    seen = {}
    for path in MODULES:
        module = importlib.import_module(path)
        for name in module.__all__:
            thing = getattr(module, name)
            if not isinstance(thing, ModuleType) and name not in TABLES:
                seen.setdefault(id(thing), (f"{path}.{name}", thing))
    return list(seen.values())


NAMES = public()


def parameters_of(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


def own_methods(cls):
    """Public methods and properties that a class defines and that are no part of a protocol."""
    for name, member in vars(cls).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        declared = any(name in vars(base) for base in cls.__mro__[1:])
        if not name.startswith("_") and inspect.isfunction(function) and not declared:
            yield name, function


@pytest.mark.parametrize(("where", "thing"), NAMES, ids=[where for where, _ in NAMES])
def test_a_name_is_documented(where, thing):
    text = inspect.getdoc(thing) or ""
    assert thing.__doc__, f"{where} has no docstring"
    assert ">>> " in text, f"{where} has no example"
    if inspect.isfunction(thing) and parameters_of(thing):
        assert "Args:" in text, f"{where} does not say what its arguments are"
        assert "Raises:" in text or "Never raises" in text, f"{where} does not say what it raises"
        said = (":math:", ".. math::", "``", "Source:", "Returns:")
        assert any(mark in text for mark in said), f"{where} has neither a formula nor a source"
    if inspect.isclass(thing) and not issubclass(thing, (*PROTOCOLS, Exception)):
        fields = getattr(thing, "_fields", None)  # of a NamedTuple: a comment each, in the source
        commented = fields is not None and len(re.findall(r"^    \w+:.*", inspect.getsource(thing), re.M))
        assert "Attributes:" in text or "Args:" in text or commented, f"{where}: what does it hold?"


@pytest.mark.parametrize(("where", "thing"), NAMES, ids=[where for where, _ in NAMES])
def test_methods_are_documented(where, thing):
    """Where they are declared: by the class itself, or by the protocol that it follows."""
    if inspect.isclass(thing):
        for name, function in own_methods(thing):
            assert inspect.getdoc(function), f"{where}.{name} has no docstring"


def test_every_example_is_of_a_module_that_is_collected():
    """Pytest imports the modules of the folder; a name defined elsewhere would not be run."""
    for where, thing in NAMES:
        assert thing.__module__.startswith("sparsejax"), where
