"""The benchmark: solvers agree on one objective, a killed run goes on, verdicts follow cells."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import (
    __main__,
    dictionaries,
    figure,
    measuring,
    packages,
    plan,
    report,
    settings,
    summary,
    tables,
    worker,
)
from benchmarks.cells import Cells, Job
from benchmarks.settings import Target
from benchmarks.solvers import SOLVERS, Problem, dense
from loca_sae import sparse_coding
from tests import toys

EXACT = ["solve", "spams", "fista", "lasso_cd", "lasso_lars"]


@pytest.fixture(autouse=True)
def few_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each timed call collects garbage first, which takes long among a test run's modules."""
    monkeypatch.setattr(settings, "REPEATS", 2)
    monkeypatch.setattr(settings, "MOST_REPEATS", 2)
    monkeypatch.setattr(settings, "CALL_SECONDS", 0.0)


@pytest.fixture(scope="module")
def problem() -> Problem:
    """40 samples on 32 unit atoms in 16 dimensions, with an encoder that is the decoder's."""
    generator = torch.Generator().manual_seed(0)
    W_dec = torch.nn.functional.normalize(torch.randn(32, 16, generator=generator), dim=1)
    x = torch.randn(40, 16, generator=generator)
    return Problem(x, W_dec, 0.5, W_dec.T.contiguous(), torch.zeros(32), k=4, threads=1)


# ---- solvers ----


@pytest.mark.parametrize("name", EXACT)
def test_every_solver_finds_the_certified_optimum_at_the_same_lambda(
    name: str, problem: Problem
) -> None:
    """A solver with another convention for lambda would stop at another objective."""
    if name == "spams" and packages.missing():
        pytest.skip("SPAMS is not installed: `make bench` installs it for the benchmark.")
    best = sparse_coding.solve(problem.x, problem.W_dec, problem.lam, tol=1e-8).objective
    codes = dense(SOLVERS[name].run(problem), 40)
    value = sparse_coding.objective(problem.x, codes, problem.W_dec, problem.lam)
    assert codes.shape == (40, 32)
    assert torch.allclose(value, best, rtol=2e-3), (value / best - 1).abs().max()


def test_the_dense_ista_takes_the_steps_of_the_librarys(problem: Problem) -> None:
    ours, plain = SOLVERS["ista"].run(problem), SOLVERS["ista_dense"].run(problem)
    assert torch.allclose(ours, plain, atol=1e-4)


def test_the_encoder_pass_gives_the_codes_of_the_sae_on_unit_atoms(tmp_path: Path) -> None:
    sae = toys.random_sae("topk", tmp_path)
    x = toys.activations()
    tensors = dictionaries.tensors(sae, x)
    problem = Problem(**tensors, lam=1.0, k=toys.OPTIONS["topk"]["k"], threads=1)
    codes = SOLVERS["encoder"].run(problem)
    assert torch.allclose(tensors["W_dec"].norm(dim=1), torch.ones(toys.D_SAE))
    own = sae.decode(sae.encode(x)) - sae.b_dec
    assert torch.allclose(codes @ tensors["W_dec"], own, atol=1e-4)


def test_an_encoder_of_another_kind_is_refused(tmp_path: Path) -> None:
    sae = toys.random_sae("topk_unscaled", tmp_path)
    with pytest.raises(ValueError, match="rescale_acts_by_decoder_norm"):
        dictionaries.tensors(sae, toys.activations())


def test_sparse_codes_become_dense_rows_of_the_first_samples() -> None:
    from scipy.sparse import csc_matrix

    codes = np.array([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0]])  # [n, d_sae]
    assert dense(csc_matrix(codes.T), 1).tolist() == [[0.0, 1.0, 0.0]]


def test_a_cell_says_how_fast_how_good_and_on_how_many_rows(problem: Problem) -> None:
    cell = measuring.measure(problem, SOLVERS["solve"])
    best = sparse_coding.solve(problem.x, problem.W_dec, problem.lam)
    assert cell["rows"] == 40 and len(cell["objectives"]) == 40
    assert cell["samples_per_second"] == pytest.approx(40 / np.median(cell["seconds"]), rel=1e-2)
    assert cell["gap_mean"] <= cell["gap_max"] <= settings.TOL
    assert cell["l0"] == pytest.approx(float((best.codes > 0).sum(1).double().mean()))


def test_memory_is_at_least_what_a_call_holds_at_once(problem: Problem) -> None:
    call = measuring._call(lambda p: torch.ones(2**23), problem)  # 32 MiB
    if call.memory is None:
        pytest.skip("the peak of resident memory can be read on Linux only.")
    assert 30 < call.memory < 80


# ---- cells on disk ----


def a_job(solver: str = "solve", **changes: Any) -> Job:
    fields = {"model": "toy", "layer": 0, "dictionary": "d", "d_sae": 32, "threads": 1}
    return Job(**{**fields, "l0_target": 4, "solver": solver, **changes})


def test_a_second_run_measures_nothing_again(
    tmp_path: Path, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [worker.calibration_of(a_job()), a_job(), a_job("encoder")]
    worker.run(jobs, Cells(tmp_path / "cells.jsonl", "here"), problem)
    monkeypatch.setattr(worker, "perform", lambda *_: pytest.fail("measured twice"))
    again = Cells(tmp_path / "cells.jsonl", "here")
    worker.run(jobs, again, problem)
    assert again[jobs[0]]["l0"] == pytest.approx(4, rel=0.3)  # 40 samples: L0 moves in steps
    assert again[a_job()]["lam"] == again[jobs[0]]["lam"]


def test_a_line_cut_off_by_a_kill_costs_that_cell_only(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    cells = Cells(path, "here")
    cells.put(a_job(), {"rows": 1})
    cells.put(a_job("spams"), {"rows": 2})
    path.write_text(path.read_text()[:-30])
    resumed = Cells(path, "here")
    assert a_job() in resumed and a_job("spams") not in resumed
    resumed.put(a_job("spams"), {"rows": 3})
    assert Cells(path, "here")[a_job("spams")] == {"rows": 3}


def test_a_worker_stops_when_the_run_that_started_it_was_killed(
    tmp_path: Path, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents = iter([10, 10, 1])
    monkeypatch.setattr(worker.os, "getppid", lambda: next(parents))
    cells = Cells(tmp_path / "cells.jsonl", "here")
    worker.run([worker.calibration_of(a_job()), a_job()], cells, problem)
    assert worker.calibration_of(a_job()) in cells and a_job() not in cells


def test_cells_of_another_machine_or_version_are_not_served(tmp_path: Path) -> None:
    Cells(tmp_path / "cells.jsonl", "here").put(a_job(), {"rows": 1})
    assert a_job() not in Cells(tmp_path / "cells.jsonl", "elsewhere")


def test_a_worker_that_dies_is_reported_with_the_solver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan.sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="solver 'spams'"):
        plan.measure([a_job("spams")], Cells(tmp_path / "cells.jsonl", "here"))


def test_the_plan_leaves_out_what_is_missing_and_calibrates_first() -> None:
    lists = list(plan.jobs(settings.SUBJECTS[0], 2048, "d", without=["spams"]))
    assert {job.threads for jobs in lists for job in jobs} == {0, *settings.thread_counts(2048)}
    assert all(job.solver != "spams" for jobs in lists for job in jobs)
    for jobs in lists:
        assert jobs.index(worker.calibration_of(jobs[1])) == 0


# ---- ratios and verdicts, from hand-made cells ----


def a_cell(solver: str, speed: float, objective: float = 1.0, **changes: Any) -> dict[str, Any]:
    cell = {"model": "smollm2-135m", "d_sae": 2048, "threads": 1, "l0_target": 24}
    cell |= {"solver": solver, "wanted_rows": None, "rows": 64, "samples_per_second": speed}
    cell |= {"seconds": [64 / speed], "memory_mib": 1.0, "objectives": [objective] * 4, "lam": 1.0}
    return {**cell, "gap_mean": 1e-6, "gap_max": 1e-5, "l0": 24.0, **changes}


FASTER = Target("3 times", "solve", "spams", 3.0)


def verdict_of(*cells: dict[str, Any], target: Target = FASTER) -> bool | None:
    (row,) = summary.ratios(cells, [target])
    return row["met"]


def test_a_target_is_met_only_by_speed_gap_and_objective_together() -> None:
    peer = a_cell("spams", 100.0)
    assert verdict_of(a_cell("solve", 300.0), peer) is True
    assert verdict_of(a_cell("solve", 299.0), peer) is False
    assert verdict_of(a_cell("solve", 300.0, gap_max=2e-5), peer) is False
    assert verdict_of(a_cell("solve", 300.0, objective=1.1), peer) is False
    assert verdict_of(a_cell("solve", 300.0)) is None  # the peer was not measured


def test_a_target_in_times_the_cost_is_the_same_ratio_turned_round() -> None:
    cheap = Target("at most 6 times", "solve", "encoder", 1 / 6, l0=24)
    encoder = a_cell("encoder", 600.0, objective=2.0)
    assert verdict_of(a_cell("solve", 101.0), encoder, target=cheap) is True
    assert verdict_of(a_cell("solve", 99.0), encoder, target=cheap) is False
    (row,) = summary.ratios([a_cell("solve", 200.0), encoder], [cheap])
    assert tables.ratio_text(row) == "3.00 times the time"
    assert summary.ratios([a_cell("solve", 9.0, l0_target=56)], [cheap]) == []


def test_objectives_are_compared_on_the_rows_that_both_saw() -> None:
    long = a_cell("solve", 1.0, objectives=[1.0, 2.0, 30.0, 40.0])
    short = a_cell("lasso_lars", 1.0, objectives=[1.0, 2.0])
    assert summary.common_objectives(long, short) == (1.5, 1.5)
    rows = summary.details([long, short])
    assert [row["objective_ratio"] for row in rows] == [1.0, 1.0]
    assert {row["common_rows"] for row in rows} == {2}


def timings(seconds: dict[tuple[int, int], float]) -> list[dict[str, Any]]:
    return [
        a_cell("solve", n / value, d_sae=d_sae, rows=n, wanted_rows=n, seconds=[value])
        for (d_sae, n), value in seconds.items()
    ]


def test_exponents_are_those_of_the_law_that_made_the_times() -> None:
    """1e-9 d_sae^2 once a call and 1e-6 d_sae a sample: linear in n but for what is fixed."""
    sizes = [(2048, n) for n in (1024, 4096, 16384)]
    sizes += [(d_sae, n) for d_sae in (8192, 16384) for n in (1024, 4096)]
    cells = timings({(d, n): 1e-9 * d**2 + 1e-6 * d * n for d, n in sizes})
    found = {row["of"]: row for row in summary.scaling(cells)}
    assert found["n"]["exponent"] == pytest.approx(1.0, abs=0.01) and found["n"]["met"]
    assert found["d_sae, a further sample"]["exponent"] == pytest.approx(1.0)
    assert summary.exponent({1: 1.0, 2: 4.0, 4: 16.0}) == pytest.approx(2.0)
    assert summary.slope({10: 7.0, 20: 9.0}) == pytest.approx(0.2)
    square = timings({(d, n): 1e-9 * d**2 * n for d, n in sizes})
    missed = {row["of"]: row["met"] for row in summary.scaling(square)}
    assert missed == {"n": True, "d_sae": False, "d_sae, a further sample": False}


# ---- what the reader gets ----


def the_results(skipped: dict[str, str]) -> dict[str, Any]:
    cells = [
        a_cell(solver, 100.0 + 10 * i, model=subject.model, d_sae=d_sae, l0_target=l0)
        for i, solver in enumerate(SOLVERS)
        for subject in settings.SUBJECTS
        for d_sae in settings.SIZES
        for l0 in settings.L0_TARGETS
        if solver not in skipped
    ]
    machine = {"cpu": "a CPU", "cores": 2, "memory_gib": 8, "system": "Linux", "python": "3.11"}
    machine |= {"versions": {"torch": "2"}, "load": 1.5, "skipped": skipped}
    calibrations = {"24": {"lam": 0.5, "l0": 24.1}}
    dictionary = {"model": "toy", "layer": 1, "d_in": 4, "d_sae": 8, "steps": 2}
    return {
        "machine": machine,
        "dictionaries": [{**dictionary, "calibrations": calibrations}],
        "ratios": summary.ratios(cells),
        "scaling": summary.scaling(timings({(2048, 1024): 1.0, (2048, 4096): 4.0})),
        "details": summary.details(cells),
    }


def test_missing_spams_is_reported_everywhere(tmp_path: Path) -> None:
    results = the_results({"spams": "SPAMS could not be installed: no network."})
    text = "\n".join(report.lines(results))
    assert "Not measured: SPAMS could not be installed: no network." in text
    assert "not measured" in text and "MISSED" in text and "not quiet" in text
    tables.write_csvs(results, tmp_path)
    ratios = list(csv.DictReader((tmp_path / "exact_inference_ratios.csv").open()))
    assert {r["met"] for r in ratios if "SPAMS" in r["target"]} == {"not measured"}
    machine = (tmp_path / "exact_inference_machine.csv").read_text()
    assert "SPAMS could not be installed" in machine


def test_an_installation_that_fails_gives_a_reason_without_addresses(tmp_path: Path) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text("this is no requirement\n")
    reason = packages.install(tmp_path / "side", pins)
    assert reason.startswith("SPAMS could not be installed") and "/" not in reason
    assert not (tmp_path / "side" / "installed.txt").exists()


def test_the_figure_is_transparent_and_the_same_for_the_same_numbers(tmp_path: Path) -> None:
    details = the_results({})["details"]
    for name in ("a.svg", "b.svg"):
        figure.save(figure.draw(details), tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert "fill: #ffffff" not in text and "<dc:date>" not in text


def test_every_table_has_as_many_fields_in_each_row_as_in_its_head() -> None:
    for name, table in tables.tables(the_results({})).items():
        assert len({len(row) for row in table}) == 1, name
        assert all(isinstance(field, str) for row in table for field in row), name


KEYS = {"machine", "settings", "dictionaries", "ratios", "scaling", "details"}


def test_the_committed_results_are_whole_and_agree_with_the_tables_of_the_book() -> None:
    results = json.loads(settings.RESULTS.read_text(encoding="utf-8"))
    assert set(results) == KEYS
    assert {row["d_sae"] for row in results["details"]} == set(settings.SIZES)
    assert {row["model"] for row in results["details"]} == {s.model for s in settings.SUBJECTS}
    solvers = set(SOLVERS) - set(results["machine"]["skipped"])
    assert {row["solver"] for row in results["details"]} == solvers
    for row in results["details"]:
        assert row["samples_per_second"] > 0 and row["common_rows"] >= 32
    for name, table in tables.tables(results).items():
        path = settings.BOOK / f"{tables.STEM}_{name}.csv"
        with path.open(newline="", encoding="utf-8") as file:
            assert list(csv.reader(file)) == table, f"{path.name} is of another run"


def test_the_run_writes_all_that_its_results_hold(
    tmp_path: Path, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = Cells(tmp_path / "cells.jsonl", "here")
    monkeypatch.setattr(settings, "HEADLINE", 32)
    monkeypatch.setitem(settings.TRAINING_STEPS, 32, 1)
    monkeypatch.setattr(dictionaries, "width", lambda name: 16)
    solvers = ["solve", "ista_dense", "encoder"]
    jobs = [worker.calibration_of(a_job()), *map(a_job, solvers), a_job(rows=20), a_job(rows=40)]
    worker.run(jobs, cells, problem)
    results = __main__.collect(jobs, cells, {"spams": "left out"})
    assert set(results) == KEYS
    assert json.loads(json.dumps(results)) == results
    assert [row["solver"] for row in results["details"]] == solvers
    assert results["dictionaries"][0]["calibrations"]["4"]["lam"] > 0
