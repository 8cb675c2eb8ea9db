"""The two wire contracts: verify events (Kafka) and parameter documents (Redis)."""

from serving_adapter.contract.confidence import conditional_confidence, prefix_survival, sigmoid
from serving_adapter.contract.errors import ContractError
from serving_adapter.contract.events import VerifyBatch
from serving_adapter.contract.fingerprint import EngineIdentity
from serving_adapter.contract.parameter_set import FORMS, Form
from serving_adapter.contract.parameters import (
    CostCurve,
    Evidence,
    ParameterDocument,
    decode_document,
    encode_document,
    seal,
)
from serving_adapter.contract.rounds import MAX_GAMMA, NO_STOP, Rounds
from serving_adapter.contract.sampling import SAMPLING_BUCKETS, bucket_index
from serving_adapter.contract.segments import SegmentParameters
from serving_adapter.contract.steps import Steps

__all__ = [
    "FORMS",
    "MAX_GAMMA",
    "NO_STOP",
    "SAMPLING_BUCKETS",
    "ContractError",
    "CostCurve",
    "EngineIdentity",
    "Evidence",
    "Form",
    "ParameterDocument",
    "Rounds",
    "SegmentParameters",
    "Steps",
    "VerifyBatch",
    "bucket_index",
    "conditional_confidence",
    "decode_document",
    "encode_document",
    "prefix_survival",
    "seal",
    "sigmoid",
]
