"""One module a notebook: ``run(parameters) -> DataFrame``, cached in the store.

``data`` harvests what the notebooks share, ``measures`` puts one SAE in one mode through every
measure. Each measured row is an artifact of its own, so a kill loses at most the row in progress.
"""
