"""The parameters of the notebooks: one pydantic model each, the only place where they are defined.

A notebook's parameters cell repeats the names and defaults (papermill needs them as plain
assignments); its next cell hands the namespace to ``from_notebook``, which refuses unknown names,
wrong types and impossible values in one sentence each, before any model is loaded. papermill
itself only warns about a name it does not know.

This module is light: it needs neither torch nor a language model, so a wrong parameter fails in
the first seconds.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from loca_sae import data, models

Positive = Annotated[int, Field(ge=1)]
_SIMPLE = (bool, int, float, str, list, tuple, dict, type(None))
# names that IPython itself puts into a notebook's namespace
_IPYTHON = {"In", "Out", "exit", "quit", "get_ipython", "open"}


class ParameterError(ValueError):
    """A notebook parameter is unknown, of a wrong type, or impossible."""


class Parameters(BaseModel):
    """What every notebook needs: the model, the activations, the SAE, the seed, the device."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
    notebook: ClassVar[str]

    model: str = Field(
        "smollm2-135m",
        description="language model: smollm2-135m, gemma-3-270m, a hub id or a local folder",
    )
    layer: int = Field(20, ge=0, description="residual stream after this block, counted from 0")
    corpus: str = Field(
        "minipile", description="minipile, a .txt/.jsonl/.parquet file, or hub:<dataset id>"
    )
    tokens: int = Field(6144, ge=256, description="training tokens to harvest")
    eval_tokens: int = Field(1536, ge=256, description="held-out tokens the measures are taken on")
    context: int = Field(128, ge=8, description="tokens in a context")
    d_sae: int = Field(512, ge=8, description="latents of each SAE")
    k: int = Field(20, ge=1, description="active latents of a TopK SAE")
    steps: int = Field(200, ge=20, description="optimizer steps of each SAE")
    batch_size: int = Field(256, ge=1, description="activations in an optimizer step")
    lr: float = Field(1e-3, gt=0, le=1, description="Adam's learning rate")
    checkpoints: int = Field(
        3, ge=2, description="log-spaced checkpoints saved of each SAE, the last step included"
    )
    first_checkpoint: int = Field(40, ge=1, description="optimizer step of the first checkpoint")
    concepts: list[str] = Field(
        ["domain"], min_length=1, description="labelled sets for the concept measures"
    )
    labels: int = Field(4, ge=2, description="labels of each set that are used")
    texts: int = Field(16, ge=4, description="training texts a label; half as many for the test")
    tokens_per_text: int = Field(4, ge=1, description="tokens a text that are encoded and pooled")
    calibration_tokens: int = Field(
        256, ge=32, description="activations on which lambda is calibrated"
    )
    seed: int = Field(0, ge=0, description="seeds weights, order of data and every sample")
    device: str = Field("cpu", description="cpu, cuda, cuda:1, mps")
    autocast: bool = Field(False, description="harvest activations under bfloat16 autocast")

    @classmethod
    def from_notebook(cls, namespace: Mapping[str, Any]) -> Self:
        """Check the parameters found in a notebook's ``globals()``.

        Every simple value there that is not private is taken for a parameter, so a misspelt one
        is found as an unknown name. Raises ParameterError with one line for each problem.
        """
        given = {
            name: value
            for name, value in namespace.items()
            if not name.startswith("_")
            and name not in _IPYTHON
            and not isinstance(value, ModuleType)
            and isinstance(value, _SIMPLE)
        }
        return cls.check(given)

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> Self:
        """Build the model from a mapping; ParameterError instead of pydantic's own report."""
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            problems = [cls._sentence(problem) for problem in error.errors()]
            raise ParameterError(_report(cls.notebook, problems)) from None

    @classmethod
    def _sentence(cls, problem: Any) -> str:
        name = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            return _unknown_name(name, list(cls.model_fields))
        if problem["type"] == "value_error":
            return str(problem["ctx"]["error"])
        field = cls.model_fields[str(problem["loc"][0])]
        return (
            f"{name}: got {problem['input']!r}, but {_lower_first(problem['msg'])}. "
            f"It means: {field.description} (default {field.default!r})."
        )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """The rules that need more than one field; light, so no model is loaded."""
        _check_model(self.model, self.layer)
        _check_corpus(self.corpus)
        _check_concepts(self.concepts)
        _check_device(self.device)
        _at_most("k", self.k, "d_sae", self.d_sae)
        _at_most("first_checkpoint", self.first_checkpoint, "steps", self.steps)
        return self


class LocaParameters(Parameters):
    """What the notebooks that train a LocA-SAE need besides."""

    l1_coefficient: float = Field(2.0, gt=0, description="L1 weight of the Standard SAE")
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
        _sums_to("group_ks", self.group_ks, "loca_k", self.loca_k)
        if self.group_sizes:
            _sums_to("group_sizes", self.group_sizes, "d_sae", self.d_sae)
            if len(self.group_sizes) != len(self.group_ks):
                raise ValueError(
                    f"group_sizes: {len(self.group_sizes)} groups, but group_ks has "
                    f"{len(self.group_ks)} budgets; give one budget for each group."
                )
        sizes = self.group_sizes or [self.d_sae // len(self.group_ks)] * len(self.group_ks)
        for index, (k, size) in enumerate(zip(self.group_ks, sizes, strict=True)):
            _at_most(f"group_ks[{index}]", k, f"the size of group {index}", size)
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
        _at_most("the largest of ks", max(self.ks), "d_sae", self.d_sae)
        return self


class AmortizationInterventions(LocaParameters):
    """Notebook 02: every SAE in full, semi and non mode."""

    notebook: ClassVar[str] = "02_amortization_interventions"
    semi_steps: int = Field(25, ge=1, description="ISTA steps from the encoder's code (semi)")
    non_steps: int = Field(200, ge=1, description="ISTA steps from zero (non)")


class LocaSae(LocaParameters):
    """Notebook 03: the four phases of LocA-SAE and its controls."""

    notebook: ClassVar[str] = "03_loca_sae"


class IstaAblation(Parameters):
    """Notebook 04: the number of ISTA steps in semi mode."""

    notebook: ClassVar[str] = "04_ista_ablation"
    architecture: str = Field("batchtopk", pattern="^(batchtopk|topk)$", description="the SAE")
    ista_steps: list[Positive] = Field(
        [5, 25, 50], min_length=2, description="ISTA steps from the encoder's code"
    )


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


def table(model: type[Parameters]) -> list[dict[str, str]]:
    """One row a parameter: name, type, default, meaning; for the tables of the book."""
    return [
        {
            "parameter": name,
            "type": _type_name(field.annotation),
            "default": repr(field.default),
            "meaning": field.description or "",
        }
        for name, field in model.model_fields.items()
    ]


def _type_name(annotation: Any) -> str:
    name = getattr(annotation, "__name__", str(annotation))
    if name == "list":
        inner = annotation.__args__[0]
        # list[Annotated[int, ...]] keeps the bare type as its origin
        return f"list of {getattr(inner, '__origin__', inner).__name__}"
    return str(name)


def _report(notebook: str, problems: list[str]) -> str:
    head = "1 parameter cannot" if len(problems) == 1 else f"{len(problems)} parameters cannot"
    return f"{head} be used in {notebook}:\n" + "\n".join(f"- {problem}" for problem in problems)


def _unknown_name(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{name}: there is no such parameter. {hint}The parameters are: {', '.join(known)}."


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _at_most(name: str, value: float, bound_name: str, bound: float) -> None:
    if value > bound:
        raise ValueError(
            f"{name} is {value}, but {bound_name} is {bound}; choose {name} at most {bound}."
        )


def _sums_to(name: str, values: list[int], total_name: str, total: int) -> None:
    if sum(values) != total:
        raise ValueError(
            f"{name} {values} sum to {sum(values)}, but {total_name} is {total}; make them agree."
        )


def _check_model(model: str, layer: int) -> None:
    info = models.describe(model)
    if layer >= info.n_layers:
        default = info.n_layers // 2 if info.default_layer is None else info.default_layer
        raise ValueError(
            f"layer: {layer} is outside {model}, which has {info.n_layers} layers "
            f"(0 to {info.n_layers - 1}); layer {default} is a good first choice."
        )


def _check_corpus(corpus: str) -> None:
    if corpus == "minipile" or corpus.startswith("hub:") or Path(corpus).is_file():
        return
    raise ValueError(
        f"corpus: {corpus!r} is neither 'minipile', nor 'hub:<dataset id>', nor an existing file "
        "(.txt, .jsonl or .parquet)."
    )


def _check_concepts(concepts: list[str]) -> None:
    known = data.concept_names()
    for name in concepts:
        if name not in known:
            raise ValueError(f"concepts: {name!r} is no labelled set; use some of {known}.")


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    import torch  # a second of import time that the default device does not need

    try:
        torch.empty(1, device=device)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device: {device!r} cannot be used here ({reason}); try 'cpu'.") from None
