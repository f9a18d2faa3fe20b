"""Reading the log: records and batches, readers, positions, and what keeps records from a reader."""
