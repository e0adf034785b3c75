"""One turn of an offline benchmark: train one contender, ours or d3rlpy, at equal settings and report as JSON.

    python benchmarks/offline_worker.py score ours iql FILE.npz ENV_ID SETTINGS
    python benchmarks/offline_worker.py speed d3rlpy iql THREADS

d3rlpy runs under the python of an environment of its own, so nothing of this package is imported for it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

Predict = Callable[[Any], Any]
"""Actions for a batch of observations."""
UPDATES = {"bc": 4000, "td3_bc": 1200, "iql": 1000, "awac": 1000, "cql": 100}
SPEED_SETTINGS: dict[str, Any] = {"hidden_sizes": [256, 256], "seed": 0}


def our_config(name: str, settings: dict[str, Any], **keys: Any) -> Any:
    from rl_training import TrainConfig

    own: dict[str, Any] = {
        "batch_size": 256,
        "hidden_sizes": settings["hidden_sizes"],
        "reward_scale": settings.get("reward_scale", 1.0),
        "normalize_obs": True,
        **settings.get(name, {}),
    }
    return TrainConfig(
        algo=name,
        seed=settings["seed"],
        total_timesteps=settings["updates"],
        algo_kwargs=own,
        **keys,
    )


def train_ours(name: str, file: str, env_id: str, settings: dict[str, Any]) -> Predict:
    from rl_training.runtime.run import run_training
    from rl_training.runtime.workflows import load_algorithm, predict

    with tempfile.TemporaryDirectory() as folder:
        config = our_config(name, settings, output_dir=folder, num_threads=1, compile=True)
        source = {"dataset_kind": "npz", "dataset_path": file}
        result = run_training(
            config.replace(env_id=None, algo_kwargs={**config.algo_kwargs, **source})
        )
        _, algorithm, _ = load_algorithm(result.checkpoint_path)
    return lambda obs: predict(algorithm, obs)


def make_peer(name: str, settings: dict[str, Any], action_space: Any) -> Any:
    """The same algorithm of d3rlpy, with what differs from ours in its defaults set to ours."""
    import d3rlpy
    from d3rlpy import algos
    from d3rlpy.models import VectorEncoderFactory
    from d3rlpy.optimizers import AdamFactory
    from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory

    own = settings.get(name, {})
    encoder = VectorEncoderFactory(list(settings["hidden_sizes"]))
    both = {"actor_encoder_factory": encoder, "critic_encoder_factory": encoder}
    common = {
        "batch_size": 256,
        "observation_scaler": d3rlpy.preprocessing.StandardObservationScaler(),
        "action_scaler": d3rlpy.preprocessing.MinMaxActionScaler(
            minimum=action_space.low, maximum=action_space.high
        ),
        "reward_scaler": d3rlpy.preprocessing.MultiplyRewardScaler(
            settings.get("reward_scale", 1.0)
        ),
    }
    if name == "bc":
        return algos.BCConfig(
            **common, learning_rate=own.get("learning_rate", 1e-3), encoder_factory=encoder
        )
    common |= {"gamma": own.get("gamma", 0.99), "tau": own.get("tau", 0.005)}
    rate = own.get("learning_rate", 3e-4)
    rates = {"actor_learning_rate": rate, "critic_learning_rate": rate}
    if name == "td3_bc":
        return algos.TD3PlusBCConfig(**common, **both, **rates, alpha=own.get("bc_alpha", 2.5))
    if name == "iql":
        falling = AdamFactory(
            lr_scheduler_factory=CosineAnnealingLRFactory(T_max=settings["updates"])
        )
        return algos.IQLConfig(
            **common,
            **both,
            value_encoder_factory=encoder,
            actor_optim_factory=falling,
            actor_learning_rate=own.get("actor_learning_rate", {"start": 3e-4})["start"],
            critic_learning_rate=rate,
            expectile=own.get("expectile", 0.7),
            weight_temp=own.get("beta", 3.0),
        )
    if name == "awac":
        return algos.AWACConfig(**common, **both, **rates, lam=own.get("awac_lambda", 1.0 / 3.0))
    assert name == "cql"
    return algos.CQLConfig(
        **common,
        **both,
        critic_learning_rate=rate,
        actor_learning_rate=own.get("actor_learning_rate", 3e-5),
        temp_learning_rate=own.get("actor_learning_rate", 3e-5),
        alpha_learning_rate=0.0,
        conservative_weight=own.get("cql_alpha", 10.0),
    )


def load_peer(name: str, file: str, env_id: str, settings: dict[str, Any]) -> tuple[Any, Any]:
    """The algorithm of d3rlpy, seeded, and its dataset."""
    import d3rlpy
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    d3rlpy.seed(settings["seed"])
    data = np.load(file)
    dataset = d3rlpy.dataset.MDPDataset(
        data["obs"], data["actions"], data["rewards"], data["terminated"], data["truncated"]
    )
    return make_peer(name, settings, gymnasium.make(env_id).action_space).create(
        device="cpu"
    ), dataset


def train_peer(name: str, file: str, env_id: str, settings: dict[str, Any]) -> Predict:
    from d3rlpy.logging import NoopAdapterFactory

    algo, dataset = load_peer(name, file, env_id, settings)
    adapter = NoopAdapterFactory()
    algo.fit(
        dataset,
        settings["updates"],
        settings["updates"],
        logger_adapter=adapter,
        show_progress=False,
    )
    return lambda obs: algo.predict(obs.astype(np.float32))


def score(predict: Predict, env_id: str, episodes: int) -> list[float]:
    """Returns of whole episodes, the same starts for every contender."""
    returns = []
    env = gymnasium.make(env_id)
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        total, done = 0.0, False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(predict(obs[None])[0])
            total += float(reward)
            done = terminated or truncated
        returns.append(total)
    return returns


def made_up_data(count: int = 20_000) -> dict[str, Any]:
    """Transitions of 17 and 6 dimensions in episodes of 1,000 steps."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(count, 17)).astype(np.float32)
    next_obs = np.roll(obs, -1, 0)
    next_obs[999::1000] = 0.0
    truncated = np.zeros(count, np.bool_)
    truncated[999::1000] = True
    return {
        "obs": obs,
        "actions": rng.uniform(-1, 1, (count, 6)).astype(np.float32),
        "rewards": rng.normal(size=count).astype(np.float32),
        "next_obs": next_obs,
        "terminated": np.zeros(count, np.bool_),
        "truncated": truncated,
    }


def time_ours(name: str, threads: int, *, compiled: bool) -> dict[str, float]:
    """Updates a second of a run, after its first fifth."""
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.run import run_training

    total, created = UPDATES[name], time.perf_counter()
    marks: dict[int, float] = {}

    class Ticks(Callback):
        def on_update_end(self, trainer: Any, result: Any) -> None:
            if trainer.global_step in (total // 5, total):
                marks[trainer.global_step] = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        np.savez(file, **made_up_data())
        settings = {
            **SPEED_SETTINGS,
            "updates": total,
            name: {"dataset_kind": "npz", "dataset_path": str(file)},
        }
        keys = {
            "num_threads": threads,
            "compile": compiled,
            "checkpoint_interval": 10**9,
            "output_dir": folder,
        }
        run_training(our_config(name, settings, **keys), callbacks=[Ticks()])
    seconds = marks[total] - marks[total // 5]
    return {
        "steps_per_second": (total - total // 5) / seconds,
        "warm_up_seconds": marks[total // 5] - created,
    }


def time_peer(name: str, threads: int) -> dict[str, float]:
    """Updates a second of d3rlpy's `fit`, after its first fifth."""
    import d3rlpy
    import torch

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    created = time.perf_counter()
    data = made_up_data()
    dataset = d3rlpy.dataset.MDPDataset(
        data["obs"], data["actions"], data["rewards"], data["terminated"], data["truncated"]
    )
    space = gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)
    algo = make_peer(name, {**SPEED_SETTINGS, "updates": UPDATES[name]}, space).create(device="cpu")
    adapter = d3rlpy.logging.NoopAdapterFactory()
    fifth = UPDATES[name] // 5
    marks = [
        time.perf_counter()
        for _ in algo.fitter(dataset, 5 * fifth, fifth, logger_adapter=adapter, show_progress=False)
    ]
    return {
        "steps_per_second": 4 * fifth / (marks[-1] - marks[0]),
        "warm_up_seconds": marks[0] - created,
    }


def main() -> None:
    warnings.filterwarnings("ignore")
    _, task, contender, name, *rest = sys.argv
    if task == "speed":
        threads = int(rest[0])
        if contender == "d3rlpy":
            print(json.dumps(time_peer(name, threads)))
        else:
            print(json.dumps(time_ours(name, threads, compiled=contender == "ours_compiled")))
    else:
        file, env_id, settings = rest[0], rest[1], json.loads(rest[2])
        start = time.monotonic()
        predict = (train_ours if contender == "ours" else train_peer)(name, file, env_id, settings)
        seconds = time.monotonic() - start
        returns = score(predict, env_id, settings["episodes"])
        print(
            json.dumps(
                {"score": float(np.mean(returns)), "seconds": seconds, "file": Path(file).name}
            )
        )


if __name__ == "__main__":
    main()
