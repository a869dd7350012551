"""Figures from the experiments' tables: ``plot_x(table, ax) -> Axes``, one visual language.

Figures have a transparent background and dark ink; the book's style sheet inverts them in dark
mode. Colours are seaborn's colour-blind palette and always mean the same thing: an architecture, a
mode. Every figure carries a line that says what it was measured on.
"""

from loca_sae.plotting.decomposition import figure_decomposition, plot_decomposition
from loca_sae.plotting.downstream import figure_splice, figure_tpp, plot_splice, plot_tpp
from loca_sae.plotting.dynamics import figure_training_dynamics, plot_over_training
from loca_sae.plotting.ista import figure_ista_ablation, figure_ista_pathologies, plot_ista_steps
from loca_sae.plotting.loca import figure_loca, plot_angular_variance, plot_curves, plot_variants
from loca_sae.plotting.modes import figure_modes, plot_modes
from loca_sae.plotting.protocol_walk import figure_protocol_walk, plot_walk
from loca_sae.plotting.style import COLOURS, LABELS, PALETTE, STYLE, finish, provenance, style

__all__ = [
    "COLOURS",
    "LABELS",
    "PALETTE",
    "STYLE",
    "figure_decomposition",
    "figure_ista_ablation",
    "figure_ista_pathologies",
    "figure_loca",
    "figure_modes",
    "figure_protocol_walk",
    "figure_splice",
    "figure_tpp",
    "figure_training_dynamics",
    "finish",
    "plot_angular_variance",
    "plot_curves",
    "plot_decomposition",
    "plot_ista_steps",
    "plot_modes",
    "plot_over_training",
    "plot_splice",
    "plot_tpp",
    "plot_variants",
    "plot_walk",
    "provenance",
    "style",
]
