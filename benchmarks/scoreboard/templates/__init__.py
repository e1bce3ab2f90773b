"""What programs are drawn from, a file for each kind of thing that ranks do."""

from benchmarks.scoreboard.template import Template
from benchmarks.scoreboard.templates import arguments, collectives, correct, groups, messages, races, works

ALL: tuple[Template, ...] = (
    *arguments.TEMPLATES,
    *collectives.TEMPLATES,
    *groups.TEMPLATES,
    *messages.TEMPLATES,
    *works.TEMPLATES,
    *races.TEMPLATES,
    *correct.TEMPLATES,
)
