from trinity_bus.errors import TrinityError


class TrainingError(TrinityError):
    """Training cannot go on."""


class CheckpointError(TrainingError):
    """A checkpoint is damaged, belongs to another layout, or its folder is in use."""


class ConversionError(TrainingError):
    """A Hugging Face model folder cannot be read as a Megatron model."""


class ParallelError(TrainingError):
    """The process layout does not fit the model or the environment."""


class RankError(TrainingError):
    """A rank of this trainer died, failed, or does not answer: start the trainer anew, from its checkpoint."""


class TrainingInterruptedError(TrainingError):
    """A step was abandoned because ``TrainingEngine.interrupt`` was called; the engine must not be used further."""
