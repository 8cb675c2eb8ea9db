"""What can be refused at once, before minutes go into loading a model and measuring it."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from importlib import import_module
from pathlib import Path

from serving_adapter.engines.torch.dspark.checkpoint import packaged_drafter
from serving_adapter.engines.torch.dspark.config import CheckpointError
from serving_adapter.engines.torch.loading import SMOLLM2, ModelNotFoundError
from serving_adapter.engines.torch.self_draft import DEFAULT_GAMMA
from serving_adapter.scheduler import FixedLength, Scheduler

_HUB_SECONDS = 10.0


def check_model(name: str) -> None:
    """Refuse a name that is neither ``smollm2``, nor a folder, nor a model that the hub could give.

    The hub is asked once; transformers would try for minutes where there is no way to it.

    Raises
    ------
    ModelNotFoundError
        Naming the model.
    """
    if name == SMOLLM2 or Path(name).is_dir():
        return
    if not name or name.startswith(("/", ".", "~")) or Path(name).exists():
        raise ModelNotFoundError(f"{name}: no such folder")
    neither = f"{name}: neither {SMOLLM2}, nor a folder, nor a model in the hub's cache"
    try:
        hub = import_module("huggingface_hub")
        if isinstance(hub.try_to_load_from_cache(name, "config.json"), str):
            return
    except ImportError:
        return  # without transformers nothing loads: loading says what to install
    except ValueError as error:
        raise ModelNotFoundError(f"{neither} (no name of the hub)") from error
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE"):
            raise ModelNotFoundError(f"{neither} ({variable} is set)")
    url = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}/{name}/resolve/main/config.json"
    try:
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - the hub's address, or its mirror's
        urllib.request.urlopen(request, timeout=_HUB_SECONDS).close()  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise ModelNotFoundError(f"{neither}, and the hub does not know it") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if not isinstance(reason, ssl.SSLError):  # its client may have certificates of its own
            raise ModelNotFoundError(f"{neither}, and the hub cannot be reached ({reason})") from error


def check_drafter(name: str, known: tuple[str, ...]) -> int | None:
    """Gamma of a drafter by name or folder, 0 for ``none``; None when its configuration does not say.

    Raises
    ------
    CheckpointError
        A folder without a readable ``config.json``.
    """
    if name == "none":
        return 0
    if name.startswith("self") and name in known:
        return DEFAULT_GAMMA
    folder = packaged_drafter() if name in known else Path(name)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        what = "no config.json" if folder.is_dir() else f"no such folder, expected {', '.join(known)} or one"
        raise CheckpointError(f"drafter {name}: {what}") from error
    except ValueError as error:
        raise CheckpointError(f"drafter {name}: config.json is no JSON ({error})") from error
    gamma = config.get("block_size") if isinstance(config, dict) else None
    return gamma if isinstance(gamma, int) else None


def check_scheduler(scheduler: Scheduler, gamma: int | None, drafter: str) -> None:
    """Refuse a fixed length beyond what is drafted.

    Raises
    ------
    ValueError
        Naming both.
    """
    if gamma and isinstance(scheduler, FixedLength) and scheduler.length > gamma:
        raise ValueError(
            f"scheduler: got fixed:{scheduler.length}, expected at most fixed:{gamma}, "
            f"which is all that drafter {drafter} drafts"
        )
