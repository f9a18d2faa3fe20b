"""The section ``trainer``: its model, its algorithm and its checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, SecretStr

from schemas.batch import MAX_BATCH_TASKS
from schemas.fields.free_form import MAX_ITEMS
from schemas.step import KEPT_STEPS
from trinity_bus.config.mesh import of_mesh
from trinity_bus.config.values import (
    Count,
    HostName,
    InstanceName,
    LocalFolder,
    ObjectUrl,
    Options,
    PortRange,
    Seconds,
    Section,
    Size,
    ports_of,
    without,
)

# arguments of Megatron's and torch's optimizers that are not passed through, and why
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


class TrainerSettings(Section):
    """The trainer: its model, its algorithm and its checkpoints."""

    name: InstanceName = "trainer-0"
    """Its identity across restarts. ``{host}`` is replaced by the host's name."""
    role: Literal["live", "shadow"] = "live"
    """``live``: it trains on batches or examples, and explorers get its weights. ``shadow``: it trains another
    objective on another trainer's steps, and writes only to ``steps`` and ``metrics.jsonl``. See docs/replay.md."""
    shadows: InstanceName = "trainer-0"
    """With ``role=shadow``: the name of the other trainer; with stages followed by a slash and the stage's name."""
    model_path: str | None = of_mesh("model_path")
    checkpoint_dir: LocalFolder | None = None
    """Folder of checkpoints; a restarted trainer continues from the newest."""
    checkpoint_url: ObjectUrl | None = None
    """Where the newest checkpoint is copied as well, such as ``s3://bucket/run``, beside training. A trainer that is
    started on another machine, with an empty ``checkpoint_dir``, continues from there. Each run needs its own.
    Credentials come from the environment, as for ``synchronizer.object_url``."""
    publish: Literal["durable", "staged"] = "durable"
    """When a version is available. ``durable``: when its checkpoint is complete. ``staged``: at once, with a checkpoint
    every ``checkpoint_interval`` steps; after a crash the steps since then are trained again from the log."""
    checkpoint_interval: Count = 1
    """Steps between checkpoints. With ``publish=durable`` each published version also has one."""
    keep_checkpoints: Count = 3
    """How many checkpoints to keep; explorers may still read the one before the newest."""
    save_as_hf: Literal["last", "always", "never"] = "always"
    """Which checkpoints are Hugging Face model folders: all, only that of the last of ``total_steps``, or none. The
    others have the same weights without configuration and tokenizer, which ``trinity-bus checkpoints convert`` adds."""
    export_dir: Path | None = None
    """Folder for the trained model, in Hugging Face's format, after ``total_steps``. Unset: none."""
    total_steps: Count | None = None
    """Steps after which training ends; the trainer keeps serving weights. Unset: no end."""
    heartbeat_s: Seconds = 0.5
    """Interval of heartbeats."""
    host: str = "127.0.0.1"
    """Address at which explorers reach this trainer for weights."""
    weights_port: PortRange = "0"
    """Port for explorers that request weights, or a range such as ``7000-7009``, of which the first free one is used.
    0: any. With ``nccl``, gloo and NCCL also listen on ports chosen by the operating system."""
    ranks_host: HostName = "127.0.0.1"
    """Name or address at which rank 0 listens for ranks that a launcher has started. ``{host}`` is replaced by the
    host's name. See docs/operations.md."""
    ranks_port: PortRange = "0"
    """Port at which these ranks get their orders, or a range of which the first free one is used. 0: any. Stores, gloo
    and NCCL also listen on ports chosen by the operating system."""
    ranks_key: SecretStr | None = None
    """Shared secret of rank 0 and the ranks that a launcher has started; 16 characters or more."""
    bucket_mib: Count = 16
    """Maximum size of the pieces in which weights are sent, MiB."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-6
    """Of AdamW, after warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the learning rate rises linearly to its value."""
    decay_steps: Count | None = None
    """Steps over which the learning rate falls linearly to 0, where it stays. Unset: it does not fall."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Of AdamW; norms are exempt."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of AdamW: decay of the mean of gradients."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Of AdamW: decay of the mean of squared gradients."""
    optimizer_options: Annotated[Options, without(REFUSED_OPTIMIZER_OPTIONS)] = Field(default={})
    """Further arguments of Megatron's ``OptimizerConfig``, such as ``{adam_eps = 1e-6}``, or of torch's ``AdamW``.
    Those that another setting decides, or that would break a guarantee, are refused with the reason."""
    max_grad_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Gradients are clipped to this norm."""
    max_skipped_updates: Count = 5
    """Updates that are not finite are skipped; after this many in a row the trainer saves its state and ends."""
    mini_batches: Count = 1
    """Updates for each batch: its groups are shuffled, and their samples divided into this many parts."""
    loss_normalizer: Literal["batch", "update", "sequence", "constant"] = "batch"
    """Divisor of the sum over tokens. ``batch``: the response tokens of the whole batch, in equal parts for each update
    (Yu et al., arXiv:2503.14476, eq. 8), so that a batch with little learning signal changes the weights little.
    ``update``: the trained tokens of the update. ``sequence``: each sample by its own length, then the samples (GRPO,
    Shao et al., arXiv:2402.03300, eq. 3). ``constant``: ``mesh.max_tokens`` for each sample (Dr. GRPO, Liu et al.,
    arXiv:2503.20783)."""
    max_tokens: Count = of_mesh("max_tokens")
    parse_special_tokens: bool = of_mesh("parse_special_tokens")
    renderer: str | None = of_mesh("renderer")
    old_logprobs: Literal["rollout", "recompute"] = "rollout"
    """The policy that updates stay close to. ``rollout``: the one that sampled the tokens. ``recompute``: the weights
    at the start of the step, with importance weights between the two."""
    advantage: str = "grpo"
    """How much better a token did than expected: ``grpo``, ``rloo``, ``opmd``, ``remax``, ``stepwise``,
    ``distillation``, ``reinforce_plus_plus``, ``reinforce_plus_plus_baseline``, ``gae``, or one that an installed
    package registers as ``trinity_bus.advantages``. docs/objectives.md has the formulas."""
    loss: str = "ppo"
    """The loss of a token, given its advantage: ``ppo``, ``gspo``, ``cispo``, ``topr``, ``opmd``, or one that an
    installed package registers as ``trinity_bus.losses``. ``sft`` learns from the topic ``demonstrations`` and ``dpo``
    from ``preferences``, without explorers; see docs/examples.md."""
    correction: str = "truncated"
    """The importance weight of a token if rollout and old policy differ: ``none``, ``truncated``, ``masked``,
    ``icepop``, ``unbounded``, or one that an installed package registers as ``trinity_bus.corrections``."""
    correction_level: Literal["token", "sequence", "geometric"] = "token"
    """Whether that weight uses the token's probabilities, those of its whole sequence, or their mean there."""
    objective_options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Options of advantages, losses and corrections from other packages."""
    advantage_std: Literal["group", "batch", "none"] = "group"
    """With ``advantage=grpo`` and ``stepwise``: divide by the deviation of the task's rewards, the batch's, or not."""
    opmd_baseline: Literal["mean", "logavgexp"] = "mean"
    """With ``advantage=opmd``: the baseline of rewards."""
    opmd_tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """With ``advantage=opmd`` and ``loss=opmd``: strength of the pull to the current policy, in units of reward."""
    gae_gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """With ``advantage=gae``: discount of a reward per token."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 1.0
    """With ``advantage=gae``: trust in the critic. 0: full; 1: it is only a baseline."""
    critic_learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-5
    """Of the critic's AdamW, with ``advantage=gae``. A critic takes four copies of the model on every rank."""
    critic_warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Initial steps in which only the critic learns, whose values are noise (Yuan et al., arXiv:2503.01491)."""
    value_clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """How far an update may move the critic's value before its gradient stops. Unset: unlimited."""
    overlong_buffer: Count | None = None
    """DAPO's overlong shaping: tokens before ``mesh.max_tokens`` over which the reward falls. Unset: off."""
    overlong_penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """The loss of reward at ``mesh.max_tokens``."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """How far a token's probability may fall in a step before its gradient stops, as a fraction."""
    clip_high: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.28
    """How far it may rise; above ``clip_low`` this is DAPO's clip-higher. Use about 4 with ``loss=cispo``."""
    dual_clip: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Bound of the loss of a token with a negative advantage, as a multiple of the advantage. Unset: none."""
    tis_cap: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0
    """Cap of the importance weights between old and rollout policy, with ``truncated``, ``masked`` or ``icepop``. With
    ``old_logprobs=rollout`` all are 1."""
    tis_floor: Annotated[float, Field(ge=0, le=1)] = 0.5
    """With ``correction=icepop``: the smallest importance weight that is not set to 0."""
    stages: list[dict[str, bool | int | float | str]] = Field(default_factory=list)
    """Trainings one after another, each from the model of the one before: a name, ``stage``, and differences from this
    section, such as ``{stage = "sft", loss = "sft", total_steps = 100}``. All except the last learn from examples. See
    docs/examples.md."""
    dpo_beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """With ``loss=dpo``: the smaller, the further the policy moves from the reference."""
    strategy: Literal["default", "mix", "priority", "dynamic_sampling"] = "default"
    """What each step learns from. ``default``: a batch. ``mix``: also demonstrations. ``priority``: also groups of
    earlier batches. ``dynamic_sampling``: several batches, until enough groups have a learning signal."""
    effective_groups: Count | None = None
    """With ``strategy=dynamic_sampling``: how many groups are enough. With fewer, a step changes nothing, and its
    samples wait for the next batch. Unset: as many as the batch has."""
    effective_batches: Annotated[int, Field(ge=1, le=KEPT_STEPS)] = 4
    """With ``strategy=dynamic_sampling``: maximum batches in a step, which then trains with fewer groups."""
    replay_groups: Annotated[int, Field(ge=1, le=MAX_BATCH_TASKS)] = 16
    """With ``strategy=priority``: maximum groups of earlier batches in a step, the newest and least used with a
    learning signal. They come from older weights: use ``old_logprobs=recompute``."""
    replay_steps: Annotated[int, Field(ge=1, le=KEPT_STEPS)] = 8
    """With ``strategy=priority``: maximum age of a group in steps. Experiences stay on the log as long."""
    replay_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """With ``strategy=priority``: the cost of each use of a group, in steps of age."""
    examples: Count | None = None
    """Learn from this many of the log's first examples, after waiting for them. Unset: from those there are."""
    examples_per_step: Annotated[int, Field(ge=1, le=MAX_ITEMS)] = 32
    """Demonstrations or preferences in a step: every one once in each epoch, in an order that follows from ``seed``."""
    mix_coef: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """With ``strategy=mix``: weight of the demonstrations' loss; the batch's loss has the rest."""
    kl_coef: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of the KL divergence from the model in ``model_path``. Above 0, a copy of that model is kept in memory."""
    kl_estimator: Literal["k1", "k2", "k3", "low_variance"] = "k3"
    """Estimator of that divergence from the sampled tokens; docs/objectives.md describes the gradients."""
    kl_placement: Literal["loss", "reward"] = "loss"
    """In the loss, or in the reward of each token, which requires the advantages ``reinforce_plus_plus``,
    ``reinforce_plus_plus_baseline`` or ``gae``."""
    entropy_coef: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of the entropy bonus."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Divisor of logits for samples without a recorded temperature."""
    limited_sampling: Literal["leave_out", "train"] = "leave_out"
    """What to do with samples whose log-probabilities a trainer cannot compute: leave them out, or train on them as if
    there had been no limit. They were drawn with penalties or the like; or with top-p, top-k or min-p, and the tokens
    that these kept are not recorded (docs/objectives.md). They are counted."""
    token_figures: Literal["none", "sampled", "all"] = "sampled"  # noqa: S105 - no secret
    """For which groups of a step the trainer publishes each token's entropy and its difference from the engine's
    log-probability: 8 groups chosen by ``seed`` and step, none, or all. 4 bytes for each token."""
    micro_batch_tokens: Literal["auto"] | Size = "auto"
    """Tokens that go through the model at once; bounds memory. ``auto``: up to 16,384, as many as fit beside the
    weights when the trainer starts; on a CPU, in no more than a quarter of what weights, gradients and optimizer take,
    or 512 MiB. Where not even ``mesh.max_model_len`` tokens would fit, activations are computed again (``recompute``),
    or the start is refused. The log tells the number: set it where losses have to be equal bit for bit."""
    dtype: Literal["auto", "float32", "bfloat16"] = of_mesh("dtype")
    engine: Literal["megatron", "torch"] = "megatron"
    """The training engine. ``megatron``: Megatron-core, in any layout. ``torch``: transformers and torch's AdamW, on
    one rank, in float32, the reference for tests. Checkpoints can be read by the engine that wrote them."""
    tensor_parallel: Count = 1
    """Ranks over which each layer is split. The trainer has this times ``pipeline_parallel`` times ``context_parallel``
    times ``data_parallel`` processes, each with its own GPU if there are any."""
    sequence_parallel: bool = False
    """Also split activations between layers over the ranks of ``tensor_parallel``, by tokens: less memory (Korthikanti
    et al., arXiv:2205.05198). Required for split models with experts."""
    pipeline_parallel: Count = 1
    """Ranks over which the layers are distributed, the same number to each."""
    context_parallel: Count = 1
    """Ranks over which each sample is split, if samples are too long for one."""
    expert_parallel: Count = 1
    """Ranks over which each layer's experts are distributed; divides ``context_parallel`` * ``data_parallel``."""
    data_parallel: Count = 1
    """Copies of the model, each trained on its shard of every batch; shards are balanced by tokens."""
    distributed_optimizer: bool = False
    """Divide the optimizer's state and work among the copies of the model, also in float32; in bfloat16 this is always
    done (ZeRO stage 1, Rajbhandari et al., arXiv:1910.02054)."""
    recompute: bool = False
    """Compute activations again in the backward pass: less memory, more time (Chen et al., arXiv:1604.06174)."""
    lora_rank: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    """Rank of adapters on each linear layer of attention and MLP, with frozen weights (LoRA, Hu et al.,
    arXiv:2106.09685). 0: all weights are trained. ``mesh.adapter_rank`` says what explorers get."""
    adapter_rank: int = of_mesh("adapter_rank")
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 32.0
    """With ``lora_rank``: adapters are scaled by this over the rank."""
    router_replay: bool = False
    """Train each sample with the experts that the engine's routers chose, if its experience records them
    (``explorer.capture_routes``; Ma et al., arXiv:2510.11370). Routers still learn."""
    threads: Count | None = None
    """CPU threads of torch, in each rank. Unset: torch's default. Equal losses after a restart need an equal number."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the shuffling of groups; each step derives its own."""

    @property
    def ranks(self) -> int:
        # processes that train together
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel * self.data_parallel

    @property
    def reach(self) -> int:
        # how many steps back a step may learn from what was new then
        return {"priority": self.replay_steps, "dynamic_sampling": self.effective_batches}.get(self.strategy, 0)

    def is_done(self, step: int) -> bool:
        return self.total_steps is not None and step >= self.total_steps

    def saves_as_hf(self, *, last: bool) -> bool:
        # In the layout of Hugging Face too.
        return self.save_as_hf == "always" or (last and self.save_as_hf == "last")

    @property
    def weights_ports(self) -> range:
        return ports_of(self.weights_port)

    @property
    def ranks_ports(self) -> range:
        return ports_of(self.ranks_port)
