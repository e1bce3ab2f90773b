"""Recorders' names for operations and dtypes, with torch.distributed's names, which ddpsim uses."""

from __future__ import annotations

OPERATIONS = {
    "_all_gather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "all_reduce_barrier": "barrier",
    "all_to_all_v_single": "all_to_all_single",
    "ALLGATHER_coalesced": "all_gather_coalesced",
    "REDUCE_SCATTER_coalesced": "reduce_scatter_coalesced",
    "gather_single": "gather",
}

CPP_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "Float8_e4m3fn": "float8_e4m3fn",
    "Float8_e5m2": "float8_e5m2",
}
"""Names in torch's flight recorder."""

SHORT_DTYPES = {
    "f32": "float32",
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "bool": "bool",
    "fp8e4m3": "float8_e4m3fn",
    "fp8e5m2": "float8_e5m2",
}
"""Names in clogs."""
