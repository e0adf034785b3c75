"use strict";
// Starts the page: header, legend, sections; then, in `ui`, what is new.
RL.themeButton = () => {
  const isDark = () => (document.documentElement.dataset.theme
    || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = RL.el("button", { type: "button", id: "theme" });
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    name();
    RL.redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { name(); RL.redraw(); });
  name();
  return button;
};

RL.legend = () => {
  const toggle = (text, group, isOn, act) => {
    const button = RL.el("button", { type: "button", "aria-pressed": String(isOn()) },
      group === null ? null : RL.el("span", { className: `dot ${RL.groupClass(group)}`, "aria-hidden": "true" }), text);
    button.addEventListener("click", () => {
      act();
      button.setAttribute("aria-pressed", String(isOn()));
      RL.redraw();
    });
    return button;
  };
  const groups = RL.data.groups.length < 2 ? [] : RL.data.groups.map((group, index) =>
    toggle(group.name, index, () => !RL.hidden.has(index), () => {
      if (!RL.hidden.delete(index)) RL.hidden.add(index);
    }));
  const seeds = RL.data.groups.some((group) => group.runs > 1)
    ? [toggle("single runs", null, () => RL.showSeeds, () => { RL.showSeeds = !RL.showSeeds; })] : [];
  const most = Math.max(0, ...RL.data.groups.map((group) => group.runs));
  const mean = most < RL.data.bootstrap.fewest ? [] : [RL.el("button", { type: "button", id: "summary" })];
  for (const button of mean) {
    button.textContent = RL.summaryWord(most);
    button.addEventListener("click", () => {
      RL.useMean = !RL.useMean;
      button.textContent = RL.summaryWord(most);
      RL.redraw();
    });
  }
  return groups.length || seeds.length
    ? RL.el("nav", { id: "legend", "aria-label": "shown in the charts" }, groups, seeds, mean) : null;
};

RL.showReport = () => {
  const header = document.querySelector("header"), main = document.querySelector("main");
  const contents = RL.el("nav", { id: "contents", "aria-label": "sections" },
    RL.data.sections.map((section) => RL.el("a", { href: `#${section.id}` }, section.title)));
  header.append(RL.el("div", { id: "tools" },
    RL.data.live ? RL.el("a", { href: "/" }, "all runs") : null,
    RL.data.live ? RL.el("span", { id: "live", role: "status" }, "live") : null, RL.themeButton()));
  const sections = RL.data.sections.map(RL.section);
  const isFirst = RL.data.sections[0]?.id === "overview";  // of one group, in a line
  main.append(contents, ...sections.splice(0, isFirst ? 1 : 0), ...[RL.legend()].filter(Boolean), ...sections);
  addEventListener("hashchange", RL.openTarget);
  RL.openTarget();
  const thinned = RL.data.max_points === null ? ""
    : ` Curves of more than ${RL.data.max_points} points are thinned to about as many: the first, the last and the extreme values stay.`;
  document.querySelector("footer").append(RL.el("p", {},
    `Made by rl-training ${RL.data.version} at ${RL.data.made.replace("T", " ").slice(0, 19)} UTC. Numbers have six digits.${thinned}`
    + " Drag over a chart to zoom in, double-click to zoom out."));
};

// In `ui`: ask for new lines of the runs, some runs at a time, and for changed sections.
RL.BATCH = 40;
RL.MAX_NEW_ROWS = 2000;

RL.append = (run, news) => {
  for (const [index, table] of [[0, "evaluations"], [0, "updates"], [1, "times"]]) {
    if (news.is_whole[index]) {
      run[table] = news[table];
      continue;
    }
    const old = run[table], added = news[table], count = old.x.length;
    old.x.push(...added.x);
    for (const name of new Set([...Object.keys(old.y), ...Object.keys(added.y)])) {
      const column = old.y[name] ?? (old.y[name] = new Array(count).fill(null));
      column.push(...(added.y[name] ?? new Array(added.x.length).fill(null)));
    }
  }
  run.tokens = news.tokens;
};

RL.replaceSections = (sections) => {
  sections.forEach((section) => {
    const old = document.getElementById(section.id), known = RL.data.sections.find((other) => other.id === section.id);
    if (!old || JSON.stringify(known) !== JSON.stringify(section)) {
      const made = RL.section(section, 2);
      if (old) {
        made.firstChild.open = old.firstChild.open;
        old.replaceWith(made);
      }
      else document.querySelector("main").append(made);
    }
  });
  RL.data.sections = sections;
};

RL.poll = async () => {
  const began = performance.now();
  let isChanged = false, added = 0;
  for (let start = 0; start < RL.data.runs.length; start += RL.BATCH) {
    const runs = RL.data.runs.slice(start, start + RL.BATCH);
    const query = new URLSearchParams({ from: start, runs: RL.data.live.runs, tokens: runs.map((run) => run.tokens.join("-")).join("_") });
    const answer = await fetch(`${RL.data.live.new}&${query}`);
    if (!answer.ok) throw new Error(String(answer.status));
    const news = await answer.json();
    if (news.is_changed) return location.reload();
    news.runs.forEach((found, index) => {
      if (found === null) return;
      RL.append(runs[index], found);
      isChanged = true;
      added += found.updates.x.length;
    });
  }
  const answer = await fetch(`${RL.data.live.sections}&known=${RL.data.live.hash}`);
  if (!answer.ok) throw new Error(String(answer.status));
  const found = await answer.json();
  if (found.sections) {
    RL.data.live.hash = found.hash;
    RL.replaceSections(found.sections);
  }
  if (isChanged) RL.redraw();
  RL.newRows = (RL.newRows || 0) + added;
  if (RL.newRows > RL.MAX_NEW_ROWS) location.reload();
  document.getElementById("live").textContent = `live · ${new Date().toLocaleTimeString()}`;
  return setTimeout(RL.pollSafely, Math.max(RL.data.live.seconds * 1000, 5 * (performance.now() - began)));
};

RL.pollSafely = () => RL.poll().catch(() => {
  document.getElementById("live").textContent = "the server does not answer";
  setTimeout(RL.pollSafely, 10000);
});

// The first page of `ui`: folders; the runs of an open one are read again and again.
RL.COLUMNS = [
  ["run", (run) => run.name], ["state", (run) => run.state], ["progress", (run) => run.share],
  ["last", (run) => run.last], ["best", (run) => run.best], ["scores", (run) => run.scores[run.scores.length - 1]],
  ["steps/s", (run) => run.rate], ["algorithm", (run) => run.algo], ["environment", (run) => run.env_id],
  ["seed", (run) => run.seed], ["created", (run) => run.created],
];
RL.NUMBERS = new Set(["last", "best", "steps/s", "seed"]);
RL.MINOR = new Set(["best", "steps/s", "algorithm", "environment", "seed", "created"]);  // not on a phone

RL.showList = () => {
  const { folders, states, folder, num_runs: count } = RL.data, main = document.querySelector("main");
  document.querySelector("header").append(RL.el("div", { id: "tools" }, RL.el("span", { id: "live", role: "status" }, "live"), RL.themeButton()));
  if (!folders.length) {
    main.append(RL.el("p", { className: "note" }, `There is no run in ${folder} yet: reload this page later.`));
    return;
  }
  const chosen = new Set();
  const open = RL.el("a", { className: "button", id: "open", "aria-disabled": "true" }, "Open the chosen runs");
  const choose = (path, isOn) => {
    if (isOn) chosen.add(path);
    else chosen.delete(path);
    open.setAttribute("aria-disabled", String(!chosen.size));
    if (chosen.size) open.href = `/view?${new URLSearchParams([...chosen].map((name) => ["path", name]))}`;
    else open.removeAttribute("href");
  };
  const text = RL.el("input", { type: "search", id: "text", placeholder: "filter by text", "aria-label": "filter by text" });
  const state = RL.el("select", { id: "state", "aria-label": "filter by state" },
    RL.el("option", { value: "" }, "every state"), states.map((name) => RL.el("option", { value: name }, name)));
  const filter = { matches: (run) => (!state.value || run.state === state.value)
    && text.value.toLowerCase().split(/\s+/).every((word) => `${run.name} ${run.algo} ${run.env_id}`.toLowerCase().includes(word)),
    isOn: () => Boolean(state.value || text.value.trim()) };
  const lists = folders.map((found) => RL.folder(found, choose, filter));
  for (const input of [text, state]) input.addEventListener("input", () => lists.forEach((list) => list.filter()));
  main.append(RL.el("p", { className: "note" }, `${RL.count(count)} ${count === 1 ? "run" : "runs"}, newest first.`),
    RL.el("p", { id: "filters" }, text, state, open), ...lists.map((list) => list.details));
  const poll = async () => {
    const began = performance.now();
    let word = `live · ${new Date().toLocaleTimeString()}`;
    try {
      for (const list of lists) if (list.details.open) await list.load();
    } catch (error) {
      word = "the server does not answer";
    }
    document.getElementById("live").textContent = word;
    setTimeout(poll, Math.max(RL.data.seconds * 1000, 5 * (performance.now() - began)));
  };
  setTimeout(poll, RL.data.seconds * 1000);
};

RL.folder = (folder, choose, filter) => {
  const rows = RL.el("tbody"), more = RL.el("button", { type: "button" }, "Show more");
  const boxes = new Map();  // by path: they stay checked when rows are drawn again
  let runs = [], wanted = 0, sorted = { column: null, isDown: true };
  const heads = RL.COLUMNS.map(([name, key]) => {
    const button = RL.el("button", { type: "button" }, name);
    const head = RL.el("th", { scope: "col", className: RL.columnClass(name) }, button);
    button.addEventListener("click", async () => {
      sorted = { column: key, isDown: sorted.column === key ? !sorted.isDown : RL.NUMBERS.has(name) || name === "progress" };
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sorted.isDown ? "descending" : "ascending");
      await load(folder.runs);
    });
    return head;
  });
  const draw = () => {
    const shown = runs.filter(filter.matches);
    if (sorted.column) shown.sort((a, b) => RL.compare(sorted.column(a), sorted.column(b), sorted.isDown));
    rows.replaceChildren(...shown.map((run) => RL.runRow(run, boxes, choose)));
    more.hidden = runs.length >= folder.runs;
  };
  const load = async (count = wanted || 1) => {
    wanted = Math.max(wanted, count);
    const found = [];
    do {
      const answer = await fetch(`/runs?${new URLSearchParams({ folder: folder.path, from: found.length })}`);
      if (!answer.ok) throw new Error(String(answer.status));
      const news = await answer.json();
      found.push(...news.runs);
      folder.runs = news.count;
      if (!news.runs.length) break;
    } while (found.length < Math.min(wanted, folder.runs));
    runs = found;
    draw();
  };
  more.addEventListener("click", () => load(runs.length + 1));
  const links = folder.is_study || folder.runs <= 50
    ? RL.el("p", {}, RL.el("a", { href: `/view?${new URLSearchParams({ path: folder.path })}` },
      folder.is_study ? "Open the study" : "Open all of them")) : null;
  const table = RL.el("table", { className: "runs" }, RL.el("caption", { className: "unseen" }, folder.name),
    RL.el("thead", {}, RL.el("tr", {}, RL.el("th"), heads)), rows);
  const details = RL.el("details", { className: "folder", open: RL.data.folders[0] === folder },
    RL.el("summary", {}, RL.el("strong", {}, folder.name), ` ${folder.is_study ? "study, " : ""}${RL.count(folder.runs)} ${folder.runs === 1 ? "run" : "runs"}`),
    links, table, more);
  details.addEventListener("toggle", () => { if (details.open) load(filter.isOn() ? folder.runs : undefined); });
  return { details, load, filter: () => {
    if (!filter.isOn() || details.open) load(filter.isOn() ? folder.runs : undefined);
    else details.open = true;
  } };
};

RL.columnClass = (name) => [RL.NUMBERS.has(name) ? "number" : "", RL.MINOR.has(name) ? "minor" : ""].filter(Boolean).join(" ") || null;

RL.runRow = (run, boxes, choose) => {
  if (!boxes.has(run.path)) {
    const box = RL.el("input", { type: "checkbox", "aria-label": `choose ${run.name}` });
    box.addEventListener("change", () => choose(run.path, box.checked));
    boxes.set(run.path, box);
  }
  const share = run.share === null ? "–" : `${Math.floor(100 * run.share)} %`;
  const title = `step ${RL.count(run.step)}${run.total ? ` of ${RL.count(run.total)}` : ""}`;
  const contents = [
    RL.el("a", { href: `/view?${new URLSearchParams({ path: run.path })}` }, run.name),
    RL.el("span", { className: `state ${run.state}` }, run.state),
    RL.el("span", { className: "progress", title }, RL.el("progress", { max: 1, value: run.share ?? 0, "aria-label": title }), ` ${share}`),
    RL.number(run.last), RL.number(run.best), RL.sparkline(run.scores),
    run.rate === null ? "–" : RL.count(Math.round(run.rate)), run.algo, run.env_id, run.seed === null ? "–" : String(run.seed), run.created,
  ];
  return RL.el("tr", {}, RL.el("td", {}, boxes.get(run.path)), contents.map((content, index) =>
    RL.el(index ? "td" : "th", { scope: index ? null : "row", className: RL.columnClass(RL.COLUMNS[index][0]) }, content)));
};

// What is missing comes last in either direction.
RL.compare = (a, b, isDown) => {
  const isMissing = [a, b].map((value) => value === null || value === undefined || value === "–");
  if (isMissing[0] || isMissing[1]) return isMissing[0] - isMissing[1];
  const order = typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return isDown ? -order : order;
};

RL.sparkline = (scores) => {
  if (!scores.length) return "–";
  const low = Math.min(...scores), span = Math.max(...scores) - low || 1, width = 80, height = 18;
  const x = (index) => 2 + (width - 4) * (scores.length > 1 ? index / (scores.length - 1) : 1);
  const y = (score) => height - 2 - (height - 4) * (score - low) / span;
  const svg = RL.svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "spark", role: "img",
    "aria-label": `evaluations, from ${RL.number(scores[0])} to ${RL.number(scores[scores.length - 1])}` });
  svg.append(RL.svg("polyline", { points: scores.map((score, index) => `${x(index).toFixed(1)},${y(score).toFixed(1)}`).join(" ") }),
    RL.svg("circle", { cx: x(scores.length - 1), cy: y(scores[scores.length - 1]), r: 2 }));
  return svg;
};

RL.data = JSON.parse(document.getElementById("data").textContent);
if (RL.data.view === "list") RL.showList();
else {
  RL.showReport();
  if (RL.data.live) setTimeout(RL.pollSafely, RL.data.live.seconds * 1000);
}
