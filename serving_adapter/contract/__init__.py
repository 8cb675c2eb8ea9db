"""The two wire contracts: verify events (Kafka) and parameter documents (Redis)."""

from serving_adapter.contract.confidence import conditional_confidence, prefix_survival, sigmoid
from serving_adapter.contract.errors import ContractError
from serving_adapter.contract.events import VerifyBatch
from serving_adapter.contract.fingerprint import EngineIdentity
from serving_adapter.contract.parameters import (
    FORMS,
    CostCurve,
    Evidence,
    Form,
    ParameterDocument,
    decode_document,
    encode_document,
    seal,
)
from serving_adapter.contract.rounds import MAX_GAMMA, NO_STOP, Rounds
from serving_adapter.contract.steps import Steps

__all__ = [
    "FORMS",
    "MAX_GAMMA",
    "NO_STOP",
    "ContractError",
    "CostCurve",
    "EngineIdentity",
    "Evidence",
    "Form",
    "ParameterDocument",
    "Rounds",
    "Steps",
    "VerifyBatch",
    "conditional_confidence",
    "decode_document",
    "encode_document",
    "prefix_survival",
    "seal",
    "sigmoid",
]
