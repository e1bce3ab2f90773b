"""Do verbs agree in number with the ranks before them?"""

import re

SINGULAR = "waits is was has does makes goes comes needs leaves calls reads holds gets takes sends names polls changes"
PLURAL = "wait are were have do make go come need leave call read hold get take send name poll"

_NO_NOUN = r"(?! #\d| of tensor \d)"
"""In a row `send #3` and `name of tensor 0` are what stands beside the rank, and no verbs."""

_MANY = re.compile(rf"(?<!of )\branks \d[\d, \-]*(?:\.\.\.)?,? (?:also |all |still )?({SINGULAR.replace(' ', '|')})\b")
_ONE = re.compile(
    rf"(?<!and )(?<!, )(?<!of )(?<!let )\brank \d+ (?:also |still )?({PLURAL.replace(' ', '|')})\b{_NO_NOUN}"
)


def wrong_numbers(text: str) -> list[str]:
    """The places where one rank does what many do, or many what one does."""
    return [match[0] for pattern in (_MANY, _ONE) for match in pattern.finditer(re.sub(r" {2,}", " ", text))]
