"""The command line `ddpsim`. It is a part of the package `ddpsim.scenarios`, because its commands run scenarios."""

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `ddpsim` with these command-line arguments, by default those of this process, and return the exit status."""
    from ddpsim.scenarios.cli import own_process

    seed = own_process.begin_process() if arguments is None else None
    from ddpsim.scenarios.cli import commands  # late, as a restart would import it twice

    began = own_process.process_start() if arguments is None else None
    status = commands.main(arguments, own_hash_seed=seed, began=began)
    if seed is not None:
        own_process.exit_at_once(status)
    return status
