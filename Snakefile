"""Execute the runs of the book's notebooks, one after the other: a rule for each.

`make book` runs this through tools/book.py, which looks after locks and puts the results into
book/. By hand: snakemake --cores all --config profile=smoke

Outputs go to _build/executed/<profile>/: the executed notebook, its log, and a benchmark file
(wall time in column s, peak memory of runner and kernel in MiB in column max_rss).
"""

import json
import sys
from pathlib import Path

# the repository's tools, wherever snakemake was called from
sys.path.insert(0, workflow.basedir)
from tools import profiles, provenance

ROOT = Path(workflow.basedir)
PROFILE = config.get("profile", "laptop")
# by run, in the order in which they are executed
PARAMETERS = profiles.load(PROFILE, ROOT / "notebooks")
EXECUTED = f"_build/executed/{PROFILE}"


workdir: workflow.basedir


rule all:
    input:
        expand("{folder}/{name}.ipynb", folder=EXECUTED, name=list(PARAMETERS)),


for index, run in enumerate(PARAMETERS):
    notebook, _ = profiles.split(run)
    sources = provenance.inputs(ROOT / "notebooks" / f"{notebook}.ipynb", ROOT)

    rule:
        name:
            f"execute_{run}"
        input:
            # ancient: contents decide, by the digest below, and not the times of the files
            [ancient(str(path.relative_to(ROOT))) for path in sources],
        output:
            f"{EXECUTED}/{run}.ipynb",
        log:
            f"{EXECUTED}/{run}.log",
        benchmark:
            f"{EXECUTED}/{run}.benchmark.tsv"
        params:
            # a change of one of these executes the notebook again
            digest=provenance.digest(sources, ROOT),
            parameters=json.dumps(PARAMETERS[run], sort_keys=True),
            # and these are what the command needs
            run=run,
            profile=PROFILE,
        # each run takes the whole machine: never two at once, the first ones first
        threads: workflow.cores
        priority: len(PARAMETERS) - index
        shell:
            # exec: the runner is then Snakemake's own child, and notices when that is killed
            "exec {sys.executable:q} -m tools.run_notebook execute {params.run} "
            "--profile {params.profile} --output {output:q} --log {log:q}"
