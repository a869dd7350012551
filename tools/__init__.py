"""Tools of the repository: they execute, compare and publish the notebooks.

They are not part of the library: `pip install` of it brings none of this, nor papermill and
Snakemake, which only the repository needs.
"""
