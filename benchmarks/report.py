"""What `make bench` prints at its end: ratios against targets, scaling, the machine."""

from typing import Any

from benchmarks import settings
from benchmarks.tables import ratio_text, verdict


def lines(results: dict[str, Any]) -> list[str]:
    """The report. A missed target is said as plainly as a met one."""
    machine = results["machine"]
    text = [f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB."]
    if machine["load"] is not None and machine["load"] > 0.5:
        text.append(
            f"The machine was not quiet (load average {machine['load']} when this run began): "
            "times and ratios are noisy."
        )
    text += [f"Not measured: {reason}" for reason in machine["skipped"].values()]
    text += ["", f"Ratios at d_sae {settings.HEADLINE}, where the targets are stated:"]
    text += [_ratio(row) for row in results["ratios"] if row["headline"]]
    text += ["The same ratios for larger dictionaries (no target is stated there):"]
    text += [_ratio(row, judged=False) for row in results["ratios"] if not row["headline"]]
    text += ["", "Growth of the time of solve (exponent; target: at most 1):"]
    text += [_growth(row) for row in results["scaling"]]
    judged = [row["met"] for row in results["ratios"] if row["headline"]]
    judged += [row["met"] for row in results["scaling"]]
    missed, unknown = judged.count(False), judged.count(None)
    text += ["", f"{judged.count(True)} targets met, {missed} missed, {unknown} not measured."]
    return text


def _ratio(row: dict[str, Any], judged: bool = True) -> str:
    where = f"{row['model']}, L0 {row['l0_target']}, {row['threads']} thread(s)"
    end = f"  {_word(row['met'])}" if judged else f", d_sae {row['d_sae']}"
    return f"  {row['target']:<46} {where:<36} {ratio_text(row):<22}{end}"


def _growth(row: dict[str, Any]) -> str:
    power = "not measured" if row["exponent"] is None else f"{row['exponent']:.2f}"
    return f"  {row['model']:<14} against {row['of']:<26} {power:<14} {_word(row['met'])}"


def _word(met: bool | None) -> str:
    return {"yes": "met", "no": "MISSED"}.get(verdict(met), "not measured")
