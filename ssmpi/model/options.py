"""Settings of the dense model, separate from its code: servers read run files too, and need not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from ssmpi.model.optimizers import DENSE_OPTIMIZERS
from ssmpi.runtime import optimizer_options
from ssmpi.runtime.settings import COUNT, EXAMPLES, FLOAT32, positive, require, within

WIDEST, DEEPEST = 1_000_000, 1000  # outputs of a layer, layers
LEAST_CUT = 1e-9  # of the learning rates


STRUCTURES = ("stacked", "parallel")


def one_of(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise SettingsError unless it is one of two."""
    require(value in choices, f"{name} is {' or '.join(map(repr, choices))}, got {value!r}")


def check_layers(name: str, sizes: Sequence[int]) -> None:
    """Raise SettingsError unless an MLP can have layers of these sizes."""
    require(len(sizes) <= DEEPEST, f"{name} lists {len(sizes):,} layers: at most {DEEPEST:,} are possible")
    for layer, size in enumerate(sizes):
        within(f"{name}[{layer}]", size, 1, WIDEST)


@dataclass(frozen=True)
class DCNv2Options:
    """The ``[model.dcn_v2]`` section, for ``model.name = "dcn_v2"``."""

    layers: int = 3
    """Number of cross layers."""
    rank: int = 0
    """Rank of the cross layers' matrices; 0: full."""
    structure: str = "stacked"
    """``stacked``: the top MLP reads the cross layers' output; ``parallel``: its hidden layers stand beside them."""

    def __post_init__(self) -> None:
        within("layers", self.layers, 1, 100)
        within("rank", self.rank, 0, WIDEST)
        one_of("structure", self.structure, STRUCTURES)


@dataclass(frozen=True)
class DeepFMOptions:
    """The ``[model.deepfm]`` section, for ``model.name = "deepfm"``."""

    deep: tuple[int, ...] = (400, 400, 400)
    """Outputs of each hidden layer of the deep part."""

    def __post_init__(self) -> None:
        check_layers("deep", self.deep)


@dataclass(frozen=True)
class FinalMLPOptions:
    """The ``[model.finalmlp]`` section, for ``model.name = "finalmlp"``."""

    mlp1: tuple[int, ...] = (400, 400, 400)
    """Outputs of each layer of the first MLP."""
    mlp2: tuple[int, ...] = (1000,)
    """Outputs of each layer of the second MLP."""
    heads: int = 1
    """Parts into which both outputs are cut; part by part they are multiplied with each other."""

    def __post_init__(self) -> None:
        within("heads", self.heads, 1, WIDEST)
        for name in ("mlp1", "mlp2"):
            sizes = getattr(self, name)
            require(bool(sizes), f"{name} must list sizes, got none")
            check_layers(name, sizes)
            require(sizes[-1] % self.heads == 0, f"{name} ends in {sizes[-1]}, which heads = {self.heads} must divide")


@dataclass(frozen=True)
class FinalNetOptions:
    """The ``[model.finalnet]`` section, for ``model.name = "finalnet"``."""

    block1: tuple[int, ...] = (400, 400)
    """Outputs of each layer of the first block."""
    block2: tuple[int, ...] = (400, 400)
    """Outputs of each layer of the second block; ``[]``: there is one block."""

    def __post_init__(self) -> None:
        require(bool(self.block1), "block1 must list sizes, got none")
        check_layers("block1", self.block1)
        check_layers("block2", self.block2)


@dataclass(frozen=True)
class GDCNOptions:
    """The ``[model.gdcn]`` section, for ``model.name = "gdcn"``."""

    layers: int = 3
    """Number of gated cross layers."""
    deep: tuple[int, ...] = (400, 400, 400)
    """Outputs of each hidden layer of the deep part."""
    structure: str = "parallel"
    """``stacked`` (GDCN-S): the deep part reads the cross layers' output; ``parallel`` (GDCN-P): it stands beside
    them.
    """

    def __post_init__(self) -> None:
        within("layers", self.layers, 1, 100)
        check_layers("deep", self.deep)
        one_of("structure", self.structure, STRUCTURES)


@dataclass(frozen=True)
class MaskNetOptions:
    """The ``[model.masknet]`` section, for ``model.name = "masknet"``."""

    blocks: tuple[int, ...] = (400, 400, 400)
    """Outputs of each mask block."""
    structure: str = "serial"
    """``serial``: each block reads the one before; ``parallel``: all read the embeddings, and an MLP reads them all."""
    deep: tuple[int, ...] = (400, 400, 400)
    """Outputs of each hidden layer of the MLP behind parallel blocks."""
    ratio: float = 2.0
    """Width of a mask's hidden layer, times that of the mask."""

    def __post_init__(self) -> None:
        require(bool(self.blocks), "blocks must list sizes, got none")
        check_layers("blocks", self.blocks)
        one_of("structure", self.structure, ("serial", "parallel"))
        check_layers("deep", self.deep)
        within("ratio", self.ratio, 0.0, 100.0)


@dataclass(frozen=True)
class WideDeepOptions:
    """The ``[model.wide_deep]`` section, for ``model.name = "wide_deep"``."""

    deep: tuple[int, ...] = (1024, 512, 256)
    """Outputs of each hidden layer of the deep part."""

    def __post_init__(self) -> None:
        check_layers("deep", self.deep)


@dataclass(frozen=True)
class ModelOptions:
    """The ``[model]`` section: the network. The defaults are the Kaggle sizes of facebookresearch/dlrm."""

    REMOVED: ClassVar = {
        "dlrm_towers": ({"towers": 2}, "write towers as a function of your own: model.name = 'FILE.py:FUNCTION'"),
        "top_k_training": ("exact", "write model.top_k = ['OPERATOR: SHARE laplace'] to train and score by thresholds"),
        "top_k_scoring": ("exact", "leave it out; a model is scored as it was trained"),
    }

    name: str = "dlrm"
    """``dlrm``, ``dcn_v2``, ``deepfm``, ``logistic``, ``finalmlp``, ``finalnet``, ``gdcn``, ``masknet``,
    ``wide_deep``, or ``FILE.py:FUNCTION``, a network of your own in a file beside the run file.
    """
    precision: str = "fp32"
    """Precision of the matrix products in training: ``fp32`` or ``bf16``. Weights, optimizer state, rows and scores are
    always float32.
    """
    center_inputs: bool = True
    """Initialize the biases of the bottom MLP's first layer as if the inputs had mean 0. With ``false``, as in
    facebookresearch/dlrm, half of that layer's units start on, or off, for nearly all rows.
    """
    bottom: tuple[int, ...] = (512, 256, 64, 16)
    """Outputs of each layer of the bottom MLP of DLRM and DCN v2; not used without dense features."""
    top: tuple[int, ...] = (512, 256, 1)
    """Outputs of each layer of the top MLP of DLRM and DCN v2; the last one is 1."""
    dropout: float = 0.0
    """Rate of dropout behind each hidden layer of built-in networks, except the bottom MLP: in training this share of
    its values becomes 0.
    """
    top_k: tuple[str, ...] = ()
    """Operators and shares, such as ``"bottom.2: 0.95"``: after each of them this share of an example's values becomes
    0, the smallest by magnitude. With ``"bottom.2: 0.95 laplace"`` these are the values below an estimated threshold.
    """
    dcn_v2: DCNv2Options = field(default_factory=DCNv2Options)
    deepfm: DeepFMOptions = field(default_factory=DeepFMOptions)
    finalmlp: FinalMLPOptions = field(default_factory=FinalMLPOptions)
    finalnet: FinalNetOptions = field(default_factory=FinalNetOptions)
    gdcn: GDCNOptions = field(default_factory=GDCNOptions)
    masknet: MaskNetOptions = field(default_factory=MaskNetOptions)
    wide_deep: WideDeepOptions = field(default_factory=WideDeepOptions)

    def __post_init__(self) -> None:
        require(self.precision in ("fp32", "bf16"), f"precision is 'fp32' or 'bf16', got {self.precision!r}")
        require(bool(self.bottom) and min(self.bottom) >= 1, f"bottom must list positive sizes, got {self.bottom}")
        require(bool(self.top) and min(self.top) >= 1, f"top must list positive sizes, got {self.top}")
        check_layers("bottom", self.bottom)
        check_layers("top", self.top)
        require(0 <= self.dropout < 1, f"dropout must be in [0, 1), got {self.dropout:g}")
        require(self.top[-1] == 1, f"top must end in 1, got {self.top}: one logit per example")


@dataclass(frozen=True)
class DenseOptions:
    """The ``[dense]`` section: the optimizer of the dense parameters. Numbers have torch's names."""

    optimizer: str = "adagrad"
    """``sgd``, ``adagrad``, ``adam`` or ``adamw``."""
    rate: float = 0.005
    """Learning rate; the schedule multiplies it. The default suits Adagrad."""
    epsilon: float = 1e-8
    """Added to the root that divides a step, like torch's ``eps``."""
    initial_state: float = 1e-8
    """Initial value of Adagrad's sums of squares."""
    beta1: float = 0.9
    """Decay factor of Adam's mean of gradients."""
    beta2: float = 0.999
    """Decay factor of Adam's mean of squares."""
    weight_decay: float = 0.0
    """Weight decay. This times the weight is added to the gradient; with ``adamw`` the weight shrinks by the rate times
    this.
    """
    clip_norm: float = 0.0
    """Bound on the norm of a step's gradient; 0: none."""

    def __post_init__(self) -> None:
        optimizer_options.check(self, DENSE_OPTIMIZERS)
        within("clip_norm", self.clip_norm, 0.0, FLOAT32)


@dataclass(frozen=True)
class Schedule:
    """The ``[schedule]`` section, in examples over all trainers: linear warm-up, constant rates, polynomial decay, like
    facebookresearch/dlrm's LRPolicyScheduler, which counts steps and decays with power 2. Besides, rates that are cut
    where a metric no longer improves.
    """

    warmup_examples: int = 0
    """Examples over which both learning rates rise from 0; 0: no warm-up."""
    decay_start_examples: int = 0
    """Examples after which the rates begin to fall."""
    decay_examples: int = 0
    """Examples over which the rates fall to 0; 0: no decay."""
    power: float = 2.0
    """Power of the decay; 1 is linear."""
    plateau_factor: float = 1.0
    """Both learning rates are multiplied by this once ``plateau_patience`` is exhausted; 1: never."""
    plateau_patience: int = 1
    """Evaluations of ``evaluate.split`` in a row without a gain (``evaluate.metric``, ``evaluate.min_gain``) before a
    cut, and before the next one.
    """
    plateau_cuts: int = 1
    """Most cuts. Training ends when ``plateau_patience`` is exhausted again after the last one."""

    def __post_init__(self) -> None:
        for name in ("warmup_examples", "decay_start_examples", "decay_examples"):
            within(name, getattr(self, name), 0, EXAMPLES)
        within("power", self.power, 0.0, 100.0)
        positive("plateau_factor", self.plateau_factor, 1.0)
        within("plateau_patience", self.plateau_patience, 1, COUNT)
        within("plateau_cuts", self.plateau_cuts, 1, COUNT)
        require(
            self.cut(self.plateau_cuts) >= LEAST_CUT,
            f"plateau_factor = {self.plateau_factor:g} and plateau_cuts = {self.plateau_cuts:,} would leave "
            f"{self.cut(self.plateau_cuts):.3g} of the learning rates; the least is {LEAST_CUT:g}: lower plateau_cuts",
        )
        require(
            not self.decay_examples or self.decay_start_examples >= self.warmup_examples,
            f"decay_start_examples = {self.decay_start_examples} lies inside the warm-up of {self.warmup_examples}",
        )

    @cached_property
    def flat(self) -> bool:
        """Whether ``factor`` is always 1."""
        return not (self.warmup_examples or self.decay_examples)

    @property
    def cuts(self) -> bool:
        """Whether the rates are cut at plateaus."""
        return self.plateau_factor < 1

    def cut(self, plateaus: int) -> float:
        """Another factor of both rates, after ``plateau_patience`` was exhausted this many times."""
        return self.plateau_factor ** min(plateaus, self.plateau_cuts)

    def factor(self, examples: int) -> float:
        """The factor of both learning rates after this many examples, in (0, 1]."""
        if examples < self.warmup_examples:
            return (examples + 1) / self.warmup_examples
        past = examples - self.decay_start_examples
        if not self.decay_examples or past < 0:
            return 1.0
        left = 1.0 - min(past, self.decay_examples) / self.decay_examples
        return max(left, 1e-7) ** self.power
