"""The paper's numbers beside ours, and whether both move the same way from full mode."""

import pandas as pd

from loca_sae import corpus

# column of the paper's table -> ours, and how it is called
MEASURES = {
    "nmse": ("nmse", "NMSE"),
    "dead_rate": ("dead", "dead"),
    "delta_f1": ("delta_f1", "dF1"),
    "absorption_rate": ("absorption", "absorption"),
}
_SOURCES = ("main table", "text")


def beside_the_paper(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each number the paper gives for an architecture and mode of ``table``.

    table: rows of notebook 02; ours are the native ISTA rows without refitting. The models differ,
    so a difference is not an error of either. remark: for semi and non, whether the measure moves
    the same way from full mode in the paper and here; "no full row" where the paper gives none.
    """
    kept = ~table["refit"].astype(bool) & (table["solver"] == "ista")
    ours = table[kept].drop_duplicates(["architecture", "mode"])
    ours = ours.set_index(["architecture", "mode"])
    paper = corpus.paper_tables()
    paper = paper[paper["source"].isin(_SOURCES)]
    known = set(ours.index)
    rows = [
        _row(row, column, ours, paper)
        for _, row in paper.iterrows()
        if (row["sae"], row["mode"]) in known
        for column in MEASURES
        if not pd.isna(row[column])
    ]
    columns = ["paper's model", "SAE", "mode", "measure", "paper", "here", "difference", "remark"]
    return pd.DataFrame(rows, columns=columns)


def _row(row: pd.Series, column: str, ours: pd.DataFrame, paper: pd.DataFrame) -> list[object]:
    name, heading = MEASURES[column]
    theirs, mine = float(row[column]), float(ours.loc[(row["sae"], row["mode"]), name])
    remark = _remark(row, column, theirs, mine, ours, paper)
    head = [row["model"], row["sae"], row["mode"], heading]
    return [*head, theirs, mine, mine - theirs, remark]


def _remark(
    row: pd.Series,
    column: str,
    theirs: float,
    mine: float,
    ours: pd.DataFrame,
    paper: pd.DataFrame,
) -> str:
    if row["mode"] == "full":
        return ""
    same = (paper["model"] == row["model"]) & (paper["sae"] == row["sae"])
    before = paper.loc[same & (paper["mode"] == "full"), column].dropna().astype(float)
    if before.empty or (row["sae"], "full") not in ours.index:
        return "no full row"
    there = _direction(theirs - float(before.iloc[0]))
    here = _direction(mine - float(ours.loc[(row["sae"], "full"), MEASURES[column][0]]))
    return f"{there} in both" if there == here else f"{there} in the paper, {here} here"


def _direction(change: float) -> str:
    return "falls" if change < 0 else "rises" if change > 0 else "stays"
