"""`--help` of the commands that run a program: their options in groups."""

from typing import Any

from typer.core import TyperCommand

GROUPS = {
    "Program": "name engine preload transport timeout against generate corpus documented",
    "Ranks": "world_size isolation gpus nnodes launcher max_restarts private_disk alike one_at_a_time",
    "Schedule": "token policy seed seeds depth preemptions backend_semantics executions seconds steps optimizer_steps "
    "keep_going at rank finding commands step first last lenient",
    "Checks": "faults check poison check_determinism",
    "Output": "lanes report opens as_json output flight_recorder clog chakra",
    "Options": "",
}
"""The parameters of commands by group; those in no group are under the last."""


class GroupedCommand(TyperCommand):
    """A command whose help shows its options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write each group that has options of the command."""
        of_parameters = {parameter.name: parameter.get_help_record(ctx) for parameter in self.get_params(ctx)}
        group_of = {name: group for group, names in GROUPS.items() for name in names.split()}
        for group in GROUPS:
            records = [row for name, row in of_parameters.items() if row and group_of.get(name, "Options") == group]
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)
