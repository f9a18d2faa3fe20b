"""``python openenv_server.py PORT``: an OpenEnv environment, made with the real package, in which a word is guessed."""

import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    message: str


class Seen(Observation):
    told: str


class Guessing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, word: str = "kafka", **_: Any) -> Seen:
        del episode_id
        self._word, self._left = word, 3
        return Seen(told=f"guess {len(word)} letters, seed {seed}")

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Seen:
        del timeout_s
        if action.message == "break":
            raise ValueError("it is broken")
        self._left -= 1
        right = action.message == self._word
        return Seen(told="right" if right else "wrong", reward=1.0 if right else -0.25, done=right or not self._left)

    @property
    def state(self) -> State:
        return State()


if __name__ == "__main__":
    app = create_fastapi_app(Guessing, Guess, Seen, max_concurrent_envs=2)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
