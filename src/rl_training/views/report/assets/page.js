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

// The first page of `ui`: folders; the runs of one are read when it is opened.
RL.showList = () => {
  document.querySelector("header").append(RL.el("div", { id: "tools" }, RL.themeButton()));
  const main = document.querySelector("main");
  const chosen = new Set();
  const open = RL.el("a", { className: "button", id: "open", "aria-disabled": "true" }, "Open the chosen runs");
  const choose = (path, isOn) => {
    if (isOn) chosen.add(path);
    else chosen.delete(path);
    open.setAttribute("aria-disabled", String(!chosen.size));
    if (chosen.size) open.href = `/view?${new URLSearchParams([...chosen].map((name) => ["path", name]))}`;
    else open.removeAttribute("href");
  };
  main.append(RL.el("p", { className: "note" }, RL.data.folders.length
    ? `${RL.count(RL.data.num_runs)} runs, the folder that changed last first.` : `There is no run in ${RL.data.folder} yet: reload this page later.`),
    RL.data.folders.length ? RL.el("p", {}, open) : "");
  for (const folder of RL.data.folders) main.append(RL.folder(folder, choose));
};

RL.folder = (folder, choose) => {
  const rows = RL.el("tbody"), more = RL.el("button", { type: "button" }, "Show more");
  const heads = ["", "run", "state", "algorithm", "environment", "seed", "step", "best", "created"];
  const table = RL.el("table", {}, RL.el("caption", { className: "unseen" }, folder.name),
    RL.el("thead", {}, RL.el("tr", {}, heads.map((name, index) =>
      RL.el("th", { scope: "col", className: [5, 6, 7].includes(index) ? "number" : null }, name)))), rows);
  let shown = 0;
  const load = async () => {
    const query = new URLSearchParams({ folder: folder.path, from: shown });
    const found = await (await fetch(`/runs?${query}`)).json();
    for (const run of found.runs) {
      const box = RL.el("input", { type: "checkbox", "aria-label": `choose ${run.name}` });
      box.addEventListener("change", () => choose(run.path, box.checked));
      const cells = [{ text: run.name, href: `/view?${new URLSearchParams({ path: run.path })}` },
        { text: run.state, state: run.state }, run.algo, run.env_id, run.seed, run.step, run.best, run.created];
      rows.append(RL.el("tr", {}, RL.el("td", {}, box),
        cells.map((cell, index) => RL.cell(index ? "td" : "th", cell, index >= 4 && index <= 6))));
    }
    shown += found.runs.length;
    more.hidden = shown >= folder.runs;
  };
  more.addEventListener("click", load);
  const links = folder.is_study || folder.runs <= 50
    ? RL.el("p", {}, RL.el("a", { href: `/view?${new URLSearchParams({ path: folder.path })}` },
      folder.is_study ? "Open the study" : "Open all of them")) : null;
  const details = RL.el("details", { className: "folder", open: false },
    RL.el("summary", {}, RL.el("strong", {}, folder.name), ` ${folder.is_study ? "study, " : ""}${RL.count(folder.runs)} ${folder.runs === 1 ? "run" : "runs"}`),
    links, RL.el("div", { className: "scroll" }, table), more);
  details.addEventListener("toggle", () => { if (details.open && !shown) load(); });
  if (RL.data.folders[0] === folder) details.open = true;
  return details;
};

RL.data = JSON.parse(document.getElementById("data").textContent);
if (RL.data.view === "list") RL.showList();
else {
  RL.showReport();
  if (RL.data.live) setTimeout(RL.pollSafely, RL.data.live.seconds * 1000);
}
