"""What every notebook needs, and how a wrong parameter is reported."""

import difflib
from collections.abc import Mapping
from types import ModuleType
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from loca_sae.parameters import checks

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
        checks.check_model(self.model, self.layer)
        checks.check_corpus(self.corpus)
        checks.check_concepts(self.concepts)
        checks.check_device(self.device)
        checks.at_most("k", self.k, "d_sae", self.d_sae)
        checks.at_most("first_checkpoint", self.first_checkpoint, "steps", self.steps)
        return self


def _report(notebook: str, problems: list[str]) -> str:
    head = "1 parameter cannot" if len(problems) == 1 else f"{len(problems)} parameters cannot"
    return f"{head} be used in {notebook}:\n" + "\n".join(f"- {problem}" for problem in problems)


def _unknown_name(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{name}: there is no such parameter. {hint}The parameters are: {', '.join(known)}."


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
