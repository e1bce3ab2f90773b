"""The command line `ddpsim`. It is a part of the package `ddpsim.scenarios`, because its commands run scenarios."""

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, *, served: tuple[int, float] | None = None) -> int:
    """Run `ddpsim` with these command-line arguments, by default those of this process, and return the exit status.

    `served`: the hash seed of this process, and the start of the command, if this is a fork of a standing server.
    """
    from ddpsim.scenarios.cli import own_process

    is_own = arguments is None and served is None
    seed, began = served or (own_process.begin_process() if is_own else None, None)
    from ddpsim.scenarios.cli import commands  # late, as a restart would import it twice

    status = commands.main(arguments, own_hash_seed=seed, began=own_process.process_start() if is_own else began)
    if seed is not None and is_own:
        own_process.exit_at_once(status)
    return status
