"""Settings of the dense model, apart from its code, because servers read run files too and need not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ssmpi.core import optimizer_options
from ssmpi.core.settings import EXAMPLES, FLOAT32, require, within
from ssmpi.model.dense_optimizers import DENSE_OPTIMIZERS

WIDEST = 1_000_000  # layer


@dataclass(frozen=True)
class DCNv2Options:
    """``[model.dcn_v2]``: the number of cross layers, and the rank of their matrices, 0 for full."""

    layers: int = 3
    rank: int = 0

    def __post_init__(self) -> None:
        within("layers", self.layers, 1, 100)
        within("rank", self.rank, 0, WIDEST)


@dataclass(frozen=True)
class DeepFMOptions:
    """``[model.deepfm]``: the outputs of each hidden layer of the deep part."""

    deep: tuple[int, ...] = (400, 400, 400)

    def __post_init__(self) -> None:
        for layer, size in enumerate(self.deep):
            within(f"deep[{layer}]", size, 1, WIDEST)


@dataclass(frozen=True)
class DLRMTowersOptions:
    """``[model.dlrm_towers]``: the number of towers, one for each member of a group."""

    towers: int = 2

    def __post_init__(self) -> None:
        within("towers", self.towers, 2, 1000)


@dataclass(frozen=True)
class ModelOptions:
    """The ``[model]`` section; the defaults are the Kaggle sizes of facebookresearch/dlrm.

    ``name`` is one of ``zoo.NETWORKS``, or ``FILE.py:FUNCTION``, a custom network in a file beside the run file.
    ``bottom`` and ``top`` list the outputs of each layer of the bottom and top MLPs of built-in networks; the top one
    ends in 1. ``precision`` is that of the matrix products in training: ``fp32`` or ``bf16``. Weights, optimizer state
    and rows are float32 in either case, and so are scores. With ``center_inputs`` the first biases are initialized as
    if the inputs had mean 0; without, as in facebookresearch/dlrm, half of that layer's units start on, or off, for
    nearly all rows. ``top_k`` lists operators and shares, such as ``"bottom.2: 0.95"``: behind each, this share of an
    example's values, the smallest, become 0: exactly the smallest of each example, or (``laplace``) those below a
    threshold that is estimated in training. ``top_k_training`` and ``top_k_scoring`` say how; scoring may also be
    ``off``: all values pass.
    """

    name: str = "dlrm"
    precision: str = "fp32"
    center_inputs: bool = False
    bottom: tuple[int, ...] = (512, 256, 64, 16)
    top: tuple[int, ...] = (512, 256, 1)
    top_k: tuple[str, ...] = ()
    top_k_training: Literal["exact", "laplace"] = "exact"
    top_k_scoring: Literal["exact", "laplace", "off"] = "exact"

    dcn_v2: DCNv2Options = field(default_factory=DCNv2Options)
    deepfm: DeepFMOptions = field(default_factory=DeepFMOptions)
    dlrm_towers: DLRMTowersOptions = field(default_factory=DLRMTowersOptions)

    def __post_init__(self) -> None:
        require(self.precision in ("fp32", "bf16"), f"precision is 'fp32' or 'bf16', got {self.precision!r}")
        require(bool(self.bottom) and min(self.bottom) >= 1, f"bottom must list positive sizes, got {self.bottom}")
        require(bool(self.top) and min(self.top) >= 1, f"top must list positive sizes, got {self.top}")
        for name, sizes in (("bottom", self.bottom), ("top", self.top)):
            for layer, size in enumerate(sizes):
                within(f"{name}[{layer}]", size, 1, WIDEST)
        require(self.top[-1] == 1, f"top must end in 1, got {self.top}: one logit per example")


@dataclass(frozen=True)
class DenseOptions:
    """The ``[dense]`` section: ``optimizer`` is one of ``DENSE_OPTIMIZERS``, ``rate`` its learning rate; the numbers
    behind it are those of ``OptimizerOptions``. ``clip_norm`` bounds the norm of a step's gradient, 0 none.
    """

    optimizer: str = "adagrad"
    rate: float = 0.005
    epsilon: float = 1e-8
    initial_state: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        optimizer_options.check(self, DENSE_OPTIMIZERS)
        within("clip_norm", self.clip_norm, 0.0, FLOAT32)


@dataclass(frozen=True)
class Schedule:
    """The ``[schedule]`` section, in examples over all trainers: linear warm-up, a plateau, polynomial decay.

    As facebookresearch/dlrm's LRPolicyScheduler (which counts steps and decays with power 2). Zero means none.
    """

    warmup_examples: int = 0
    decay_start_examples: int = 0
    decay_examples: int = 0
    power: float = 2.0

    def __post_init__(self) -> None:
        for name in ("warmup_examples", "decay_start_examples", "decay_examples"):
            within(name, getattr(self, name), 0, EXAMPLES)
        within("power", self.power, 0.0, 100.0)
        require(
            not self.decay_examples or self.decay_start_examples >= self.warmup_examples,
            f"decay_start_examples = {self.decay_start_examples} lies inside the warm-up of {self.warmup_examples}",
        )

    @cached_property
    def flat(self) -> bool:
        """Whether the factor is always 1."""
        return not (self.warmup_examples or self.decay_examples)

    def factor(self, examples: int) -> float:
        """The factor of both learning rates after this many examples, in (0, 1]."""
        if examples < self.warmup_examples:
            return (examples + 1) / self.warmup_examples
        past = examples - self.decay_start_examples
        if not self.decay_examples or past < 0:
            return 1.0
        left = 1.0 - min(past, self.decay_examples) / self.decay_examples
        return max(left, 1e-7) ** self.power
