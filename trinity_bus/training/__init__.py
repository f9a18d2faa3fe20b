"""Training: engines, objectives, and everything a step needs, from a manifest's experiences to new weights.

=====================  ===============================================================================================
module                 what it does
=====================  ===============================================================================================
``packing``            samples to micro-batches by a token budget (numpy)
``cpu_platform``       what Megatron-core needs to run without CUDA, and nothing else
``megatron``           the only import of Megatron-core; every other module imports it from there
``parallel``           process groups, from one process to many
``attention``          core attention on torch's SDPA for packed sequences
``rotary``             rotary positions of packed sequences
``families``           Llama, Qwen2, Qwen3, Qwen3 MoE: their configurations; names and layouts of tensors both ways
``model``              building a ``GPTModel``, loading it from safetensors, naming its weights as there
``adapters``           what engines share of LoRA, and PEFT's format
``experts``            experts of a layer as one product of groups
``lora``               LoRA on Megatron's layers
``routes``             which experts are to be chosen for each token of a sample
``router_replay``      has a model's routers choose them
``logprobs``           log-probabilities and entropy from vocabulary-parallel logits
``objectives``         advantages, losses and corrections, a file each, and the registry that finds them by name
``optimizer``          Megatron's AdamW and its state as named tensors
``checkpoint``         folders that are either whole or absent
``saving``             checkpoints written beside training
``conversion``         checkpoints as model folders, and in the reference's layout
``companions``         configuration and tokenizer of a model folder
``runner``             a model in memory, and passes over it
``samples``            experience groups to samples with advantages
``step_plan``          samples to updates, and to the shard of each that a rank trains on
``hf_folder``          Hugging Face model folders
``layout``             which part of the work is whose
``layout_rules``       which layouts fit a model
``engine``             the contract: ``TrainingEngine``
``saved_engine``       what is kept of them: checkpoints, exports
``rank_engine``        what the engines of one process share: the course of a step
``megatron_engine``    Megatron-core, one rank of any layout: ``MegatronEngine``
``torch_engine``       transformers and a torch optimizer, the numeric reference: ``TorchEngine``
``rank_protocol``      what rank 0 tells the other ranks of a trainer, and what they answer
``rank_lines``         on what they tell it
``ranks``              rank 0's hold on them
``rank``               such a rank, and the program of one that is a child process
``launch``             what a launcher says of a process that it has started
``shared_folder``      that ranks on several machines see one folder of checkpoints
``multi_rank_engine``  Megatron's engine with other ranks behind it: ``MultiRankEngine``
=====================  ===============================================================================================

Importing this package, ``engine``, ``objectives``, ``packing``, ``step_plan``, ``checkpoint`` or ``ranks`` imports no
torch.
"""
