"""A study of two settings with four seeds each, two runs at a time; then a test which setting is better.

python examples/study_and_comparison.py

The study is in runs/learning-rates-12000-4. Started again, after Ctrl-C or the end, it trains only what is missing.
"""

import argparse
import textwrap
from pathlib import Path

from rl_training import TrainConfig
from rl_training.studies import Study, compare
from rl_training.studies.groups import find_groups
from rl_training.views.report.page import write_report


def main() -> None:
    """Train, compare, write the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default=12_000)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    options = parser.parse_args()

    base = TrainConfig(
        algo="ppo",
        env_id="CartPole-v1",
        num_envs=8,
        total_timesteps=options.total_timesteps,
        eval_episodes=20,
        num_threads=1,  # two runs at a time on two processors: more threads would only disturb each other
        algo_kwargs={"num_steps": 64, "minibatch_size": 128},
    )
    # Four seeds are the fewest with which a test at 5 % can decide: with three each, the smallest p-value is 0.1.
    study = Study(
        base,
        vary={"algo_kwargs.learning_rate": [1e-3, 3e-5]},
        seeds=range(options.seeds),
        name=f"learning-rates-{options.total_timesteps}-{options.seeds}",
        output_dir=options.output_dir,
    )
    results = study.run(jobs=2)
    if not results.is_complete:  # Ctrl-C, or a run that failed
        raise SystemExit("not complete: the same command trains what is missing")
    for setting in results.settings:
        scores = "".join(f"{score:7.1f}" for score in setting.scores.values() if score is not None)
        print(f"{setting.setting:<20}{scores}  mean {setting.interval}")

    # On the command line: rl-training compare runs/learning-rates-12000-4
    # It also stores the result where the report finds it. With more than two settings, all pairs are compared.
    for pair in compare(study.path).pairs:
        low, high = pair.judgement.interval
        print(textwrap.fill(pair.sentence, 80))
        print(f"difference {pair.judgement.difference:+.1f} [{low:.1f}, {high:.1f}]")

    # On the command line: rl-training report runs/learning-rates-12000-4
    page, _ = write_report(find_groups([str(study.path)]), [str(study.path)])
    print(f"report: {page}")


if __name__ == "__main__":  # required: the runs are processes of their own
    main()
