"""The rules, numbers and choices of the experiments, on tables and frames made by hand."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from loca_sae.experiments import (
    harvest,
    ista_ablation,
    numbers,
    verdicts,
)
from loca_sae.experiments.data import choose_labels, choose_texts
from loca_sae.experiments.decomposition import decomposition
from loca_sae.experiments.kinds import KINDS
from loca_sae.experiments.saes import checkpoint_steps, recipe
from loca_sae.experiments.verdicts.modes import readings
from loca_sae.parameters import LocaSae, TrainingDynamics
from test_decomposition import all_kinds

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
    """Standard, TopK and LocA; every measure ``full`` with the encoder, ``other`` with the rest."""
    measures = ("nmse", "dead", "absorption", "delta_f1", "dense_0.1")
    values = dict.fromkeys(measures, {k: full if k == "encoder" else other for k in KINDS})
    loca = dict.fromkeys(measures, {**values["nmse"], "encoder": (full + other) / 2})
    loca["dead"] = {**values["dead"], "encoder": loca_dead}
    tables = [all_kinds(name, **values) for name in ("standard", "topk")]
    return pd.concat([*tables, all_kinds("loca", **loca)], ignore_index=True)


def test_c6_and_c9_follow_the_direction_of_the_numbers() -> None:
    better = judged(readings(modes_table(0.4, 0.2)))
    assert better["C6"] == better["C6, without shrinkage"] == better["C9"] == "yes"
    worse = judged(readings(modes_table(0.2, 0.4)))
    assert worse["C6"] == worse["C6, without shrinkage"] == "no"
    assert worse["C9"] == "in part"
    assert judged(readings(modes_table(0.4, 0.2, loca_dead=0.1)))["C9"] == "in part"


def test_c6_is_read_apart_for_codes_that_the_penalty_shrinks_and_for_others() -> None:
    """The NMSEs of a TopK SAE on SmolLM2-135M: the lasso's above the encoder's until refitted."""
    read = judged(readings(all_kinds(dead=0.0, absorption=0.1, delta_f1=0.1)))
    assert read["C6"] == "no" and read["C6, without shrinkage"] == "in part"


def test_c6_leaves_out_what_cannot_be_lowered_and_what_is_not_of_equal_density() -> None:
    table = modes_table(0.4, 0.2).assign(dead=0.0)
    assert "dead lower in 0 of 0" in readings(table)[0]["measured here"]
    assert judged(readings(table))["C6"] == "yes", "no latent is dead: nothing to lower"
    unmatched = table.assign(l0_matched=~table["mode"].isin(["semi", "non"]))
    assert judged(readings(unmatched))["C6"] == "cannot be judged"
    assert judged(readings(unmatched.assign(protocol="released")))["C6"] == "yes"


@pytest.mark.parametrize(
    ("full", "semi", "non", "expected"),
    [
        (0.9, 0.0, 0.0, "yes"),
        (0.9, 0.0, 0.5, "in part"),
        (0.2, 0.0, 0.0, "in part"),
        (0.0, 0.0, 0.0, "no"),
    ],
)
def test_c7_wants_a_high_absorption_that_other_codes_take_away(full, semi, non, expected) -> None:
    absorption = {"encoder": full, "semi": semi, "non": non}
    read = judged(readings(all_kinds("jumprelu", absorption=absorption)))
    assert read["C7"] == expected


def test_c8_wants_a_dense_live_gated_sae_and_two_steady_ones() -> None:
    def read(dead: float = 0.0, dense: float = 0.5, moved: float = 0.2) -> str:
        steady = [all_kinds(name) for name in ("batchtopk", "matryoshka_batchtopk")]
        others = [all_kinds(n, absorption={"semi": 0.9}) for n in ("standard", "topk")]
        gated = all_kinds("gated", dead=dead, **{"dense_0.1": dense})
        steady[1] = all_kinds("matryoshka_batchtopk", absorption={"non": moved})
        return judged(readings(pd.concat([*steady, *others, gated])))["C8"]

    assert read() == "yes"
    assert read(dead=0.5) == read(dense=0.3) == read(moved=5.0) == "in part"
    assert judged(readings(all_kinds("standard")))["C8"] == "cannot be judged"


def test_c12_is_the_direction_of_topk_in_non_mode() -> None:
    worse = {"encoder": 0.1, "non": 0.3}
    assert judged(readings(all_kinds(delta_f1=worse, absorption=worse)))["C12"] == "yes"
    assert judged(readings(all_kinds(delta_f1=worse, absorption=0.2)))["C12"] == "in part"
    assert judged(readings(all_kinds()))["C12"] == "no"


def test_a_claim_about_an_architecture_that_is_not_there_cannot_be_judged() -> None:
    read = judged(readings(all_kinds("my folder", architecture="matching_pursuit")))
    assert {read[c] for c in ("C7", "C8", "C9", "C12")} == {"cannot be judged"}


def test_a_table_of_saes_from_elsewhere_has_every_number_that_the_prose_refers_to() -> None:
    mine = all_kinds("mine", "jumprelu", train_tokens=None, absorption=None)
    values = numbers.amortization(mine, decomposition(mine))
    known = modes_table(0.4, 0.2)
    assert set(values) == set(numbers.amortization(known, decomposition(known)))
    assert values["train-tokens"] == "an unknown number of"
    assert judged(readings(mine))["C7"] == "cannot be judged"


def test_a_claim_is_read_under_each_protocol_that_was_measured() -> None:
    native = modes_table(0.4, 0.2)
    modes = modes_table(0.2, 0.4)
    modes = modes[~modes["refit"] & (modes["solver"] == "ista")]
    rows = verdicts.amortization(native, modes.assign(protocol="released"))
    by = {row["claim"]: row for row in rows}
    c6 = by["C6"]
    assert (c6["native"], c6["described"], c6["released"]) == ("yes", "cannot be judged", "no")
    assert "NMSE lower in 6 of 6" in c6["measured here (native)"]
    assert by["C6, without shrinkage"]["released"] == "cannot be judged"
    assert "toy, layer 1" in by["C12"]["measured here (native)"]


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


def ista_table(nmse: list[float], zero: float = 0.15, refitted: float = 0.8) -> pd.DataFrame:
    """One BatchTopK SAE: the encoder, semi steps 5, 10, ..., the most from zero, the optimum.

    nmse: of the encoder, the semi rows and the optimum; refitting multiplies each.
    """
    steps = list(range(5, 5 * len(nmse) - 5, 5))
    path = [("full", "ista", "encoder", 0, nmse[0])]
    path += [("semi", "ista", "encoder", n, e) for n, e in zip(steps, nmse[1:-1], strict=True)]
    path += [("non", "ista", "zero", n, zero) for n in steps]
    path += [("non", "exact", "optimum", None, nmse[-1])]
    rows = []
    for mode, solver, start, n, error in path:
        for refit, share in ((False, 1.0), (True, refitted)):
            row = {**HEAD, "sae": "batchtopk", "architecture": "batchtopk", "mode": mode}
            row |= {"solver": solver, "start": start, "ista_steps": n, "refit": refit}
            row |= {"nmse": error * share, "l0": 20.0, "l0_matched": True, "dead": 0.1}
            row |= {"delta_f1": 0.1, "absorption": 0.2, "gap_relative": 0.1}
            row["duality_gap"] = None if mode == "full" or refit else 0.1
            rows.append(row)
    return pd.DataFrame(rows)


def swept_under(name: str, nmse: list[float]) -> pd.DataFrame:
    """The encoder and its semi rows under one protocol."""
    table = ista_table([*nmse, 0.0])
    path = table[(table["start"] == "encoder") & ~table["refit"]]
    return path.assign(protocol=name)


def test_c10_needs_every_step_to_lower_nmse_under_the_protocol_that_is_read() -> None:
    falling, rising = [0.4, 0.3, 0.2], [0.4, 0.3, 0.35]
    both = pd.concat([swept_under("native", rising), swept_under("released", falling)])
    (row,) = verdicts.ista_ablation(both)
    assert (row["claim"], row["native"], row["released"]) == ("C10", "in part", "yes")
    assert row["described"] == "cannot be judged"
    assert "0.400 → 0.300 → 0.350" in row["measured here (native)"]


def test_c10_needs_the_pathologies_to_stay_where_they_are() -> None:
    path = swept_under("native", [0.4, 0.3, 0.2])
    path.loc[path["ista_steps"] == 10, "dead"] = 0.2
    (row,) = verdicts.ista_ablation(path)
    assert row["native"] == "in part"


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
    assert (ablation["zero-nmse"], ablation["lower-raw"], ablation["saes"]) == (0.15, 1, 1)
    assert ablation["exact-refitted-nmse"] == pytest.approx(0.08)
    kinds = modes_table(0.4, 0.2)
    modes = numbers.amortization(kinds, decomposition(kinds))
    assert (modes["saes"], modes["encoder-nmse"], modes["lasso-nmse"]) == (3, 0.4, 0.2)
    assert modes["price-median"] == pytest.approx(0.2) and modes["dearest-share"] == 0.5
    assert (modes["cheapest-sae"], modes["k-sparse-lower"], modes["encoder-lower"]) == (
        "loca",
        3,
        0,
    )
    assert numbers.loca(*loca_tables(0.0, 0.2))["undefined"] == 1
    assert set(numbers.coarse(values)) | set(numbers.fine(values)) == set(values)
    assert {"last-dead", "last-delta_f1"} <= set(numbers.coarse(values))
    assert {"last-nmse", "saes", "last-gap_relative"} <= set(numbers.fine(values))
    for value in [*values.values(), *ablation.values(), *modes.values()]:
        assert type(value) in (int, float, str), "numpy scalars print their type in the prose"


def test_the_papers_step_ablation_is_read_with_its_steps() -> None:
    rows = ista_ablation.paper_rows()
    assert rows["ista_steps"].tolist() == [5, 25, 50] * 2
    assert rows.iloc[0]["nmse"] == 0.477


def test_our_steps_stand_beside_the_papers_with_the_difference() -> None:
    beside = ista_ablation.beside_the_paper(ista_table([0.4, 0.3, 0.2, 0.1]))
    five = beside[beside["ISTA steps"] == 5]
    assert five["NMSE here"].tolist() == [0.3, 0.3]
    assert five["NMSE difference"].tolist() == pytest.approx([0.3 - 0.477, 0.3 - 0.072])
    assert beside.loc[beside["ISTA steps"] == 50, "NMSE here"].isna().all()


def test_the_summary_of_a_sweep_takes_the_most_steps_from_either_start() -> None:
    (row,) = ista_ablation.summary(ista_table([0.4, 0.3, 0.2, 0.1])).to_dict("records")
    assert (row["NMSE encoder"], row["NMSE semi, 10"], row["NMSE non, 10"]) == (0.4, 0.2, 0.15)
    assert row["optimum, refitted"] == pytest.approx(0.08)
    assert row["duality gap non, 10"] == 0.1


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
