"""What files call dtypes: the storages of ``torch.save`` and the codes of safetensors.

Dtypes are named without their library: ``bfloat16``.
"""

from __future__ import annotations

__all__ = ["BY_CODE", "BY_STORAGE", "CODES", "STORAGES"]

STORAGES = {
    **{"float64": "DoubleStorage", "float32": "FloatStorage", "float16": "HalfStorage"},
    **{"bfloat16": "BFloat16Storage", "int64": "LongStorage", "int32": "IntStorage", "int16": "ShortStorage"},
    **{"int8": "CharStorage", "uint8": "ByteStorage", "bool": "BoolStorage"},
    **{"complex64": "ComplexFloatStorage", "complex128": "ComplexDoubleStorage"},
}
"""Classes of torch that a ``.pt`` file names for its values; newer dtypes have none."""
CODES = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64"},
    **{"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "bool": "BOOL"},
    **{"uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
}
"""``dtype`` in the header of a ``.safetensors`` file."""
BY_STORAGE = {storage: dtype for dtype, storage in STORAGES.items()}
BY_CODE = {code: dtype for dtype, code in CODES.items()}
