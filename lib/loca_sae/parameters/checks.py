"""What one field alone cannot say: checks with a sentence each."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from loca_sae import data, models, sae_folders


def at_most(name: str, value: float, bound_name: str, bound: float) -> None:
    if value > bound:
        raise ValueError(
            f"{name} is {value}, but {bound_name} is {bound}; choose {name} at most {bound}."
        )


def sums_to(name: str, values: list[int], total_name: str, total: int) -> None:
    if sum(values) != total:
        raise ValueError(
            f"{name} {values} sum to {sum(values)}, but {total_name} is {total}; make them agree."
        )


def known_names(name: str, values: Iterable[str], known: Sequence[str]) -> None:
    for value in values:
        if value not in known:
            raise ValueError(f"{name}: {value!r} is unknown; use some of {list(known)}.")


def distinct(name: str, values: Sequence[object]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{name}: {value!r} stands there more than once; name it once.")


def check_model(model: str, layer: int) -> None:
    info = models.describe(model)
    if layer >= info.n_layers:
        default = info.n_layers // 2 if info.default_layer is None else info.default_layer
        raise ValueError(
            f"layer: {layer} is outside {model}, which has {info.n_layers} layers "
            f"(0 to {info.n_layers - 1}); layer {default} is a good first choice."
        )


def check_corpus(corpus: str) -> None:
    if corpus == "minipile" or corpus.startswith("hub:") or Path(corpus).is_file():
        return
    raise ValueError(
        f"corpus: {corpus!r} is neither 'minipile', nor 'hub:<dataset id>', nor an existing file "
        "(.txt, .jsonl or .parquet)."
    )


def check_concepts(concepts: list[str]) -> None:
    known = data.concept_names()
    for name in concepts:
        if name not in known:
            raise ValueError(f"concepts: {name!r} is no labelled set; use some of {known}.")


def saved_saes(saes: Iterable[str], model: str, layer: int) -> None:
    """Each is a folder with an SAE that fits the model and layer, or looks like "release:id"."""
    for spec in saes:
        if sae_folders.is_folder(spec):
            config, width = sae_folders.read_config(spec), models.describe(model).d_model
            sae_folders.check_config(spec, config, model, width, layer)
        elif not all(spec.partition(":")):
            raise ValueError(
                f"saes: {spec!r} is no folder; give one that SAELens saved an SAE into, or "
                "'release:id' of SAELens's directory."
            )


def check_device(device: str) -> None:
    if device == "cpu":
        return
    import torch  # a second of import time that the default device does not need

    try:
        torch.empty(1, device=device)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device: {device!r} cannot be used here ({reason}); try 'cpu'.") from None
