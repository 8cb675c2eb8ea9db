"""A complete DSpark engine in plain PyTorch: CUDA where there is one, CPU otherwise.

Nothing here is imported by any other part of the adapter; nothing here touches CUDA at import.
"""
