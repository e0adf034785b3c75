"""Runs as plain objects: what `load_runs` and `to_pandas` give is what the files of the runs hold."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import small_config
from run_tools import contents

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.config import load_config_file
from rl_training.runtime.run import run_training
from rl_training.studies import load_runs
from rl_training.studies.groups import RunRecord, RunRecords


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three runs of two seeds and two algorithms."""
    folder = tmp_path_factory.mktemp("trained")
    for seed in (2, 1):
        run_training(
            small_config("ppo", folder, seed=seed, log_interval=16, tags=("a", "b")), run_suffix="x"
        )
    run_training(small_config("dqn", folder / "deeper", seed=1), run_suffix="x")
    return folder


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """A copy of one run, to be damaged."""
    return Path(shutil.copytree(trained / "ppo__CartPole-v1__seed1__x", tmp_path / "run"))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def joined_lines(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics with their times."""
    files = [lines_of(run_dir / name) for name in ("metrics.jsonl", "timing.jsonl")]
    known = [
        {name: value for name, value in times.items() if value is not None} for times in files[1]
    ]
    return [{**times, **line} for line, times in zip(files[0], known, strict=True)]


class TestLoadRuns:
    def test_runs_come_in_the_order_of_their_folders(self, trained: Path) -> None:
        records = load_runs(str(trained))
        assert [str(record.run_dir.relative_to(trained)) for record in records] == [
            "deeper/dqn__CartPole-v1__seed1__x",
            "ppo__CartPole-v1__seed1__x",
            "ppo__CartPole-v1__seed2__x",
        ]
        assert [record.seed for record in records] == [1, 1, 2]

    def test_they_are_a_sequence(self, trained: Path) -> None:
        records = load_runs(trained)
        assert len(records) == 3
        assert isinstance(records[1:], RunRecords)
        assert [record.seed for record in records[1:]] == [1, 2]
        assert records[-1].seed == 2
        assert {type(record) for record in records} == {RunRecord}
        with pytest.raises(IndexError):
            records[3]

    def test_a_folder_without_runs_gives_none_and_a_missing_one_is_refused(
        self, tmp_path: Path
    ) -> None:
        assert list(load_runs(tmp_path)) == []
        assert repr(load_runs(tmp_path)) == "[]"
        for path in (tmp_path / "missing", tmp_path / "file"):
            (tmp_path / "file").touch()
            with pytest.raises(ConfigError, match="is not a folder"):
                load_runs(path)

    def test_settings_scores_and_curves_are_those_of_the_files(self, trained: Path) -> None:
        for record in load_runs(trained):
            assert record.settings == load_config_file(record.run_dir / "config.yaml")
            returns = lines_of(record.run_dir / "evaluations.jsonl")[-1]["returns"]
            assert record.score == pytest.approx(sum(returns) / len(returns))
            lines = joined_lines(record.run_dir)
            assert record.metrics == lines
            names = {name for line in lines for name in line} - {"global_step"}
            assert record.curves.keys() == names
            for name in names:
                known = [line for line in lines if line.get(name) is not None]
                steps = [line["global_step"] for line in known]
                curve = (steps, [line[name] for line in known])
                assert record.curve(name) == record.curves[name] == curve
            assert record.curve("eval_return_mean")[1][-1] == pytest.approx(record.score)

    def test_a_metric_that_was_never_logged_has_an_empty_curve(self, trained: Path) -> None:
        assert load_runs(trained)[0].curve("nonsense") == ([], [])

    def test_a_record_tells_its_run_state_and_score(self, trained: Path) -> None:
        record = load_runs(trained)[1]
        assert record.info.state == "finished"
        assert (
            repr(record)
            == f"<run ppo__CartPole-v1__seed1__x: finished at step 128, score {record.score:g}>"
        )
        assert repr(record) in repr(load_runs(trained))

    def test_reading_changes_nothing(self, trained: Path) -> None:
        before = contents(trained)
        assert load_runs(trained)[0].curves
        assert contents(trained) == before

    def test_torch_is_not_imported(self, trained: Path) -> None:
        code = (
            "import sys; import rl_training.studies as studies;"
            f" records = studies.load_runs({str(trained)!r}); frame = records.to_pandas();"
            " print(len(records), all(record.curves for record in records), 'torch' in sys.modules)"
        )
        pytest.importorskip("pandas")
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert answer.stdout.split() == ["3", "True", "False"]


class TestDamagedRuns:
    def test_a_run_without_metrics_has_no_curves(self, copied: Path) -> None:
        (copied / "metrics.jsonl").unlink()
        (record,) = load_runs(copied)
        assert (record.metrics, record.curves, record.damage) == ([], {}, None)

    def test_an_incomplete_last_line_is_left_out(self, copied: Path) -> None:
        lines = joined_lines(copied)
        text = (copied / "metrics.jsonl").read_text()
        (copied / "metrics.jsonl").write_text(text[:-5])
        assert load_runs(copied)[0].metrics == lines[:-1]

    @pytest.mark.parametrize("damage", ["not json", f'{{"global_step": {10**400}}}'])
    def test_lines_before_the_damage_are_read(self, copied: Path, damage: str) -> None:
        expected = joined_lines(copied)[:2]
        lines = (copied / "metrics.jsonl").read_text().splitlines()
        text = "\n".join([*lines[:2], damage, *lines[2:], ""])
        (copied / "metrics.jsonl").write_text(text)
        (record,) = load_runs(copied)
        assert record.metrics == expected
        assert "line 3" in str(record.damage)

    @pytest.mark.parametrize("line", ['{"global_step": 1, "a": null}', '{"a": 1}'])
    def test_a_line_without_its_value_or_step_is_left_out_of_curves(
        self, copied: Path, line: str
    ) -> None:
        (copied / "metrics.jsonl").write_text(f'{line}\n{{"global_step": 2, "a": 3}}\n')
        assert load_runs(copied)[0].curves == {"a": ([2], [3])}

    @pytest.mark.parametrize("name", ["config.yaml", "metadata.json", "evaluations.jsonl"])
    def test_a_damaged_file_leaves_the_rest(self, copied: Path, name: str) -> None:
        (copied / name).write_bytes(b"\xff{")
        (record,) = load_runs(copied)
        assert record.curves
        assert (record.settings == {}) == (name == "config.yaml")
        assert (record.score is None) == (name == "evaluations.jsonl")
        assert "run" in repr(record)


class TestPandas:
    def test_a_row_is_a_logged_line_with_its_run_and_settings(self, trained: Path) -> None:
        pandas = pytest.importorskip("pandas")
        records = load_runs(trained)
        frame = records.to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert len(frame) == sum(len(record.metrics) for record in records)
        for record in records:
            rows = frame[(frame["run"] == record.run_dir.name)]
            assert rows["global_step"].tolist() == [line["global_step"] for line in record.metrics]
            assert set(rows["seed"]) == {record.seed}
            assert set(rows["algo"]) == {record.info.algo}
            assert set(rows["algo_kwargs.hidden_sizes"]) == {"[8, 8]"}
            steps, values = record.curve("eval_return_mean")
            evaluated = rows.dropna(subset=["eval_return_mean"])
            assert evaluated["global_step"].tolist() == steps
            assert evaluated["eval_return_mean"].tolist() == values
        assert frame.groupby("run").size().to_dict() == {
            record.run_dir.name: len(record.metrics) for record in records
        }

    def test_settings_keep_their_types_and_lists_are_text(self, trained: Path) -> None:
        pytest.importorskip("pandas")
        row = load_runs(trained / "ppo__CartPole-v1__seed1__x").to_pandas().iloc[0]
        assert (row["total_timesteps"], row["compile"], row["device"]) == (128, False, "cpu")
        assert row["tags"] == str(["a", "b"])
        assert row["algo_kwargs.num_steps"] == 16

    def test_no_runs_are_an_empty_frame(self, tmp_path: Path) -> None:
        pytest.importorskip("pandas")
        assert load_runs(tmp_path).to_pandas().empty

    def test_without_pandas_the_error_names_our_extra(
        self, trained: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(
            RLTrainingError, match=r'to_pandas needs pandas: pip install "rl-training\[pandas\]"'
        ):
            load_runs(trained).to_pandas()
