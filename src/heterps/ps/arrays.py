"""Names of the array types that the parameter server uses everywhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
KeyArray = NDArray[np.uint64]
Mask = NDArray[np.bool_]
