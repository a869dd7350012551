"""One model a notebook."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from loca_sae.names import ARCHITECTURES
from loca_sae.parameters import checks
from loca_sae.parameters.base import Parameters, Positive


class LocaParameters(Parameters):
    """What the notebooks that train a LocA-SAE need besides."""

    group_ks: list[Positive] = Field(
        [6, 5, 4, 3, 3, 2, 2, 1], min_length=1, description="LocA: budgets, high-AVar group first"
    )
    group_sizes: list[Positive] = Field(
        [], description="LocA: latents of each group, high AVar first; empty means equal groups"
    )
    loca_k: int = Field(26, ge=1, description="LocA: all budgets together")
    finetune_steps: int = Field(200, ge=20, description="LocA: optimizer steps of phase 4")
    avar_batches: int = Field(200, ge=1, description="LocA: batches for the angular variance")
    min_count: int = Field(10, ge=2, description="LocA: firings needed for an angular variance")

    @model_validator(mode="after")
    def _budgets_add_up(self) -> Self:
        checks.sums_to("group_ks", self.group_ks, "loca_k", self.loca_k)
        if self.group_sizes:
            checks.sums_to("group_sizes", self.group_sizes, "d_sae", self.d_sae)
            if len(self.group_sizes) != len(self.group_ks):
                raise ValueError(
                    f"group_sizes: {len(self.group_sizes)} groups, but group_ks has "
                    f"{len(self.group_ks)} budgets; give one budget for each group."
                )
        sizes = self.group_sizes or [self.d_sae // len(self.group_ks)] * len(self.group_ks)
        for index, (k, size) in enumerate(zip(self.group_ks, sizes, strict=True)):
            checks.at_most(f"group_ks[{index}]", k, f"the size of group {index}", size)
        return self


class TrainingDynamics(Parameters):
    """Notebook 01: Standard and TopK SAEs over sparsity and training."""

    notebook: ClassVar[str] = "01_training_dynamics"
    ks: list[Positive] = Field([8, 32], min_length=1, description="sparsities of the TopK SAEs")
    l1_coefficients: list[Annotated[float, Field(gt=0)]] = Field(
        [4.0, 1.0], min_length=1, description="L1 weights of the Standard SAEs"
    )

    @model_validator(mode="after")
    def _sparsities_fit(self) -> Self:
        checks.at_most("the largest of ks", max(self.ks), "d_sae", self.d_sae)
        return self


class AmortizationInterventions(LocaParameters):
    """Notebook 02: every SAE in full, semi and non mode."""

    notebook: ClassVar[str] = "02_amortization_interventions"
    architectures: list[str] = Field(
        ["standard", "topk", "jumprelu", "loca"],
        description="SAEs to train and compare, in the order of the tables",
    )
    saes: list[str] = Field(
        [], description="further SAEs: folders that SAELens wrote, or 'release:id' (from a hub)"
    )
    semi_steps: int = Field(25, ge=1, description="ISTA steps from the encoder's code (semi)")
    non_steps: int = Field(200, ge=1, description="ISTA steps from zero (non)")
    walk_tokens: int = Field(
        256, ge=64, description="held-out tokens, at most, on which protocols are compared"
    )
    walk_architectures: list[str] = Field(
        ["topk"], description="SAEs that walk from the released protocol to the native one"
    )
    walk_modes: list[str] = Field(
        ["full", "semi"], min_length=1, description="modes of that walk: full, semi, non"
    )

    @model_validator(mode="after")
    def _saes_fit(self) -> Self:
        checks.known_names("architectures", self.architectures, ARCHITECTURES)
        if not self.architectures and not self.saes:
            raise ValueError(
                "architectures: there is nothing to compare; name some of "
                f"{list(ARCHITECTURES)}, or an SAE of your own in saes."
            )
        checks.saved_saes(self.saes, self.model, self.layer)
        return self

    @model_validator(mode="after")
    def _walk_is_possible(self) -> Self:
        checks.known_names("walk_architectures", self.walk_architectures, ARCHITECTURES)
        checks.known_names("walk_modes", self.walk_modes, ("full", "semi", "non"))
        if self.layer == 0:
            raise ValueError(
                "layer: 0 has no layer below it, which the released protocol reads; choose a "
                "layer of 1 or more."
            )
        return self


class LocaSae(LocaParameters):
    """Notebook 03: the four phases of LocA-SAE and its controls."""

    notebook: ClassVar[str] = "03_loca_sae"


class IstaAblation(LocaParameters):
    """Notebook 04: the number of ISTA steps, from the encoder's code and from zero."""

    notebook: ClassVar[str] = "04_ista_ablation"
    architectures: list[str] = Field(
        ["batchtopk"],
        min_length=1,
        description="SAEs; the first one is also read under each protocol",
    )
    ista_steps: list[Positive] = Field(
        [5, 25, 50, 200], min_length=2, description="ISTA steps from either start"
    )
    protocol_tokens: int = Field(
        512, ge=64, description="held-out tokens, at most, on which protocols are compared"
    )

    @model_validator(mode="after")
    def _sweep_is_possible(self) -> Self:
        checks.known_names("architectures", self.architectures, ARCHITECTURES)
        checks.distinct("architectures", self.architectures)
        checks.distinct("ista_steps", self.ista_steps)
        if min(self.ista_steps) > 50:
            raise ValueError(
                f"ista_steps: {self.ista_steps} has none up to 50, which the protocols are "
                "compared on; add one."
            )
        if self.layer == 0:
            raise ValueError(
                "layer: 0 has no layer below it, which the released protocol reads; choose a "
                "layer of 1 or more."
            )
        return self


class DownstreamInterventions(LocaParameters):
    """Notebook 05: targeted probe perturbation, and the next token under an edited residual."""

    notebook: ClassVar[str] = "05_downstream_interventions"
    concepts: list[str] = Field(
        ["domain", "code_language"], min_length=1, description="labelled sets to perturb"
    )
    ablations: list[Positive] = Field(
        [2, 5, 10, 20, 50, 100, 500], min_length=1, description="latents ablated at once (N)"
    )
    splice_contexts: int = Field(
        2, ge=1, description="held-out contexts run through the model with the SAE spliced in"
    )


NOTEBOOKS: dict[str, type[Parameters]] = {
    model.notebook: model
    for model in (
        TrainingDynamics,
        AmortizationInterventions,
        LocaSae,
        IstaAblation,
        DownstreamInterventions,
    )
}
