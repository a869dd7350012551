"""The same rules under several protocols: does a claim hang on how it was measured?"""

import pandas as pd

from loca_sae.experiments.verdicts.modes import readings
from loca_sae.experiments.verdicts.rules import UNJUDGED, Row


def amortization(table: pd.DataFrame, protocols_table: pd.DataFrame) -> list[Row]:
    """C6, C7, C8, C9 and C12 on notebook 02's tables, a row a claim (rules: `verdicts.modes`).

    table: every SAE and kind of inference under native.
    protocols_table: the SAEs in full, semi and non mode under described and released.
    Keys of a row: claim, "the paper says", "measured here (native)", then the reading under each
    of native, described and released: "yes", "in part", "no" or "cannot be judged". The last is
    given where the rows that a rule needs are absent: an architecture, a protocol, or refitted
    codes, which only the native table has.
    """
    read = {"native": readings(table)}
    for name in ("described", "released"):
        rows = protocols_table[protocols_table["protocol"] == name]
        read[name] = readings(rows) if len(rows) else []
    verdicts = []
    for native in read["native"]:
        row = {key: native[key] for key in ("claim", "the paper says")}
        row["measured here (native)"] = native["measured here"]
        for name, found in read.items():
            holds = {other["claim"]: other["holds here"] for other in found}
            row[name] = holds.get(native["claim"], UNJUDGED)
        verdicts.append(row)
    return verdicts
