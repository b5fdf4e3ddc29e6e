"""Element types: bits, and conversion between numpy float32 and the bytes that a GPU holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class DType:
    """An element type. numpy_name: its type in numpy or, with ml_dtypes, in that package."""

    name: str
    bits: int
    numpy_name: str

    @property
    def storage(self) -> Any:
        """The numpy type of an element. Types of 6 and 4 bits take a byte each in numpy."""
        if hasattr(np, self.numpy_name):
            return getattr(np, self.numpy_name)
        import ml_dtypes  # slow to import, and only data needs it, not lowering

        return getattr(ml_dtypes, self.numpy_name)

    @property
    def bytes(self) -> int:
        """Bytes of one element; raises ValueError for packed types below a byte."""
        if self.bits % 8:
            raise ValueError(f"{self.name} has {self.bits} bits, no whole bytes")
        return self.bits // 8

    def encode(self, values: NDArray[Any]) -> NDArray[Any]:
        """`values` rounded to this type (to nearest, ties to even)."""
        return values.astype(self.storage)

    def decode(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Elements of this type as float32."""
        return np.asarray(values.view(self.storage).astype(np.float32))

    def __str__(self) -> str:
        return self.name


fp32 = DType("fp32", 32, "float32")
bf16 = DType("bf16", 16, "bfloat16")
fp16 = DType("fp16", 16, "float16")
fp8 = DType("fp8", 8, "float8_e4m3fn")
fp8_e5m2 = DType("fp8_e5m2", 8, "float8_e5m2")
fp6 = DType("fp6", 6, "float6_e2m3fn")
fp4 = DType("fp4", 4, "float4_e2m1fn")

DTYPES = {d.name: d for d in (fp32, bf16, fp16, fp8, fp8_e5m2, fp6, fp4)}
