"""Language models from the Hugging Face hub: the local cache first, then the network, briefly.

A reader without a network must learn so in seconds, not after the minutes that name resolution,
retries and download time-outs take together. So the endpoint is probed first, in a thread that is
abandoned after `PROBE_SECONDS`. HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE, HF_TOKEN and the proxy
variables mean what they mean to huggingface_hub.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from loca_sae import model_folders
from loca_sae.model_packages import PACKAGED, ModelUnavailable

PROBE_SECONDS = 3.5
# No *.py, no pickles; the tokenizer files of all families. '*' matches '/' too, so sub-folders with
# copies in other formats are kept out by a second list.
_WANTED = [
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*.json",
    "tokenizer*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.jinja",
]
_UNWANTED = ["*/*"]
# the paper's models
REPOSITORIES = {
    "pythia-160m-deduped": "EleutherAI/pythia-160m-deduped",
    "gemma-2-2b": "google/gemma-2-2b",
}

T = TypeVar("T")


def config(name: str, repo: str) -> dict[str, Any]:
    """The repository's config.json, from the local cache or within `PROBE_SECONDS` from the hub."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(repo, "config.json")
    if isinstance(cached, str):
        return model_folders.read_config(name, Path(cached).parent)
    path = _from_hub(name, repo, lambda: hf_hub_download(repo, "config.json"), PROBE_SECONDS)
    return dict(json.loads(Path(path).read_text("utf-8")))


def snapshot(name: str, repo: str) -> Path:
    """The folder with the repository's files: the cached one if complete, else downloaded.

    Raises ModelUnavailable, naming cache, hub and packaged alternatives, if neither works;
    a model that would be refused anyway is refused before its weights are downloaded.
    """
    from huggingface_hub import snapshot_download

    folder = _cached_snapshot(name, repo)
    if folder is not None:
        return folder
    model_folders.refuse_unsafe(name, config(name, repo))

    def download() -> str:
        return snapshot_download(repo, allow_patterns=_WANTED, ignore_patterns=_UNWANTED)

    return Path(_from_hub(name, repo, download, None))


def _cached_snapshot(name: str, repo: str) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            repo, local_files_only=True, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
        )
        folder = Path(found)
        model_folders.read_config(name, folder)
        model_folders.gguf_file(name, folder)
    except (OSError, ValueError):  # absent or incomplete: the hub decides
        return None
    return folder


def _from_hub(name: str, repo: str, call: Callable[[], T], seconds: float | None) -> T:
    """``call()`` after a probe of the endpoint; within ``seconds`` altogether if given."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise unavailable(name, repo, "not asked, since HF_HUB_OFFLINE is set")
    start = time.monotonic()
    try:
        within(PROBE_SECONDS, lambda: _probe(constants.ENDPOINT))
        if seconds is None:
            return call()
        return within(max(0.5, seconds - (time.monotonic() - start)), call)
    except Exception as error:  # whatever the network stack raises, the reader gets one sentence
        raise unavailable(name, repo, _reason(error)) from error


def unavailable(name: str, repo: str, reason: str) -> ModelUnavailable:
    """The error for a hub model that cannot be had, with what was tried and what else there is."""
    from huggingface_hub import constants

    known = [*PACKAGED, *REPOSITORIES]
    taken = "" if "/" in repo else f" (none of {', '.join(known)}, so taken for a hub id)"
    return ModelUnavailable(
        f"model {name!r}{taken} cannot be loaded. Tried: the local hub cache "
        f"{constants.HF_HUB_CACHE} (it has no complete copy of {repo!r}); "
        f"the hub {constants.ENDPOINT}: {reason}. "
        f"Without a network, use a model that comes from a Python package "
        f"({' or '.join(PACKAGED)}) or the path of a local folder with safetensors or GGUF weights."
    )


def _reason(error: Exception) -> str:
    kind = type(error).__name__
    if isinstance(error, TimeoutError):
        return f"no answer within {PROBE_SECONDS:g} s"
    if kind == "GatedRepoError":
        return "the repository is gated: accept its terms on the hub and set HF_TOKEN"
    if kind == "RepositoryNotFoundError":
        return "no such repository, or a private one (then set HF_TOKEN)"
    text = str(error).strip().splitlines()
    return f"{kind}: {text[0] if text else 'no details'}"


def within(seconds: float, call: Callable[[], T]) -> T:
    """``call()`` in a daemon thread; TimeoutError after ``seconds``, the thread then abandoned.

    A time-out on the socket alone would not do: name resolution has none.
    """
    outcome: list[T] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            outcome.append(call())
        except Exception as error:  # handed to the caller's thread below
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not outcome:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return outcome[0]


def _probe(endpoint: str) -> None:
    """Open and close a connection to the endpoint, or to the proxy that leads there."""
    target = urllib.parse.urlsplit(endpoint)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if proxy and not urllib.request.proxy_bypass(target.hostname or ""):
        target = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    port = target.port or (80 if target.scheme == "http" else 443)
    socket.create_connection((target.hostname or "", port), timeout=PROBE_SECONDS).close()
