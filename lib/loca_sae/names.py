"""Names that light modules and heavy ones share."""

# SAELens's keys, in the order of the tables. Matching pursuit is trained too, as a reference for
# greedy coding, but is no row of the comparison.
ARCHITECTURES = (
    "standard",
    "topk",
    "batchtopk",
    "gated",
    "jumprelu",
    "matryoshka_batchtopk",
    "loca",
)
