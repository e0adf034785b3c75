"""The documentation site: built without warnings, complete, and readable in a browser without a network."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import TESTS, TRY_ALL

from rl_training.cli.configuration import list_settings
from rl_training.experiment.registry import list_algorithm_specs

pytest.importorskip("sphinx", reason="the site needs Sphinx")
for package in (
    "myst_parser",
    "furo",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx-mathjax-offline",
):
    pytest.importorskip(package, reason=f"the site needs {package}")
DOCS = TESTS.parent / "docs"
PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: more than ten seconds."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--fail-on-warning",
        "--keep-going",
        "-q",
        "-b",
        "html",
    ]
    built = subprocess.run([*command, DOCS, folder], capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    return folder


def wait_for(browser: Any, script: str) -> Any:
    """What a script returns, once it is true."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := browser.execute_script(f"return {script}")):
        assert time.monotonic() < end, script
        time.sleep(0.05)
    return found


def faults(browser: Any) -> list[str]:
    """Errors of the console, and requests to the network."""
    requests = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    addresses = [
        message["params"]["request"]["url"]
        for message in requests
        if message["method"] == "Network.requestWillBeSent"
    ]
    errors = [
        entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"
    ]
    return errors + [address for address in addresses if address.startswith(("http", "ws"))]


def test_every_setting_of_an_algorithm_is_on_its_page(site: Path) -> None:
    for spec in list_algorithm_specs():
        text = (site / "algorithms" / f"{spec.name}.html").read_text()
        missing = [
            setting.key
            for setting in list_settings(spec.config_class())
            if f">{setting.key}<" not in text
        ]
        assert missing == [], spec.name


def test_equations_and_pictures_are_drawn_without_a_network(site: Path, browser: Any) -> None:
    for spec in list_algorithm_specs():
        browser.get(f"file://{site}/algorithms/{spec.name}.html")
        wait_for(browser, "window.MathJax && MathJax.startup && MathJax.startup.promise && true")
        wait_for(browser, "document.querySelectorAll('mjx-container svg').length >= 5")
        assert (
            browser.execute_script(
                "return document.querySelectorAll('mjx-merror, [data-mml-node=merror]').length"
            )
            == 0
        )
        broken = "[...document.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src)"
        assert browser.execute_script(f"return {broken}") == []
        assert faults(browser) == []


def test_the_search_finds_a_setting_from_the_file_system(site: Path, browser: Any) -> None:
    browser.get(f"file://{site}/search.html?q=target_entropy")
    wait_for(
        browser, "document.querySelector('#search-results li a[href*=\"algorithms/sac.html\"]')"
    )
    assert faults(browser) == []


@pytest.mark.skipif(not TRY_ALL, reason="opens every page: RL_TRAINING_TEST_ALL=1 runs it")
def test_no_page_is_wider_than_a_phone(site: Path, browser: Any) -> None:
    browser.set_window_size(420, 900)
    wide = []
    for page in sorted(site.rglob("*.html")):
        browser.get(f"file://{page}")
        if browser.execute_script(
            "return document.documentElement.scrollWidth > window.innerWidth"
        ):
            wide.append(page.relative_to(site).as_posix())
    browser.set_window_size(1200, 900)
    assert wide == []
