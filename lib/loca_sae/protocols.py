"""What is measured, choice by choice: the protocols native, described and released.

A table of dead latents or absorption depends on choices that its caption rarely names: which labels
probes are fitted to, how many latents a TopK SAE may use at evaluation, whether position 0 counts.
Each such choice is a field of `Protocol`, so that one switch at a time can be flipped between what
the public release computes and what each SAE's authors run, and the change read off.

- native: each SAE as SAELens runs it (biases, thresholds, trained k), non-negative codes, lambda by
  bisection on the mean L0, concept labels, probes fitted on training texts and scored on test
  texts, a main latent of positive correlation, position 0 and massive tokens masked.
- described: what the paper's text says. As native; but main latents are ranked by |correlation|,
  and probes are scored on the data they were fitted on, since no split and no sign are mentioned.
- released: what the authors' public release computes. Labels say whether a token's norm is above
  the median; TopK-family SAEs are read at a tenth of the dictionary; the decoder bias, JumpReLU
  thresholds and the gated path are left out; ISTA thresholds softly on both sides of zero; lambda
  comes from nine powers between 1e-5 and 1e-1 and is aimed at the encoder's dense rate; every
  position of the residual stream one layer below counts; LocA is read as ReLU(x W_enc + b_enc).

This is a study of what choices do, not a verdict on anybody's code.
"""

from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

TOPK_FAMILY = ("topk", "batchtopk", "matryoshka_batchtopk")
GATED_FAMILY = ("jumprelu", "gated")
RELEASED_LAMBDAS = tuple(10.0 ** (-5 + i / 2) for i in range(9))
RELEASED_TOKENS = 10_000  # how many tokens the public release evaluates on


@dataclass(frozen=True)
class Protocol:
    """One way to measure; the defaults are native.

    name: shown in tables.
    labels: "concepts" (labelled texts) or "norm": 1 where a token's norm exceeds the median norm.
    probe_split: score probes on "held-out" texts, or on the "same" data they were fitted on.
    main_latent: largest "positive" correlation, or largest "absolute" one whatever its sign.
    k: "trained", or "tenth": the d_sae / 10 largest latents of a TopK-family SAE.
    decoder_bias: subtract b_dec before encoding and add it after decoding.
    gates: apply JumpReLU thresholds and the gated path; otherwise a plain ReLU.
    signed: soft-threshold on both sides of zero in ISTA, so that codes may be negative.
    lam_target: match the mean "l0", or aim the share of non-zeros at the encoder's "dense" rate
        (share of latents that fire on at least a tenth of the tokens).
    lam_search: "bisection" within 1 %, or the nearest of the nine values on the release's "grid".
    positions: "masked" (position 0 and massive tokens left out) or "all".
    layer_offset: 0, or -1 to evaluate on the residual stream one layer below.
    loca_groups: read LocA with its groups and budgets; otherwise by a plain ReLU.
    """

    name: str = "native"
    labels: Literal["concepts", "norm"] = "concepts"
    probe_split: Literal["held-out", "same"] = "held-out"
    main_latent: Literal["positive", "absolute"] = "positive"
    k: Literal["trained", "tenth"] = "trained"
    decoder_bias: bool = True
    gates: bool = True
    signed: bool = False
    lam_target: Literal["l0", "dense"] = "l0"
    lam_search: Literal["bisection", "grid"] = "bisection"
    positions: Literal["masked", "all"] = "masked"
    layer_offset: Literal[0, -1] = 0
    loca_groups: bool = True

    def effective(self, architecture: str, mode: str) -> "Protocol":
        """This protocol with every choice that cannot matter here set to native.

        Two protocols that are equal in this form give the same row, which need not be computed
        twice. The name is dropped too.
        """
        neutral = []
        if architecture not in TOPK_FAMILY:
            neutral.append("k")
        if architecture not in GATED_FAMILY:
            neutral.append("gates")
        if architecture != "loca":
            neutral.append("loca_groups")
        if mode == "full":
            neutral += ["signed", "lam_target", "lam_search"]
        return replace(self, name="", **{field: getattr(NATIVE, field) for field in neutral})


class Switch(NamedTuple):
    """One choice: how a walk calls it, and the field that it sets."""

    name: str
    field: str


NATIVE = Protocol()
DESCRIBED = replace(NATIVE, name="described", probe_split="same", main_latent="absolute")
RELEASED = Protocol(
    name="released",
    labels="norm",
    probe_split="same",
    main_latent="absolute",
    k="tenth",
    decoder_bias=False,
    gates=False,
    signed=True,
    lam_target="dense",
    lam_search="grid",
    positions="all",
    layer_offset=-1,
    loca_groups=False,
)
PROTOCOLS = {protocol.name: protocol for protocol in (NATIVE, DESCRIBED, RELEASED)}

# from released to native: first what is fed in, then how it is encoded, then what is asked of it
SWITCHES = (
    Switch("layer of the SAE", "layer_offset"),
    Switch("position 0 masked", "positions"),
    Switch("thresholds and gates", "gates"),
    Switch("trained k", "k"),
    Switch("LocA's groups", "loca_groups"),
    Switch("decoder bias", "decoder_bias"),
    Switch("non-negative codes", "signed"),
    Switch("lambda aims at L0", "lam_target"),
    Switch("lambda by bisection", "lam_search"),
    Switch("concept labels", "labels"),
    Switch("held-out probes", "probe_split"),
    Switch("main latent's sign", "main_latent"),
)


def protocol(given: "str | Protocol") -> Protocol:
    """The protocol of a name; a `Protocol` is returned as it is. ValueError for another name."""
    if isinstance(given, Protocol):
        return given
    if given not in PROTOCOLS:
        raise ValueError(
            f"protocol {given!r} is unknown; use one of {list(PROTOCOLS)}, or a Protocol with the "
            "choices you want."
        )
    return PROTOCOLS[given]


def walk() -> list[tuple[str, Protocol]]:
    """From released to native: (name of the choice made last, protocol after it).

    Cumulative: the first entry is ("released", RELEASED), each further one has one more choice of
    native, the last one has all of them.
    """
    steps = [(RELEASED.name, RELEASED)]
    for switch in SWITCHES:
        _, before = steps[-1]
        value = getattr(NATIVE, switch.field)
        steps.append((switch.name, replace(before, name=switch.name, **{switch.field: value})))
    return steps


def with_native(name: str) -> Protocol:
    """Released, with the one choice called ``name`` as in native. ValueError for another name."""
    for switch in SWITCHES:
        if switch.name == name:
            return replace(RELEASED, name=name, **{switch.field: getattr(NATIVE, switch.field)})
    raise ValueError(f"switch {name!r} is unknown; use one of {[s.name for s in SWITCHES]}.")


def differing(a: Protocol, b: Protocol) -> list[str]:
    """The fields, other than the name, in which two protocols differ."""
    names = [field.name for field in fields(Protocol) if field.name != "name"]
    return [name for name in names if getattr(a, name) != getattr(b, name)]
