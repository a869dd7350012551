"""Words are compared exactly and numbers within tolerances."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.number_text import Tolerance, difference, tokens, value

EXACT = Tolerance(rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("nmse 0.097 at L0 31.9.", ["0.097", "31.9"]),
        ("1,234,567 tokens, 12 %", ["1,234,567", "12"]),
        ("gap = -2.5e-06 (+3)", ["-2.5e-06", "+3"]),
        ("[0.12, \N{MINUS SIGN}0.5]", ["0.12", "\N{MINUS SIGN}0.5"]),
        ("a | .5|7", [".5", "7"]),
    ],
)
def test_numbers_that_stand_free_are_found(text: str, numbers: list[str]) -> None:
    assert tokens(text)[1] == numbers


@pytest.mark.parametrize(
    "text",
    ["SmolLM2-135M", "blocks.20.hook_out", "version 1.4.0", "2026-11-30", "640x480", "x_1", "20k"],
)
def test_digits_inside_words_are_text(text: str) -> None:
    assert tokens(text) == ([text], [])
    assert difference(text, text.replace("0", "9").replace("1", "7"), Tolerance(10.0, 1e9))


@given(
    st.lists(st.floats(-1e6, 1e6).map(lambda x: f"{x:.4g}"), max_size=5),
    st.text("ab ,:|", min_size=1),
)
def test_a_text_agrees_with_itself(numbers: list[str], glue: str) -> None:
    text = f" {glue} ".join(numbers)
    assert difference(text, text, EXACT) is None
    assert [value(number) for number in tokens(text)[1]] == [float(n) for n in numbers]


@given(st.floats(0.01, 1e6), st.floats(-0.5, 0.5))
def test_a_number_passes_exactly_when_it_is_near(reference: float, shift: float) -> None:
    """Printed with many digits, so that the last place adds nothing."""
    new = reference * (1 + shift)
    near = abs(new - reference) <= 0.02 * reference
    agrees = difference(f"a {reference:.15e} b", f"a {new:.15e} b", Tolerance()) is None
    # on the very border, rounding of the product may tip it either way
    assert agrees == near or abs(abs(shift) - 0.02) < 1e-6


def test_one_unit_in_the_last_place_is_rounding() -> None:
    assert difference("0.004", "0.005", EXACT) is None
    assert difference("0.004", "0.006", EXACT)
    assert difference("3e-06", "4e-06", EXACT) is None
    assert difference("3e-06", "5e-06", EXACT)


def test_a_count_has_no_last_place_to_spare() -> None:
    assert difference("4 dead", "5 dead", Tolerance())
    assert difference("1000 dead", "1019 dead", Tolerance()) is None


def test_atol_is_for_numbers_near_zero() -> None:
    assert difference("gap 0.0001", "gap -0.0030", Tolerance(atol=0.01)) is None
    assert difference("gap 0.0001", "gap -0.0300", Tolerance(atol=0.01))


def test_the_width_of_a_table_does_not_matter_but_its_words_do() -> None:
    old = "mode   nmse\n-----------\nfull  0.100"
    assert difference(old, "mode    nmse\n------------\nfull  0.1010", Tolerance()) is None
    assert difference(old, old.replace("full", "semi"), Tolerance())


def test_nan_is_a_word() -> None:
    assert difference("dead nan", "dead 0.1", Tolerance(rtol=1e9, atol=1e9))
    assert difference("dead nan", "dead nan", EXACT) is None


def test_a_number_more_or_less_is_a_difference() -> None:
    assert difference("a 1 2", "a 1", Tolerance(10, 10))
    assert difference("a 1", "a 1 2", Tolerance(10, 10))
