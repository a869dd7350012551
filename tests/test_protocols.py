"""The protocols as data: what the walk passes through, and which choices matter to what."""

from dataclasses import fields, replace

import pytest

from loca_sae.names import ARCHITECTURES
from loca_sae.protocols import (
    DESCRIBED,
    NATIVE,
    PROTOCOLS,
    RELEASED,
    RELEASED_LAMBDAS,
    SWITCHES,
    Protocol,
    differing,
    protocol,
    walk,
    with_native,
)

CHOICES = [field.name for field in fields(Protocol) if field.name != "name"]


def test_the_walk_starts_at_released_and_ends_at_native_in_all_but_the_name() -> None:
    (first_name, first), *_, (_, last) = walk()
    assert (first_name, first) == ("released", RELEASED)
    assert replace(last, name="native") == NATIVE


def test_each_step_differs_from_the_one_before_in_the_one_field_of_its_switch() -> None:
    steps = walk()
    for (_, before), (name, after), switch in zip(steps, steps[1:], SWITCHES, strict=False):
        assert name == after.name == switch.name
        assert differing(before, after) == [switch.field]
        assert getattr(after, switch.field) == getattr(NATIVE, switch.field)


def test_released_differs_from_native_in_every_choice_and_each_has_one_switch() -> None:
    assert differing(RELEASED, NATIVE) == CHOICES
    assert sorted(switch.field for switch in SWITCHES) == sorted(CHOICES)
    assert len({switch.name for switch in SWITCHES}) == len(SWITCHES) == len(walk()) - 1


def test_described_differs_where_the_text_speaks_otherwise() -> None:
    assert differing(DESCRIBED, NATIVE) == ["probe_split", "main_latent"]


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.field)
def test_one_switch_alone_leaves_the_rest_of_released_as_it_is(switch) -> None:
    assert differing(with_native(switch.name), RELEASED) == [switch.field]


def test_names_are_looked_up_and_protocols_of_ones_own_pass_through() -> None:
    own = replace(NATIVE, name="mine", signed=True)
    assert protocol(own) is own
    assert {name: protocol(name) for name in PROTOCOLS} == PROTOCOLS
    with pytest.raises(ValueError, match="'relased' is unknown; use one of .*'released'"):
        protocol("relased")
    with pytest.raises(ValueError, match="'gates' is unknown; use one of .*'trained k'"):
        with_native("gates")


# field -> the architectures, and the modes, to which it can matter; None means all
MATTERS = {
    "k": (("topk", "batchtopk", "matryoshka_batchtopk"), None),
    "gates": (("jumprelu", "gated"), None),
    "loca_groups": (("loca",), None),
    "signed": (None, ("semi", "non")),
    "lam_target": (None, ("semi", "non")),
    "lam_search": (None, ("semi", "non")),
}


@pytest.mark.parametrize("mode", ["full", "semi", "non"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_choices_that_cannot_matter_are_native_in_effect_and_the_others_as_given(
    architecture, mode
) -> None:
    effect = RELEASED.effective(architecture, mode)
    for field in CHOICES:
        architectures, modes = MATTERS.get(field, (None, None))
        matters = (architectures is None or architecture in architectures) and (
            modes is None or mode in modes
        )
        assert getattr(effect, field) == getattr(RELEASED if matters else NATIVE, field), field
    assert effect.name == "", "two names for the same choices give one row"


def test_native_is_native_in_effect_for_every_sae() -> None:
    for architecture in ARCHITECTURES:
        assert differing(NATIVE.effective(architecture, "non"), NATIVE) == []


def test_the_releases_lambdas_are_nine_from_one_hundred_thousandth_to_a_tenth() -> None:
    assert len(RELEASED_LAMBDAS) == 9
    assert (RELEASED_LAMBDAS[0], RELEASED_LAMBDAS[-1]) == pytest.approx((1e-5, 1e-1))
    ratios = [b / a for a, b in zip(RELEASED_LAMBDAS, RELEASED_LAMBDAS[1:], strict=False)]
    assert ratios == pytest.approx([10**0.5] * 8)
