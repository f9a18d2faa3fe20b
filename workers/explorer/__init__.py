"""The explorer: runs tasks on an inference engine and publishes what they yield."""
