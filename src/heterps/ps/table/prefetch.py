"""The processor's prefetch instruction for numba kernels, which have no other way to ask for it."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_READ, _KEEP_IN_ALL_CACHES, _DATA = 0, 3, 1


@intrinsic
def _prefetch(_: Any, array: Any, position: Any) -> Any:
    """Ask the processor to bring `array[position]` near; changes nothing."""
    signature = types.void(array, position)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.bitcast(builder.gep(view.data, [arguments[1]]), ir.IntType(8).as_pointer())
        hint = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module,
            ir.FunctionType(ir.VoidType(), [address.type, *[ir.IntType(32)] * 3]),
            "llvm.prefetch.p0",
        )
        builder.call(
            hint, [address, *(ir.Constant(ir.IntType(32), value) for value in (_READ, _KEEP_IN_ALL_CACHES, _DATA))]
        )
        return context.get_dummy_value()

    return signature, generate


prefetch: Any = _prefetch  # numba supplies the first argument; the callers' types do not show that
