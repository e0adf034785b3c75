"""Films of policies: their frames are those of the environment, and what is printed is what they show."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm
from conftest import small_config

from rl_training import PPO
from rl_training.cli import main
from rl_training.envs.factory import make_env
from rl_training.errors import ConfigError, EnvError, RLTrainingError
from rl_training.runtime.run import run_training
from rl_training.runtime.run_utils import RunSeeds
from rl_training.views import film as films
from rl_training.views.film import FilmWriter, open_film
from rl_training.views.video import Pick, PlayedEpisode, picked, record_video, with_text

Image = pytest.importorskip("PIL.Image", reason="films need Pillow")
pytest.importorskip("imageio_ffmpeg", reason="MP4 films need imageio-ffmpeg")
SEED = 1
"""That of `small_config`."""


def train(folder: Path, env_id: str = "rendered_envs:Drawn", **changes: Any) -> Path:
    return run_training(small_config("ppo", folder, env_id=env_id, **changes)).run_dir


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose pictures have odd sides."""
    return train(tmp_path_factory.mktemp("runs"))


def play(run: Path, index: int, **env_kwargs: Any) -> tuple[list[np.ndarray], float]:
    """The frames and the return of an evaluation episode, played here step by step."""
    *_, seed = RunSeeds.from_seed(SEED).eval_seeds(index + 1)
    agent = PPO.load(run)
    env = make_env("rendered_envs:Drawn", {"render_mode": "rgb_array", **env_kwargs})
    (obs, info), state, total, has_ended = env.reset(seed=seed), None, 0.0, False
    frames = [env.render()]
    while not has_ended:
        action, state = agent.predict(obs, state=state, mask=info.get("action_mask"))
        obs, reward, terminated, truncated, info = env.step(action)
        total, has_ended = total + reward, terminated or truncated
        frames.append(env.render())
    return frames, total


def read_gif(path: Path) -> list[np.ndarray]:
    image = Image.open(path)
    frames = []
    for number in range(image.n_frames):
        image.seek(number)
        frames.append(np.asarray(image.convert("RGB")))
    return frames


def all_alike(frames: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    """Whether all colours are right; those of a palette are rounded."""
    return all(np.allclose(*pair, rtol=0, atol=2) for pair in zip(frames, expected, strict=True))


def read_mp4(path: Path) -> tuple[list[np.ndarray], dict[str, Any]]:
    import imageio_ffmpeg

    reader = imageio_ffmpeg.read_frames(str(path))
    facts = next(reader)
    width, height = facts["size"]
    return [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader], facts


def test_a_gif_has_the_frames_of_the_episodes_one_after_the_other(
    run: Path, tmp_path: Path
) -> None:
    film = record_video(run, out=tmp_path / "film.gif")
    played = [play(run, index) for index in range(3)]
    expected = [frame for frames, _ in played for frame in frames]
    frames = read_gif(film.path)
    lengths = [episode.length + 1 for episode in film.episodes]
    assert len(frames) == len(expected) == film.num_frames == sum(lengths)
    assert all_alike(frames, expected)
    assert [episode.total for episode in film.episodes] == [total for _, total in played]
    assert (film.width, film.height, film.fps) == (45, 31, 25.0)
    assert film.num_bytes == film.path.stat().st_size
    assert len({frame.tobytes() for frame in frames}) > len(frames) // 2


def test_an_mp4_has_the_same_frames_with_even_sides(run: Path, tmp_path: Path) -> None:
    film = record_video(run, num_episodes=1, out=tmp_path / "film.mp4")
    expected, total = play(run, 0)
    frames, facts = read_mp4(film.path)
    assert facts["size"] == (film.width, film.height) == (46, 32)
    assert facts["fps"] == 25
    assert facts["duration"] == pytest.approx(film.seconds, abs=0.05)
    assert len(frames) == len(expected) == film.episodes[0].length + 1
    assert film.episodes[0].total == total
    for frame, wanted in zip(frames, expected, strict=True):
        # Half of the colour resolution is lost: brightness is compared, the repeated row and column too.
        padded = np.pad(wanted, ((0, 1), (0, 1), (0, 0)), mode="edge")
        assert np.abs(frame.mean(axis=2) - padded.mean(axis=2)).mean() < 8


@pytest.mark.parametrize("pick", ["best", "median", "worst"])
def test_a_picked_episode_is_shown_alone_and_with_its_own_return(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], pick: str
) -> None:
    path = tmp_path / "film.gif"
    words = ["--episodes", "5", "--pick", pick, "--out", str(path), "--json"]
    assert main(["video", str(run), *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    returns = [play(run, index)[1] for index in range(5)]
    place = {"worst": 0, "median": 2, "best": 4}[pick]
    index = returns.index(sorted(returns)[place])
    (shown,) = answer["episodes"]
    assert (shown["episode"], shown["return"]) == (index + 1, returns[index])
    assert [episode["return"] for episode in answer["played"]] == returns
    expected, _ = play(run, index)
    frames = read_gif(path)
    assert len(frames) == len(expected) == answer["frames"] == shown["length"] + 1
    assert all_alike(frames, expected)


@pytest.mark.parametrize(
    ("totals", "pick", "index"),
    [
        ([2.0, 5.0, 1.0, 5.0, 1.0, 3.0], "best", 1),
        ([2.0, 5.0, 1.0, 5.0, 1.0, 3.0], "median", 0),
        ([2.0, 5.0, 1.0, 5.0, 1.0, 3.0], "worst", 2),
        ([math.nan, 1.0], "best", 1),
        ([math.nan, 1.0], "worst", 0),
    ],
)
def test_ties_and_middles_are_the_first_and_the_lower(
    totals: list[float], pick: Pick, index: int
) -> None:
    assert picked([PlayedEpisode(1, 0, total, 1) for total in totals], pick) == index


def test_the_verb_prints_what_the_film_shows_and_writes_into_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path)
    assert main(["video", str(run), "--episodes", "2", "--overlay", "--fps", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    path = run / "video" / "step_000000000128.mp4"
    assert lines[0] == f"video={path}"
    frames, facts = read_mp4(path)
    assert lines[1].startswith(
        f"{len(frames)} frames, {len(frames) / 10:.1f} s at 10 frames per second, 46x32 pixels"
    )
    assert facts["fps"] == 10
    assert [line.split(" in ")[0] for line in lines[2:]] == [
        f"episode {index + 1}: return {play(run, index)[1]:,.6g}" for index in range(2)
    ]
    before = path.read_bytes()
    assert main(["video", str(run)]) == 2
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    assert (
        main(["video", str(run / "checkpoints" / "best"), "--episodes", "1", "--pick", "best"]) == 0
    )
    assert capsys.readouterr().out.splitlines()[2].startswith("episode 1 (best of 1): return ")


def test_text_is_written_over_a_corner_only() -> None:
    frame = np.full((200, 300, 3), 90, np.uint8)
    drawn = with_text(frame, "step 12  return 3.5")
    assert drawn.shape == frame.shape
    assert (drawn[:12, :40] > 200).any()
    assert (drawn[:12, :40] < 60).any()
    assert np.array_equal(drawn[30:], frame[30:])
    assert (frame == 90).all()


def test_memory_and_masks_are_obeyed(tmp_path: Path) -> None:
    # An invalid action is an error of the environment; the frames tell the actions.
    kwargs = {"memory": {"kind": "gru", "size": 8, "sequence_length": 4}, "hidden_sizes": [8]}
    run = train(tmp_path, env_kwargs={"masked": True}, algo_kwargs=kwargs)
    film = record_video(run, num_episodes=2, pick="best", out=tmp_path / "film.gif")
    expected, total = play(run, film.episodes[0].number - 1, masked=True)
    assert film.episodes[0].total == total
    assert all_alike(read_gif(film.path), expected)


def test_wrappers_and_time_limits_apply_and_reward_wrappers_do_not(tmp_path: Path) -> None:
    wrappers = {"list": ["gymnasium.wrappers:FlattenObservation"], "reward": {"scale": 100.0}}
    run = train(
        tmp_path, env_kwargs={"wrappers": wrappers, "max_episode_steps": 2, "backend": "async"}
    )
    film = record_video(run, num_episodes=1, out=tmp_path / "film.gif")
    assert (film.episodes[0].length, film.num_frames) == (2, 3)
    assert abs(film.episodes[0].total) < 20


@pytest.mark.parametrize(
    ("env_id", "kwargs", "message"),
    [
        (
            "rendered_envs:Blind",
            {},
            r"metadata\['render_modes'\] is \['ansi'\], without 'rgb_array'",
        ),
        ("rendered_envs:Forgetful", {}, "its constructor does not accept render_mode='rgb_array'"),
        (
            "rendered_envs:Wrong",
            {"kind": "floats"},
            r"an array of float64 \[31, 45, 3\], not an array of uint8",
        ),
        ("rendered_envs:Wrong", {"kind": "nothing"}, "render\\(\\) returned a NoneType"),
        ("rendered_envs:Wrong", {"kind": "grows"}, "frames of 46x31 and then 47x31 pixels"),
        (
            "rendered_envs:Wrong",
            {"kind": "raises"},
            "failed in render: it raised ZeroDivisionError: the painter stumb",
        ),
    ],
)
def test_environments_that_cannot_be_filmed_are_named_and_leave_nothing(
    tmp_path: Path, env_id: str, kwargs: dict[str, Any], message: str
) -> None:
    run = train(tmp_path, env_id, env_kwargs=kwargs)
    with pytest.raises(EnvError, match=message):
        record_video(run, num_episodes=1)
    assert not (run / "video").exists()


def test_an_environment_that_always_renders_needs_no_argument(tmp_path: Path) -> None:
    run = train(tmp_path, "rendered_envs:Fixed")
    assert record_video(run, num_episodes=1, out=tmp_path / "film.gif").num_frames > 3


def test_an_environment_without_seeds_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, "rendered_envs:Unseeded")
    film = record_video(run, pick="best", out=tmp_path / "film.gif")
    text = capsys.readouterr().err
    (shown,) = film.episodes
    assert "does not repeat an episode from its seed" in text
    assert f"the film shows one of {shown.total:,.6g}" in text


def test_an_instance_that_was_given_in_python_is_made_again_to_render(tmp_path: Path) -> None:
    pytest.importorskip("pygame", reason="CartPole is drawn with pygame")
    import gymnasium as gym

    env = gym.wrappers.TimeLimit(gym.make("CartPole-v1"), 5)
    agent = PPO(
        env,
        seed=1,
        total_timesteps=32,
        num_steps=16,
        minibatch_size=16,
        output_dir=tmp_path,
        progress=False,
    )
    run = agent.learn().run_dir
    film = record_video(run, num_episodes=1, out=tmp_path / "film.gif")
    assert film.episodes == [PlayedEpisode(1, film.episodes[0].seed, 5.0, 5)]
    frames = read_gif(film.path)
    assert [frame.shape for frame in frames] == [(400, 600, 3)] * 6
    assert not np.array_equal(frames[0], frames[-1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "film.avi"], "the name of a film should end in .mp4 or .gif"),
        (["--out", "nowhere/film.mp4"], "folder 'nowhere' does not exist"),
        (["--out", "link.gif"], "exists and is not overwritten"),
        (["--out", "folder.gif"], "is a folder"),
        (["--pick", "nicest"], "bad value 'nicest' for --pick: use best, median, worst"),
        (["--episodes", "0"], "0 should be at least 1"),
        (["--fps", "0"], "bad value 0 for fps"),
        (["--fps", "nan"], "bad value nan for fps"),
    ],
)
def test_bad_arguments_name_the_remedy(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link.gif").symlink_to("elsewhere.gif")
    Path("folder.gif").mkdir()
    assert main(["video", str(run), *words]) == 2
    assert message in capsys.readouterr().err
    assert not Path("elsewhere.gif").exists()


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "film.gif"

    def film() -> None:
        with open_film(path, 10.0) as writer:
            writer.add(np.zeros((4, 4, 3), np.uint8))
            path.write_text("mine")

    with pytest.raises(ConfigError, match="exists"):
        film()
    assert path.read_text() == "mine"
    assert [found.name for found in tmp_path.iterdir()] == ["film.gif"]


@pytest.mark.parametrize("name", ["film.mp4", "film.gif"])
def test_an_interrupted_film_leaves_neither_file_nor_folder(tmp_path: Path, name: str) -> None:
    def film() -> None:
        with open_film(tmp_path / "video" / name, 10.0) as writer:
            writer.add(np.zeros((4, 4, 3), np.uint8))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        film()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_film_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    run, out = train(tmp_path, "CartPole-v1"), tmp_path / "films"
    out.mkdir()
    arguments = ("video", run, "--episodes", "2000", "--out", out / "film.gif")
    process = warm.start(list(map(str, arguments)), tmp_path)
    while not any(
        found.stat().st_size for found in out.iterdir()
    ):  # SDL has its signal handlers by then
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert list(out.iterdir()) == []


def test_what_ffmpeg_says_when_it_fails_is_told(tmp_path: Path) -> None:
    with FilmWriter(tmp_path / "missing" / "film.mp4", 10.0, ".mp4") as writer:
        writer.add(np.zeros((4, 4, 3), np.uint8))
        with pytest.raises(
            RLTrainingError,
            match=r"(?s)ffmpeg could not write the film .*No such file or directory",
        ):
            writer.finish()


def test_an_ffmpeg_that_cannot_be_started_is_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "nowhere"))
    with pytest.raises(
        RLTrainingError, match=r"ffmpeg cannot be started: .*nowhere.*; check IMAGEIO_FFMPEG_EXE"
    ):
        record_video(run, num_episodes=1, out=tmp_path / "film.mp4")
    assert not (tmp_path / "film.mp4").exists()


@pytest.mark.parametrize(
    ("module", "words", "package"),
    [("imageio_ffmpeg", [], "imageio-ffmpeg"), ("PIL", ["--overlay"], "Pillow")],
)
def test_a_missing_package_is_named_with_its_extra(
    run: Path,
    module: str,
    words: list[str],
    package: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["video", str(run), *words]) == 2
    assert f'needs {package}: pip install "rl-training[video]"' in capsys.readouterr().err


def test_a_missing_pygame_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(tmp_path, "CartPole-v1")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pygame"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(
        EnvError,
        match=r"rendering 'CartPole-v1' needs pygame: pip install \"rl-training\[video\]\"",
    ):
        record_video(run, num_episodes=1, out=tmp_path / "film.gif")


def test_a_gif_keeps_time_and_says_if_it_is_slower(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_film(tmp_path / "thirty.gif", 30.0) as writer:
        for number in range(30):
            writer.add(np.full((8, 8, 3), number, np.uint8))
    image, total = Image.open(tmp_path / "thirty.gif"), 0
    for number in range(30):
        image.seek(number)
        total += image.info["duration"]
    assert total == 1000
    film = record_video(run, num_episodes=1, fps=120, out=tmp_path / "film.gif")
    assert film.fps == 50
    assert "at most 50 frames per second" in capsys.readouterr().err


def test_mujoco_is_filmed_without_a_display(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    if films.find_gl_backend() is None:
        pytest.skip("MuJoCo finds neither EGL nor OSMesa here")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    run = train(tmp_path, "InvertedPendulum-v5", env_kwargs={"max_episode_steps": 4})
    film = record_video(run, num_episodes=1, out=tmp_path / "film.mp4")
    frames, facts = read_mp4(film.path)
    assert len(frames) == film.episodes[0].length + 1
    assert facts["size"] == (480, 480)
    assert facts["fps"] == film.fps == 25
    assert frames[0].std() > 5
    assert "MUJOCO_GL" not in os.environ


def test_mujoco_without_opengl_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    run = train(tmp_path, "InvertedPendulum-v5", env_kwargs={"max_episode_steps": 4})
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(films, "GL_BACKENDS", ("a_backend_that_is_missing",))
    films.find_gl_backend.cache_clear()
    try:
        with pytest.raises(EnvError, match="apt install libegl1 libgl1"):
            record_video(run, num_episodes=1)
    finally:
        films.find_gl_backend.cache_clear()
    assert not (run / "video").exists()


def test_atari_is_filmed_in_colour(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    env_kwargs = {"max_episode_steps": 6, "wrappers": {"atari": {"screen_size": 36}}}
    run = train(
        tmp_path, "ALE/Breakout-v5", env_kwargs=env_kwargs, total_timesteps=16, eval_episodes=1
    )
    film = record_video(run, num_episodes=1, out=tmp_path / "film.gif")
    frames = read_gif(film.path)
    assert len(frames) == film.episodes[0].length + 1 == 7
    assert frames[0].shape == (210, 160, 3)
    assert (frames[0][..., 0] != frames[0][..., 1]).any()
    assert len({frame.tobytes() for frame in frames}) > 1
