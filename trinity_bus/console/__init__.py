"""The console: what the log tells of every rollout, for people who look."""
