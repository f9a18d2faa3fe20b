"""Tracking: a run's metrics, read from the log and sent to experiment trackers.

::

    log --table--> ledger: a JSON line for each record that has metrics  --> TensorBoard, Weights & Biases,
                                                                             MLflow, trackio

The ledger is the only thing that reads the log, and all else is written from it, line by line. So what holds of the
ledger, that nothing is missing or double whenever it is killed, has to be shown of each of the others from there alone:
each says how many lines it has.
"""
