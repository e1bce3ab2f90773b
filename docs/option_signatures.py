"""An extension of griffe, which reads the code for the page docs/api.md: signatures with the options of a run.

The code says `**options: Unpack[RunKeywords]` and `policy = named.DEFAULT`; a reader looks for names and values.
"""

from __future__ import annotations

import inspect
import pkgutil
from typing import Any

import griffe

from ddpsim.simulator import run_options

MODULES = ("simulator.api", "simulator.shrinking.shrunk_schedule")
"""Where the functions are that take the options of a run."""


class OptionSignatures(griffe.Extension):
    """Replaces `**options: Unpack[...]` by the options, and defaults by their values."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the public functions of these modules."""
        for module in MODULES:
            for name, function in pkg[module].functions.items():
                if not name.startswith("_"):
                    spell_out(function)


def spell_out(function: griffe.Function) -> None:
    """Give a function the signature that a reader of its page needs; one that has it keeps it."""
    in_use = inspect.signature(pkgutil.resolve_name(function.path)).parameters
    for each in list(function.parameters):
        if each.name in in_use and in_use[each.name].default is not inspect.Parameter.empty:
            each.default = repr(in_use[each.name].default)
        if (keywords := str(each.annotation)).startswith("Unpack["):
            del function.parameters[each.name]
            hints = getattr(run_options, keywords[len("Unpack[") : -1]).__annotations__
            for name, hint in hints.items():
                default, kind = repr(run_options.DEFAULTS[name]), griffe.ParameterKind.keyword_only
                function.parameters.add(
                    griffe.Parameter(name, annotation=hint.__forward_arg__, kind=kind, default=default)
                )
