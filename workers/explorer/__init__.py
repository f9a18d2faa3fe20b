"""The explorer: runs tasks on an inference engine and publishes their samples."""
