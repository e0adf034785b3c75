"""The report in a real browser, headless Chromium: nothing leaves the machine, and what is drawn equals the data."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_tools import HOSTILE, append_lines, line, serving, write_run

from rl_training.cli import main
from rl_training.studies.statistics.summaries import summarize
from rl_training.views.film import open_film

pytest.importorskip("selenium", reason="the tests of the report page need selenium")
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

PATIENCE_SECONDS = 60.0
SEEDS = [f"seed {seed}" for seed in range(5)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five seeds of one group and two of another, with a report of them."""
    folder = tmp_path_factory.mktemp("runs")
    health = {"approx_kl": 0.01, "clip_fraction": 0.0}
    for seed in range(5):
        lines = [
            line(step, step / 3 + seed, entropy=1 / (step + seed), **health)
            for step in range(10, 110, 10)
        ]
        write_run(folder, f"ppo{seed}", lines, seed=seed)
    for seed in range(2):
        lines = [line(step, -step - seed, q_mean=float(step)) for step in range(10, 110, 10)]
        write_run(folder, f"dqn{seed}", lines, algo="dqn", seed=seed)
    assert main(["report", str(folder), "--out", str(folder / "report.html")]) == 0
    return folder


@pytest.fixture
def page(browser: Any, runs: Path) -> Any:
    """The report, opened in a wide and light window."""
    show(browser, f"file://{runs / 'report.html'}")
    return browser


def show(browser: Any, address: str, width: int = 1200, scheme: str = "light") -> None:
    """Open a page in a window of that width."""
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(address)


def wait_for(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds; a live page may replace an element while it is read."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(StaleElementReferenceException):
            if found := condition():
                return found
        time.sleep(0.05)
    raise AssertionError("it took too long")


def requests(browser: Any) -> list[str]:
    """The addresses that the page has asked for."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]


def figure(browser: Any, metric: str) -> Any:
    """The chart of a metric, drawn."""
    found = browser.find_element(By.CSS_SELECTOR, f'figure[data-metric="{metric}"]')
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
    wait_for(lambda: found.find_elements(By.CSS_SELECTOR, "canvas"))
    return found


def table(browser: Any, metric: str) -> list[list[str]]:
    """The rows of the table behind a chart, with its head."""
    found = figure(browser, metric)
    details = found.find_element(By.CSS_SELECTOR, "details")
    if details.get_attribute("open") is None:
        details.find_element(By.TAG_NAME, "summary").click()
    rows = wait_for(lambda: details.find_elements(By.CSS_SELECTOR, "tr"))
    script = "return arguments[0].map(row => [...row.children].map(cell => cell.textContent))"
    cells: list[list[str]] = browser.execute_script(script, rows)
    return cells


def background(browser: Any) -> str:
    return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))


def test_no_request_leaves_the_file_and_no_error_is_logged(page: Any) -> None:
    for metric in ("eval_return_mean", "entropy", "approx_kl", "q_mean"):
        figure(page, metric)
    assert page.get_log("browser") == []
    assert [address for address in requests(page) if not address.startswith("file://")] == []
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert page.find_element(By.TAG_NAME, "h1").text == "DQN, PPO on CartPole-v1"


def test_the_rows_of_a_table_equal_the_data(page: Any, runs: Path) -> None:
    head, *rows = table(page, "entropy")
    assert head == [
        "environment steps",
        *(f"ppo, {name}" for name in (*SEEDS, "interquartile mean", "low", "high")),
    ]
    files = [(runs / f"ppo{seed}" / "metrics.jsonl").read_text().splitlines() for seed in range(5)]
    logged = [[json.loads(text) for text in lines] for lines in files]
    assert [row[0] for row in rows] == [str(values["global_step"]) for values in logged[0]]
    page.execute_script("document.getElementById('summary').click()")
    by_mean = table(page, "entropy")
    page.execute_script("document.getElementById('summary').click()")
    assert by_mean[0][6:] == ["ppo, mean", "ppo, low", "ppo, high"]
    for index, (row, other) in enumerate(zip(rows, by_mean[1:], strict=True)):
        values = [lines[index]["entropy"] for lines in logged]
        assert [float(cell) for cell in row[1:6]] == pytest.approx(values, rel=1e-4)
        for cells, use_mean in ((row, False), (other, True)):
            found = summarize(values, use_mean=use_mean)
            expected = [found.value, found.low, found.high]
            assert [float(cell) for cell in cells[6:]] == pytest.approx(
                expected, rel=1e-3, abs=1e-6
            )


def test_a_group_is_hidden_and_shown_again(page: Any) -> None:
    before = table(page, "eval_return_mean")
    assert len(before[0]) == 1 + 8 + 5
    assert "dqn, median" in before[0]
    button = page.find_element(By.XPATH, "//nav[@id='legend']/button[contains(., 'dqn')]")
    page.execute_script("arguments[0].click()", button)
    assert button.get_attribute("aria-pressed") == "false"
    assert [name for name in table(page, "eval_return_mean")[0] if "dqn" in name] == []
    assert "dqn" not in figure(page, "eval_return_mean").find_element(By.CLASS_NAME, "reading").text
    page.execute_script("arguments[0].click()", button)
    assert table(page, "eval_return_mean") == before


def test_the_cursor_reads_values(page: Any) -> None:
    found = figure(page, "eval_return_mean")
    reading = found.find_element(By.CLASS_NAME, "reading")
    assert reading.text == "move over the chart to read its values", (
        "the result has the numbers at the end"
    )
    over = found.find_element(By.CLASS_NAME, "u-over")
    ActionChains(page).move_to_element_with_offset(over, -over.size["width"] // 2 + 3, 0).perform()
    wait_for(lambda: reading.text.startswith("at 10"))
    assert "5.33" in reading.text  # in the middle of 10/3, 10/3 + 1, up to 10/3 + 4
    ActionChains(page).move_to_element(page.find_element(By.TAG_NAME, "h2")).perform()
    wait_for(lambda: reading.text.startswith("move over"))


def test_a_curve_of_zeros_has_an_axis_of_its_size(page: Any) -> None:
    script = "const y = arguments[0].chart.plot.scales.y; return [y.min, y.max]"
    low, high = page.execute_script(script, figure(page, "clip_fraction"))
    assert (low, round(high, 1)) == (0, 0.1)
    low, high = page.execute_script(script, figure(page, "approx_kl"))
    assert 0 <= low < 0.01 < high <= 0.1


def test_dark_by_preference_and_by_the_button(browser: Any, runs: Path) -> None:
    show(browser, f"file://{runs / 'report.html'}", scheme="dark")
    dark = background(browser)
    browser.find_element(By.ID, "theme").click()
    light = background(browser)
    assert (dark, light) == ("rgb(20, 24, 29)", "rgb(255, 255, 255)")
    show(browser, f"file://{runs / 'report.html'}")
    assert background(browser) == light
    browser.find_element(By.ID, "theme").click()
    assert background(browser) == dark
    assert browser.get_log("browser") == []


def test_a_phone_scrolls_in_one_direction(browser: Any, runs: Path) -> None:
    show(browser, f"file://{runs / 'report.html'}", width=380)
    table(browser, "eval_return_mean")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 380
    widths = browser.execute_script(
        "return [...document.querySelectorAll('.u-wrap')].map(node => node.clientWidth)"
    )
    assert widths
    assert max(widths) <= 380
    assert browser.execute_script("return document.documentElement.scrollHeight") < 3000
    states = browser.execute_script(
        "return [...document.querySelectorAll('details.section')].map(node => node.open)"
    )
    assert states[:3] == [True, True, False]
    browser.execute_script("location.hash = 'health'")
    wait_for(lambda: figure(browser, "entropy"))
    browser.execute_script("location.hash = ''; dispatchEvent(new Event('beforeprint'))")
    assert (
        browser.execute_script("return document.querySelector('details.section:not([open])')")
        is None
    )
    assert browser.get_log("browser") == []


def test_the_evaluation_curve_is_on_the_first_screen(page: Any, runs: Path) -> None:
    for width in (1200, 380):
        show(page, f"file://{runs / 'report.html'}", width=width)
        first = page.find_element(By.TAG_NAME, "figure")
        assert page.execute_script("return arguments[0].getBoundingClientRect().top", first) < 450


def test_hostile_names_are_shown_as_text(browser: Any, tmp_path: Path) -> None:
    names = [HOSTILE.replace("/", ""), "quote\"'& é", "a" * 200]
    lines = [line(1, 2.0), line(2, 3.0, **{HOSTILE: 1.0})]
    for seed, name in enumerate(names):
        write_run(tmp_path, name, lines, algo=HOSTILE, env_id=HOSTILE, seed=seed)
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    show(browser, f"file://{tmp_path / 'page.html'}", width=380)
    browser.execute_script(
        "for (const details of document.querySelectorAll('details')) details.open = true"
    )
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#scores td"))
    time.sleep(0.2)
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert browser.execute_script("return typeof hacked") == "undefined"
    text = browser.execute_script("return document.body.textContent")
    assert all(name in text for name in (*names, HOSTILE))
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 380


def test_the_live_page_follows_its_runs(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "some", "run", [line(10, 1.0), line(20, 2.0)])
    with serving(tmp_path) as server:
        show(browser, server.address)
        wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "tbody a"))[0].click()
        wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "figure"))
        wait_for(lambda: [row[0] for row in table(browser, "eval_return_mean")[1:]] == ["10", "20"])
        append_lines(run, [line(30, 7.0, entropy=0.5)])
        wait_for(
            lambda: [row[0] for row in table(browser, "eval_return_mean")[1:]] == ["10", "20", "30"]
        )
        wait_for(lambda: browser.find_element(By.CSS_SELECTOR, ".verdict strong").text == "7.00")
        wait_for(lambda: len(table(browser, "entropy")) == 2)
        (run / "metrics.jsonl").unlink()
        append_lines(run, [line(10, 4.0)])
        wait_for(lambda: table(browser, "eval_return_mean")[1:] == [["10", "4"]])
        assert browser.get_log("browser") == []
        # The browser asks for an icon by itself.
        asked = [address for address in requests(browser) if not address.startswith(server.address)]
        assert [address for address in asked if not address.startswith(("about:", "data:"))] == []
        browser.get("about:blank")


def test_the_list_is_sorted_filtered_and_live(browser: Any, tmp_path: Path) -> None:
    for seed, score in enumerate((5.0, 11.0, 7.0)):
        status = "failed" if seed == 2 else "finished"
        write_run(tmp_path, f"run{seed}", [line(10, score)], seed=seed, status=status)
    names = "return [...document.querySelectorAll('tbody th')].map(node => node.textContent)"
    with serving(tmp_path) as server:
        show(browser, server.address)
        wait_for(lambda: len(browser.find_elements(By.CSS_SELECTOR, "tbody tr .spark")) == 3)
        for order in (["run1", "run2", "run0"], ["run0", "run2", "run1"]):
            browser.find_element(By.XPATH, "//thead//button[text()='last']").click()
            wait_for(lambda wanted=order: browser.execute_script(names) == wanted)
        browser.find_element(By.CSS_SELECTOR, "#state option[value=failed]").click()
        wait_for(lambda: browser.execute_script(names) == ["run2"])
        browser.find_element(By.CSS_SELECTOR, "#state option").click()
        browser.find_element(By.ID, "text").send_keys("CartPole RUN0")
        wait_for(lambda: browser.execute_script(names) == ["run0"])
        append_lines(tmp_path / "run0", [line(60, 444.0)])
        wait_for(lambda: "444.0" in browser.find_element(By.TAG_NAME, "tbody").text)
        assert "60 %" in browser.find_element(By.TAG_NAME, "tbody").text
        assert browser.execute_script("return document.querySelector('.scroll')") is None
        assert browser.get_log("browser") == []


def test_films_inside_the_page_can_be_played(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="MP4 films need imageio-ffmpeg")
    run = write_run(tmp_path, "run", [line(1, 2.0)])
    for name in ("film.mp4", "film.gif"):
        with open_film(run / "video" / name, 10.0) as writer:
            for number in range(20):
                writer.add(np.full((31, 45, 3), 10 * number, np.uint8))
    assert main(["report", str(run)]) == 0
    show(browser, f"file://{run / 'report.html'}")
    film = "document.querySelector('#films video')"
    wait_for(lambda: browser.execute_script(f"return {film}.readyState") >= 1)
    assert browser.execute_script(
        f"return [{film}.videoWidth, {film}.videoHeight, {film}.duration]"
    ) == [46, 32, 2]
    assert browser.execute_script("return document.querySelector('#films img').naturalWidth") == 45
    assert [entry["message"] for entry in browser.get_log("browser")] == []
