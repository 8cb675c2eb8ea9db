"""Sampling buckets, as the contract has them."""

from serving_adapter.contract.sampling import SAMPLING_BUCKETS, bucket_index

__all__ = ["SAMPLING_BUCKETS", "bucket_index"]
