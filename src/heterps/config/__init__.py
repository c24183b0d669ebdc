"""The job as one tree of frozen, validated models: everything that defines a run, and nothing configured elsewhere.

    Job -- model        a zoo name or an import path, and its arguments
        -- data         files, schema, batches, epochs
        -- optimizers   sparse (tables) and dense, with the schedule of their learning rates
        -- tables       initial rows, admission of keys, eviction of rows
        -- tiers        memory for the tables, and the disk for the other rows
        -- servers      where the tables are, and how workers reach them
        -- workers      how workers reach each other
        -- start        another model, or rows of files, to start from
        -- sync         when a worker may start its next iteration
        -- emulation    running units that this machine does not have
        -- checkpoint   how often to save, and how many checkpoints to keep
        -- validation   how often to validate, when to stop early, which model is the best
        -- cluster      resources, prices, limits (also a file of its own: cluster.yaml)

Modules have the names of these parts, except: `job` is the job itself, with model and checkpoint; `format`, `labels`,
`features` and `storage` are parts of data; `policy_words` are short forms of policies; `optimizer_kinds` are the
optimizers, one by one; `launchers` says what each launcher can do; `base` has the base classes.

Every field has a `description`; the reference of the job file is generated from them. Read first: job.py.
"""

from heterps.config import optimizer_kinds
from heterps.config.cluster import PAPER_CLUSTER, Cluster, Machine, Resource, Spot
from heterps.config.data import Data, Schema
from heterps.config.format import Format
from heterps.config.job import Checkpoint, Job, Model, load_cluster, load_job, parse_job
from heterps.config.optimizer_kinds import *  # noqa: F403
from heterps.config.optimizer_kinds import DenseOptimizer, Optimizer, check_optimizer
from heterps.config.optimizers import (
    Clip,
    ConstantRate,
    CosineRate,
    ExponentialRate,
    Group,
    LinearRate,
    Optimizers,
    Schedule,
    StepRate,
)
from heterps.config.servers import Faults, Servers, ValueCoding
from heterps.config.start import RowFile, Start
from heterps.config.storage import Storage
from heterps.config.sync import ASP, BSP, DSSP, SSP, PolicyConfig, register_policy
from heterps.config.tables import (
    Admission,
    AfterSightings,
    Always,
    Constant,
    Eviction,
    Initializer,
    Never,
    Normal,
    Tables,
    Tiers,
    Uniform,
    WithProbability,
    Zero,
)
from heterps.config.validation import Split, Validation
from heterps.config.workers import Emulation

__all__ = [
    "ASP", "BSP", "DSSP", "PAPER_CLUSTER", "SSP", "Admission",
    "AfterSightings", "Always", "Checkpoint", "Clip", "Cluster", "Constant", "ConstantRate", "CosineRate", "Data",
    "DenseOptimizer", "Emulation", "Eviction", "ExponentialRate", "Faults", "Format", "Group", "Initializer", "Job",
    "LinearRate", "Machine", "Model", "Never", "Normal", "Optimizer", "Optimizers", "PolicyConfig",
    "Resource", "RowFile", "Schedule", "Schema", "Servers", "Split", "Spot", "Start", "StepRate",
    "Storage", "Tables", "Tiers", "Uniform", "Validation", "ValueCoding", "WithProbability", "Zero",
    "check_optimizer", "load_cluster", "load_job", "parse_job", "register_policy",
]  # fmt: skip
__all__ += optimizer_kinds.__all__
