"""What is optimized: an advantage, a loss and a correction, each chosen by name, each a file of its own.

====================  ======================================================  =======================================
part                  what it says                                            setting
====================  ======================================================  =======================================
``advantages``        how much better each token did (numpy)                  ``trainer.advantage``
``losses``            what a token costs, given its advantage (torch)         ``trainer.loss``
``corrections``       what a token weighs that another policy drew (torch)    ``trainer.correction``
``kl``                how far the policy is from a reference (torch)          ``trainer.kl_estimator``
``overlong``          what long responses lose of their reward                ``trainer.overlong_buffer``
====================  ======================================================  =======================================

All that there is stands in docs/objectives.md with formula, source and needs.

``objective`` puts the three together with the KL penalty and the entropy bonus; ``needs`` names what they can ask the
engine for, and only those passes run; ``registry`` finds them by name, those of installed packages too::

    [project.entry-points."trinity_bus.losses"]
    mine = "my_package.losses:MyLoss"

after which ``trainer.loss = "mine"`` trains with it, and it finds what it wants to be told in
``trainer.objective_options``. This package and ``registry`` import no torch.
"""
