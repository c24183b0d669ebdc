"""What is trained: the zoo, models by import path, layers, stages."""

from heterps.model.kinds import whole as whole
