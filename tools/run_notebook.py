"""Execute notebooks by papermill and leave tidy files.

    python -m tools.run_notebook execute RUN --profile laptop --output FILE [--log FILE]
    python -m tools.run_notebook refresh [NAME ...]

`execute` runs one notebook with the parameters that a profile gives a run, named as the notebook
or, for a variant, NOTEBOOK--VARIANT; the Snakefile calls it. `refresh` runs the sources with their
own (smoke) parameters and keeps the outputs in them, without a cell of injected parameters: these
are the outputs that `pytest --nbval` compares with.

A notebook is written whole or not at all. When a cell fails, the notebook up to there is kept
under _build for inspection, the message says where, and the exit code is 1.
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from tools import ancestry, profiles, variants
from tools.kernel import LOG_VARIABLE
from tools.tidy import tidy, write

# a kernel inherits these: no progress bars in outputs, no warnings of a debugger nobody attached,
# and the same order of sets in every run
_ENVIRONMENT = {
    "TQDM_DISABLE": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    "PYTHONHASHSEED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    # probes are many fits on one or two columns, three times slower with a pool of BLAS threads;
    # torch has its own threads and is not concerned
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Job:
    """One run of a notebook: its name, from where, with what, to where."""

    name: str
    source: Path
    output: Path
    failed: Path
    log: Path
    parameters: dict[str, Any]
    profile: str | None = None


def main(arguments: list[str] | None = None, root: Path | None = None) -> int:
    """The command line; returns the exit code."""
    root = (root or Path.cwd()).resolve()
    options = _parser().parse_args(arguments)
    ancestry.end_with_supervisor()
    try:
        jobs = _jobs(options, root)
    except profiles.ProfileError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        # every one of them, also after a failure
        return 0 if all([run(job, root) for job in jobs]) else 1
    except KeyboardInterrupt:
        _say("interrupted; nothing was written")
        return 130


def run(job: Job, root: Path) -> bool:
    """Execute one notebook; says on stderr how far it is and how it ended."""
    name = job.name
    started = time.monotonic()
    partial = job.failed.with_name(f"{name}.partial.ipynb")
    for path in (partial, job.log):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    error = _execute(job, partial)
    notebook = nbformat.read(partial, as_version=4) if partial.exists() else None
    warnings = _tidy(job, notebook, root) if notebook else []
    _append_log(job, error, warnings)
    partial.unlink(missing_ok=True)
    if error is not None or notebook is None:
        _report_failure(job, notebook, error, root)
        return False
    write(notebook, job.output)
    job.failed.unlink(missing_ok=True)
    seconds = time.monotonic() - started
    remark = f"; messages on stderr are in {_relative(job.log, root)}" if warnings else ""
    _say(f"{name}: done in {seconds:.0f} s{remark}")
    return True


def _tidy(job: Job, notebook: NotebookNode, root: Path) -> list[str]:
    warnings = tidy(notebook, root, job.profile)
    _, variant = profiles.split(job.name)
    if variant is not None:
        variants.distinguish(notebook, variant, job.parameters.get("model"))
    return warnings


def _execute(job: Job, partial: Path) -> Exception | None:
    """Run papermill into a scratch file, which it keeps up to date cell by cell."""
    # a second of imports that a wrong command line does not need
    import papermill

    os.environ.update(_ENVIRONMENT, **{LOG_VARIABLE: str(job.log)})
    cells = sum(
        cell.cell_type == "code" for cell in nbformat.read(job.source, as_version=4).cells
    ) + bool(job.parameters)
    try:
        papermill.execute_notebook(
            str(job.source),
            str(partial),
            parameters=job.parameters,
            cwd=str(job.source.parent),  # as under nbval and in an editor
            kernel_name="python3",
            language="python",
            progress_bar=False,
            kernel_manager_class="tools.kernel.LocalKernelManager",
            on_cell_start=_Progress(job.name, cells),
        )
    except Exception as error:  # whatever it is, it belongs into the log and the message
        return error
    return None


class _Progress:
    """Says which cell starts; a sign of life every few seconds would only fill the screen."""

    def __init__(self, name: str, cells: int) -> None:
        self.name, self.cells, self.done = name, cells, 0
        self.started = time.monotonic()

    def __call__(self, cell: NotebookNode, cell_index: int) -> None:
        if cell.cell_type != "code":
            return
        self.done += 1
        seconds = time.monotonic() - self.started
        _say(f"{self.name}: cell {self.done} of {self.cells}, {seconds:.0f} s")


def _jobs(options: argparse.Namespace, root: Path) -> list[Job]:
    folder = root / "notebooks"
    names = profiles.notebook_names(folder)
    if options.command == "execute":
        return [_run_of_a_profile(options, folder)]
    wanted = options.names or names
    for name in wanted:
        if name not in names:
            raise profiles.ProfileError(
                f"there is no notebook {name!r}; the notebooks are: {', '.join(names)}."
            )
    scratch = root / "_build" / "refreshed"
    return [
        Job(
            name=name,
            source=folder / f"{name}.ipynb",
            output=folder / f"{name}.ipynb",
            failed=scratch / f"{name}.failed.ipynb",
            log=scratch / f"{name}.log",
            parameters={},
        )
        for name in wanted
    ]


def _run_of_a_profile(options: argparse.Namespace, folder: Path) -> Job:
    runs = profiles.load(options.profile, folder)
    if options.name not in runs:
        raise profiles.ProfileError(
            f"there is no run {options.name!r} in the profile {options.profile!r}; "
            f"the runs are: {', '.join(runs)}."
        )
    notebook, _ = profiles.split(options.name)
    output = options.output.resolve()
    return Job(
        name=options.name,
        source=folder / f"{notebook}.ipynb",
        output=output,
        failed=output.with_name(f"{output.stem}.failed.ipynb"),
        log=(options.log or output.with_suffix(".log")).resolve(),
        parameters=runs[options.name],
        profile=options.profile,
    )


def _report_failure(
    job: Job, notebook: NotebookNode | None, error: Exception | None, root: Path
) -> None:
    lines = [f"{job.name}: failed. {_summary(error)}"]
    if notebook is not None:
        write(notebook, job.failed)
        lines.append(f"  the notebook up to there: {_relative(job.failed, root)}")
    lines.append(f"  all messages: {_relative(job.log, root)}")
    _say("\n".join(lines))


def _summary(error: Exception | None) -> str:
    if error is None:
        return "papermill wrote no notebook."
    if type(error).__name__ == "PapermillExecutionError":
        return f"In [{error.exec_count}], {error.ename}: {error.evalue}"  # type: ignore[attr-defined]
    if type(error).__name__ == "DeadKernelError":
        return "The kernel died; a machine that runs out of memory ends processes in this way."
    return f"{type(error).__name__}: {error}"


def _append_log(job: Job, error: Exception | None, warnings: list[str]) -> None:
    parts = list(warnings)
    if error is not None:
        parts.append(f"{error}\n")
    with job.log.open("a", encoding="utf-8") as stream:  # the kernel wrote to it before
        stream.write("\n".join(parts))


def _relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.run_notebook", description="Execute notebooks by papermill."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    execute = commands.add_parser("execute", help="one notebook with a profile's parameters")
    execute.add_argument("name", metavar="RUN", help="NOTEBOOK or NOTEBOOK--VARIANT")
    execute.add_argument("--profile", required=True, help="as in notebooks/profiles/PROFILE.yaml")
    execute.add_argument("--output", required=True, type=Path)
    execute.add_argument("--log", type=Path, help="default: beside the output")
    refresh = commands.add_parser("refresh", help="keep the smoke outputs in the sources")
    refresh.add_argument("names", nargs="*", help="default: all")
    return parser


if __name__ == "__main__":
    sys.exit(main())
