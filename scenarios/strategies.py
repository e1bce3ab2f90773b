"""The old name of `ddpsim.scenarios.fuzzing.strategies`, kept for one release."""

import sys
import warnings

from ddpsim.scenarios.fuzzing import strategies
from ddpsim.scenarios.fuzzing.strategies import whole

warnings.warn(f"{__name__} is now {strategies.__name__}: import from there", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = strategies
sys.modules[f"{__name__}.whole"] = whole
