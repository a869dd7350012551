"""What exact inference costs: `python -m benchmarks`, or `make bench`.

One run measures the exact solver, first-order methods, other people's solvers and the encoder on
the same activations and dictionaries, prints the ratios against stated targets, and writes
``benchmarks/results.json`` with the tables and the figure of the book's page.

    settings       what is measured: models, sizes, budgets, targets
    packages       SPAMS, installed into a side folder for the benchmark only
    dictionaries   SAEs and held-out activations, from the store or computed
    solvers        one function a solver, all for the same objective
    measuring      time, memory, objective and duality gap of one solver
    cells          measured cells on disk, so that a killed run goes on
    worker         the process in which cells are measured, with its number of threads
    plan           which cells there are
    summary        ratios, scaling, targets: pure functions of cells
    tables, figure, report   what the reader sees
"""
