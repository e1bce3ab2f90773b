"""`ddpsim doctor`: show versions, the machine, and the names in torch or Python that ddpsim needs and does not find."""

import json
import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.simulator.imports import TESTED, import_public_name, installed_version, torch_too_old_message

_OPTIONAL = ("accelerate", "dask", "lightning", "mlc-chakra", "pytorch-ignite", "ray", "torchmetrics", "transformers")
_COMPILERS = ("c++", "g++", "clang++", "ninja", "nvcc")


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> int:
    """Show versions, the machine, and what ddpsim needs and does not find. Paste it into a bug report.

    Exit status: 0 if nothing is missing, 1 if something is.
    """
    facts = _collect_facts()
    output.print_text(json.dumps(facts, indent=2) if as_json else "\n".join(_facts_as_lines(facts)))
    return ExitStatus.OTHERWISE if facts["problems"] else ExitStatus.AS_EXPECTED


def _collect_facts() -> dict[str, Any]:
    """Return the facts to show (versions, machine, missing names), by their keys in the JSON output."""
    torch, problem = _import_torch()
    python, gpus = platform.python_version(), "ddpsim.simulator.virtual_gpus.building"
    return {
        "ddpsim": installed_version("ddpsim") or "from its sources",
        "python": python,
        "torch": None if torch is None else str(torch.__version__),
        "tested_with": [{"python": each, "torch": other} for each, other in TESTED],
        "is_tested": torch is not None and (_major_and_minor(python), _major_and_minor(torch.__version__)) in TESTED,
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "free_memory_bytes": _free_memory(),
        "gpus": _gpu_names(torch),
        "virtual_gpus": "not without torch" if torch is None else import_public_name(gpus, "describe_device")(),
        "compilers": [name for name in _COMPILERS if shutil.which(name)],
        "optional_packages": {name: found for name in _OPTIONAL if (found := installed_version(name))},
        "new_names": [] if problem else import_public_name("ddpsim.simulator.foreign_names.public", "find_new_names")(),
        "problems": [{"name": "torch", "problem": problem, "disables": "everything"}] if problem else _missing_names(),
    }


def _import_torch() -> tuple[Any, str]:
    """Return the module torch and "". If torch cannot be imported, return None and the reason."""
    try:
        module = import_module("torch")
    except Exception as error:  # a broken build may raise anything
        line = next(iter(str(error).splitlines()), "")
        return None, f"cannot be imported ({type(error).__name__}: {line}): reinstall it"
    return module, torch_too_old_message()


def _missing_names() -> list[dict[str, str]]:
    from ddpsim.simulator.foreign_names.checking import find_mismatches
    from ddpsim.simulator.foreign_names.names import load_table

    return [
        {"name": each.name, "problem": each.problem, "disables": f"{each.row.why} ({each.row.where})"}
        for each in find_mismatches(load_table())
    ]


def _major_and_minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _free_memory() -> int | None:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not available on every system
        return None


def _gpu_names(torch: Any) -> list[str]:
    try:
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    except Exception:  # a broken driver, or no torch
        return []


def _facts_as_lines(facts: Mapping[str, Any]) -> Iterable[str]:
    """Yield the collected facts as lines of text."""
    tested = "tested" if facts["is_tested"] else "not tested"
    pairs = ", ".join(f"{each['python']} with {each['torch']}" for each in facts["tested_with"])
    memory = facts["free_memory_bytes"]
    optional = [f"{name} {version}" for name, version in facts["optional_packages"].items()]
    yield f"ddpsim {facts['ddpsim']}, Python {facts['python']}, torch {facts['torch'] or 'missing'}: {tested}"
    yield f"tested:       Python and torch {pairs}"
    yield f"system:       {facts['system']}, {facts['cores']} cores"
    yield f"virtual GPUs: {facts['virtual_gpus']}"
    yield f"free memory:  {'unknown' if memory is None else f'{memory / 2**30:.1f} GiB'}"
    for title, found in (("GPUs", facts["gpus"]), ("compilers", facts["compilers"]), ("optional", optional)):
        yield f"{title + ':':<14}{', '.join(found) or 'none'}"
    new = f"new in this torch, not looked at: {', '.join(facts['new_names'])}"
    yield f"torch names:  {new if facts['new_names'] else 'known, all that are public in torch.distributed'}"
    problems = facts["problems"]
    yield f"missing:      {len(problems) or 'nothing that ddpsim needs'}"
    for each in problems:
        yield f"  {each['name']}: {each['problem']}"
        yield f"    disables: {each['disables']}"
