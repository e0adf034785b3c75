"""A real browser, headless Chromium, that reaches this machine only."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DRIVER = shutil.which("chromedriver")
OPTIONS = (
    *(
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-dev-shm-usage",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-extensions",
    ),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@contextlib.contextmanager
def open_browser(profile: Path) -> Iterator[Any]:
    """A browser with an empty profile, whose console and requests are recorded; skips the test if there is none."""
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="the tests of web pages need selenium"
    )
    if DRIVER is None:
        pytest.skip("the tests of web pages need chromedriver, which is missing")
    options = webdriver.ChromeOptions()
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()
