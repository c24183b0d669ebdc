"""Models: the zoo, models by import path, layers and stages.

build    a job's `model` by its name or import path     named     names a model that was given in Python
trace    a module as layers                             parts     modules that are traced into their parts
stages   layers divided among the stages of a plan      kinds     words for the work of a layer
outputs  what outputs end in, such as a sigmoid         zoo/      models that are ready to train

Read first: trace.py, then stages.py.
"""

from heterps.model.build import build_model
from heterps.model.kinds import whole
from heterps.model.stages import split
from heterps.model.trace import Layer, Trace

__all__ = ["Layer", "Trace", "build_model", "split", "whole"]
