"""The console: every rollout on the log, for people."""
