"""LocA-SAE: a companion to "The Price of Amortized Inference in Sparse Autoencoders".

Import the modules by name (``from loca_sae import corpus, store``); this file imports none of them,
so that the light ones stay light.
"""

from importlib import metadata

try:
    __version__ = metadata.version("loca-sae")
except metadata.PackageNotFoundError:  # used from a source tree that was not installed
    __version__ = "0+unknown"
