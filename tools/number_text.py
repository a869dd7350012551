"""Compare two texts: words exactly, numbers within a tolerance.

A text is cut into literal pieces and numbers. A number may have a sign, thousands separators, a
decimal point and an exponent, and it stands free: digits joined to letters, underscores or other
points (`SmolLM2-135M`, `blocks.20.hook_out`, `1.4.0`, `640x480`) are part of a word.

A new number agrees with the committed one when

    |new - committed| <= atol + rtol |committed| + one unit in the last place printed

where the last term is for numbers printed with a point or an exponent only: 0.0975 may be
rounded to 0.097 here and 0.098 there, but a count of 4 is not a count of 5.

Runs of blanks count as one blank and runs of rule characters (`---`, `===`) as one rule, since
the width of a printed table follows the digits of its numbers.
"""

import re
from dataclasses import dataclass

RTOL = 2e-2
ATOL = 0.0

_NUMBER = re.compile(
    r"""
    (?<![\w.])                              # not inside a word, a version, a longer number
    (?:(?<![)\]])[-+\N{MINUS SIGN}])?       # a sign, unless it is an operator after a bracket
    (?<![\w.]-)                             # nor joined to a word by a hyphen
    (?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)
    (?:[eE][-+]?\d+)?
    (?![\w]|\.\d|-\w)                       # nor followed by one
    """,
    re.VERBOSE,
)
_BLANKS = re.compile(r"\s+")
_RULES = re.compile(r"([-=─━═_])\1{2,}")


@dataclass(frozen=True)
class Tolerance:
    """How far a number may be from the committed one; see the module's head for the formula."""

    rtol: float = RTOL
    atol: float = ATOL

    def allows(self, committed: str, new: str) -> bool:
        """Whether two printed numbers agree."""
        reference = value(committed)
        allowed = self.atol + self.rtol * abs(reference) + _last_place(committed)
        # a hair more, for differences of decimal fractions
        return abs(value(new) - reference) <= allowed * (1 + 1e-9)


def value(text: str) -> float:
    """The value of a printed number."""
    return float(text.replace(",", "").replace("\N{MINUS SIGN}", "-"))


def _last_place(text: str) -> float:
    mantissa, _, exponent = text.lower().partition("e")
    if not exponent and "." not in mantissa:
        return 0.0
    decimals = len(mantissa.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - decimals)


def tokens(text: str) -> tuple[list[str], list[str]]:
    """The literal pieces of a text and the numbers between them: one piece more than numbers."""
    text = _RULES.sub(r"\1\1\1", _BLANKS.sub(" ", text)).strip()
    pieces, numbers, end = [], [], 0
    for match in _NUMBER.finditer(text):
        pieces.append(text[end : match.start()])
        numbers.append(match.group().rstrip("."))
        # a full stop after a number ends the sentence, not the number
        end = match.end() - (len(match.group()) - len(numbers[-1]))
    return [*pieces, text[end:]], numbers


def difference(committed: str, new: str, tolerance: Tolerance) -> str | None:
    """Say how a new text differs from the committed one, or None when it agrees."""
    old_pieces, old_numbers = tokens(committed)
    new_pieces, new_numbers = tokens(new)
    for index, (old, now) in enumerate(zip(old_pieces, new_pieces, strict=False)):
        if old.strip() != now.strip():
            return f"the text differs: committed {_short(old)}, now {_short(now)}"
        if index < min(len(old_numbers), len(new_numbers)):
            reference, number = old_numbers[index], new_numbers[index]
            if not tolerance.allows(reference, number):
                return (
                    f"a number differs by more than rtol {tolerance.rtol:g}, atol "
                    f"{tolerance.atol:g}: committed {reference}, now {number}, "
                    f"after {_short(old, tail=True)}"
                )
    if len(old_numbers) != len(new_numbers):
        return f"committed {len(old_numbers)} numbers, now {len(new_numbers)}"
    return None


def _short(text: str, tail: bool = False, length: int = 80) -> str:
    if len(text) <= length:
        return repr(text)
    return repr("..." + text[-length:] if tail else text[:length] + "...")
