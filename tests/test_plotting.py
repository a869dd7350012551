"""Figures and tables show what the data say, and say what they were measured on."""

import re

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from loca_sae import plotting, reporting
from loca_sae.experiments.decomposition import decomposition
from loca_sae.parameters import TrainingDynamics
from test_decomposition import all_kinds
from test_experiments import as_the_paper_says, ista_table, modes_table

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def test_a_line_goes_through_the_tables_values_and_is_labelled_with_its_l0() -> None:
    table = as_the_paper_says()
    rows = table[table["architecture"] == "topk"]
    _, ax = plt.subplots()
    plotting.plot_over_training(rows, "nmse", ax, label=True)
    lines = [line for line in ax.lines if len(line.get_xdata())]
    assert [list(line.get_ydata()) for line in lines] == [[0.9, 0.1], [0.9, 0.3]]
    assert {text.get_text() for text in ax.texts} == {"L0 50", "L0 5"}
    assert ax.get_xscale() == "log" and ax.get_ylabel() == "NMSE"


def test_a_gap_at_unequal_density_is_drawn_hollow() -> None:
    table = as_the_paper_says()
    rows = table[table["architecture"] == "topk"].copy()
    rows.loc[rows["step"] == 10, "gap_l0_matched"] = False
    _, ax = plt.subplots()
    plotting.plot_over_training(rows, "gap_relative", ax, label=False)
    hollow = [line for line in ax.lines if line.get_color() == "white"]
    assert [list(line.get_xdata()) for line in hollow] == [[80], [80]]


def test_panels_that_a_reader_compares_share_their_scale() -> None:
    figure = plotting.figure_training_dynamics(as_the_paper_says())
    axes = np.array(figure.axes).reshape(-1, 2)
    assert all(left.get_ylim() == right.get_ylim() for left, right in axes)
    assert [ax.get_title() for ax in axes[0]] == ["standard", "topk"]


def test_each_kind_of_inference_has_its_dot_in_the_row_of_its_sae() -> None:
    table = modes_table(0.4, 0.2)
    _, ax = plt.subplots()
    plotting.plot_modes(table, "nmse", ax)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["standard", "topk", "loca"]
    assert [line.get_label() for line in ax.lines] == list(table["inference"].unique())
    assert list(ax.lines[0].get_xdata()) == pytest.approx([0.4, 0.4, 0.3])
    assert all(set(line.get_xdata()) == {0.2} for line in ax.lines[1:])
    rows = np.array([line.get_ydata() for line in ax.lines])
    assert (rows.round() == [0, 1, 2]).all(), "each dot is nearest to its own row"
    assert (np.diff(rows, axis=0) > 0).all(), "equal values do not hide one another"


def test_kinds_of_inference_can_be_told_apart_and_refitted_ones_are_hollow() -> None:
    _, ax = plt.subplots()
    plotting.plot_modes(all_kinds(), "nmse", ax)
    looks = {(line.get_color(), line.get_marker(), line.get_markerfacecolor()) for line in ax.lines}
    assert len(looks) == len(ax.lines) == 8
    hollow = [line.get_label() for line in ax.lines if line.get_markerfacecolor() == "white"]
    assert hollow == ["full, refitted", "non (exact), refitted"]


def test_the_figures_of_notebook_02_show_every_sae() -> None:
    names = ["standard", "topk", "batchtopk", "gated", "jumprelu", "matryoshka_batchtopk", "loca"]
    table = pd.concat([all_kinds(name) for name in names], ignore_index=True)
    modes = plotting.figure_modes(table)
    cut = plotting.figure_decomposition(decomposition(table))
    for figure in (modes, cut):
        assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == names
        assert any("protocol native" in text.get_text() for text in figure.texts)
    assert len(modes.axes) == 6
    shown = [text.get_text() for text in cut.axes[1].texts]
    assert [shown.count(part) for part in ("+0.0050", "+0.0010", "+0.0060")] == [7, 7, 7]


def test_a_line_of_the_decomposition_ends_where_the_better_code_is() -> None:
    _, ax = plt.subplots()
    plotting.plot_decomposition(decomposition(all_kinds()), ax)
    ends = [list(line.get_xdata()) for line in ax.lines if len(line.get_xdata()) == 2]
    assert ends[:3] == [[0.098, 0.093], [0.093, 0.092], [0.140, 0.086]]


def test_steps_from_both_starts_are_drawn_raw_and_refitted_beside_encoder_and_optimum() -> None:
    _, ax = plt.subplots()
    gap = plotting.plot_ista_steps(ista_table([0.4, 0.3, 0.2, 0.1]), ax)
    level = [line.get_ydata()[0] for line in ax.lines[:4]]
    assert level == pytest.approx([0.4, 0.32, 0.1, 0.08])
    paths = [list(line.get_ydata()) for line in ax.lines[4:]]
    assert paths[0] == [0.3, 0.2] and paths[1] == pytest.approx([0.24, 0.16])
    assert paths[2] == [0.15, 0.15] and len(paths) == 4
    assert [list(line.get_xdata()) for line in gap.lines] == [[5, 10]] * 2
    assert gap.get_yscale() == "log"


def test_pathologies_of_the_first_sae_are_drawn_from_both_starts() -> None:
    figure = plotting.figure_ista_pathologies(ista_table([0.4, 0.3, 0.2, 0.1]))
    for ax in figure.axes:
        assert [len(line.get_xdata()) for line in ax.lines[:2]] == [2, 2]


def test_tpp_lines_are_means_over_classes() -> None:
    table = pd.DataFrame({"mode": "full", "n": [2, 2, 5, 5], "score": [0.0, 0.2, 0.4, 0.6]})
    _, ax = plt.subplots()
    plotting.plot_tpp(table, ax)
    assert list(ax.lines[0].get_ydata()) == pytest.approx([0.1, 0.5])


def test_angular_variance_leaves_out_latents_that_have_none() -> None:
    latents = pd.DataFrame({"count": [5, 9, 1], "avar": [0.1, 0.2, np.nan], "group": [0, 1, 1]})
    _, ax = plt.subplots()
    plotting.plot_angular_variance(latents, ax)
    assert len(ax.collections[0].get_offsets()) == 2


def test_every_figure_and_table_names_model_layer_tokens_seed_and_protocol() -> None:
    table = modes_table(0.4, 0.2)
    line = plotting.provenance(table)
    for word in ("toy", "layer 1", "1,000", "200", "seed 0", "protocol native"):
        assert word in line
    figure = plotting.figure_ista_ablation(ista_table([0.4, 0.3, 0.2, 0.1]))
    assert any("protocol native" in text.get_text() for text in figure.texts)
    assert line in reporting.show(table, ["architecture", "nmse"], "t").data


def test_an_sae_from_elsewhere_has_no_known_number_of_training_tokens() -> None:
    mixed = pd.concat([all_kinds("topk"), all_kinds("mine", train_tokens=None, d_sae=4096)])
    assert "d_sae 64, 4,096 · trained on 1,000 tokens, measured on 200" in plotting.provenance(
        mixed
    )
    assert "trained on" not in plotting.provenance(all_kinds("mine", train_tokens=None))


def test_figures_are_transparent_so_that_both_themes_can_show_them() -> None:
    figure = plotting.figure_ista_ablation(ista_table([0.4, 0.3, 0.2, 0.1]))
    assert figure.get_facecolor()[3] == 0 and figure.axes[0].get_facecolor()[3] == 0


def test_a_table_is_the_same_html_each_time_with_the_fields_headings() -> None:
    table = modes_table(0.4, 0.2)
    first = reporting.show(table, ["architecture", "nmse", "duality_gap"], "t").data
    assert first == reporting.show(table, ["architecture", "nmse", "duality_gap"], "t").data
    headings = re.findall(r"<th[^>]*>([^<]+)</th>", first)
    assert headings == ["SAE", "NMSE", "duality gap (relative)"]
    assert ">0.400<" in first and "–" in first


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.12345, "0.123"), (0.2, "0.200"), (12345, "12,345"), (12.3456, "12.35"), (0.0, "0"),
        (-0.5, "-0.500"), (4.4e-6, "4.4e-06"), (20.0, "20"),
    ],
)  # fmt: skip
def test_numbers_are_shown_with_as_many_digits_as_carry_meaning(value, shown) -> None:
    html = reporting.plain(pd.DataFrame({"x": [value]}), "t", "caption").data
    assert f">{shown}<" in html


def test_the_parameter_table_lists_every_parameter() -> None:
    html = reporting.parameter_table(TrainingDynamics, "p").data
    assert all(f">{name}<" in html for name in TrainingDynamics.model_fields)
