"""Models: the zoo, models by import path, layers and stages."""

from heterps.model.build import build_model
from heterps.model.kinds import whole
from heterps.model.stages import split
from heterps.model.trace import Layer, Trace

__all__ = ["Layer", "Trace", "build_model", "split", "whole"]
