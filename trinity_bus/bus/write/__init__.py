"""Writing to the log: producers, transactions, and how long brokers are waited for."""
