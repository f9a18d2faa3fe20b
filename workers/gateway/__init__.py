"""The gateway: sends agents' HTTP requests to explorers and turns the responses into experiences."""
