"use strict";
// Shows the document of all runs, and everything of the chosen one. Texts from runs are set as text, never as HTML.

const $ = (id) => document.getElementById(id);
const ROWS_SHOWN = 200, SMALL_FROM = 65, DETAIL_EVERY_MS = 500, LOG_EVERY_MS = 1500, JUDGE_AFTER_MS = 400, ANSWER_MS = 60000, AGAIN_MS = 2000;
// Without a prototype, because a run may have any name: __proto__ is one.
const createModel = () => Object.fromEntries(["runs", "machines", "failures", "controller"].map((name) => [name, Object.create(null)]));
let model = createModel();
let chosen = "", detail = null, role = "viewer", lastId = "", detailDue = 0, detailBusy = false, isReady = false;

// --- making elements ----------------------------------------------------------------------------------

/** An element with attributes, classes and children. Strings among the children become text. */
function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "click") element.addEventListener("click", value);
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined).map((child) => child instanceof Node ? child : String(child)));
  return element;
}
const cell = (text, kind = "") => make("td", {class: kind}, text ?? "");
const link = (address, text) => /^https?:\/\//.test(address || "") ? make("a", {href: address, target: "_blank", rel: "noopener noreferrer"}, text) : null;

// --- numbers as text ----------------------------------------------------------------------------------

const whole = (value) => value === null || value === undefined ? "" : Math.round(value).toLocaleString("en-US");
const number = (value, digits = 4) => typeof value !== "number" ? "" : Number(value.toPrecision(digits)).toString();
function short(value, unit = "") {
  if (typeof value !== "number") return "";
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (value >= size) return `${(value / size).toFixed(1)} ${letter}${unit}`;
  return `${value.toFixed(0)} ${unit}`.trim();
}
function duration(seconds) {
  if (typeof seconds !== "number") return "";
  if (seconds > 0 && seconds < 1) return `${(1000 * seconds).toPrecision(seconds < 0.1 ? 2 : 3)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds % 3600 / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds % 86400 / 3600)} h`;
}
const age = (time) => typeof time === "number" ? `${duration(Math.max(0, Date.now() / 1000 - time))} ago` : "";
const clock = (time) => typeof time === "number" ? new Date(time * 1000).toLocaleString() : "";
const KINDS = {running: "good", finished: "busy", starting: "busy", recovering: "warn", paused: "warn", unknown: "warn", lost: "warn", stopped: "", failed: "bad", died: "bad", unreadable: "bad"};
const stateTag = (state) => make("span", {class: `state ${KINDS[state] ?? ""}`}, state);
const figure = (row, name, digits) => row.not_finite[name] ?? number(row[name], digits);
const cost = (usd) => usd ? `$${usd.low.toFixed(2)}–${usd.high.toFixed(2)}` : "";
/** A colour of its own for each run, from its name. */
function hue(name) { let found = 7; for (const letter of name) found = (found * 31 + letter.codePointAt(0)) % 360; return found; }

// --- runs, devices, failures --------------------------------------------------------------------------

const RANK = {running: 0, recovering: 0, starting: 0, paused: 0, died: 1, failed: 1, unreadable: 1};
// Elements by their names, with what they were made from: of a thousand runs a few change at a time.
const kept = {runs: new Map(), machines: new Map()};
function keep(of, name, made, create) {
  const before = kept[of].get(name);
  if (before && before.made.every((one, place) => one === made[place])) return before.element;
  const element = create();
  kept[of].set(name, {made, element});
  return element;
}
/** Replace the children, unless they are these already. The keyboard stays on what has the same data attributes. */
function fill(parent, children) {
  if (parent.children.length === children.length && children.every((child, place) => parent.children[place] === child)) return;
  const held = parent.contains(document.activeElement) ? {...document.activeElement.dataset} : {}, names = Object.keys(held);
  parent.replaceChildren(...children);
  if (names.length && !parent.contains(document.activeElement)) [...parent.querySelectorAll("*")].find((one) => names.every((name) => one.dataset[name] === held[name]))?.focus({preventScroll: true});
}
function showRuns() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = ([name, row]) => words.every((word) => `${name} ${row.state}`.toLowerCase().includes(word));
  const runs = Object.entries(model.runs).filter(fits).sort(([a, x], [b, y]) =>
    Number(!x.supervised) - Number(!y.supervised) || (RANK[x.state] ?? 2) - (RANK[y.state] ?? 2) || (y.began_s ?? 0) - (x.began_s ?? 0) || a.localeCompare(b));
  fill($("runs"), runs.slice(0, ROWS_SHOWN).map(([name, row]) => keep("runs", name, [row, name === chosen], () => runRow(name, row))));
  const all = Object.keys(model.runs).length, live = Object.values(model.runs).filter((row) => row.supervised).length;
  $("shown").textContent = runs.length > ROWS_SHOWN ? `the first ${ROWS_SHOWN} of ${runs.length}; filter for the others` : "";
  const unread = model.controller.unread ? `, ${model.controller.unread} not read yet` : "";
  const remark = model.controller.remark ? `; ${model.controller.remark}` : "";
  $("totals").textContent = `${all} runs, ${live} live${unread}${remark}`;
  $("folder").textContent = model.controller.folder ?? "";
}
function runRow(name, row) {
  const share = row.max_steps && !row.is_endless ? Math.min(1, row.step / row.max_steps) : null;
  const bar = make("span", {class: "bar"}, make("i"));
  if (share !== null) bar.firstChild.style.width = `${100 * share}%`;
  const step = make("td", {class: "step"}, whole(row.step), row.is_endless || !row.max_steps ? "" : ` of ${whole(row.max_steps)}`, share === null ? "" : bar);
  const remarks = make("td", {class: "text"});
  const alarms = row.alarms.filter((alarm) => alarm.answer !== "note");
  if (alarms.length) remarks.append(make("span", {class: "tag warn", title: alarms.map((alarm) => alarm.what).join("\n")}, `${alarms.length} alarm${alarms.length > 1 ? "s" : ""}`), " ");
  if (row.wandb) remarks.append(link(row.wandb, "W&B") ?? "", " ");
  remarks.append(row.damage ?? (["running", "starting"].includes(row.state) ? row.phase ?? "" : row.reason ?? row.cause?.what ?? ""));
  const line = make("tr", {class: name === chosen ? "choice chosen" : "choice", tabindex: 0, "data-run": name, "aria-selected": name === chosen},
    make("td", {class: "name"}, name), make("td", {}, stateTag(row.state)), step, cell(figure(row, "loss", 5), "num"), cell(figure(row, "reward", 4), "num"),
    cell(row.tokens_per_s === null ? "" : short(row.tokens_per_s, ` ${row.unit}/s`), "num"), cell(row.supervised ? duration(row.left_s ?? undefined) : "", "num"), cell(cost(row.usd), "num"),
    cell(row.restarts || "", "num"), make("td", {"data-time": row.last_sign_s ?? ""}, age(row.last_sign_s)), remarks);
  line.firstChild.style.borderLeft = `4px solid hsl(${hue(name)} 60% 50%)`;
  line.firstChild.style.paddingLeft = "8px";
  return line;
}

function showDevices() {
  const machines = Object.entries(model.machines).sort();
  const count = machines.reduce((sum, [, machine]) => sum + Object.keys(machine.devices).length, 0);
  $("devices-note").textContent = count ? `${count} on ${machines.length} machine${machines.length > 1 ? "s" : ""}; colour: run, border: health` : "no run trains here";
  const isSmall = count >= SMALL_FROM;
  fill($("devices"), machines.map(([host, machine]) => keep("machines", host, [machine, isSmall], () => {
    const devices = Object.entries(machine.devices).sort(([, x], [, y]) => x.index - y.index);
    const drain = machine.liveness ? make("button", {class: "small plain owner", type: "button", "data-machine": host, click: () => confirmThen(`Save and pause every run on ${host}, test its GPUs, and take it off this map until it is returned?`, () => send("machine_requested", {command: "drain"}, host), host)}, "Drain") : null;
    const members = (machine.members ?? []).map((one) => memberLine(host, one));
    return make("div", {class: "machine"}, make("b", {}, ["unknown", "lost"].includes(machine.liveness) ? `${host}: ${machine.liveness}` : host), " ", drain, ...members, make("div", {class: "cells"}, ...devices.map(([name, device]) => deviceCell(host, name, device, isSmall))));
  })));
}
/** What can be done with a machine of a run on several, and why the rest has no effect now. */
function memberLine(host, one) {
  const name = `${one.run}/${one.machine}`;
  const button = (text, command, question) => make("button", {class: "small plain", type: "button", "data-command": command, "data-of": one.run, "data-member": one.machine, disabled: one.refusals[command] !== null, title: one.refusals[command],
    click: () => confirmThen(question, () => send("command_requested", {command, gpus: [one.machine]}, one.run), name)}, text);
  const buttons = [button("Drain", "drain", `Save and pause the run on all machines, test the GPUs of ${one.machine}, and wait until it is returned?`), button("Test", "test", "Compare the results of its GPUs with known ones?"), button("Return", "return", "Let the run use it again? The run stays paused until it is resumed.")];
  const off = buttons.filter((each) => each.disabled), isOne = new Set(buttons.map((each) => each.title)).size === 1;
  const reasons = isOne ? [buttons[0].title] : off.map((each) => `${each.textContent}: ${each.title}`);
  return make("div", {class: "member", "data-member-of": one.run}, name === host ? null : make("span", {}, `${one.machine} of ${one.run}`), one.note ? make("span", {class: "tag warn"}, one.note) : null,
    make("span", {class: "owner"}, ...buttons), make("span", {class: "quiet owner"}, reasons.join("; ")));
}
/** The runs that go on without a GPU. */
const outOf = (device) => device.left_out || [];
/** Why the other ranks wait for the rank on it. */
const slowOf = (device) => device.work.map((one) => one.slow).filter(Boolean).join("; ");
function health(device) {
  if (device.fault || device.remap_failed || outOf(device).length) return "broken";
  if (device.xids.length || device.remap_pending || device.uncorrected_errors || slowOf(device) || device.stage === "suspect") return "hurt";
  return device.uuid ? "ok" : "";
}
function deviceCell(host, name, device, isSmall) {
  const work = device.work[0];
  const who = work ? `${work.rank} · ${work.run}` : "idle";
  const used = typeof device.used_bytes === "number" && device.total_bytes ? `${Math.round(100 * device.used_bytes / device.total_bytes)}% mem` : "";
  const parts = [device.utilisation_percent === null || device.utilisation_percent === undefined ? "" : `${device.utilisation_percent}%`, used, typeof device.temperature_c === "number" ? `${device.temperature_c}°C` : ""];
  const trouble = device.fault || (device.xids.length ? `XID ${device.xids.join(", ")}` : "") || (outOf(device).length ? device.stage || "left out" : "") || (slowOf(device) ? "slow" : device.stage || "");
  const lag = work && work.lag ? `${work.lag} behind` : work ? `step ${whole(work.step)}` : "";
  const element = make("button", {class: `cell ${health(device)}${isSmall ? " small" : ""}`, type: "button", "data-device": name, title: `${host} ${device.kind} ${device.index}: ${who}${trouble ? `; ${trouble}` : ""}`,
    click: () => showDevice(host, name, device)},
  make("span", {class: "who"}, isSmall ? `${work ? work.rank : "–"}` : who), make("span", {class: "more"}, `${device.kind} ${device.index} ${lag}`), make("span", {class: "more"}, trouble || parts.filter(Boolean).join(" · ")));
  if (work) element.style.background = `hsl(${hue(work.run)} 60% 50% / .22)`;
  return element;
}
function facts(pairs) { return make("dl", {}, ...pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])); }
function showDevice(host, name, device) {
  const mib = (bytes) => typeof bytes === "number" ? `${whole(bytes / 2 ** 20)} MiB` : "";
  const flag = (value) => value === null || value === undefined ? "not known" : value ? "yes" : "no";
  const isGpu = Boolean(device.uuid);
  const pairs = [["id", device.uuid], ["works for", device.work.map((one) => `${one.run}, rank ${one.rank}, step ${whole(one.step)}`).join("; ") || "no known rank"],
    ["utilisation", typeof device.utilisation_percent === "number" ? `${device.utilisation_percent} %` : isGpu ? "not known" : ""], ["memory", isGpu ? `${mib(device.used_bytes)} of ${mib(device.total_bytes)}` : ""],
    ["temperature", typeof device.temperature_c === "number" ? `${device.temperature_c} °C` : isGpu ? "not known" : ""], ["stage", device.stage], ["slow", slowOf(device)], ["fault", device.fault], ["XIDs", device.xids.join(", ") || (isGpu ? "none" : "")],
    ["uncorrectable errors", isGpu ? device.uncorrected_errors ?? "not known" : ""], ["remap failed", isGpu ? flag(device.remap_failed) : ""], ["remap waits for a reset", isGpu ? flag(device.remap_pending) : ""],
    ["left out by", outOf(device).join(", ")]];
  dialog(`${host}: ${device.kind} ${device.index}`, make("div", {}, facts(pairs), isGpu ? deviceButtons(device) : ""));
}
/** For each run that uses the GPU or goes on without it: what its supervisor can do with it. */
function deviceButtons(device) {
  const button = (run, text, command, question) => make("button", {class: "plain", type: "button", "data-command": command, "data-of": run,
    click: () => confirmThen(question, () => send("command_requested", {command, gpus: [device.uuid]}, run), run)}, text);
  const used = [...new Set(device.work.map((one) => one.run))].filter((run) => !outOf(device).includes(run));
  const lines = [...used.map((run) => [run, button(run, "Drain", "drain", "Save, end the attempt, go on without this GPU, and test it?")]),
    ...outOf(device).map((run) => [run, button(run, "Test", "test", "Compare its results with known ones?"), button(run, "Return", "return", "Use this GPU from the next attempt on?")])];
  return make("div", {class: "owner"}, ...lines.map(([run, ...buttons]) => make("div", {class: "line"}, make("b", {}, run), ...buttons)));
}

function showFailures() {
  const all = Object.entries(model.failures).flatMap(([run, found]) => found.map((one) => ({run, ...one}))).sort((a, b) => b.time_s - a.time_s);
  $("failures-note").textContent = all.length ? `${all.length}, newest first` : "none";
  $("failures").parentElement.hidden = !all.length;
  fill($("failures"), all.slice(0, ROWS_SHOWN).map((one) => {
    const recovered = one.recovered_s === null ? (model.runs[one.run]?.supervised ? "not yet" : "–") : duration(one.recovered_s);
    return make("tr", {class: "choice", tabindex: 0, "data-failure": `${one.run}/${one.attempt}`, click: () => showFailure(one)}, make("td", {}, clock(one.time_s)), make("td", {class: "name"}, one.run), cell(one.attempt, "num"), cell(whole(one.step), "num"), cell(one.what, "text"), cell(recovered, "num"));
  }));
}
async function showFailure(one) {
  const log = make("pre", {}, "reading the log ..."), beside = make("div");
  dialog(`${one.run}: attempt ${one.attempt} failed`, make("div", {}, facts([["when", clock(one.time_s)], ["at step", whole(one.step)], ["what", one.what], ["why", one.why], ["fix", one.fix], ["where", one.where], ["cause", [one.cause_class, one.cause_id].filter(Boolean).join(", ")],
    ["exit", one.returncode === null ? "not known" : one.returncode], ["newest checkpoint", one.newest_complete ? `step ${whole(one.newest_complete)}` : "none"], ["evidence", one.evidence], ["recovered in", one.recovered_s === null ? "not yet" : duration(one.recovered_s)]]), make("h4", {}, "last lines of the log"), log, beside));
  const found = await get(`/api/log?name=${encodeURIComponent(one.run)}&attempt=${one.attempt}&lines=few`);
  log.textContent = found ? found.problem ?? (found.lines.slice(-50).join("\n") || "the log is empty") : "there is no log";
  log.scrollTop = log.scrollHeight;
  beside.replaceChildren(...(found?.evidence ?? []).map((file) => make("details", {"data-evidence": file.name, open: file.name.startsWith("stacks")}, make("summary", {}, file.name), make("pre", {}, file.lines.join("\n")))));
}

// --- the chosen run -----------------------------------------------------------------------------------

function choose(name) {
  if (name !== chosen) { detail = null; resetEditor(); $("log").textContent = ""; $("log-attempt").replaceChildren(); }
  chosen = name;
  history.replaceState(null, "", name ? `#${encodeURIComponent(name)}` : "#");
  showRuns();
  askDetail();
  readLog();
}
/** Ask for the details soon, at most twice per second. */
function askDetail() {
  if (!chosen || detailDue) return;
  detailDue = setTimeout(async () => {
    detailDue = 0;
    if (detailBusy) { askDetail(); return; }
    detailBusy = true;
    const name = chosen, found = await get(`/api/run?name=${encodeURIComponent(name)}`);
    detailBusy = false;
    if (name !== chosen) { askDetail(); return; }
    if (found) { detail = found; if (isPressed) due.add(showDetail); else showDetail(); } else if (!(name in model.runs)) { $("run").hidden = true; }
  }, detail ? DETAIL_EVERY_MS : 0);
}
function showDetail() {
  const row = detail.row;
  $("run").hidden = false;
  $("run-name").textContent = detail.name;
  $("run-state").className = `state ${KINDS[row.state] ?? ""}`;
  $("run-state").textContent = row.state;
  $("run-step").textContent = `step ${whole(row.step)}${row.is_endless || !row.max_steps ? "" : ` of ${whole(row.max_steps)}`}${row.left_s ? `, ${duration(row.left_s)} left` : ""}`;
  $("run-path").textContent = detail.path;
  $("alarms").replaceChildren(...row.alarms.map((alarm) => alarm.answer === "note"
    ? make("div", {class: "quiet", title: `${alarm.why}\n${alarm.fix}`}, `note: ${alarm.what}`)
    : make("div", {class: "alarm warn"}, make("b", {}, alarm.what), make("div", {}, alarm.why), make("div", {}, alarm.fix))));
  showProposal(row);
  $("curves").parentElement.hidden = !Object.keys(detail.curves).length;
  Charts.draw($("curves"), detail);
  showReplicas();
  showCommands(row);
  showEditor();
  showCheckpoints(row);
  showTraces();
  $("entries").replaceChildren(...detail.entries.slice(-100).reverse().map((entry) => make("tr", {}, make("td", {class: "quiet"}, clock(entry.time_s)), cell(entry.text, "text"))));
}
const TIMES = [["data_s", "data", "--two"], ["rollouts_s", "rollouts", "--two"], ["forward_backward_s", "compute", "--one"], ["optimizer_s", "optimizer", "--four"], ["weights_s", "weights", "--four"], ["checkpoint_s", "wait for a save", "--bad"]];
function timesBar(times) {
  const found = TIMES.filter(([name]) => times[name] > 0), total = found.reduce((sum, [name]) => sum + times[name], 0);
  if (!total) return "";
  const stack = make("span", {class: "stack"});
  for (const [name, , shade] of found) { const part = make("i"); part.style.width = `${100 * times[name] / total}%`; part.style.background = `var(${shade})`; stack.append(part); }
  return make("div", {}, stack, make("span", {class: "legend"}, found.map(([name, text]) => `${text} ${duration(times[name])}`).join(", ")));
}
function showReplicas() {
  $("replicas").replaceChildren(...detail.replicas.slice(0, 600).map((one) => make("tr", {}, cell(one.rank, "num"), cell(one.device), cell(whole(one.step), "num"), cell(one.lag === null ? "" : one.lag, "num"), cell(number(one.loss, 5), "num"),
    make("td", {}, timesBar(one.times)), cell(one.settings ?? "", "num"), cell(whole(one.checkpoint), "num"), make("td", {"data-time": one.last_sign_s ?? ""}, age(one.last_sign_s)))));
}
function showCommands(row) {
  const buttons = [];
  const command = (text, body, question, kind = "command_requested", run = chosen) => make("button", {class: "plain", type: "button", "data-command": body.command ?? "stop", click: () => confirmThen(question, () => send(kind, body, run), run)}, text);
  if (row.supervised) {
    if (row.drained) buttons.push(command(`Return ${row.machine}`, {command: "return"}, `Resume the runs on ${row.machine}, and put it on the map again?`, "machine_requested", row.machine));
    else if (row.state === "paused") buttons.push(command("Resume", {command: "resume"}, "Go on from the newest checkpoint?"));
    else buttons.push(command("Save now", {command: "checkpoint"}, "Save a checkpoint at the next step?"), command("Pause", {command: "pause"}, "Save, end the processes and free the GPUs until the run is resumed?"));
    // These are not on the map of another machine any more.
    for (const {uuid, test} of detail.row.machine ? row.left_out : []) buttons.push(make("span", {class: "quiet", "data-left-out": uuid}, `${uuid} is left out${test ? `, ${test.passed ? "passed" : "FAILED"}: ${test.what}` : ""}`),
      command("Test", {command: "test", gpus: [uuid]}, `Compare the results of ${uuid} with known ones?`), command("Return", {command: "return", gpus: [uuid]}, `Use ${uuid} from the next attempt on?`));
    // A second stop would end the run without a checkpoint.
    if (!row.stopping) buttons.push(command("Stop", {}, "Save a checkpoint and end the run? The command that started it resumes it.", "stop_requested"));
  }
  const shown = `${chosen}/${row.state}/${row.supervised}/${row.stopping}/${row.drained}/${JSON.stringify(row.left_out)}`;
  if ($("commands").dataset.of !== shown) { $("commands").replaceChildren(...buttons); $("commands").dataset.of = shown; }
}
/** The change that the policy on instability proposes, and the click that makes it. */
function showProposal(row) {
  const one = row.proposal, shown = JSON.stringify([chosen, one, row.supervised]);
  if ($("proposal").dataset.of === shown) return;
  $("proposal").dataset.of = shown;
  $("proposal").hidden = !one;
  if (!one) return;
  const accept = make("button", {class: "plain owner", type: "button", "data-command": "accept", click: () => confirmThen(`Make this change: ${one.change}?`, () => send("command_requested", {command: "accept", step: one.number}))}, "Accept");
  $("proposal").replaceChildren(make("b", {}, `proposed: ${one.change}`), make("div", {}, one.what), row.supervised ? accept : "");
}
function showCheckpoints(row) {
  const found = detail.checkpoints;
  const lines = found.checkpoints.map((one) => {
    const [pin, text, question] = one.pinned ? ["unpin", "Unpin", `Let deletions take the checkpoint of step ${whole(one.step)} again?`] : ["pin", "Pin", `Keep the checkpoint of step ${whole(one.step)} from every deletion?`];
    const pinning = one.complete || one.pinned ? make("button", {class: "small plain owner", type: "button", "data-pin": one.step, click: () => confirmThen(question, () => send("command_requested", {command: pin, step: one.step}))}, text) : "";
    const back = row.supervised && one.complete ? make("button", {class: "small plain owner", type: "button", "data-step": one.step, click: () => confirmThen(`End the attempt and resume from step ${whole(one.step)}? Later steps are trained again.`, () => send("command_requested", {command: "go_back", step: one.step}))}, "Resume from here") : "";
    return make("tr", {}, cell(whole(one.step), "num"), cell(short(one.size_bytes, "B"), "num"), cell(duration(one.age_s), "num"), cell([one.problem ?? (one.resume ? "complete; a resume uses it" : "complete"), one.pinned ? "pinned" : ""].filter(Boolean).join("; "), "text"), make("td", {}, pinning, " ", back));
  });
  const remark = found.problem ?? (lines.length ? "" : "none yet");
  fill($("checkpoints"), remark ? [...lines, make("tr", {}, make("td", {colspan: 5, class: found.problem ? "" : "quiet"}, remark))] : lines);
}
/** The traces that a person may save; a note stands for one that the controller does not have. */
function showTraces() {
  const found = detail.traces ?? [];
  $("traces").closest("div").hidden = !found.length;
  const address = (one) => `/api/trace?name=${encodeURIComponent(detail.name)}&trace=${encodeURIComponent(one.name)}`;
  $("traces").replaceChildren(...found.map((one) => make("tr", {}, make("td", {class: "name"}, one.ready ? make("a", {href: address(one), download: one.name, "data-trace": one.name}, one.name) : one.name),
    cell(short(one.size_bytes, "B"), "num"), make("td", {"data-time": one.saved_s}, age(one.saved_s)), cell(one.note, "text"))));
}

// --- the editor of live settings ----------------------------------------------------------------------

let shownKeys = "", verdict = null, judgeDue = 0, seen = 0, isApplying = false;
/** What may change, with its value. Of a run on another machine only the values are known here. */
const liveKeys = () => detail?.editor?.keys ?? Object.entries(detail?.values ?? {}).map(([key, value]) => ({key, value, legal: "", effect: "", obstacle: null}));
const keyInputs = () => [...$("keys").querySelectorAll("input")];
const newest = () => Math.max(0, ...(detail?.settings ?? []).map((one) => one.version));
const isEditing = () => [...keyInputs(), $("other-key"), $("other-value")].some((input) => input.value !== "");
function resetEditor() {
  const by = $("by").value;
  $("editor").reset();
  $("by").value = by;
  shownKeys = "";
  $("keys").replaceChildren();
  preview();
}
function keyLine(one) {
  const input = make("input", {class: "owner", "data-key": one.key, inputmode: "decimal", maxlength: 100, placeholder: "change to", title: `${one.legal}; ${one.effect}`});
  return make("label", {class: "key", title: one.effect}, make("code", {}, one.key), make("span", {class: "num", "data-value": one.key}, asText(one.value)), ...(one.obstacle ? [make("span", {class: "quiet obstacle"}, one.obstacle)] : [input, make("span", {class: "quiet legal"}, one.legal)]));
}
const asText = (value) => value === null || value === undefined ? "unset" : typeof value === "object" ? JSON.stringify(value) : String(value);
function showEditor() {
  const keys = liveKeys(), problem = detail.editor?.problem, signature = JSON.stringify([keys, problem]);
  // The version on which an edit is based is the one that its author saw when it began: a later one refuses it.
  if (!isEditing()) seen = newest();
  if (signature !== shownKeys && isEditing()) {
    for (const one of keys) for (const shown of $("keys").querySelectorAll("[data-value]")) if (shown.dataset.value === one.key) shown.textContent = asText(one.value);
  } else if (signature !== shownKeys) {
    shownKeys = signature;
    $("keys").replaceChildren(...keys.map(keyLine));
    if (!keys.length) $("keys").replaceChildren(make("span", {class: "quiet"}, problem ?? "no key of this run changes while it trains"));
  }
  for (const input of [...keyInputs(), $("other-key"), $("other-value")]) input.disabled = !detail.row.supervised;
  const applied = new Map(detail.entries.filter((entry) => entry.kind === "settings_applied").map((entry) => [entry.details.version, entry.step]));
  const versions = [...detail.settings].reverse().map((one) => {
    const values = Object.entries(one.values ?? {}), isDropped = !values.length;
    return make("div", {class: "version"}, make("b", {}, `${one.version}: `), isDropped ? "dropped: the run went back to a step before it" : values.map(([key, value]) => `${key} = ${asText(value)}`).join(", "),
      make("div", {class: "quiet"}, [isDropped ? "" : applied.has(one.version) ? `in force from step ${whole(applied.get(one.version))}` : "not in force yet", one.by, one.why, clock(one.requested_s)].filter(Boolean).join(" · ")),
      Object.keys(one.before ?? {}).length && detail.row.supervised ? make("button", {class: "small plain owner", type: "button", "data-back": one.version, click: () => fillEditor(one.before, `back to before version ${one.version}`)}, "Roll back") : null);
  });
  fill($("versions"), versions.length ? versions : [make("span", {class: "quiet"}, "nothing was changed")]);
  showPreview();
}
/** Put values into the editor, where they are looked at before they are applied. */
function fillEditor(values, why) {
  for (const input of [...keyInputs(), $("other-key"), $("other-value")]) input.value = "";
  const left = [];
  for (const [key, value] of Object.entries(values)) {
    const input = keyInputs().find((one) => one.dataset.key === key);
    if (input) input.value = asText(value);
    else left.push(key);
  }
  if (left.length) notice({what: `left out: ${left.join(", ")}`, why: "the editor has no line for it", fix: `prime-train set ${chosen} --undo VERSION`}, true);
  seen = newest();
  $("why").value = why;
  preview();
}
function parseValue(text) {
  if (text === "unset") return null;
  try { return JSON.parse(text); } catch { return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text; }
}
function edited() {
  const now = new Map(liveKeys().map((one) => [one.key, one.value])), found = {};
  const given = keyInputs().map((input) => [input.dataset.key, input.value.trim()]);
  if ($("other-key").value.trim()) given.push([$("other-key").value.trim(), $("other-value").value.trim()]);
  for (const [key, text] of given) {
    if (text === "" && now.has(key)) continue;
    const value = parseValue(text);
    if (JSON.stringify(value) !== JSON.stringify(now.get(key))) found[key] = value;
  }
  return found;
}
/** Show what changes, and ask soon whether the supervisor would take it. */
function preview() {
  verdict = null;
  clearTimeout(judgeDue);
  const name = chosen, values = JSON.stringify(edited());
  if (values !== "{}" && role === "owner") judgeDue = setTimeout(async () => {
    const found = await ask(`/api/preview?name=${encodeURIComponent(name)}&values=${encodeURIComponent(values)}`);
    if (name !== chosen || values !== JSON.stringify(edited())) return;
    verdict = found ?? {}; // no answer: the supervisor judges it
    showPreview();
  }, JUDGE_AFTER_MS);
  showPreview();
}
function showPreview() {
  const now = new Map(liveKeys().map((one) => [one.key, one.value])), changes = Object.entries(edited());
  $("preview").replaceChildren(...changes.map(([key, value]) => {
    const before = now.get(key), times = typeof before === "number" && typeof value === "number" && before ? ` (× ${number(value / before, 3)})` : "";
    return make("div", {}, now.has(key) ? `${key}: ${asText(before)} → ${asText(value)}${times}` : `${key} → ${asText(value)}`);
  }));
  const later = newest() > seen && changes.length > 0;
  if (later) {
    const found = detail.settings.filter((one) => one.version > seen).map((one) => `${one.by || "another author"} set ${Object.entries(one.values ?? {}).map(([key, value]) => `${key} = ${asText(value)}`).join(", ")}`);
    $("preview").append(make("div", {class: "refused"}, make("b", {}, `version ${newest()} came while this was written`), make("div", {}, found.join("; ")),
      make("button", {class: "small plain", type: "button", "data-command": "keep", click: () => { seen = newest(); showPreview(); }}, "Keep my values")));
  }
  // An error without an exit code is one of the controller, which leaves the verdict to the supervisor.
  const refused = verdict?.error?.exit_code === undefined ? null : verdict.error;
  if (refused) $("preview").append(make("div", {class: "refused"}, make("b", {}, refused.what), make("div", {}, refused.why), make("div", {}, refused.fix)));
  else if (changes.length) $("preview").append(make("span", {class: "quiet"}, verdict?.texts ? "checked as in the config: all ranks apply it at the same step" : verdict ? "the supervisor checks it when it is applied" : "is checked ..."));
  $("apply").disabled = !changes.length || refused !== null || later || isApplying;
}
async function applyChanges() {
  const name = chosen;
  isApplying = $("apply").disabled = true; // a second click would be a second change
  const answer = await send("settings_requested", {values: edited(), why: $("why").value.trim(), expected: seen});
  isApplying = false;
  if (name !== chosen) return;
  if (answer && answer.outcome !== "refused") resetEditor();
  else showPreview();
}

// --- requests, dialogs, notices -----------------------------------------------------------------------

/** The document, also that of an error; null without an answer. */
async function ask(address) {
  try {
    const answer = await fetch(address, {signal: AbortSignal.timeout(ANSWER_MS)}); // one that never comes would hold up all later ones
    if (answer.status === 401) lockOut();
    return await answer.json();
  } catch { return null; }
}
async function get(address) {
  const found = await ask(address);
  return found?.error ? null : found;
}
async function send(kind, values, run = chosen) {
  const body = kind === "stop_requested" ? values : {...values, by: $("by").value.trim() || "the page"};
  const id = [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const request = {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({run, kind, id, body})};
  try {
    const answer = await fetch("/api/request", request), found = await answer.json();
    notice(found.error ?? found, Boolean(found.error) || ["refused", "failed"].includes(found.outcome));
    return found.error ? null : found;
  } catch {
    notice({what: "no answer came", why: "the controller is gone, so the effect is not known", fix: "look at the events of the run"}, true);
    return null;
  } finally { askDetail(); }
}
function notice(found, failed) {
  const element = make("div", {class: failed ? "notice failed" : "notice"}, make("b", {}, failed ? found.what : `${found.outcome}: ${found.what}`), ...[found.why, found.fix].filter(Boolean).map((text) => make("div", {}, text)));
  element.addEventListener("click", () => element.remove());
  $("notices").append(element);
  setTimeout(() => element.remove(), failed ? 30000 : 10000);
}
function dialog(title, body, yes = null) {
  if ($("dialog").open) $("dialog").close();
  $("dialog-title").textContent = title;
  $("dialog-body").replaceChildren(body);
  $("dialog-yes").hidden = !yes;
  $("dialog-no").textContent = yes ? "No" : "Close";
  $("dialog").onclose = () => { if (yes && $("dialog").returnValue === "yes") yes(); };
  $("dialog").returnValue = "";
  $("dialog").showModal();
}
const confirmThen = (question, act, run = chosen) => dialog(run, make("p", {}, question), act);

// --- the log ------------------------------------------------------------------------------------------

async function readLog() {
  const name = chosen, attempt = $("log-attempt").value;
  if (!name || document.hidden) return;
  const found = await get(`/api/log?name=${encodeURIComponent(name)}&attempt=${attempt}`);
  if (name !== chosen || attempt !== $("log-attempt").value || !found) return;
  const options = ["", ...found.attempts.map(String).reverse()];
  if ($("log-attempt").children.length !== options.length) { $("log-attempt").replaceChildren(...options.map((one) => make("option", {value: one}, one || "latest"))); $("log-attempt").value = attempt; }
  const text = found.problem ?? found.lines.join("\n");
  if ($("log").textContent === text) return;
  $("log").textContent = text;
  if ($("log-follow").checked) $("log").scrollTop = $("log").scrollHeight;
}

// --- the stream ---------------------------------------------------------------------------------------

const due = new Set(); // what is shown again at the next frame; a page that is not visible has none
let shownAt = 0, isPressed = false;
function show() {
  cancelAnimationFrame(shownAt);
  shownAt = 0;
  if (isPressed) return; // a click is lost if its element is replaced before the button is released
  for (const part of due) part();
  due.clear();
  if (!chosen && isReady) { const first = $("runs").firstChild?.dataset?.run; if (first) choose(first); }
}
function take(kind, data) {
  if (kind === "state") model = createModel();
  for (const [section, changed] of Object.entries(data)) {
    for (const [name, value] of Object.entries(changed)) { if (value === null) delete model[section]?.[name]; else (model[section] ??= Object.create(null))[name] = value; }
  }
  for (const of of ["runs", "machines"]) for (const [name, value] of Object.entries(data[of] ?? {})) if (value === null) kept[of].delete(name);
  if (kind === "state") for (const map of Object.values(kept)) map.clear();
  if (data.runs || data.controller) due.add(showRuns);
  if (data.machines) due.add(showDevices);
  if (data.failures || Object.keys(data.runs ?? {}).some((name) => name in model.failures)) due.add(showFailures);
  if (kind === "state") show(); else if (!shownAt) shownAt = requestAnimationFrame(show);
  if (chosen && (kind === "state" || data.runs?.[chosen] || data.failures?.[chosen])) askDetail();
}
function connected(text, kind) { $("connection").textContent = text; $("connection").className = `tag ${kind}`; }
let isLockedOut = false;
function lockOut() { isLockedOut = true; connected("locked out: open the address that prime-train control prints", "bad"); }
let source = null;
function follow() {
  source = new EventSource(`/api/stream?since=${encodeURIComponent(lastId)}`);
  const handle = (kind) => (event) => { lastId = event.lastEventId; take(kind, JSON.parse(event.data)); };
  source.addEventListener("state", handle("state"));
  source.addEventListener("change", handle("change"));
  source.onopen = () => { isLockedOut = false; connected("live", "good"); };
  source.onerror = () => {
    if (!isLockedOut) connected("connection lost; trying again", "warn");
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, AGAIN_MS); // the server refused: the browser gives up
  };
}

/** The name of a run in the address; "" where there is none. */
function readHash() {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
}
function release() {
  if (!isPressed) return;
  isPressed = false;
  if (due.size) show();
}

async function start() {
  $("filter").addEventListener("input", showRuns);
  const pick = (event) => { const line = event.target.closest("tr[data-run]"); if (line && !event.target.closest("a")) choose(line.dataset.run); };
  $("runs").addEventListener("click", pick);
  document.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target.matches?.("tr.choice")) event.target.click(); });
  $("editor").addEventListener("input", preview);
  $("editor").addEventListener("reset", () => setTimeout(() => { shownKeys = ""; if (detail) showEditor(); preview(); }));
  $("editor").addEventListener("submit", (event) => { event.preventDefault(); applyChanges(); });
  $("log-attempt").addEventListener("change", readLog);
  setInterval(() => { if ($("log-follow").checked) readLog(); }, LOG_EVERY_MS);
  setInterval(() => { for (const element of document.querySelectorAll("[data-time]")) element.textContent = element.dataset.time ? age(Number(element.dataset.time)) : ""; }, 1000);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (detail) showDetail(); });
  addEventListener("hashchange", () => { if (readHash() in model.runs && readHash() !== chosen) choose(readHash()); });
  addEventListener("pointerdown", () => { isPressed = true; }, true);
  for (const kind of ["pointerup", "pointercancel", "blur"]) addEventListener(kind, () => setTimeout(release)); // after the click
  addEventListener("pointermove", (event) => { if (!event.buttons) release(); }); // a scroll bar reports no end
  let found = await get("/api/state");
  while (!found) { // the controller starts again; without its answer the page would not know what it may do
    if (!isLockedOut) connected("no answer; trying again", "warn");
    await new Promise((resume) => setTimeout(resume, AGAIN_MS));
    found = await get("/api/state");
  }
  role = found.role;
  lastId = found.id;
  document.body.classList.toggle("viewer", role !== "owner");
  $("role").hidden = role === "owner";
  isReady = true;
  const {runs, machines, failures, controller} = found;
  if (readHash() in runs) chosen = readHash();
  take("state", {runs, machines, failures, controller});
  if (chosen) choose(chosen);
  follow();
}
start();
