"""The options of a run that a scenario has: set on the console, passed to `simulate`, and written in a replay line."""

import shlex
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, replace
from typing import Any, cast

from ddpsim import Crash, Delay, EarlyReturn, UsageError
from ddpsim.scenarios.model import Scenario
from ddpsim.simulator.faults import Fault, How, Strike
from ddpsim.simulator.run_options import NOTHING, OPTIONS, ReplayKeywords

_DEFAULTS = {each.name: each.default for each in fields(Scenario)}


def with_run_options(scenario: Scenario, given: Mapping[str, Any]) -> Scenario:
    """Return the scenario with these command-line options. Raises UsageError for an unknown check or fault."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    # A replay line repeats the faults that a file adds.
    added = tuple(each for each in map(parse_fault, values.pop("faults", ())) if each not in scenario.added_faults)
    for name in [name for name in values if OPTIONS[name].has_none]:
        texts = (*OPTIONS[name].choices, NOTHING)
        if values[name] not in texts:
            raise UsageError(f"{name} is {values[name]!r}, expected one of {', '.join(texts)}: give one of these names")
        values[name] = None if values[name] == NOTHING else values[name]
    values |= {"faults": (*scenario.faults, *added), "added_faults": (*scenario.added_faults, *added)}
    return replace(scenario, **values)


def run_keywords(scenario: Scenario, transport: str) -> ReplayKeywords:
    """Return the options of a scenario's run, as keywords for `simulate`, `replay` and `explore`."""
    own = {name: getattr(scenario, name) for name in ReplayKeywords.__optional_keys__ if name != "transport"}
    return cast(ReplayKeywords, {**own, "transport": transport})


def command_line_options_of(scenario: Scenario) -> list[str]:
    """Return the command-line options that repeat a scenario's run: those whose values differ from the defaults."""
    words: list[str] = []
    for name, option in OPTIONS.items():
        value = getattr(scenario, "added_faults" if name == "faults" else name, None)
        if not option.help or not option.is_replayed or value == _DEFAULTS[name]:
            continue
        flag = option.console_flag(name)
        for each in value if isinstance(value, tuple) else (value,):
            text = NOTHING if each is None else fault_text(each) if name == "faults" else str(each)
            words += [flag] if each is True else [flag, shlex.quote(text)]
    return words


# --- faults on the command line: `crash:rank=1,before_call=3`, with the names that Python and TOML files use ----------

_KINDS: dict[str, type[Any]] = {"crash": Crash, "delay": Delay, "early_return": EarlyReturn, "strike": Strike}
_EXPECTED = (
    "expected crash:rank=R,before_call=N, early_return:rank=R,before_call=N or "
    "delay:rank=R,before_call=N,seconds=S: calls of a rank count from 0; or, of a program, "
    "strike:rank=R,before_operation=N,how=kill, tear, term, raise, slow, host or full"
)


def parse_fault(text: str) -> Fault:
    """Return the fault that a command-line text describes. Raises UsageError if the text describes none."""
    kind_name, _, rest = text.partition(":")
    words = [word.partition("=")[::2] for word in rest.split(",")]
    given = dict(words)
    try:
        kind = _KINDS[kind_name]
        needed = {each.name for each in fields(kind) if each.default is MISSING}
        if needed <= set(given) <= {each.name for each in fields(kind)} and len(given) == len(words):
            fault: Fault = kind(**{name: _parse_fault_value(name, value) for name, value in words})
            return fault
    except (KeyError, ValueError):
        pass
    raise UsageError(f"fault is {text!r}, {_EXPECTED}")


def fault_text(fault: Fault) -> str:
    """Return the text of a fault, which `parse_fault` reads as the same fault."""
    kind = next(name for name, kind in _KINDS.items() if type(fault) is kind)
    defaults = {each.name: each.default for each in fields(fault)}
    said = {
        name: value.value if isinstance(value, How) else value
        for name, value in asdict(fault).items()
        if value != defaults[name]
    }
    return f"{kind}:" + ",".join(f"{name}={value}" for name, value in said.items())


def _parse_fault_value(name: str, text: str) -> int | float | str:
    if name == "how":
        return How(text)
    return text if name == "message" else float(text) if name == "seconds" else int(text)
