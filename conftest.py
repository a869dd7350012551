"""pytest's set-up for the whole repository: notebooks are compared with tolerances.

The tolerances and the rules are in tools/notebook_comparison.py and tools/number_text.py.
"""

pytest_plugins = ["tools.notebook_comparison"]
