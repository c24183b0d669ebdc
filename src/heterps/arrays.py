"""Names of the array types that are used everywhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
KeyArray = NDArray[np.uint64]
OffsetArray = NDArray[np.int64]
Mask = NDArray[np.bool_]
