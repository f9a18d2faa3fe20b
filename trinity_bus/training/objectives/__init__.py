"""What is optimized: an advantage, a loss and a correction, each chosen by name, each a file of its own.

====================  ======================================================  =======================================
part                  what it says                                            setting; names
====================  ======================================================  =======================================
``advantages``        how much better each token's sample did (numpy)         ``trainer.advantage``: grpo, rloo
``losses``            what a token costs, given its advantage (torch)         ``trainer.loss``: ppo, gspo, sft,
                                                                              dpo
``corrections``       what a token weighs that another policy drew (torch)    ``trainer.correction``: none, truncated,
                                                                              masked
====================  ======================================================  =======================================

``objective`` puts the three together with the KL penalty and the entropy bonus; ``needs`` names what they can ask the
engine for, and only those passes run; ``registry`` finds them by name, those of installed packages too::

    [project.entry-points."trinity_bus.losses"]
    mine = "my_package.losses:MyLoss"

after which ``trainer.loss = "mine"`` trains with it, and it finds what it wants to be told in
``trainer.objective_options``. This package and ``registry`` import no torch.
"""
