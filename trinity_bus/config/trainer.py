"""The section ``trainer``: its model, its algorithm and its checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue, SecretStr, field_validator

from schemas.batch import MAX_BATCH_TASKS
from schemas.free_form import MAX_ITEMS
from schemas.step import KEPT_STEPS
from trinity_bus.config.mesh import of_mesh
from trinity_bus.config.section import Section
from trinity_bus.config.values import (
    Count,
    HostName,
    InstanceName,
    Options,
    PortRange,
    Seconds,
    Size,
    allowed_options,
    ports_of,
)

REFUSED_OPTIMIZER_OPTIONS: Final[Mapping[tuple[str, ...], str]] = {
    ("lr", "min_lr", "decoupled_"): "set trainer.learning_rate, trainer.warmup_steps and trainer.decay_steps",
    ("weight_decay",): "set trainer.weight_decay",
    ("betas", "adam_beta1", "adam_beta2"): "set trainer.adam_beta1 and trainer.adam_beta2",
    ("clip_grad",): "set trainer.max_grad_norm",
    ("params_dtype", "bf16", "fp16", "fp8_", "loss_scale", "initial_loss_scale", "min_loss_scale"): "set mesh.dtype",
    ("use_distributed_optimizer", "overlap_", "reuse_grad_buf_"): "set trainer.distributed_optimizer",
    ("optimizer", "sgd_", "muon_"): "checkpoints keep the state of AdamW",
    ("use_precision_aware_optimizer", "store_param_remainders", "main_", "exp_avg_", "optimizer_", "use_torch_"): (
        "checkpoints keep the optimizer's state whole and in float32, to be gone on from in any layout"
    ),
    ("maximize", "differentiable", "capturable", "timers"): "the step would be another one",
}
"""Arguments of Megatron's and torch's optimizers that are not passed through, and why."""


class TrainerSettings(Section):
    """The trainer: its model, its algorithm and its checkpoints."""

    name: InstanceName = "trainer-0"
    """Its identity over restarts. ``{host}`` in it is the host's name."""
    role: Literal["live", "shadow"] = "live"
    """``live``: it trains on batches or examples, and explorers get its weights. ``shadow``: it trains on the steps of
    another trainer as these are written on ``steps``, shuffled with that one's seed, and tells nobody but ``steps`` and
    ``metrics.jsonl`` in its ``checkpoint_dir``: another objective on the same stream. See docs/replay.md."""
    shadows: InstanceName = "trainer-0"
    """With ``role=shadow``: the name of that trainer; where it has stages, a slash and the stage's name behind it."""
    model_path: str | None = of_mesh("model_path")
    checkpoint_dir: Path | None = None
    """Where checkpoints go, and where a restarted trainer looks for the newest."""
    publish: Literal["durable", "staged"] = "durable"
    """When a version can be had. ``durable``: when its checkpoint is, which is written beside the next step.
    ``staged``: at once; there is a checkpoint every ``checkpoint_interval`` steps, and after a crash the steps since
    are trained again from the log."""
    checkpoint_interval: Count = 1
    """Steps between checkpoints. With ``publish=durable`` there is one for each published version, too."""
    keep_checkpoints: Count = 3
    """How many checkpoints to keep; explorers may still read the one before the newest."""
    save_as_hf: Literal["last", "always", "never"] = "always"
    """Which checkpoints are Hugging Face model folders: all, only that of the last of ``total_steps``, or none. The
    others hold the same weights without configuration and tokenizer, which ``trinity-bus checkpoints convert`` adds."""
    export_dir: Path | None = None
    """Where the trained model goes, as a Hugging Face folder, when ``total_steps`` are done. Unset: nowhere."""
    total_steps: Count | None = None
    """Steps after which training ends; the trainer goes on serving weights. Unset: it trains as long as it runs."""
    heartbeat_s: Seconds = 0.5
    """How often it says that it lives."""
    host: str = "127.0.0.1"
    """Address at which explorers reach this trainer for weights."""
    weights_port: PortRange = "0"
    """Port at which explorers ask for weights, or a range such as ``7000-7009``, of which the first free one is taken.
    0: any. With ``nccl``, gloo and NCCL listen on others beside, which the operating system chooses."""
    ranks_host: HostName = "127.0.0.1"
    """Where ranks that a launcher has started reach rank 0, and at which it listens, alone: a name or an address of its
    machine. ``{host}`` in it is the host's name. See docs/operations.md."""
    ranks_port: PortRange = "0"
    """Port at which they ask for its orders, or a range of which the first free one is taken. 0: any. Stores, gloo and
    NCCL listen on others beside, which the operating system chooses."""
    ranks_key: SecretStr | None = None
    """What ranks that a launcher has started, and rank 0, show each other: all have the same; 16 characters or more.
    Ranks that the trainer starts itself need none."""
    bucket_mib: Count = 16
    """Weights are sent in pieces of at most this many MiB."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-6
    """Of AdamW, after warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the learning rate rises linearly to its value."""
    decay_steps: Count | None = None
    """Steps over which the learning rate falls linearly to 0, where it stays. Unset: it does not fall. AdamW divides
    gradients by their own size: where little is left to be learned, what it makes of them is noise at the full rate."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Of AdamW; norms are exempt."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of AdamW: decay of the mean of gradients."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Of AdamW: decay of the mean of squared gradients."""
    optimizer_options: Options = Field(default={})
    """Any other arguments of the engine's optimizer: of Megatron's ``OptimizerConfig``, such as ``{adam_eps = 1e-6}``,
    or, with ``trainer.engine = "torch"``, of torch's ``AdamW``, such as ``{eps = 1e-6}``; but for those that a setting
    here decides, and those that would break what the mesh promises, which are refused with the reason."""
    max_grad_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Gradients are scaled down to this norm."""
    max_skipped_updates: Count = 5
    """Updates whose loss or gradients are not finite are skipped; after so many in a row the trainer saves its state
    and ends."""
    mini_batches: Count = 1
    """Updates of the weights for each batch: its samples are shuffled and divided into so many parts."""
    loss_normalizer: Literal["batch", "update", "sequence", "constant"] = "batch"
    """What the sum over tokens is divided by. ``batch``: the response tokens of the whole batch, those of groups
    that teach nothing included, in equal parts for each update (Yu et al., arXiv:2503.14476, eq. 8, over the whole
    batch), so that a batch of which little is to be learned changes the weights little. ``update``: the trained
    tokens of the update itself, with fewer updates where groups are skipped: rare answers are learned later.
    ``sequence``: each sample's by its own number, then the samples of the batch, in equal parts (GRPO's, Shao et
    al., arXiv:2402.03300, eq. 3). ``constant``: as many tokens as the samples of the batch could have had at most,
    ``mesh.max_tokens`` each, in equal parts (Dr. GRPO's, Liu et al., arXiv:2503.20783)."""
    max_tokens: Count = of_mesh("max_tokens")
    parse_special_tokens: bool = of_mesh("parse_special_tokens")
    renderer: str | None = of_mesh("renderer")
    old_logprobs: Literal["rollout", "recompute"] = "rollout"
    """The policy that updates stay close to. ``rollout``: the one that drew the tokens, as reported. ``recompute``: the
    weights at the start of the step, with importance weights between the two; one more forward pass where
    ``mini_batches`` is not 1."""
    advantage: str = "grpo"
    """How much better a token did than could be expected: ``grpo``, ``rloo``, ``opmd``, ``remax``, ``stepwise``,
    ``distillation``, ``reinforce_plus_plus``, ``reinforce_plus_plus_baseline``, ``gae``, or what an installed package
    registers as ``trinity_bus.advantages``. docs/objectives.md has the formulas of all parts of an objective."""
    loss: str = "ppo"
    """What a token costs, given its advantage: ``ppo``, ``gspo``, ``cispo``, ``topr``, ``opmd``, or what an installed
    package registers as ``trinity_bus.losses``. ``sft`` learns from the topic ``demonstrations``
    and ``dpo`` from ``preferences``, without explorers; see docs/examples.md."""
    correction: str = "truncated"
    """What a token weighs for which rollout and old policy differ: ``none``, ``truncated``, ``masked``, ``icepop``,
    ``unbounded``, or what an installed package registers as ``trinity_bus.corrections``."""
    correction_level: Literal["token", "sequence", "geometric"] = "token"
    """Whether a token weighs by its own probabilities, by those of its whole sequence, or by their mean there."""
    objective_options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """For advantages, losses and corrections from other packages; their own do not read it."""
    advantage_std: Literal["group", "batch", "none"] = "group"
    """With ``advantage=grpo`` and ``stepwise``: divide by the standard deviation of the task's rewards, by that of the
    batch's, or not at all."""
    opmd_baseline: Literal["mean", "logavgexp"] = "mean"
    """With ``advantage=opmd``: what rewards are compared with."""
    opmd_tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """With ``advantage=opmd`` and ``loss=opmd``: strength of the pull to the present policy, in units of reward."""
    gae_gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """With ``advantage=gae``: what a reward is worth a token earlier."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 1.0
    """With ``advantage=gae``: how far the critic is trusted. 0: alone; 1: not at all, it is only a baseline."""
    critic_learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-5
    """Of the critic's AdamW, with ``advantage=gae``. A critic costs the memory of four copies of the model in float32,
    on every rank."""
    critic_warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps at the beginning in which the critic alone learns, and the policy stays as it is: what a critic that knows
    nothing says of tokens is noise (Yuan et al., arXiv:2503.01491)."""
    value_clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """How far an update may move what the critic expects before its gradient stops. Unset: any way."""
    overlong_buffer: Count | None = None
    """DAPO's overlong shaping: over the last so many tokens before ``mesh.max_tokens`` a response loses more and more
    of its reward. Unset: nothing."""
    overlong_penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """What it loses at ``mesh.max_tokens``."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """How far the probability of a token may fall in a step before its gradient stops, as a fraction."""
    clip_high: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.28
    """How far it may rise; above ``clip_low`` it is DAPO's clip-higher. ``loss=cispo`` wants about 4."""
    dual_clip: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Bound of the loss of a token with a negative advantage, in multiples of the advantage. Unset: none."""
    tis_cap: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0
    """Cap of the importance weights between old and rollout policy, where they are ``truncated``, ``masked`` or
    ``icepop``. With ``old_logprobs=rollout`` they are all 1."""
    tis_floor: Annotated[float, Field(ge=0, le=1)] = 0.5
    """With ``correction=icepop``: the least importance weight that is not left out."""
    stages: list[dict[str, bool | int | float | str]] = Field(default_factory=list)
    """One training after another, each with the model that the one before it has made: for each its name, ``stage``,
    and what it has otherwise than this section, such as ``{stage = "sft", loss = "sft", total_steps = 100}``. Every
    one but the last learns from examples. See docs/examples.md."""
    dpo_beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """With ``loss=dpo``: the smaller, the further the policy moves from the reference."""
    strategy: Literal["default", "mix", "priority", "dynamic_sampling"] = "default"
    """What each step learns from. ``default``: a batch. ``mix``: demonstrations beside it. ``priority``: groups of
    earlier batches beside it, once more. ``dynamic_sampling``: as many batches as it takes until enough of their groups
    teach something."""
    effective_groups: Count | None = None
    """With ``strategy=dynamic_sampling``: how many groups are enough. With fewer a step changes nothing, and what it
    would have been trained on waits for the next batch. Unset: as many as the batch has."""
    effective_batches: Annotated[int, Field(ge=1, le=KEPT_STEPS)] = 4
    """With ``strategy=dynamic_sampling``: the most batches that are trained on together. Then what there is must do."""
    replay_groups: Annotated[int, Field(ge=1, le=MAX_BATCH_TASKS)] = 16
    """With ``strategy=priority``: at most so many groups of earlier batches are trained on in each step, the newest and
    least used that teach something. They are of older weights: ``old_logprobs=recompute`` weighs them by that."""
    replay_steps: Annotated[int, Field(ge=1, le=KEPT_STEPS)] = 8
    """With ``strategy=priority``: how many steps back a group may have been new. Experiences stay on the log for so
    long."""
    replay_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """With ``strategy=priority``: what each use costs a group, in steps of age."""
    examples: Count | None = None
    """Learn from the first so many demonstrations or preferences of the log, once they are there. Unset: from those
    that are there when the first step begins."""
    examples_per_step: Annotated[int, Field(ge=1, le=MAX_ITEMS)] = 32
    """Demonstrations or preferences of a step, where it learns from some: every one once in each epoch, in an order
    that follows from ``seed``."""
    mix_coef: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """With ``strategy=mix``: what the demonstrations' loss weighs; the batch's weighs the rest."""
    kl_coef: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of the KL divergence from the model in ``model_path``. Above 0, a copy of that model is kept in memory."""
    kl_estimator: Literal["k1", "k2", "k3", "low_variance"] = "k3"
    """How that divergence is estimated from the drawn tokens; what each does to gradients is in docs/objectives.md."""
    kl_placement: Literal["loss", "reward"] = "loss"
    """Where it is taken into account: in the loss, or in the reward of each token, which only the advantages
    ``reinforce_plus_plus``, ``reinforce_plus_plus_baseline`` and ``gae`` know how to do."""
    entropy_coef: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of the entropy bonus."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """What logits are divided by, of samples that do not say at which temperature they were drawn."""
    limited_sampling: Literal["leave_out", "train"] = "leave_out"
    """What becomes of samples that were drawn with top-p, top-k, min-p or penalties, whose log-probabilities a trainer
    cannot compute: left out of the step, or trained on as if there had been no limit. They are counted."""
    token_figures: Literal["none", "sampled", "all"] = "sampled"  # noqa: S105 - no secret
    """Of which groups of a step the console is told what the trainer computes at each token: the entropy, and how far
    its log-probability is from the engine's. 8 groups, which ``seed`` and the step choose, none, or all that it trains
    on: 4 bytes for each token of a response."""
    micro_batch_tokens: Literal["auto"] | Size = "auto"
    """Tokens that go through the model at once; bounds memory. ``auto``: up to 16,384, as many as what is free holds
    beside the weights when the trainer starts: of a GPU; on a CPU of the machine and the control group, and no more
    than take an eighth of what weights, gradients and optimizer do, or 256 MiB. Where not even a sample of
    ``mesh.max_model_len`` tokens would fit, activations are computed again (``recompute``), or the start is refused.
    The log tells the number: set it where losses have to be equal bit for bit after a restart with other memory.
    """
    dtype: Literal["auto", "float32", "bfloat16"] = of_mesh("dtype")
    engine: Literal["megatron", "torch"] = "megatron"
    """What computes. ``megatron``: Megatron-core, in any layout. ``torch``: transformers' own model and torch's AdamW,
    on one rank, in float32; the other is tested against it. A checkpoint is read by the engine that wrote it."""
    tensor_parallel: Count = 1
    """Ranks over which each layer is split. The trainer is as many processes as this times ``pipeline_parallel`` times
    ``context_parallel`` times ``data_parallel``, each with a GPU of its own where there are any: all on this machine,
    or on several if ``torchrun`` has started them."""
    sequence_parallel: bool = False
    """Also split what lies between layers over the ranks of ``tensor_parallel``, by tokens: less memory for activations
    (Korthikanti et al., arXiv:2205.05198). Models with experts that are split need it."""
    pipeline_parallel: Count = 1
    """Ranks over which the layers are distributed, the same number to each."""
    virtual_pipeline: Count = 1
    """Stretches of layers that each rank of a pipeline holds, interleaved with those of the others: less waiting for
    more messages (Narayanan et al., arXiv:2104.04473)."""
    context_parallel: Count = 1
    """Ranks over which each sample is split, for samples that are too long for one."""
    expert_parallel: Count = 1
    """Ranks over which the experts of each layer are distributed. They are those of ``context_parallel`` times
    ``data_parallel``, which it divides."""
    data_parallel: Count = 1
    """Copies of the model, each trained on its shard of every batch; shards are balanced by tokens."""
    distributed_optimizer: bool = False
    """Divide the optimizer's state and its work among the copies of the model, also in float32; in bfloat16 that is
    always done (ZeRO stage 1, Rajbhandari et al., arXiv:1910.02054)."""
    recompute: bool = False
    """Compute the activations of a layer again in the backward pass, in place of keeping them: less memory, for a third
    more arithmetic (Chen et al., arXiv:1604.06174)."""
    lora_rank: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    """Train so many dimensions beside each linear layer of attention and MLP, and leave the weights as they are (LoRA,
    Hu et al., arXiv:2106.09685). 0: all weights are trained. Explorers get the merged weights, or the adapter alone
    (``mesh.adapter_rank``); with ``export_dir`` the adapter lies beside the merged model, as PEFT has it."""
    adapter_rank: int = of_mesh("adapter_rank")
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 32.0
    """With ``lora_rank``: what is trained counts by this over the rank."""
    router_replay: bool = False
    """Train each sample with the experts that the engine's routers chose for its tokens, where its experience tells
    them (``routes``, with ``explorer.capture_routes``): else a token that is nearly a draw between experts has another
    probability here than there (Ma et al., arXiv:2510.11370). Routers learn all the same."""
    threads: Count | None = None
    """CPU threads of torch, in each rank. Unset: torch's own choice. Equal losses after a restart need an equal
    number."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the shuffling of samples; each step derives its own from it."""

    @field_validator("optimizer_options")
    @classmethod
    def _keeps_promises(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        allowed_options(value, REFUSED_OPTIMIZER_OPTIONS)
        return value

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel * self.data_parallel

    @property
    def reach(self) -> int:
        """How many steps back a step may learn from what was new then."""
        return {"priority": self.replay_steps, "dynamic_sampling": self.effective_batches}.get(self.strategy, 0)

    def is_done(self, step: int) -> bool:
        """Whether training ends after a step."""
        return self.total_steps is not None and step >= self.total_steps

    def saves_as_hf(self, *, last: bool) -> bool:
        """Whether a checkpoint, the last one or not, is written in the layout of Hugging Face too."""
        return self.save_as_hf == "always" or (last and self.save_as_hf == "last")

    @property
    def weights_ports(self) -> range:
        """``weights_port`` as numbers."""
        return ports_of(self.weights_port)

    @property
    def ranks_ports(self) -> range:
        """``ranks_port`` as numbers."""
        return ports_of(self.ranks_port)
