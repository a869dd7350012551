"""The rules, numbers and choices of the experiments, on tables and frames made by hand."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from loca_sae.experiments import (
    amortization_interventions,
    harvest,
    ista_ablation,
    numbers,
    verdicts,
)
from loca_sae.experiments.data import choose_labels, choose_texts
from loca_sae.experiments.saes import checkpoint_steps, recipe
from loca_sae.parameters import LocaSae, TrainingDynamics

HEAD = {
    "protocol": "native",
    "model": "toy",
    "layer": 1,
    "d_sae": 64,
    "train_tokens": 1000,
    "eval_tokens": 200,
    "seed": 0,
}


def dynamics_row(architecture: str, sparsity: float, step: int, **measures) -> dict:
    quiet = {"nmse": 0.3, "dead": 0.0, "dense_0.1": 0.0, "dense_0.2": 0.0, "delta_f1": 0.0}
    quiet |= {"absorption": 0.0, "gap_relative": 0.1, "gap_l0_matched": True, "l0": 10.0}
    head = {"architecture": architecture, "sparsity": sparsity, "step": step}
    return {**HEAD, **head, "seen_tokens": step * 8, **quiet, **measures}


def as_the_paper_says() -> pd.DataFrame:
    """Two SAEs of each architecture at two checkpoints, every claim C1 to C5 true of them."""
    rows = []
    for architecture, dense in (("standard", 0.5), ("topk", 0.1)):
        for sparsity, l0, nmse, bad in ((1.0, 50.0, 0.1, 0.3), (9.0, 5.0, 0.3, 0.95)):
            pathology = {"delta_f1": 0.6 * bad, "absorption": bad, "l0": l0}
            pathology["dead"] = bad * dense
            rows.append(
                dynamics_row(
                    architecture,
                    sparsity,
                    10,
                    nmse=0.9,
                    gap_relative=0.5,
                    dense_0=0,
                    **{**pathology, "dense_0.2": 0.8, "dense_0.1": 0.9},
                )  # fmt: skip
            )
            rows.append(
                dynamics_row(
                    architecture,
                    sparsity,
                    100,
                    nmse=nmse,
                    gap_relative=0.1,
                    **{**pathology, "dense_0.1": dense},
                )  # fmt: skip
            )
    return pd.DataFrame(rows)


def judged(rows) -> dict[str, str]:
    return {row["claim"]: row["holds here"] for row in rows}


def test_a_table_as_the_paper_describes_it_is_judged_so() -> None:
    table = as_the_paper_says()
    assert judged(verdicts.training_dynamics(table)) == dict.fromkeys(
        ["C1", "C2", "C3", "C4", "C5"], "yes"
    )


@pytest.mark.parametrize(
    ("claim", "changes", "expected"),
    [
        ("C1", {"nmse": 0.2}, "in part"),
        ("C1", {"nmse": 0.2, "dead": 0.0}, "no"),
        ("C2", {"dense_0.2": 0.1}, "in part"),
        ("C3", {"dead": 0.0, "delta_f1": 0.0, "absorption": 0.0}, "no"),
        ("C5", {"gap_relative": 0.5}, "in part"),
    ],
)
def test_a_claim_falls_when_what_it_rests_on_is_taken_away(claim, changes, expected) -> None:
    table = as_the_paper_says()
    for measure, value in changes.items():
        table[measure] = value
    assert judged(verdicts.training_dynamics(table))[claim] == expected


def test_a_gap_at_unequal_density_takes_no_part_in_c5() -> None:
    table = as_the_paper_says()
    table["gap_l0_matched"] = False
    measured = {row["claim"]: row["measured here"] for row in verdicts.training_dynamics(table)}
    assert "falls in 0 of 0 SAEs" in measured["C5"]


def modes_table(full: float, other: float, loca_dead: float = 0.0) -> pd.DataFrame:
    rows = []
    for architecture in ("standard", "topk", "loca"):
        for mode, solver in (("full", "ista"), ("semi", "ista"), ("non", "ista"), ("non", "exact")):
            value = full if mode == "full" else other
            if architecture == "loca" and mode == "full":
                value = (full + other) / 2
            row = {**HEAD, "architecture": architecture, "mode": mode, "solver": solver}
            row |= dict.fromkeys(["nmse", "dead", "absorption", "delta_f1", "l0"], value)
            row |= {"duality_gap": None if mode == "full" else 0.01, "l0_matched": True}
            if architecture == "loca" and mode == "full":
                row["dead"] = loca_dead
            rows.append(row)
    return pd.DataFrame(rows)


def test_c6_and_c9_follow_the_direction_of_the_numbers() -> None:
    better = judged(verdicts.amortization(modes_table(0.4, 0.2)))
    assert better == {"C6": "yes", "C9": "yes"}
    worse = judged(verdicts.amortization(modes_table(0.2, 0.4)))
    assert worse["C6"] == "no" and worse["C9"] == "in part"
    assert judged(verdicts.amortization(modes_table(0.4, 0.2, loca_dead=0.1)))["C9"] == "in part"


def loca_tables(loca: float, control: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = []
    for name, value in (
        ("TopK, phase 1", 0.5),
        ("TopK, extra steps", control),
        ("LocA, random groups", control),
        ("LocA", loca),
    ):
        row = {**HEAD, "variant": name, "nmse": 0.2, "fvu": 0.4, "l0": 26.0}
        rows.append({**row, **dict.fromkeys(["dead", "delta_f1", "absorption"], value)})
    latents = pd.DataFrame(
        {"count": range(1, 9), "avar": [0.1, np.nan, 0.3, 0.2, 0.1, 0.4, 0.2, 0.3]}
    )
    return pd.DataFrame(rows), latents


def test_loca_must_beat_both_controls_and_have_no_dead_latents() -> None:
    assert judged(verdicts.loca(*loca_tables(0.0, 0.2)))["C9"] == "yes"
    assert judged(verdicts.loca(*loca_tables(0.2, 0.1)))["C9"] == "no"
    table, latents = loca_tables(0.0, 0.2)
    latents["avar"] = latents["count"] / 10
    assert judged(verdicts.loca(table, latents))["C13"] == "no"


def ista_table(nmse: list[float]) -> pd.DataFrame:
    modes = ["full"] + ["semi"] * (len(nmse) - 2) + ["non"]
    return pd.DataFrame(
        {
            **HEAD, "architecture": "batchtopk", "mode": modes, "nmse": nmse, "l0": 20.0,
            "solver": ["ista"] * (len(nmse) - 1) + ["exact"],
            "ista_steps": [0, *range(5, 5 * len(nmse) - 5, 5), None],
            "dead": 0.1, "delta_f1": 0.1, "absorption": 0.2, "gap_relative": 0.1,
            "duality_gap": 0.1,
        }
    )  # fmt: skip


def test_c10_needs_every_step_to_lower_nmse() -> None:
    assert judged(verdicts.ista_ablation(ista_table([0.4, 0.3, 0.2, 0.1])))["C10"] == "yes"
    assert judged(verdicts.ista_ablation(ista_table([0.4, 0.3, 0.35, 0.1])))["C10"] == "in part"


def test_c11_counts_pairs_of_sae_and_mode() -> None:
    def table(full: float, semi: float, non: float) -> pd.DataFrame:
        scores = {"full": full, "semi": semi, "non": non}
        rows = [{**HEAD, "architecture": "topk", "mode": m, "score": s} for m, s in scores.items()]
        return pd.DataFrame(rows)

    assert judged(verdicts.downstream(table(0.1, 0.2, 0.3)))["C11"] == "yes"
    assert judged(verdicts.downstream(table(0.2, 0.1, 0.3)))["C11"] == "in part"
    assert judged(verdicts.downstream(table(0.3, 0.1, 0.2)))["C11"] == "no"


def test_numbers_for_prose_are_plain_and_come_from_the_right_rows() -> None:
    values = numbers.training_dynamics(as_the_paper_says())
    assert values["first-gap_relative"] == 0.5 and values["last-gap_relative"] == 0.1
    assert values["last-nmse"] == pytest.approx(0.2) and values["saes"] == 4
    ablation = numbers.ista_ablation(ista_table([0.4, 0.3, 0.2, 0.1]))
    assert (ablation["encoder-nmse"], ablation["fewest-nmse"]) == (0.4, 0.3)
    assert (ablation["most-nmse"], ablation["exact-nmse"]) == (0.2, 0.1)
    modes = numbers.amortization(modes_table(0.4, 0.2))
    assert (modes["topk-full-nmse"], modes["topk-exact-nmse"]) == (0.4, 0.2)
    assert numbers.loca(*loca_tables(0.0, 0.2))["undefined"] == 1
    assert set(numbers.coarse(values)) | set(numbers.fine(values)) == set(values)
    assert {"last-dead", "last-delta_f1"} <= set(numbers.coarse(values))
    assert {"last-nmse", "saes", "last-gap_relative"} <= set(numbers.fine(values))
    for value in [*values.values(), *ablation.values(), *modes.values()]:
        assert type(value) in (int, float, str), "numpy scalars print their type in the prose"


def test_the_papers_rows_stand_beside_ours_for_the_same_sae_and_mode() -> None:
    beside = amortization_interventions.beside_the_paper(modes_table(0.4, 0.2))
    topk = beside[(beside["SAE"] == "topk") & (beside["mode"] == "semi")].iloc[0]
    assert topk["NMSE paper"] == 0.087 and topk["NMSE here"] == 0.2
    assert set(beside["SAE"]) == {"topk", "loca"}


def test_the_papers_step_ablation_is_read_with_its_steps() -> None:
    rows = ista_ablation.paper_rows()
    assert rows["ista_steps"].tolist() == [5, 25, 50] * 2
    assert rows.iloc[0]["nmse"] == 0.477


def test_checkpoints_are_log_spaced_and_include_the_last_step() -> None:
    p = TrainingDynamics.check({"steps": 1000, "checkpoints": 4, "first_checkpoint": 1})
    assert checkpoint_steps(p) == [1, 10, 100, 1000]
    few = TrainingDynamics.check({"steps": 25, "checkpoints": 30, "first_checkpoint": 20})
    assert checkpoint_steps(few) == [20, 21, 22, 23, 24, 25]


def test_a_recipe_takes_its_sizes_from_the_parameters() -> None:
    made = recipe(LocaSae.check({"d_sae": 256, "seed": 3, "lr": 2e-3}), "topk", 20)
    assert (made.d_sae, made.seed, made.lr, made.sparsity) == (256, 3, 2e-3, 20.0)


def test_labelled_texts_are_chosen_by_seed_with_equal_counts_and_no_test_text_in_training() -> None:
    frame = pd.DataFrame(
        {
            "text": [f"text {i}" for i in range(120)],
            "label": [f"label {i % 6}" for i in range(120)],
            "split": ["train" if i < 80 else "test" for i in range(120)],
        }
    )
    labels = choose_labels(frame, 3, seed=1)
    assert labels == choose_labels(frame, 3, seed=1) and len(labels) == 3
    assert any(choose_labels(frame, 3, seed) != labels for seed in range(2, 8))
    chosen = choose_texts(frame, "train", labels, 5, seed=0)
    assert chosen["label"].value_counts().to_dict() == dict.fromkeys(labels, 5)
    assert set(chosen["split"]) == {"train"}
    assert choose_labels(frame, 99, seed=0) == sorted(frame["label"].unique())


def test_the_harvest_report_gives_counts_of_both_splits_and_the_shared_scale() -> None:
    def found(tokens: int, massive: int) -> SimpleNamespace:
        stats = {"tokens": tokens, "first_masked": 2, "massive_masked": massive}
        stats |= {"median_norm": 3.0, "mean_norm": 4.0, "autocast": False}
        return SimpleNamespace(stats=stats, n=tokens - 2 - massive, scale=0.5)

    data = SimpleNamespace(train=found(100, 3), heldout=found(50, 0))
    rows = harvest.report(TrainingDynamics.check({}), data).set_index("split")
    assert rows.loc["train", ["tokens", "kept", "massive masked"]].tolist() == [100, 95, 3]
    assert (rows["tokens"] - rows["kept"] == rows["first masked"] + rows["massive masked"]).all()
    assert rows["scale"].nunique() == 1
