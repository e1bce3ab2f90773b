"""The forms of scenario files: classes with one field per key, which give each key's allowed values.

Other modules check combinations of keys.
"""

import sys
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from ddpsim import Code, Crash, Delay, EarlyReturn, Verdict
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.recorded_outcome import RecordedOutcome
from ddpsim.scenarios.training.training import (
    LARGEST,
    MOST,
    CommunicationHook,
    ExceptionalIterations,
    IterationRule,
    JoinOptions,
    ModelWrapper,
    OptimizerChoice,
    OptimizerName,
    ParallelLayout,
    Training,
    Whole,
)
from ddpsim.simulator.api import MOST_RANKS
from ddpsim.simulator.faults import Fault, How, Strike
from ddpsim.simulator.run_options import DEFAULTS, NOTHING, OPTIONS, OptionForms, RunOptions

NETWORKS = "a name, a table of name and options, or several of them"
_COUNTS = f"a whole number, one for each rank, or {{ start, step, cycle }}, up to {MOST}"
_LARGEST_SEED = 10**12
"""The largest seed in a file. Seeds of batches are computed from it, and have to stay below 2**63."""


class Dtype(str, Enum):
    """The dtypes that a file can name."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


class MixedPrecision(str, Enum):
    """The dtypes in which parameters can be gathered and gradients reduced."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


_Count = Annotated[int, Meta(ge=0, le=MOST)]
_Rows = Annotated[int, Meta(ge=1, le=MOST)]
_Norm = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
_Table = dict[str, Any]


class TableForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table in a scenario file, with one field per key."""


class ExpectedOfEngine(TableForm, frozen=True):
    """The expected result. Without any key: the run passes without findings."""

    finding: Code | None = None
    ranks: tuple[Whole, ...] | None = None
    verdict: Verdict | None = None


class ExpectedOutcome(ExpectedOfEngine, frozen=True):
    """The expected result, and the expected result on the engine of ddpsim if it differs."""

    ddp: ExpectedOfEngine | None = None


class ExpectedOfTraining(ExpectedOutcome, frozen=True):
    """The expected result of a training: also whether every rank's numbers must equal training on one process."""

    oracle: bool = False


class _FaultTable(TableForm, frozen=True, tag_field="kind"):
    rank: Whole = 0
    before_call: Whole = 0


class _CrashTable(_FaultTable, frozen=True, tag="crash"):
    message: str = "injected crash"


class _DelayTable(_FaultTable, frozen=True, tag="delay"):
    seconds: Annotated[float, Meta(ge=0, le=sys.float_info.max)] = 1.0


class _EarlyReturnTable(_FaultTable, frozen=True, tag="early_return"):
    """The table of the fault EarlyReturn (a rank returns early). It has no additional keys."""


class _StrikeTable(TableForm, frozen=True, tag_field="kind", tag="strike"):
    rank: Whole = 0
    before_operation: Whole = 0
    how: How = How.KILL


FaultTable = _CrashTable | _DelayTable | _EarlyReturnTable | _StrikeTable
FAULTS: tuple[tuple[type[FaultTable], type[Fault]], ...] = (
    (_CrashTable, Crash),
    (_DelayTable, Delay),
    (_EarlyReturnTable, EarlyReturn),
    (_StrikeTable, Strike),
)


def _type_of_toml_key(name: str, option: OptionForms) -> Any:
    """Return the type of the key that sets a given option of a run."""
    hint = get_type_hints(RunOptions)[name]
    if option.choices:
        texts = option.choices + (NOTHING,) * option.has_none
        return Literal[texts] | None
    return Annotated[int, Meta(ge=1, le=LARGEST)] | None if hint == int | None else hint


OPTION_KEYS: Mapping[str, Any] = {
    name: None if option.choices else DEFAULTS[name]  # the named scenario may have another choice
    for name, option in OPTIONS.items()
    if option.is_in_toml
}
"""The options of a run that a file may set, by key, each with its value in a file that does not set it."""

if TYPE_CHECKING:
    _OptionsForm = TableForm
else:
    _OptionsForm = msgspec.defstruct(
        "_OptionsForm",
        [(name, _type_of_toml_key(name, OPTIONS[name]), default) for name, default in OPTION_KEYS.items()],
        bases=(TableForm,),
        frozen=True,
    )


class ScenarioForm(_OptionsForm, frozen=True):
    """The keys that every file may have."""

    ddpsim: Any = None
    summary: str = ""
    cause: str = ""
    name: str | None = None
    world_size: Annotated[int, Meta(ge=1, le=MOST_RANKS)] | None = None
    runs_on: Engine | None = None
    schedule: str = ""
    hash_seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    fault: tuple[FaultTable, ...] | FaultTable = ()
    tags: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    recorded: RecordedOutcome | None = None
    """The recorded outcome of a run. Only a replay compares with it, but it is validated whenever a file is read."""


class TrainingForm(
    ScenarioForm,
    frozen=True,
    rename={
        "averages_buffers": "average_buffers",
        "reduces_loss": "reduce_loss",
        "recomputes": "activation_checkpointing",
    },
):
    """The form of a file with a declared training."""

    network: Annotated[str | _Table | tuple[_Table, ...], Meta(extra={"expected": NETWORKS})] = "linear"
    iterations: Annotated[_Count | tuple[_Count, ...] | IterationRule, Meta(extra={"expected": _COUNTS})] = (
        IterationRule()
    )
    rows: _Rows | tuple[_Rows, ...] = 4
    seed: Annotated[int, Meta(ge=0, le=_LARGEST_SEED)] = 0
    dtype: Dtype = Dtype.FLOAT32
    join: Annotated[bool | JoinOptions, Meta(extra={"expected": "a table, or true or false"})] = False
    optimizer: OptimizerName | OptimizerChoice = OptimizerChoice()
    communication_hook: CommunicationHook | None = None
    averages_buffers: bool = False
    reduces_loss: bool = False
    wrapper: ModelWrapper = ModelWrapper.DDP
    parallel: ParallelLayout | None = None
    accumulation: Annotated[int, Meta(ge=1, le=MOST)] = 1
    mixed_precision: MixedPrecision | None = None
    recomputes: bool = False
    clip_norm: Annotated[_Norm | None, Meta(extra={"expected": "a number above 0"})] = None
    engine: _Table = msgspec.field(default_factory=dict)
    exception: tuple[ExceptionalIterations, ...] | ExceptionalIterations = ()
    expect: ExpectedOfTraining | None = None


_UNLIKE = ("iterations", "dtype", "join", "optimizer", "mixed_precision")
ALIKE = tuple({each.name for each in fields(Training)}.intersection(TrainingForm.__struct_fields__).difference(_UNLIKE))
"""The fields that class `Training` has, too, with the same meaning. Those in `_UNLIKE` have another form there."""


class RankTable(TableForm, frozen=True):
    """The steps of one rank."""

    steps: Any = None


class ProgramForm(ScenarioForm, frozen=True, kw_only=True):
    """The form of a file with the steps of every rank."""

    group: Any = None
    rank: tuple[RankTable, ...] | RankTable
    expect: ExpectedOutcome | None = None


class ReferenceForm(ScenarioForm, frozen=True, kw_only=True):
    """The form of a file that refers to another scenario by name."""

    scenario: str
    world_size: Annotated[int, Meta(ge=0, le=MOST_RANKS)] | None = None
    expect: ExpectedOutcome | None = None
